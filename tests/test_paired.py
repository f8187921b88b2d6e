"""Two models on the same rows: the paired tests know luck from a difference."""

import numpy as np
import pytest
from scipy import stats

from bertkit.stats.significance import Scorer, bound_drop, compare_scorers, mcnemar_test


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


# ---- the drop of a converted model


def make_pair(only_first, only_second, size):
    first, second = np.ones((2, size), bool)
    second[:only_first] = False
    first[only_first : only_first + only_second] = False
    return [Scorer(lambda rows, c=c: {"accuracy": float(c[rows].mean())}, size, c) for c in (first, second)]


def test_without_any_difference_the_bound_is_that_of_the_score_interval():
    for size in (20, 768, 5000):
        drop = bound_drop(*make_pair(0, 0, size), "accuracy", True)
        assert drop.drop == 0
        assert drop.bound == pytest.approx(1.96**2 / (size + 1.96**2), rel=1e-3)
    assert bound_drop(*make_pair(0, 0, 100), "accuracy", True).count_needed_rows(0.005) == 765


def test_the_bound_of_a_drop_holds_in_most_samples():
    """The true drop is 1 point; the bound should be below it in 2.5 % of the samples."""
    rng, misses, bounds = np.random.default_rng(0), 0, []
    for _ in range(1000):
        only_first, only_second, _ = rng.multinomial(1000, [0.03, 0.02, 0.95])
        bounds.append(bound_drop(*make_pair(only_first, only_second, 1000), "accuracy", True).bound)
        misses += bounds[-1] < 0.01
    assert 10 <= misses <= 42
    assert np.mean(bounds) == pytest.approx(0.01 + 1.96 * (0.05 / 1000) ** 0.5, rel=0.05)


def test_the_rows_that_are_needed_show_the_drop():
    drop = bound_drop(*make_pair(30, 22, 4000), "accuracy", True)
    needed = drop.count_needed_rows(0.004)
    factor = needed / 4000
    larger = bound_drop(*make_pair(round(30 * factor), round(22 * factor), needed), "accuracy", True)
    assert larger.bound == pytest.approx(0.004, rel=0.05)
    assert drop.count_needed_rows(0.002) is None


def test_the_bound_of_other_scores_is_at_least_that_of_an_error_that_no_row_shows():
    values = np.linspace(0, 100, 400)
    scorers = [Scorer(lambda rows, v=v: {"f1": float(v[rows].mean())}, 400) for v in (values, values - 1)]
    drop = bound_drop(*scorers, "f1", True, perfect=100.0)
    assert (drop.drop, drop.bound) == (pytest.approx(0.01), pytest.approx(0.01))
    equal = bound_drop(scorers[0], scorers[0], "f1", True, perfect=100.0)
    assert equal.bound == pytest.approx(3.689 / 400, rel=1e-3)
    worse = bound_drop(scorers[1], scorers[0], "f1", False, perfect=100.0)  # a loss that rises
    assert worse.drop == pytest.approx(0.01)
