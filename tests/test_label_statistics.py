"""Confident learning: the statistics of cleanlab on generated data, and properties."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertkit.commands.label_issues import (
    compute_class_thresholds,
    compute_robust_scores,
    find_off_diagonal,
    suggest_classes,
)


def make_noisy_labels(size, num_classes, noise, seed):
    """Return labels, a fraction of which is random, and probabilities that mostly favor the true class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, num_classes, size)
    logits = rng.normal(0, 1, (size, num_classes))
    logits[np.arange(size), true] += 2.0
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(1, keepdims=True)
    return np.where(rng.random(size) < noise, rng.integers(0, num_classes, size), true), probabilities


# Statistics of cleanlab 2.9.0, computed with labels and probabilities of `make_noisy_labels`:
#   thresholds: cleanlab.count.get_confident_thresholds(labels, probabilities)
#   off_diagonal: np.flatnonzero(cleanlab.filter.find_label_issues(
#       labels, probabilities, filter_by="confident_learning"))
EXPECTED = {
    (200, 2, 0.1, 0): {
        "thresholds": [0.7604700861006954, 0.828095713190513],
        "off_diagonal": [20, 55, 72, 146, 147, 191],
    },
    (200, 4, 0.2, 1): {
        "thresholds": [0.5933013245975495, 0.5942576036643286, 0.5491875231927091, 0.5597084606296885],
        "off_diagonal": [6, 21, 36, 43, 59, 99, 107, 115, 122, 127, 136, 141, 152, 161, 163, 188, 190, 197,
            198],
    },
    (120, 8, 0.3, 2): {
        "thresholds": [0.2502387560472793, 0.32318776471366634, 0.4102514496946539, 0.22797849548967944,
            0.34323165102199715, 0.44589873647966294, 0.27748060940911323, 0.31931400053778564],
        "off_diagonal": [2, 3, 4, 6, 7, 10, 16, 20, 21, 24, 25, 26, 28, 32, 34, 37, 41, 46, 47, 48, 51, 53,
            56, 57, 61, 66, 67, 68, 71, 72, 75, 78, 82, 83, 86, 88, 95, 99, 102, 105, 106, 108, 110, 113,
            114, 115, 117, 118],
    },
}  # fmt: skip


approx = functools.partial(pytest.approx, rel=1e-14)


@pytest.mark.parametrize("arguments", EXPECTED)
def test_statistics_equal_those_of_cleanlab(arguments):
    labels, probabilities = make_noisy_labels(*arguments)
    expected = EXPECTED[arguments]
    # numpy adds in another order on other CPUs, so the last bits of means differ.
    assert compute_class_thresholds(labels, probabilities) == approx(expected["thresholds"])
    assert find_off_diagonal(labels, probabilities).tolist() == expected["off_diagonal"]


@hypothesis.given(strategies.integers(0, 10_000), strategies.integers(2, 6), strategies.integers(1, 60))
def test_issues_are_ascending_and_contradict_the_labels(seed, num_classes, size):
    labels, probabilities = make_noisy_labels(size, num_classes, 0.3, seed)
    issues = find_off_diagonal(labels, probabilities)
    assert issues.tolist() == sorted(set(issues.tolist()))
    assert (probabilities.argmax(1)[issues] != labels[issues]).all()
    assert (suggest_classes(labels, probabilities) != labels).all()


def test_class_without_rows_is_never_confident():
    labels, probabilities = make_noisy_labels(50, 3, 0.0, 0)
    labels[labels == 2] = 0
    assert np.isfinite(compute_class_thresholds(labels, probabilities)).tolist() == [True, True, False]


def test_robust_scores_find_an_outlier_even_if_most_residuals_are_zero():
    residuals = np.random.default_rng(0).normal(0, 0.1, 100)
    residuals[7] = 3.0
    assert np.flatnonzero(np.abs(compute_robust_scores(residuals)) > 3.5).tolist() == [7]
    assert np.abs(compute_robust_scores(np.eye(1, 20)[0])).argmax() == 0
    assert compute_robust_scores(np.ones(5)).tolist() == [0.0] * 5
