"""`--label-fixes`: labels of training rows are changed and rows are dropped, before rows are split."""

import json

import pytest
import yaml
from conftest import (
    assert_refused,
    make_ner_rows,
    make_nli_rows,
    make_qa_rows,
    make_swag_rows,
    make_toy_rows,
    read_predictions,
    write_rows,
)

import bertkit
from bertkit.errors import UserError
from bertkit.run.load_data import create_task, hash_inputs, parse_all_rows, split_parsed_rows
from bertkit.tasks import task_definition


def make_fix(index, inputs, action, old, new=None, **part):
    """A decision about the row with this index in `rows.jsonl`."""
    [digest] = hash_inputs({column: [value] for column, value in enumerate(inputs)}, range(len(inputs)))
    return {
        "file": "rows.jsonl", "row": index + 1, "text": digest, **part, "action": action,
        "from": old, "to": new,
    }  # fmt: skip


def load(tmp_path, task_name, rows, fixes, **settings):
    """Return the task and the training rows after the fixes."""
    settings |= {"data": str(write_rows(tmp_path / "rows.jsonl", rows))}
    if fixes is not None:
        settings["label_fixes"] = str(write_rows(tmp_path / "fixes.jsonl", fixes))
    task = create_task(task_name, task_definition(task_name).config(**settings))
    return task, parse_all_rows(task, task.load_data())


def get_labels(tmp_path, task_name, rows, fixes, **settings):
    """Return the labels of the training rows after the fixes."""
    task, dataset = load(tmp_path, task_name, rows, fixes, **settings)
    task.validate_splits({"train": dataset.splits["train"]})
    return task.get_labels(dataset.splits["train"])


def test_labels_are_changed_and_rows_dropped(tmp_path):
    rows = make_toy_rows(20)
    fixes = [
        make_fix(3, [rows[3]["text"]], "change", "positive", "negative"),
        make_fix(4, [rows[4]["text"]], "drop", "negative"),
        make_fix(5, [rows[5]["text"]], "keep", "positive"),
    ]
    expected = [row["label"] for row in rows]
    expected[3] = "negative"
    del expected[4]
    assert get_labels(tmp_path, "classify", rows, fixes) == expected
    assert read_predictions(tmp_path, "rows.jsonl") == rows  # the data is not changed


@pytest.mark.parametrize(("action", "count"), [("drop", 1), ("keep", 0)])
def test_dropped_rows_change_the_sample(tmp_path, action, count):
    rows = make_toy_rows(20)
    fixes = [make_fix(0, [rows[0]["text"]], action, rows[0]["label"])]
    _, dataset = load(tmp_path, "classify", rows, fixes, max_train_samples=10)
    assert sum("--max-train-samples" in note for note in dataset.notes) == count


def test_integer_labels_keep_their_type(tmp_path):
    rows = [{"text": f"text {n}", "label": n % 3} for n in range(30)]
    _, dataset = load(tmp_path, "classify", rows, [make_fix(1, ["text 1"], "change", "1", "2")])
    assert list(dataset.splits["train"]["label"])[:4] == [0, 2, 2, 0]


def test_label_sets_are_changed_label_by_label(tmp_path):
    rows = [{"text": f"text {n}", "label": ["a;b", "a", "b"][n % 3]} for n in range(30)]
    fixes = [
        make_fix(0, ["text 0"], "change", True, False, label="a"),
        make_fix(0, ["text 0"], "change", True, False, label="b"),
        make_fix(1, ["text 1"], "change", False, True, label="b"),
    ]
    labels = get_labels(tmp_path, "classify", rows, fixes, problem="multi-label")
    assert labels[:3] == [[], ["a", "b"], ["b"]]


def test_numbers_are_changed(tmp_path):
    rows = [{"text": f"text {n}", "label": n / 10} for n in range(30)]
    fixes = [make_fix(7, ["text 7"], "change", 0.7, 2.25)]
    assert get_labels(tmp_path, "classify", rows, fixes, problem="regression")[6:9] == [0.6, 2.25, 0.8]


def test_pairs_and_endings_are_changed(tmp_path):
    pairs = make_nli_rows(12)
    fix = make_fix(0, [pairs[0]["premise"], pairs[0]["hypothesis"]], "change", "entailment", "neutral")
    assert get_labels(tmp_path, "nli", pairs, [fix])[:2] == ["neutral", "neutral"]
    rows = make_swag_rows(12, endings=(4,))
    old = rows[0]["label"]
    new = (old + 1) % 4
    fix = make_fix(0, [rows[0]["context"], rows[0]["endings"]], "change", old, new)
    assert get_labels(tmp_path, "swag", rows, [fix])[:2] == [new, rows[1]["label"]]


@pytest.mark.parametrize(("write", "expected"), [
    (lambda row: row["label"] + 1, lambda _, new: new + 1),
    (lambda row: "ABCD"[row["label"]], lambda _, new: "ABCD"[new]),
    (lambda row: row["endings"][row["label"]], lambda row, new: row["endings"][new]),
])  # fmt: skip
def test_endings_are_named_as_before(tmp_path, write, expected):
    rows = make_swag_rows(40, endings=(4,))
    old = rows[0]["label"]
    new = (old + 1) % 4
    written = [row | {"label": write(row)} for row in rows]
    fix = make_fix(0, [rows[0]["context"], rows[0]["endings"]], "change", old, new)
    _, dataset = load(tmp_path, "swag", written, [fix])
    assert dataset.splits["train"]["label"][0] == expected(rows[0], new)


def test_words_are_changed_and_stay_legal(tmp_path):
    rows = make_ner_rows(12)
    tokens, tags = ["good", "great", "film"], ["B-NICE", "I-NICE", "O"]
    rows[2] = {"tokens": tokens, "tags": tags}
    task, dataset = load(tmp_path, "ner", rows, [make_fix(2, [tokens], "change", "B-NICE", "O", word=0)])
    train = dataset.splits["train"]
    assert task.get_labels(train)[2] == train["tags"][2] == ["O", "B-NICE", "O"]
    assert task.get_labels(train)[:2] == [rows[0]["tags"], rows[1]["tags"]]
    fixes = [
        make_fix(2, [tokens], "change", "B-NICE", "O", word=0),
        make_fix(2, [tokens], "change", "I-NICE", "B-MEAN", word=1),
    ]
    assert get_labels(tmp_path, "ner", rows, fixes)[2] == ["O", "B-MEAN", "O"]


@pytest.mark.parametrize(("task_name", "part", "old", "new", "words"), [
    ("ner", {}, ["O", "O"], "O", "lacks the key 'word'"),
    ("ner", {"label": "O"}, True, False, "lacks the key 'word'"),
    ("ner", {"word": 0}, "O", 1, "cannot change the label to 1; write a tag in 'to'"),
    ("classify", {}, ["a"], "b", "lacks the key 'label'"),
    ("classify", {"label": "a"}, True, "b", "cannot change the label to 'b'; write true or false in 'to'"),
])  # fmt: skip
def test_a_part_of_the_label_is_selected_as_the_task_requires(tmp_path, task_name, part, old, new, words):
    rows = {
        "ner": [
            {"tokens": ["old", name], "tags": ["O", tag]} for name, tag in (("Rome", "B-LOC"), ("x", "O"))
        ],
        "classify": [{"text": f"text {n}", "label": ["a", "a;b"][n % 2]} for n in range(10)],
    }[task_name]
    inputs = [rows[0]["tokens" if task_name == "ner" else "text"]]
    settings = {} if task_name == "ner" else {"problem": "multi-label"}
    with pytest.raises(UserError, match=words):
        load(tmp_path, task_name, rows, [make_fix(0, inputs, "change", old, new, **part)], **settings)


def test_questions_can_be_dropped_but_not_changed(tmp_path):
    rows = make_qa_rows(12)
    texts = [answer["text"] for answer in rows[3]["answers"]]
    inputs = [rows[3]["question"], rows[3]["context"]]
    assert len(get_labels(tmp_path, "qa", rows, [make_fix(3, inputs, "drop", texts)])) == 11
    with pytest.raises(UserError, match="only 'keep' and 'drop' apply to qa"):
        load(tmp_path, "qa", rows, [make_fix(3, inputs, "change", texts, "film")])


def test_no_row_is_held_out_with_its_old_label(tmp_path):
    rows = make_toy_rows(40)
    swapped = {"positive": "negative", "negative": "positive"}
    fixes = [make_fix(n, [row["text"]], "change", row["label"], swapped[row["label"]])
             for n, row in enumerate(rows)]  # fmt: skip
    task, _ = load(tmp_path, "classify", rows, fixes)
    task.resolve(validation_fraction=0.5)
    splits = split_parsed_rows(task, parse_all_rows(task, task.load_data()))
    old = {row["text"]: row["label"] for row in rows}
    for split in splits.values():
        assert [old[text] for text in split["text"]] == [swapped[label] for label in split["label"]]


@pytest.mark.slow
def test_command_records_and_prints_the_fixes(tmp_path, tiny, cli):
    rows = make_toy_rows(40)
    fixes = [make_fix(3, [rows[3]["text"]], "drop", "positive")]
    write_rows(tmp_path / "rows.jsonl", rows)
    path = write_rows(tmp_path / "fixes.jsonl", fixes)
    args = ["--data", "rows.jsonl", "--label-fixes", "fixes.jsonl", "-m", tiny, "--max-steps", 1, "-o", "run"]
    status, _, err = cli("classify", *args)
    assert status == 0, err
    assert "fixes.jsonl: 0 training rows changed, 1 dropped" in err
    content = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    assert content["settings"]["label_fixes"] == str(path)
    recorded = content["provenance"]["label_fixes"]
    assert (recorded["file"], recorded["changed"], recorded["dropped"]) == (str(path), 0, 1)
    assert len(recorded["sha256"]) == 64
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["data"]["train"] + metrics["data"]["validation"] == 39
    assert bertkit.evaluate("run").metrics["validation"]  # the fixes are applied to the reloaded data


GOOD = make_toy_rows(20)[3]["text"]


@pytest.mark.parametrize(("line", "words"), [
    ("{", ["line 2", "cannot parse it as JSON"]),
    ('{"file": "rows.jsonl"}', ["line 2", "missing required field `row`", "label_issues.html"]),
    (make_fix(3, [GOOD], "rename", "positive"), ["line 2", "Invalid enum value 'rename'"]),
    (make_fix(3, [GOOD], "change", "positive"), ["line 2", "no new label"]),
    (make_fix(3, [GOOD], "change", "negative", "positive"), ["line 2", "has the label 'positive'"]),
    (make_fix(3, [GOOD], "change", "positive", "neutral"), ["line 2", "'neutral'", "does not occur"]),
    (make_fix(2, [GOOD], "drop", "positive"), ["line 2", "another text"]),
    (make_fix(99, [GOOD], "drop", "positive"), ["line 2", "no row 100 of rows.jsonl"]),
    (make_fix(1, [make_toy_rows(20)[1]["text"]], "drop", "positive"), ["line 2", "the same label as line 1"]),
    (make_fix(3, [GOOD], "change", "positive", ["negative"]), ["line 2", "got `array` - at `$.to`"]),
    (make_fix(3, [GOOD], "change", "positive", "a" * 10_000), ["line 2", "aaa...: does not occur"]),
    (make_fix(3, [GOOD], "change", "p", "negative", word=0), ["line 2", "each row has a single label"]),
    (make_fix(3, [GOOD], "drop", True, label="pos"), ["line 2", "each row has a single label"]),
    (make_fix(10**30, [GOOD], "drop", "positive"), ["line 2", "no row 1000"]),
])  # fmt: skip
def test_wrong_fix_is_refused_in_one_line(tmp_path, tiny, cli, line, words):
    rows = make_toy_rows(20)
    write_rows(tmp_path / "rows.jsonl", rows)
    first = make_fix(1, [rows[1]["text"]], "keep", "positive")
    lines = [json.dumps(part) if isinstance(part, dict) else part for part in (first, line)]
    (tmp_path / "fixes.jsonl").write_text("\n".join(lines))
    args = ["--data", "rows.jsonl", "--label-fixes", "fixes.jsonl", "-m", tiny]
    assert_refused(cli, tmp_path, args, words)


@pytest.mark.slow
def test_missing_file_and_lost_classes_are_refused(tmp_path, tiny, cli):
    rows = make_toy_rows(6)
    write_rows(tmp_path / "rows.jsonl", rows)
    args = ["--data", "rows.jsonl", "--label-fixes", "fixes.jsonl", "-m", tiny]
    assert_refused(cli, tmp_path, args, ["--label-fixes fixes.jsonl", "cannot be read", "check the path"])
    fixes = [make_fix(n, [rows[n]["text"]], "drop", "positive") for n in (1, 3, 5)]
    write_rows(tmp_path / "fixes.jsonl", fixes)
    assert_refused(cli, tmp_path, args, ["no training row of 'positive' remains"])
    assert_refused(cli, tmp_path, args, ["--label-fixes"], command="pretrain-mlm-nsp")
