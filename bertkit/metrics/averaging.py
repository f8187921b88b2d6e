"""Averages and intervals of the scores of several runs, and averages of their fitted parameters."""

import statistics
from collections.abc import Mapping, Sequence

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
