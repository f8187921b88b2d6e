"""The positive class of two labels: inferred from their names, printed, and scored by `positive_f1`."""

import json

import pytest
from conftest import make_toy_rows, write_rows

from bertkit.tasks.text.label_types import infer_positive_label

NAMES = {"positive": "duplicate", "negative": "not_duplicate"}


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (["duplicate", "not_duplicate"], "duplicate"),
        (["not_duplicate", "duplicate"], "duplicate"),
        (["Toxic", "non-toxic"], "Toxic"),
        (["helpful", "unhelpful"], "helpful"),
        (["entity", "No Entity"], "entity"),
        (["entailment", "not entailment"], "entailment"),
        (["Positive", "negative"], "Positive"),
        (["true", "False"], "true"),
        (["yes", "no"], "yes"),
        (["긍정", "부정"], "긍정"),
        (["1", "0"], "1"),
        (["0", "1"], "1"),
        (["neg", "pos"], "pos"),
        (["ham", "spam"], "spam"),
        (["OFF", "NOT"], "NOT"),
        (["-", "no"], "no"),
        (["1", "2"], "2"),
        (["positive", "sarcastic"], "sarcastic"),
    ],
)
def test_the_label_that_the_other_one_negates_is_positive(labels, positive):
    assert infer_positive_label(labels) == positive


@pytest.fixture
def pairs(tmp_path):
    """Rows with the labels `duplicate` and, in two of three rows, `not_duplicate`."""
    rows = [{**row, "label": NAMES[row["label"]]} for row in make_toy_rows(60)]
    duplicates = [row for row in rows if row["label"] == "duplicate"]
    others = [row for row in rows if row["label"] != "duplicate"]
    return write_rows(tmp_path / "pairs.jsonl", [*others, *duplicates[: len(others) // 2]])


@pytest.mark.slow
def test_a_constant_answer_scores_zero_and_the_positive_class_is_printed(cli, tiny, tmp_path, pairs):
    folder = tmp_path / "run"
    status, _, err = cli(
        "classify", "--data", pairs, "--model", tiny, "--max-steps", 1, "--output-dir", folder
    )
    assert status == 0, err
    assert "classes duplicate, not_duplicate; positive class: duplicate" in err
    assert "positive class: duplicate" in (folder / "README.md").read_text()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["baselines"]["majority"]["positive_f1"] == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "duplicate", "1": "not_duplicate"}


def test_the_flag_overrides_the_inferred_class(cli, tiny, pairs):
    label = ("--positive-label", "not_duplicate")
    _, _, err = cli("classify", "--data", pairs, "--model", tiny, "--dry-run", *label)
    assert "positive class: not_duplicate" in err


@pytest.mark.parametrize("command", [("classify", "--dry-run"), ("check", "classify")])
def test_the_positive_class_of_a_known_dataset_is_printed(cli, tiny, command):
    status, out, err = cli(*command, "--data", "sample", "--model", tiny)
    assert status == 0, err
    assert "positive class: positive" in out + err
