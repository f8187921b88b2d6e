"""Integer labels: class ids are classes, and years, counts and scores are numbers."""

import pytest
from conftest import make_toy_rows, write_rows

from bertkit.data.labels import infer_label_type


def repeat(labels, times):
    return [label for label in labels for _ in range(times)]


COUNTS = [number for number in range(30) for _ in range(max(1, 200 >> number))]  # fewer and fewer rows
KINDS = {
    "class ids from 0": (repeat(range(77), 3), "multi-class"),
    "class ids from 1": (repeat(range(1, 151), 2), "multi-class"),
    "class ids as texts": (repeat(map(str, range(77)), 3), "multi-class"),
    "class ids as floats": (repeat(map(float, range(77)), 3), "multi-class"),
    "ratings": ([1, 2, 3, 4, 5], "multi-class"),
    "two integers": ([3, 9], "binary"),
    "years": (repeat(range(1980, 2020), 5), "regression"),
    "ages": (repeat(range(18, 80), 5), "regression"),
    "a number for each row": (list(range(50)), "regression"),
    "integers with gaps": (repeat(range(0, 200, 2), 5), "regression"),
    "counts with rare large values": (COUNTS, "regression"),
    "percentages": (repeat(range(101), 5), "regression"),
    "scores": ([0.0, 1.0, 2.0, 2.5] * 9, "regression"),
    "integers below zero": (repeat(range(-30, 31), 5), "regression"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_type_of_numbers_is_inferred(name):
    labels, label_type = KINDS[name]
    assert infer_label_type(labels)[0] == label_type


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (range(77), "(consecutive integers from 0 to 76, each in several rows); --problem regression"),
        (range(1980, 2020), "start at 1980, not at 0 or 1); --problem multi-class"),
        ([1, 2, 3, 4, 5], "(5 different integers); --problem regression"),
    ],
)
def test_the_note_has_the_reason_and_the_flag(labels, note):
    assert note in infer_label_type(repeat(labels, 2))[1]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["0", "0,5", "1", "1,5", "2"], "regression"),
        (["0", "1", "2", "0,1", "0,2"], "multi-label"),
        (["0,25", "1,5", "2,75"], "regression"),
        (["0,125", "0,250", "0,375"], "regression"),
        (["1,200", "3,400", "5,600"], "multi-class"),
        (["1_1", "1_2", "2_1"], "multi-class"),
        (["10%", "20 %", "5%"], "regression"),
        (["|c#|.net|", "|java|", "|python|pandas|"], "multi-label"),
        (["<java>", "<python><pandas>"], "multi-label"),
        (["urgent", "billing", "urgent#billing", "other"], "multi-label"),
        (["C#", "C", "Java"], "multi-class"),
    ],
)
def test_notations_of_numbers(labels, kind):
    assert infer_label_type(repeat(labels, 2))[0] == kind


@pytest.mark.parametrize(
    ("labels", "label_type", "note"),
    [
        (["['a', 'b']", "['a'", "c"], "multi-class", "\"['a'\" is not a list; --problem multi-label"),
        (["a", "b", "a, b", "a, c"], "multi-label", "with ',' between the labels of 'a, b'; --problem"),
        (["a", "a, b", "c, d"], "multi-class", "labels with ',' are read as classes; --problem multi-label"),
        ([["a"], ["b"], True], "multi-label", "True is a set of one label"),
        ([["a"], ["b"], []], "multi-label", "a list has no label, and the others have one"),
    ],
)
def test_a_label_unlike_the_others_is_named(labels, label_type, note):
    """One damaged cell changes how all labels are read."""
    inferred, reason = infer_label_type(repeat(labels, 2))
    assert inferred == label_type
    assert note in reason


@pytest.mark.parametrize("labels", [[0, 1], ["good", "bad"], [0.5, 1.5], ["a|b", "b"], [["a", "c"], ["b"]]])
def test_obvious_types_have_no_note(labels):
    assert infer_label_type(repeat(labels, 2))[1] == ""


@pytest.mark.parametrize(
    ("flags", "summary", "note"),
    [
        ((), "multi-class of text by label", "labels are read as classes"),
        (("--problem", "regression"), "regression of text by label", None),
    ],
)
def test_the_inferred_type_is_printed_and_can_be_overridden(cli, tiny, tmp_path, flags, summary, note):
    rows = [{**row, "label": index % 25} for index, row in enumerate(make_toy_rows(100))]
    data = write_rows(tmp_path / "intents.jsonl", rows)
    status, _, err = cli("classify", "--data", data, "--model", tiny, "--dry-run", *flags)
    assert status == 0, err
    assert summary in err
    assert ("labels are read as" in err) == (note is not None)
    assert note is None or note in err
