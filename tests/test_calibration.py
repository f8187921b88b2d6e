"""Reliability, the scores of probabilities, and temperature scaling."""

import json
import math
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from conftest import read_predictions
from hypothesis import strategies as st
from sklearn.metrics import log_loss

import bertkit
from bertkit.data.split import assign_folds
from bertkit.run_directory import RunDir
from bertkit.stats.calibration import (
    Calibration,
    Decisions,
    ProbabilityScorer,
    compute_calibration,
    compute_margins,
    cross_fit,
    fit_adaptive_temperature,
    fit_temperature,
    is_at_bound,
)


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
    brier = np.mean(
        [sum((row - (np.arange(classes) == one)) ** 2) for row, one in zip(probabilities, gold, strict=True)]
    )
    assert scores["brier"] == pytest.approx(brier / 2)
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


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "nli", "swag"])
def test_runs_score_their_probabilities_with_intervals(runs, task):
    metrics, records = RunDir(runs / task).read_metrics(), read_predictions(runs / task)
    gold_probabilities = [record["probabilities"][record["gold"]] for record in records]
    expected = np.mean(-np.log(gold_probabilities))
    assert metrics["validation"]["nll"] == pytest.approx(expected)
    for name in ("ece", "nll", "brier"):
        low, high = metrics["intervals"][name]
        assert low <= high
    assert metrics["intervals"]["nll"][0] <= metrics["validation"]["nll"] <= metrics["intervals"]["nll"][1]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ner", "qa"])
def test_other_tasks_have_no_scores_of_probabilities(runs, task):
    assert "nll" not in RunDir(runs / task).read_metrics()["validation"]


@pytest.mark.slow
def test_the_best_checkpoint_is_still_selected_by_accuracy(runs):
    task = bertkit.load(runs / "classify").task
    assert task.state.label_type.default_metric == "accuracy"
    assert next(iter(RunDir(runs / "classify").read_metrics()["validation"])) == "accuracy"


# ---- temperature scaling


@pytest.mark.slow
@hypothesis.settings(max_examples=40)
@hypothesis.given(
    factor=st.floats(0.2, 5.0), classes=st.integers(2, 5), seed=st.integers(0, 100), shift=st.floats(-3, 3)
)
def test_logits_times_a_factor_have_a_temperature_times_the_factor(factor, classes, seed, shift):
    logits, gold = make_logits(200, classes, seed)
    temperature = fit_temperature(Decisions.from_classes(logits, gold))
    scaled = Decisions.from_classes(logits * factor + shift, gold)
    assert fit_temperature(scaled) == pytest.approx(temperature * factor, rel=1e-6)


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_the_factor_of_overconfident_logits_is_recovered(factor):
    logits, gold = make_logits(20_000, 4)
    decisions = Decisions.from_classes(logits * factor, gold)
    temperature = fit_temperature(decisions)
    assert temperature == pytest.approx(factor, rel=0.05)
    assert ProbabilityScorer(decisions.scale(1 / temperature)).score_all()["ece"] < 0.02


@pytest.mark.slow
def test_the_temperature_minimizes_the_nll():
    logits, gold = make_logits(300, 3)
    decisions = Decisions.from_classes(logits * 2, gold)
    temperature = fit_temperature(decisions)

    def compute_nll(value):
        return -np.log(softmax(logits * 2 / value)[np.arange(300), gold]).mean()

    grid = temperature * np.linspace(0.5, 2, 301)
    assert compute_nll(temperature) <= min(map(compute_nll, grid)) + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("intercept", "slope"), [(0.5, 0.3), (1.5, 0.0), (0.0, 0.5)])
def test_the_temperature_of_each_margin_is_recovered(classes, intercept, slope):
    logits, _ = make_logits(40_000, classes)
    margins = compute_margins(logits).max(1, keepdims=True)
    cumulative = softmax(logits * (intercept + slope * margins)).cumsum(1)
    gold = (cumulative < np.random.default_rng(1).random((len(logits), 1))).sum(1)
    found = fit_adaptive_temperature(Decisions.from_classes(logits, gold))
    assert found == pytest.approx((intercept, slope), abs=0.05)
    assert min(found) >= 0


def test_weights_and_soft_labels_count_in_a_temperature_of_each_margin():
    logits, gold = make_logits(200, 3)
    weights = np.random.default_rng(0).integers(0, 3, 200)
    repeated = Decisions.from_classes(np.repeat(logits, weights, 0), np.repeat(gold, weights))
    weighted = replace(Decisions.from_classes(logits, gold), weights=weights.astype(float))
    certain = Decisions.from_classes(repeated.logits, None, np.eye(3)[repeated.gold])
    expected = pytest.approx(fit_adaptive_temperature(repeated), abs=1e-4)
    assert fit_adaptive_temperature(weighted) == expected
    assert fit_adaptive_temperature(certain) == expected


def test_label_sets_have_the_temperature_of_their_decisions():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (3000, 4))
    gold = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    assert fit_temperature(Decisions.from_label_sets(logits * 3, gold)) == pytest.approx(3, rel=0.05)


def test_without_a_minimum_the_temperature_is_a_bound():
    logits = np.array([[2.0, 1.0], [1.0, 3.0]])
    correct = fit_temperature(Decisions.from_classes(logits, np.array([0, 1])))
    wrong = fit_temperature(Decisions.from_classes(logits, np.array([1, 0])))
    assert correct < 1 < wrong
    assert is_at_bound(correct)
    assert is_at_bound(wrong)


def test_missing_choices_do_not_change_the_temperature():
    logits, gold = make_logits(200, 3)
    padded = np.concatenate([logits, np.full((200, 2), -np.inf)], axis=1)
    expected = fit_temperature(Decisions.from_classes(logits, gold))
    assert fit_temperature(Decisions.from_classes(padded, gold)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@hypothesis.settings(max_examples=40)
@hypothesis.given(seed=st.integers(0, 1000), num_groups=st.integers(10, 60))
def test_no_row_is_judged_by_a_temperature_that_it_helped_to_fit(seed, num_groups):
    """The gold classes of a fold do not influence how the logits of this fold are scaled."""
    rng = np.random.default_rng(seed)
    logits, gold = make_logits(120, 3, seed)
    groups, strata = rng.integers(0, num_groups, 120), rng.integers(0, 3, 120)
    folds = assign_folds(groups, strata, 5, seed)
    assert len(set(zip(groups.tolist(), folds.tolist(), strict=True))) == len(set(groups.tolist()))
    fold = int(rng.integers(0, 5))
    changed = np.where(folds == fold, (gold + 1) % 3, gold)

    def cross_fit_temperature(gold):
        decisions = Decisions.from_classes(logits, gold)
        return cross_fit(
            lambda is_used: fit_temperature(decisions.select(is_used)),
            lambda temperature, rows: decisions.select(rows).scale(1 / temperature).logits,
            folds,
        )

    temperatures, scaled = cross_fit_temperature(gold)
    other_temperatures, other_scaled = cross_fit_temperature(changed)
    assert other_temperatures[fold] == temperatures[fold]
    members = folds == fold
    assert np.array_equal(other_scaled[members], scaled[members])
    assert scaled[members] == pytest.approx(logits[members] / temperatures[fold])


def test_folds_have_equal_parts_of_each_stratum():
    strata = np.repeat([0, 1, 2], [50, 25, 5])
    folds = assign_folds(np.arange(80), strata, 5, seed=3)
    for stratum, count in enumerate((10, 5, 1)):
        assert np.bincount(folds[strata == stratum], minlength=5).tolist() == [count] * 5
    assert not np.array_equal(folds, assign_folds(np.arange(80), strata, 5, seed=4))


def test_a_calibration_is_the_same_after_a_round_trip_through_json():
    found = compute_calibration(np.full(10, 0.7), np.arange(10) < 7)
    again = Calibration.from_dict(json.loads(json.dumps(found.to_dict())))
    assert np.array_equal(again.accuracy, found.accuracy, equal_nan=True)
    assert again.ece == found.ece
