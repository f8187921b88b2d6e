"""`bertkit calibrate --threshold`: decision thresholds for two labels and for label sets."""

import json
import shutil

import hypothesis
import numpy as np
import pytest
from conftest import assert_refused, make_toy_rows, read_predictions, write_rows
from hypothesis import strategies as st
from sklearn.metrics import f1_score, recall_score
from test_calibrate import train_on_label_sets

import bertkit
from bertkit.models.heads import read_temperature
from bertkit.stats.calibration import (
    ThresholdCriterion,
    fit_binary_threshold,
    fit_label_thresholds,
    parse_criterion,
)
from bertkit.tasks.text.label_types import MultiLabel, SingleLabel
from bertkit.utils.files import write_text


def make_probabilities(seed, num_rows=40):
    """Return probabilities with ties, and gold labels that are more frequent at high probabilities."""
    rng = np.random.default_rng(seed)
    probability = rng.random(num_rows).round(1 if seed % 2 else 3)
    is_positive = rng.random(num_rows) < probability
    is_positive[0] = True
    return probability, is_positive


def list_thresholds(probability):
    """Return thresholds that give every possible set of predictions."""
    return [0.0, *np.unique(probability)]


def compute_recall_and_precision(is_positive, predicted):
    correct = int((predicted & is_positive).sum())
    return correct / int(is_positive.sum()), correct / max(int(predicted.sum()), 1)


@pytest.mark.slow
@hypothesis.settings(max_examples=10)
@hypothesis.given(seed=st.integers(0, 300))
@pytest.mark.parametrize("name", ["f1", "macro_f1"])
def test_thresholds_are_the_best_of_all_thresholds(name, seed):
    probability, is_positive = make_probabilities(seed)
    average = "binary" if name == "f1" else "macro"

    def score(threshold):
        return f1_score(is_positive, probability > threshold, average=average, zero_division=0.0)

    found = fit_binary_threshold(probability, is_positive, ThresholdCriterion(name))
    assert score(found) == pytest.approx(max(map(score, list_thresholds(probability))), abs=1e-12)


@hypothesis.settings(max_examples=25)
@hypothesis.given(seed=st.integers(0, 300), minimum=st.sampled_from([0.3, 0.6, 0.8, 0.95, 1.0]))
@hypothesis.example(seed=65, minimum=0.3)  # a row with the label has the probability 0
def test_recall_and_precision_are_reached_with_the_best_other_score(seed, minimum):
    probability, is_positive = make_probabilities(seed)
    predictions = [probability > threshold for threshold in list_thresholds(probability)]
    scores = [compute_recall_and_precision(is_positive, predicted) for predicted in predictions]
    found = fit_binary_threshold(probability, is_positive, ThresholdCriterion("recall", minimum))
    precisions = [precision for recall, precision in scores if recall >= minimum]
    if found is None:
        assert not precisions
    else:
        recall, precision = compute_recall_and_precision(is_positive, probability > found)
        assert recall >= minimum
        assert precision == max(precisions)
    found = fit_binary_threshold(probability, is_positive, ThresholdCriterion("precision", minimum))
    recalls = [recall for recall, precision in scores if precision >= minimum and recall > 0]
    if found is None:
        assert not recalls
    else:
        recall, precision = compute_recall_and_precision(is_positive, probability > found)
        assert precision >= minimum
        assert recall == max(recalls)


def test_equally_good_thresholds_give_the_one_nearest_to_one_half():
    found = fit_binary_threshold(
        np.array([0.1, 0.45, 0.9]), np.array([False, False, True]), ThresholdCriterion("f1")
    )
    assert found == pytest.approx((0.45 + 0.9) / 2)


def test_a_label_without_rows_has_no_threshold():
    assert fit_binary_threshold(np.array([0.1, 0.9]), np.zeros(2, bool), ThresholdCriterion("f1")) is None


def test_label_sets_have_one_threshold_for_f1_and_one_for_each_label_otherwise():
    rng = np.random.default_rng(0)
    probabilities = rng.random((200, 3)) * [1.0, 0.5, 0.2]
    gold = (rng.random((200, 3)) < probabilities).astype(int)
    common = fit_label_thresholds(probabilities, gold, ThresholdCriterion("f1"))
    assert len(set(common)) == 1
    own = fit_label_thresholds(probabilities, gold, ThresholdCriterion("macro_f1"))
    assert len(set(own)) == 3
    macro, default, micro = (
        f1_score(gold, probabilities > thresholds, average="macro", zero_division=0)
        for thresholds in (own, 0.5, common)
    )
    assert macro >= max(default, micro)


@pytest.mark.parametrize(
    "text", ["f2", "recall", "recall=", "recall=0", "recall=1.1", "precision=x", "f1=0.5", ""]
)
def test_other_criteria_are_refused(text):
    with pytest.raises(
        bertkit.UserError, match="is not a criterion; use f1, macro_f1, recall=R or precision=P"
    ):
        parse_criterion(text)


@pytest.mark.parametrize("positive", ["a", "b"])
def test_two_labels_are_separated_at_the_threshold_of_the_positive_label(positive):
    label_type = SingleLabel(["a", "b"])
    label_type.positive_label = positive
    logits = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    label_type.thresholds = {positive: 0.7}
    expected = [1, 0, 1] if positive == "a" else [0, 0, 1]
    assert label_type.predict(logits).tolist() == expected


def test_label_sets_have_the_labels_above_their_thresholds():
    label_type = MultiLabel(["a", "b", "c"])
    label_type.thresholds = {"a": 0.9, "b": 0.1}
    assert label_type.predict(np.zeros((1, 3))).tolist() == [[0, 1, 0]]
    assert label_type.predict(np.array([[3.0, -3.0, 0.1]])).tolist() == [[1, 0, 1]]


# ---- runs


@pytest.fixture
def labeled(runs, tmp_path):
    """Return a copy of a binary run, and rows of which the model classifies four fifths correctly."""
    run, rows = shutil.copytree(runs / "classify", tmp_path / "run"), make_toy_rows(100, seed=7)
    other = {"negative": "positive", "positive": "negative"}
    for index, record in enumerate(bertkit.load(run).predict(rows)):
        rows[index]["label"] = record["predicted"] if index % 5 else other[record["predicted"]]
    return run, write_rows(tmp_path / "rows.jsonl", rows)


def read_thresholds(run):
    return json.loads((run / "config.json").read_text("utf-8")).get("bertkit_thresholds")


@pytest.mark.slow
def test_predict_and_evaluate_apply_the_threshold(labeled, cli):
    run, data = labeled
    status, out, err = cli("calibrate", run, "--data", data, "--threshold", "recall=0.95", "--json")
    assert status == 0, err
    found = json.loads(out)["threshold"]
    thresholds = read_thresholds(run)
    assert thresholds == found["thresholds"]
    assert list(thresholds) == ["positive"]
    for record in bertkit.predict(run, data=data, all_scores=True):
        is_positive = record["probabilities"]["positive"] > thresholds["positive"]
        assert record["predicted"] == ("positive" if is_positive else "negative")
    evaluated = json.loads(cli("evaluate", run, "--data", data, "--json")[1])
    records = read_predictions(run.parent / evaluated["output_dir"])
    gold, predicted = ([record[key] for record in records] for key in ("gold", "predicted"))
    assert recall_score(gold, predicted, pos_label="positive") >= 0.95
    assert evaluated["validation"]["positive_f1"] == f1_score(gold, predicted, pos_label="positive")
    assert set(found["scores"]["after"]) >= {
        "accuracy",
        "positive_f1",
        "positive_precision",
        "positive_recall",
    }


@pytest.mark.slow
def test_calibrating_again_replaces_or_removes_the_threshold(labeled):
    run, data = labeled
    bertkit.calibrate(run, data=data, threshold="recall=0.95")
    first = read_thresholds(run)
    bertkit.calibrate(run, data=data, threshold="recall=0.95")
    assert read_thresholds(run) == pytest.approx(first, abs=1e-6)
    bertkit.calibrate(run, data=data, threshold="f1")
    assert read_thresholds(run) != first
    bertkit.calibrate(run, data=data)
    assert read_thresholds(run) is None


@pytest.mark.slow
def test_a_model_that_continues_from_the_run_has_no_threshold(labeled, toy):
    run, data = labeled
    bertkit.calibrate(run, data=data, threshold="f1")
    next_run = bertkit.classify(data=toy, model=run, output_dir="next", max_steps=1).output_dir
    assert read_thresholds(next_run) is None


@pytest.mark.slow
def test_label_sets_get_a_threshold_for_each_label(tiny, tmp_path):
    new = train_on_label_sets(tiny, tmp_path)
    result = bertkit.calibrate("run", data=new, threshold="macro_f1")
    thresholds = read_thresholds(tmp_path / "run")
    assert set(thresholds) == {"negative", "positive", "seen"}
    scores = result.calibration["threshold"]["scores"]
    assert scores["after"]["macro_f1"] > scores["before"]["macro_f1"]
    for record in bertkit.predict("run", data=new, all_scores=True):
        expected = [label for label, p in record["probabilities"].items() if p > thresholds[label]]
        assert record["predicted"] == expected


@pytest.mark.slow
def test_an_interrupt_leaves_no_threshold_of_other_probabilities(labeled, monkeypatch):
    run, data = labeled
    bertkit.calibrate(run, data=data, threshold="recall=0.95")
    rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()][:60]

    before, calls = read_temperature(run), []

    def interrupt_second_call(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write_text(*args)

    monkeypatch.setattr("bertkit.commands.calibrate.write_text", interrupt_second_call)
    with pytest.raises(KeyboardInterrupt):
        bertkit.calibrate(run, data=rows, threshold="f1")
    assert read_temperature(run) != before
    assert read_thresholds(run) is None
    assert list(bertkit.predict(run, text=["a good film"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "threshold", "words"),
    [
        ("classify", "f3", ["--threshold f3: is not a criterion", "recall=R"]),
        ("classify", "precision=1", ["no threshold reaches a precision of 1.0"]),
        ("nli", "f1", ["--threshold f1", "predicts the most probable class"]),
        ("ner", "f1", ["--threshold f1", "predicts the most probable class"]),
    ],
)
def test_thresholds_that_do_not_apply_are_refused(runs, cli, tmp_path, labeled, task, threshold, words):
    run, data = labeled
    if threshold == "precision=1":  # the most probable positive row is a negative one
        rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
        best = max(
            bertkit.predict(run, data=rows, all_scores=True), key=lambda r: r["probabilities"]["positive"]
        )
        for row in rows:
            row["label"] = "negative" if row["text"] == best["text"] else row["label"]
        data = write_rows(tmp_path / "best.jsonl", rows)
    run = run if task == "classify" else runs / task
    assert_refused(cli, tmp_path, [run, "--data", data, "--threshold", threshold], words, "calibrate")
    assert read_thresholds(run) is None
