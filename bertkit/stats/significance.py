"""95 % intervals of scores, and tests of the difference between two models on the same rows."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit.stats.scores import Scores

NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Scorer:
    """A function that scores the rows of a split at any indices.

    A sample can have fewer scores than the split: without unanswerable questions, it has none for them.
    """

    score: Callable[[np.ndarray], Scores]
    size: int  # number of rows; 0 if the scores do not depend on rows
    is_correct: np.ndarray | None = None  # [size] bool, if "accuracy" is the fraction of correct rows
    num_resamples: int = NUM_RESAMPLES
    columns: Sequence[np.ndarray] = ()  # [size, ...] that `from_columns` has received
    compute: Callable[..., Scores] | None = None  # the same
    _samples: dict[int, list[Scores]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def constant(cls, scores: Scores) -> "Scorer":
        """Return a scorer of scores that do not depend on the rows."""
        return cls(lambda _: scores, 0)

    @classmethod
    def from_columns(
        cls,
        compute: Callable[..., Scores],
        columns: Sequence[np.ndarray],
        is_correct: np.ndarray | None = None,
    ) -> "Scorer":
        """Return a scorer that calls `compute` with the selected rows of each column."""

        def score(rows: np.ndarray) -> Scores:
            return compute(*(column[rows] for column in columns))

        return cls(score, len(columns[0]), is_correct, columns=columns, compute=compute)

    @classmethod
    def concatenate(cls, scorers: Sequence["Scorer"]) -> "Scorer":
        """Return a scorer of the rows of several scorers, which `from_columns` has made."""
        first = scorers[0]
        assert first.compute is not None
        columns = [np.concatenate(parts) for parts in zip(*(one.columns for one in scorers), strict=True)]
        known = [one.is_correct for one in scorers if one.is_correct is not None]
        return cls.from_columns(first.compute, columns, np.concatenate(known) if known else None)

    def score_all(self) -> Scores:
        return self.score(np.arange(self.size))

    def select(self, index: np.ndarray) -> "Scorer":
        """Return a scorer of the rows at these indices."""
        is_correct = None if self.is_correct is None else self.is_correct[index]
        return Scorer(lambda rows: self.score(index[rows]), len(index), is_correct, self.num_resamples)

    def score_samples(self, seed: int) -> list[Scores]:
        """Return the scores of each bootstrap sample; those of a seed are computed once."""
        if seed not in self._samples:
            self._samples[seed] = [self.score(rows) for rows in resample_rows(self, seed)]
        return self._samples[seed]


def resample_rows(scorer: Scorer, seed: int) -> Iterator[np.ndarray]:
    """Yield the bootstrap samples of a scorer: as many row indices as rows, sampled with replacement."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, max(scorer.size, 1), scorer.size) for _ in range(scorer.num_resamples))


def compute_central_interval(values: list[float] | np.ndarray) -> list[float]:
    """Return the percentiles 2.5 and 97.5, which are the bounds of a 95 % interval."""
    return [float(bound) for bound in np.percentile(values, [2.5, 97.5])]


def bootstrap(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95 % bootstrap interval of each score."""
    samples = scorer.score_samples(seed)
    values = {name: [scores[name] for scores in samples if name in scores] for name in scorer.score_all()}
    return {name: compute_central_interval(column) for name, column in values.items() if column}


def compute_intervals(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95 % interval of each score: Wilson's for accuracy, the bootstrap for all other scores.

    If all rows are correct, the bootstrap interval of accuracy would be [1, 1]. Wilson's interval is wider.
    """
    intervals = bootstrap(scorer, seed)
    if scorer.is_correct is not None and "accuracy" in intervals:
        intervals["accuracy"] = compute_wilson_interval(int(scorer.is_correct.sum()), scorer.size)
    return intervals


def compute_wilson_interval(num_correct: int, size: int) -> list[float]:
    """Return Wilson's 95 % interval of the fraction of correct rows."""
    from scipy.stats import binomtest

    wilson = binomtest(num_correct, size).proportion_ci(method="wilson")
    return [float(wilson.low), float(wilson.high)]


# ---- two models on the same rows


@dataclass(frozen=True)
class ScoreDifference:
    """Difference between two models in one score."""

    difference: float
    interval: list[float]
    p: float  # two-sided
    test: str  # "mcnemar" (McNemar's exact test) for accuracy, otherwise "bootstrap"


def compare_scorers(first: Scorer, second: Scorer, seed: int = 0) -> dict[str, ScoreDifference]:
    """Return the difference between two models in each score that both have.

    The paired bootstrap (Efron and Tibshirani 1993, 16.4) samples the same rows for both models. Rows that
    are hard for both models then do not increase the variance of the difference. Differences in accuracy are
    tested with McNemar's test (McNemar 1947).
    """
    assert first.size == second.size or 0 in (first.size, second.size)
    first_scores, second_scores = first.score_all(), second.score_all()
    samples = list(zip(first.score_samples(seed), second.score_samples(seed), strict=True))
    differences = {}
    for name in (name for name in first_scores if name in second_scores):
        complete_samples = [(a, b) for a, b in samples if name in a and name in b]
        if not complete_samples:
            continue
        values = np.array([b[name] - a[name] for a, b in complete_samples])
        # Each count is increased by 1, so that the p-value of a finite number of samples is never 0.
        below, above = (values <= 0).sum() + 1, (values >= 0).sum() + 1
        p = float(min(1.0, 2 * min(below, above) / (len(values) + 1)))
        difference = second_scores[name] - first_scores[name]
        differences[name] = ScoreDifference(difference, compute_central_interval(values), p, "bootstrap")
    if first.is_correct is not None and second.is_correct is not None and "accuracy" in differences:
        accuracy = differences["accuracy"]
        p = mcnemar_test(first.is_correct, second.is_correct)
        differences["accuracy"] = ScoreDifference(accuracy.difference, accuracy.interval, p, "mcnemar")
    return differences


def mcnemar_test(first: np.ndarray, second: np.ndarray) -> float:
    """Return the exact two-sided p-value of McNemar's test, given which rows are correct by each model."""
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


@dataclass(frozen=True)
class Drop:
    """How much lower the score of a second model is on the same rows, as a fraction of the perfect score.

    Attributes:
        bound: Upper bound of the drop, with a confidence of 97.5 %.
    """

    drop: float
    bound: float
    num_rows: int

    def count_needed_rows(self, limit: float) -> int | None:
        """Return with how many rows the bound would be at the limit; None if the drop itself is above it."""
        if self.drop >= limit:
            return None
        if self.drop == 0:  # without any difference, bound / (1 - bound) is proportional to 1 / n
            return math.ceil(self.num_rows * (1 / limit - 1) / (1 / self.bound - 1))
        return math.ceil(self.num_rows * ((self.bound - self.drop) / (limit - self.drop)) ** 2)


def bound_drop(
    first: Scorer, second: Scorer, metric: str, is_higher_better: bool, perfect: float = 1.0, seed: int = 0
) -> Drop:
    """Return how much lower the score of the second model is, with an upper bound.

    For accuracy, the bound is that of the score interval for paired fractions (Tango 1998). For other scores,
    it is that of the paired bootstrap, and at least the bound of an error that no row shows, -log(0.025) / n.
    """
    if metric == "accuracy" and first.is_correct is not None and second.is_correct is not None:
        only_first = int((first.is_correct & ~second.is_correct).sum())
        only_second = int((second.is_correct & ~first.is_correct).sum())
        drop = (only_first - only_second) / first.size
        return Drop(drop, _bound_paired_difference(only_first, only_second, first.size), first.size)
    found = compare_scorers(first, second, seed)[metric]
    sign = -1 if is_higher_better else 1
    drop, bound = sign * found.difference / perfect, max(sign * value for value in found.interval) / perfect
    return Drop(drop, max(bound, drop, -math.log(0.025) / first.size), first.size)


def _bound_paired_difference(only_first: int, only_second: int, size: int) -> float:
    """Return the upper bound of Tango's 95 % interval for a difference of two fractions of the same rows."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.ppf(0.975))

    def compute_excess(difference: float) -> float:
        """Return by how much the score statistic for this difference is below z."""
        # q is the maximum likelihood estimate of the probability that only the second model is right
        a = 2 * size
        b = -only_first - only_second + (2 * size - only_first + only_second) * difference
        c = -only_second * difference * (1 - difference)
        q = (math.sqrt(max(b * b - 4 * a * c, 0)) - b) / (2 * a)
        variance = size * (2 * q + difference * (1 - difference))
        return z * math.sqrt(max(variance, 0)) - (size * difference - only_first + only_second)

    if compute_excess(1.0) >= 0:
        return 1.0
    low = (only_first - only_second) / size
    return float(brentq(compute_excess, max(low, 1e-12), 1.0))


# ---- groups of runs

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


def compare_paired_scores(first: Sequence[float], second: Sequence[float]) -> dict[str, Any] | None:
    """Return the difference of the means of paired runs, or None for fewer than three pairs.

    It has the keys `difference`, second minus first; `interval`, Student's 95 % interval; and `p`, of the
    paired t-test.
    """
    from scipy.stats import ttest_1samp

    differences = [b - a for a, b in zip(first, second, strict=True)]
    interval = compute_t_interval(differences)
    if interval is None:
        return None
    mean = statistics.fmean(differences)
    is_constant = min(differences) == max(differences)  # the t-test divides by their standard deviation
    p = float(mean == 0) if is_constant else float(ttest_1samp(differences, 0).pvalue)
    return {"difference": mean, "interval": interval, "p": p}
