"""Confident learning: the statistics of cleanlab on generated data, and properties."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertkit.metrics.label_issues import (
    calibrate_joint,
    compute_confident_joint,
    compute_normalized_margin,
    compute_robust_scores,
    compute_self_confidence,
    find_confident_classes,
    find_off_diagonal,
    prune_by_noise_rate,
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
#   joint: cleanlab.count.compute_confident_joint(labels, probabilities, calibrate=False)
#   calibrated: cleanlab.count.compute_confident_joint(labels, probabilities)
#   off_diagonal: np.flatnonzero(cleanlab.filter.find_label_issues(
#       labels, probabilities, filter_by="confident_learning"))
#   pruned: the same with filter_by="prune_by_noise_rate"
#   ranked: the first 10 with return_indices_ranked_by="self_confidence"
#   margins: cleanlab.rank.get_label_quality_scores(labels, probabilities, method="normalized_margin")[:5]
# In the third case, `calibrated` depends on how NumPy sorts equal remainders, so it is not compared.
EXPECTED = {
    (200, 2, 0.1, 0): {
        "thresholds": [0.7604700861006954, 0.828095713190513],
        "joint": [[58, 4], [2, 67]],
        "calibrated": [[85, 6], [3, 106]],
        "off_diagonal": [20, 55, 72, 146, 147, 191],
        "pruned": [20, 55, 72, 93, 120, 146, 147, 175, 191],
        "ranked": [55, 72, 146, 191, 147, 20, 175, 93, 120],
        "margins": [0.8743191266063276, 0.9232275711278971, 0.748368489904911, 0.9845326558839428,
            0.6605876440865363],
    },
    (200, 4, 0.2, 1): {
        "thresholds": [0.5933013245975495, 0.5942576036643286, 0.5491875231927091, 0.5597084606296885],
        "joint": [[24, 0, 2, 2], [0, 25, 3, 1], [0, 1, 24, 2], [4, 2, 2, 36]],
        "calibrated": [[35, 0, 3, 3], [0, 46, 5, 2], [0, 2, 39, 3], [5, 3, 3, 51]],
        "off_diagonal": [6, 21, 36, 43, 59, 99, 107, 115, 122, 127, 136, 141, 152, 161, 163, 188, 190, 197,
            198],
        "pruned": [6, 21, 23, 34, 36, 43, 59, 99, 107, 115, 122, 127, 136, 141, 144, 152, 161, 163, 172,
            174, 179, 183, 185, 188, 190, 197, 198, 199],
        "ranked": [161, 43, 163, 144, 188, 152, 59, 115, 6, 23],
        "margins": [0.5872846961684723, 0.7246464717854996, 0.4027091094041099, 0.7213670120983254,
            0.7965095630889971],
    },
    (120, 8, 0.3, 2): {
        "thresholds": [0.2502387560472793, 0.32318776471366634, 0.4102514496946539, 0.22797849548967944,
            0.34323165102199715, 0.44589873647966294, 0.27748060940911323, 0.31931400053778564],
        "joint": [[5, 3, 0, 1, 2, 0, 1, 1], [0, 5, 1, 3, 1, 0, 0, 0], [1, 0, 6, 2, 0, 1, 1, 0], [2, 1, 0, 8,
            1, 1, 1, 2], [3, 0, 0, 2, 8, 0, 2, 1], [1, 0, 0, 1, 0, 6, 0, 0], [0, 0, 1, 2, 2, 3, 8, 1], [1,
            1, 0, 0, 2, 0, 0, 7]],
        "off_diagonal": [2, 3, 4, 6, 7, 10, 16, 20, 21, 24, 25, 26, 28, 32, 34, 37, 41, 46, 47, 48, 51, 53,
            56, 57, 61, 66, 67, 68, 71, 72, 75, 78, 82, 83, 86, 88, 95, 99, 102, 105, 106, 108, 110, 113,
            114, 115, 117, 118],
        "margins": [0.49979481778238966, 0.8576102460308282, 0.4147780304348198, 0.4569046460242082,
            0.20419216048387062],
    },
}  # fmt: skip


approx = functools.partial(pytest.approx, rel=1e-14)


@pytest.mark.parametrize("arguments", EXPECTED)
def test_statistics_equal_those_of_cleanlab(arguments):
    labels, probabilities = make_noisy_labels(*arguments)
    expected = EXPECTED[arguments]
    joint = compute_confident_joint(labels, probabilities)
    # numpy adds in another order on other CPUs, so the last bits of means differ.
    assert find_confident_classes(labels, probabilities).thresholds == approx(expected["thresholds"])
    assert joint.tolist() == expected["joint"]
    assert find_off_diagonal(labels, probabilities).tolist() == expected["off_diagonal"]
    assert compute_normalized_margin(labels, probabilities)[:5] == approx(expected["margins"])
    if "calibrated" in expected:
        pruned = prune_by_noise_rate(labels, probabilities)
        scores = compute_self_confidence(labels, probabilities)[pruned]
        assert calibrate_joint(joint, labels).tolist() == expected["calibrated"]
        assert pruned.tolist() == expected["pruned"]
        assert pruned[np.argsort(scores, kind="stable")][:10].tolist() == expected["ranked"]


@hypothesis.given(strategies.integers(0, 10_000), strategies.integers(2, 6), strategies.integers(1, 60))
def test_joint_adds_up_to_the_labels_and_issues_contradict_them(seed, num_classes, size):
    labels, probabilities = make_noisy_labels(size, num_classes, 0.3, seed)
    joint = calibrate_joint(compute_confident_joint(labels, probabilities), labels)
    assert joint.sum(1).tolist() == np.bincount(labels, minlength=num_classes).tolist()
    for issues in (find_off_diagonal(labels, probabilities), prune_by_noise_rate(labels, probabilities)):
        assert issues.tolist() == sorted(set(issues.tolist()))
    pruned = prune_by_noise_rate(labels, probabilities)
    assert (probabilities.argmax(1)[pruned] != labels[pruned]).all()
    assert (suggest_classes(labels, probabilities) != labels).all()


def test_class_without_rows_is_never_confident():
    labels, probabilities = make_noisy_labels(50, 3, 0.0, 0)
    labels[labels == 2] = 0
    joint = compute_confident_joint(labels, probabilities)
    assert joint[:, 2].tolist() == [0, 0, 1]  # the diagonal has at least one


def test_robust_scores_find_an_outlier_even_if_most_residuals_are_zero():
    residuals = np.random.default_rng(0).normal(0, 0.1, 100)
    residuals[7] = 3.0
    assert np.flatnonzero(np.abs(compute_robust_scores(residuals)) > 3.5).tolist() == [7]
    assert np.abs(compute_robust_scores(np.eye(1, 20)[0])).argmax() == 0
    assert compute_robust_scores(np.ones(5)).tolist() == [0.0] * 5
