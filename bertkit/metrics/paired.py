"""Two models on the same rows: is the difference more than the luck of these rows?"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertkit.metrics.intervals import Scorer, compute_central_interval, resample_rows


@dataclass(frozen=True)
class ScoreDifference:
    """The second less the first, in one score.

    Attributes:
        difference: of the scores on all rows, in their unit.
        interval: 95 %, by drawing the same rows for both.
        p: two-sided: how often chance alone would give as much. McNemar's exact test where rows are right
            or wrong; else by how many of the draws are on the other side of 0.
        test: "mcnemar" or "bootstrap".
    """

    difference: float
    interval: list[float]
    p: float
    test: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON tells it."""
        return asdict(self)


def compare_scorers(first: Scorer, second: Scorer, seed: int = 0) -> dict[str, ScoreDifference]:
    """The difference in each score that both have.

    A paired bootstrap (Efron and Tibshirani 1993, 16.4) draws the same rows for both, so that what makes
    rows hard for both does not count; accuracy is tested by McNemar's test instead (McNemar 1947).
    """
    assert first.size == second.size
    before, after = first.score_all(), second.score_all()
    drawn = [(first.score(rows), second.score(rows)) for rows in resample_rows(first.size, seed)]
    found = {}
    for name in (name for name in before if name in after):
        values = np.array([b[name] - a[name] for a, b in drawn if name in a and name in b])
        found[name] = ScoreDifference(
            after[name] - before[name], compute_central_interval(values), _share(values), "bootstrap"
        )
    if first.is_correct is not None and second.is_correct is not None and "accuracy" in found:
        bounds = found["accuracy"]
        p = mcnemar_test(first.is_correct, second.is_correct)
        found["accuracy"] = ScoreDifference(bounds.difference, bounds.interval, p, "mcnemar")
    return found


def mcnemar_test(first: np.ndarray, second: np.ndarray) -> float:
    """The exact two-sided p of McNemar's test: of the rows that only one has right, is it one of them more?

    Args:
        first, second: [n] bool, which rows each has right.
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def _share(values: np.ndarray) -> float:
    """Two-sided, of draws around the difference; never 0, for there are only so many of them."""
    below, above = (values <= 0).sum() + 1, (values >= 0).sum() + 1
    return float(min(1.0, 2 * min(below, above) / (len(values) + 1)))
