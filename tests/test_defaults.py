"""Default settings and initial values, and warnings about settings that do not suit the data or the run."""

import pytest
from conftest import make_document_rows, make_toy_rows, write_rows

FAST = {"batch_size": 8, "bf16": False, "learning_rate": 1e-3}
FLAGS = ["--batch-size", 8, "--no-bf16"]


def find_warnings(stderr):
    """Return the warnings that the command printed."""
    return [line for line in stderr.splitlines() if line.startswith("warning: ")]


# ---- warmup


@pytest.mark.parametrize(
    ("steps", "flags", "warns"),
    [
        (3, ["--warmup", 3], True),
        (3, ["--warmup", 500], True),
        (3, ["--warmup", 2], False),
        (3, ["--warmup", 500, "--lr-scheduler", "constant"], False),
        (3, [], False),
        (1, [], True),  # the only step has the learning rate 0
    ],
)
def test_warmup_as_long_as_the_run_is_reported(cli, tiny, toy, steps, flags, warns):
    args = ["--data", toy, "--model", tiny, "--max-steps", steps, "--lr", 1e-4, "--dry-run"]
    status, _, err = cli("classify", *args, *flags, *FLAGS)
    assert status == 0
    warnings = [line for line in find_warnings(err) if "--warmup" in line]
    assert len(warnings) == warns
    if warns:
        assert f"the run has only {steps} step" in warnings[0]
        assert "never reaches 0.0001" in warnings[0]


# ---- rows that training has seen


def test_rows_that_training_has_not_seen_are_not_reported_as_trained(cli, tiny, toy):
    args = ["--data", toy, "--model", tiny, *FLAGS]
    [line] = _training_lines(cli("classify", *args, "--max-steps", 3))
    assert line.startswith("trained for 3 steps on 24 of 72 rows in ")
    [line] = _training_lines(cli("classify", *args, "--max-steps", 9))
    assert line.startswith("trained on 72 rows in ")
    [line] = _training_lines(cli("classify", *args, "--epochs", 2))
    assert line.startswith("trained on 72 rows in ")


def test_examples_seen_in_part_of_an_epoch_of_pretraining(cli, tiny, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--max-steps", 2, *FLAGS]
    [line] = _training_lines(cli("pretrain-mlm-nsp", *args))
    assert line.startswith("trained for 2 steps on 16 of ")
    assert "examples from 54 texts in " in line


def _training_lines(result):
    status, out, _ = result
    assert status == 0
    return [line for line in out.splitlines() if line.startswith("trained ")]


# ---- class weights


def test_label_of_every_row_keeps_a_weight_in_balanced_training(cli, tiny, tmp_path):
    rows = [
        {"text": row["text"], "labels": ["text", *([row["label"]] if number % 4 else [])]}
        for number, row in enumerate(make_toy_rows(80))
    ]
    data = write_rows(tmp_path / "sets.jsonl", rows)
    args = ["--data", data, "--model", tiny, "--max-steps", 2, "--dry-run", *FLAGS]
    status, _, err = cli("classify", *args, "--class-weights", "balanced")
    assert status == 0
    [warning] = [line for line in find_warnings(err) if "--class-weights" in line]
    assert warning.endswith("labels that every training row has get the weight 1: text")
    assert not [line for line in find_warnings(cli("classify", *args)[2]) if "--class-weights" in line]


def test_class_weights_of_label_sets():
    import numpy as np

    from bertkit.modeling.heads import compute_class_weights

    labels = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1]])
    assert compute_class_weights(labels, 4).tolist() == pytest.approx([1, 3, 4, 1 / 3])
