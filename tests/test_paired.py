"""Two models on the same rows: the paired tests know luck from a difference."""

import numpy as np
import pytest
from scipy import stats

from bertkit.stats.significance import Scorer, compare_scorers, mcnemar_test


def accuracy(right):
    return Scorer(lambda rows: {"accuracy": float(right[rows].mean())}, len(right), right)


def mean(values):
    return Scorer(lambda rows: {"f1": float(values[rows].mean())}, len(values))


def sample_correct(seed, fraction, size=400):
    return np.random.default_rng(seed).random(size) < fraction


def test_mcnemar_counts_rows_that_only_one_model_has_correct():
    first = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1, 0], bool)
    second = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 0], bool)
    assert mcnemar_test(first, second) == pytest.approx(stats.binomtest(6, 7).pvalue)
    assert mcnemar_test(first, first) == 1.0


def test_better_model_is_significant_and_equal_one_is_not():
    better, worse, like_it = sample_correct(0, 0.9), sample_correct(1, 0.7), sample_correct(2, 0.7)
    assert compare_scorers(accuracy(worse), accuracy(better))["accuracy"].p < 1e-6
    assert compare_scorers(accuracy(worse), accuracy(like_it))["accuracy"].p > 0.05


def test_a_difference_has_a_sign_and_an_interval_around_it():
    found = compare_scorers(accuracy(sample_correct(0, 0.9)), accuracy(sample_correct(1, 0.7)))["accuracy"]
    assert found.test == "mcnemar"
    assert found.difference == pytest.approx(sample_correct(1, 0.7).mean() - sample_correct(0, 0.9).mean())
    assert found.interval[0] < found.difference < found.interval[1] < 0


@pytest.mark.intervals
def test_pairing_removes_the_variance_of_hard_rows():
    """Scores that differ by a tenth on each row differ surely, however unlike the rows are."""
    hard = np.random.default_rng(0).random(100)
    found = compare_scorers(mean(hard), mean(hard + 0.1 + 0.01 * sample_correct(1, 0.5, 100)))["f1"]
    assert (found.test, found.p < 0.01) == ("bootstrap", True)
    assert compare_scorers(mean(hard), mean(np.random.default_rng(1).random(100)))["f1"].p > 0.05


@pytest.mark.intervals
def test_the_bootstrap_agrees_with_a_paired_t_test():
    rng = np.random.default_rng(3)
    first = rng.normal(size=200)
    second = first + rng.normal(0.1, 0.8, size=200)
    ours, theirs = compare_scorers(mean(first), mean(second))["f1"], stats.ttest_rel(second, first)
    assert ours.p == pytest.approx(theirs.pvalue, abs=0.03)
    assert ours.interval == pytest.approx(list(theirs.confidence_interval()), abs=0.03)
