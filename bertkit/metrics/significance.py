"""95% confidence intervals of scores, and tests of the difference between two models on the same rows."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertkit.metrics.classification import Scores

NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Scorer:
    """A function that scores any selection of a split's rows.

    Attributes:
        score: Returns the scores of the rows at the given indices [size]. A resample may lack a score that
            the whole split has, such as the score of unanswerable questions when it contains none.
        size: Number of rows.
        is_correct: [size] bool, if "accuracy" is the fraction of correct rows; else None.
    """

    score: Callable[[np.ndarray], Scores]
    size: int
    is_correct: np.ndarray | None = None

    def score_all(self) -> Scores:
        """Return the scores of all rows."""
        return self.score(np.arange(self.size))


def resample_rows(size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield `NUM_RESAMPLES` bootstrap samples: `size` row indices each, sampled with replacement."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, size, size) for _ in range(NUM_RESAMPLES))


def compute_central_interval(values: list[float] | np.ndarray) -> list[float]:
    """Return the percentiles 2.5 and 97.5."""
    return [float(bound) for bound in np.percentile(values, [2.5, 97.5])]


def bootstrap(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95% bootstrap interval of each score."""
    samples = [scorer.score(rows) for rows in resample_rows(scorer.size, seed)]
    values = {name: [scores[name] for scores in samples if name in scores] for name in scorer.score_all()}
    return {name: compute_central_interval(column) for name, column in values.items() if column}


def compute_intervals(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95% interval of each score: Wilson's for accuracy, the bootstrap for all others.

    If every row is correct, the bootstrap reports [1, 1] for accuracy; Wilson's interval does not.
    """
    from scipy.stats import binomtest

    intervals = bootstrap(scorer, seed)
    if scorer.is_correct is not None and "accuracy" in intervals:
        wilson = binomtest(int(scorer.is_correct.sum()), scorer.size).proportion_ci(method="wilson")
        intervals["accuracy"] = [float(wilson.low), float(wilson.high)]
    return intervals


@dataclass(frozen=True)
class ScoreDifference:
    """Difference between two models in one score: the second minus the first.

    Attributes:
        difference: On all rows, in the unit of the score.
        interval: 95% paired bootstrap interval.
        p: Two-sided p-value, from McNemar's exact test for accuracy and from the bootstrap otherwise.
        test: "mcnemar" or "bootstrap".
    """

    difference: float
    interval: list[float]
    p: float
    test: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


def compare_scorers(first: Scorer, second: Scorer, seed: int = 0) -> dict[str, ScoreDifference]:
    """Return the difference in each score that both scorers have.

    The paired bootstrap (Efron and Tibshirani 1993, 16.4) resamples the same rows for both models, so rows
    that are hard for both do not inflate the variance. Accuracy is tested with McNemar's test (McNemar 1947).
    """
    assert first.size == second.size
    first_scores, second_scores = first.score_all(), second.score_all()
    samples = [(first.score(rows), second.score(rows)) for rows in resample_rows(first.size, seed)]
    differences = {}
    for name in (name for name in first_scores if name in second_scores):
        values = np.array([b[name] - a[name] for a, b in samples if name in a and name in b])
        differences[name] = ScoreDifference(
            second_scores[name] - first_scores[name],
            compute_central_interval(values),
            _bootstrap_p_value(values),
            "bootstrap",
        )
    if first.is_correct is not None and second.is_correct is not None and "accuracy" in differences:
        accuracy = differences["accuracy"]
        p = mcnemar_test(first.is_correct, second.is_correct)
        differences["accuracy"] = ScoreDifference(accuracy.difference, accuracy.interval, p, "mcnemar")
    return differences


def mcnemar_test(first: np.ndarray, second: np.ndarray) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Args:
        first: [n] bool, the rows that the first model has correct.
        second: [n] bool, the rows that the second model has correct.
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def _bootstrap_p_value(differences: np.ndarray) -> float:
    """Return the two-sided p-value of resampled differences; a finite sample never gives 0."""
    below, above = (differences <= 0).sum() + 1, (differences >= 0).sum() + 1
    return float(min(1.0, 2 * min(below, above) / (len(differences) + 1)))
