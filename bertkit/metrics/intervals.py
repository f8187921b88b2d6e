"""95 % intervals: what the score would be on other rows of the same kind."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bertkit.metrics.classification import Scores

NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Scorer:
    """The scores of any draw of a split's rows.

    Attributes:
        of: gives the scores of the rows at some indices [size]. A draw may lack a score of all rows: that of
            the questions without answer, say, where it has none.
        size: how many rows there are.
        right: [size] bool, where "accuracy" is the share of the rows that are right.
    """

    score: Callable[[np.ndarray], Scores]
    size: int
    is_correct: np.ndarray | None = None

    def score_all(self) -> Scores:
        """Those of all rows."""
        return self.score(np.arange(self.size))


def bootstrap(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """Percentiles 2.5 and 97.5 of each score, by drawing rows with replacement."""
    drawn = [scorer.score(rows) for rows in resample_rows(scorer.size, seed)]
    found = {name: [scores[name] for scores in drawn if name in scores] for name in scorer.score_all()}
    return {name: compute_central_interval(values) for name, values in found.items() if values}


def resample_rows(size: int, seed: int) -> Iterator[np.ndarray]:
    """`RESAMPLES` draws of as many rows as there are, with replacement."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, size, size) for _ in range(NUM_RESAMPLES))


def compute_central_interval(values: list[float] | np.ndarray) -> list[float]:
    """The bounds of the middle 95 % of them."""
    return [float(bound) for bound in np.percentile(values, [2.5, 97.5])]


def compute_intervals(scorer: Scorer, seed: int = 0) -> dict[str, list[float]]:
    """`bootstrap`, but for "accuracy" where it is a share of the rows.

    It gets Wilson's interval, which stays honest where all answers are right and the bootstrap would
    say [1, 1].
    """
    from scipy.stats import binomtest

    bounds = bootstrap(scorer, seed)
    if scorer.is_correct is not None and "accuracy" in bounds:
        wilson = binomtest(int(scorer.is_correct.sum()), scorer.size).proportion_ci(method="wilson")
        bounds["accuracy"] = [float(wilson.low), float(wilson.high)]
    return bounds
