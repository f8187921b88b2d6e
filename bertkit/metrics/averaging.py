"""Averages, intervals and differences of the scores of several runs, and averages of fitted parameters."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIN_SCORES = 3  # for an interval; that of two scores is several times as wide as their difference


def average_values(members: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each value that all members have, by name."""
    names = [name for name in members[0] if all(name in member for member in members)]
    return {name: float(np.mean([member[name] for member in members])) for name in names}


def compute_t_interval(scores: Sequence[float]) -> list[float] | None:
    """Return Student's 95 % interval of the mean of scores, or None for fewer than three scores."""
    from scipy.stats import t

    if len(scores) < MIN_SCORES:
        return None
    half_width = float(t.ppf(0.975, len(scores) - 1)) * statistics.stdev(scores) / len(scores) ** 0.5
    mean = statistics.fmean(scores)
    return [mean - half_width, mean + half_width]


@dataclass(frozen=True)
class PairedDifference:
    """Difference between the mean scores of two groups of runs that are paired, for example by seed.

    Attributes:
        difference: Mean of the second scores minus mean of the first ones.
        interval: Student's 95 % interval of the mean difference.
        p: Two-sided p-value of the paired t-test.
    """

    difference: float
    interval: list[float]
    p: float


def compare_paired_scores(first: Sequence[float], second: Sequence[float]) -> PairedDifference | None:
    """Return the paired difference of scores, or None for fewer than three pairs."""
    from scipy.stats import ttest_1samp

    differences = [b - a for a, b in zip(first, second, strict=True)]
    interval = compute_t_interval(differences)
    if interval is None:
        return None
    mean = statistics.fmean(differences)
    if min(differences) == max(differences):  # the t-test divides by their standard deviation
        return PairedDifference(mean, interval, float(mean == 0))
    return PairedDifference(mean, interval, float(ttest_1samp(differences, 0).pvalue))
