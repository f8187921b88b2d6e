"""Reliability, the scores of probabilities, and temperature scaling."""

import math

import numpy as np
import pytest
from conftest import read_predictions
from sklearn.metrics import brier_score_loss, log_loss

import bertkit
from bertkit import run_directory
from bertkit.metrics.calibration import Decisions, ProbabilityScorer, compute_calibration


def test_two_bins_by_hand():
    found = compute_calibration(np.array([0.1, 0.3, 0.9, 1.0]), np.array([False, True, True, True]), bins=2)
    assert found.count.tolist() == [2, 2]
    assert found.confidence == pytest.approx([0.2, 0.95])
    assert found.accuracy == pytest.approx([0.5, 1.0])
    assert found.ece == pytest.approx(0.5 * 0.3 + 0.5 * 0.05)


def test_bins_include_their_upper_bound_and_cover_all_probabilities():
    found = compute_calibration(np.array([0.0, 0.2, 0.2000001, 1.0]), np.ones(4, bool), bins=5)
    assert found.count.tolist() == [2, 1, 0, 0, 1]


def test_an_empty_bin_is_ignored():
    found = compute_calibration(np.full(10, 0.7), np.arange(10) < 7)
    assert np.isnan(found.accuracy[0])
    assert found.ece == pytest.approx(0.0)


# ---- scores of probabilities


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def make_logits(num_rows, num_classes, seed=0):
    """Return random logits, and gold classes that their softmax is the distribution of."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (num_rows, num_classes))
    cumulative = softmax(logits).cumsum(1)
    gold = (rng.random((num_rows, 1)) > cumulative).sum(1)
    return logits, np.minimum(gold, num_classes - 1)


def compute_ece_by_loops(probabilities, gold, bins=15):
    """Guo et al. 2017, eq. 3, decision by decision."""
    members = [[] for _ in range(bins)]
    for row, correct in zip(probabilities, gold, strict=True):
        confidence = max(row)
        number = max(math.ceil(confidence * bins), 1) - 1
        members[number].append((confidence, int(np.argmax(row)) == correct))
    gaps = [abs(sum(ok - confidence for confidence, ok in bin_members)) for bin_members in members]
    return sum(gaps) / len(gold)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_of_probabilities_equal_independent_formulas(classes):
    logits, gold = make_logits(300, classes)
    scores = ProbabilityScorer(Decisions.from_classes(logits, gold)).score_all()
    probabilities, labels = softmax(logits), list(range(classes))
    assert scores["nll"] == pytest.approx(log_loss(gold, probabilities, labels=labels))
    brier = brier_score_loss(gold, probabilities, labels=labels, scale_by_half=True)
    assert scores["brier"] == pytest.approx(brier)
    assert scores["ece"] == pytest.approx(compute_ece_by_loops(probabilities, gold))
    calibration = compute_calibration(probabilities.max(1), probabilities.argmax(1) == gold)
    assert scores["ece"] == pytest.approx(calibration.ece)


def test_scores_of_label_sets_are_means_over_all_decisions():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (100, 4))
    gold = (rng.random((100, 4)) < 0.3).astype(int)
    scores = ProbabilityScorer(Decisions.from_label_sets(logits, gold)).score_all()
    present = 1 / (1 + np.exp(-logits))
    assert scores["nll"] == pytest.approx(np.mean(-np.log(np.where(gold, present, 1 - present))))
    assert scores["brier"] == pytest.approx(np.mean((present - gold) ** 2))
    both = np.stack([1 - present.ravel(), present.ravel()], 1)
    assert scores["ece"] == pytest.approx(compute_ece_by_loops(both, gold.ravel()))


def test_a_choice_that_a_row_lacks_counts_nothing():
    logits = np.array([[1.0, 0.5, -np.inf], [0.2, 0.1, 0.3]])
    scores = ProbabilityScorer(Decisions.from_classes(logits, np.array([0, 2]))).score([0])
    alone = Decisions.from_classes(logits[:1, :2], np.array([0]))
    assert scores == pytest.approx(ProbabilityScorer(alone).score_all())


def test_scores_of_a_sample_with_repeated_rows_equal_those_of_its_decisions():
    logits, gold = make_logits(50, 3)
    rows = np.random.default_rng(1).integers(0, 50, 80)
    sampled = ProbabilityScorer(Decisions.from_classes(logits[rows], gold[rows])).score_all()
    assert ProbabilityScorer(Decisions.from_classes(logits, gold)).score(rows) == pytest.approx(sampled)


@pytest.mark.parametrize("task", ["classify", "nli", "swag"])
def test_runs_score_their_probabilities_with_intervals(runs, task):
    metrics, records = run_directory.read_metrics(runs / task), read_predictions(runs / task)
    gold_probabilities = [record["probabilities"][record["gold"]] for record in records]
    expected = np.mean(-np.log(gold_probabilities))
    assert metrics["validation"]["nll"] == pytest.approx(expected)
    for name in ("ece", "nll", "brier"):
        low, high = metrics["intervals"][name]
        assert low <= high
    assert metrics["intervals"]["nll"][0] <= metrics["validation"]["nll"] <= metrics["intervals"]["nll"][1]


@pytest.mark.parametrize("task", ["ner", "qa"])
def test_other_tasks_have_no_scores_of_probabilities(runs, task):
    assert "nll" not in run_directory.read_metrics(runs / task)["validation"]


def test_the_best_checkpoint_is_still_selected_by_accuracy(runs):
    task = bertkit.load(runs / "classify").task
    assert task.label_type.default_metric == "accuracy"
    assert next(iter(run_directory.read_metrics(runs / "classify")["validation"])) == "accuracy"
