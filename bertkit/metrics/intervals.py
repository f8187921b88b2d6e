"""95 % intervals: what the score would be on other rows of the same kind."""

from collections.abc import Callable

import numpy as np

RESAMPLES = 1000


def bootstrap(
    score: Callable[[np.ndarray], dict[str, float]], size: int, seed: int = 0
) -> dict[str, list[float]]:
    """Percentiles 2.5 and 97.5 of each score, by drawing rows with replacement.

    A draw may lack a score of all rows: that of the questions without answer, say, where it has none.

    Args:
        score: gives the scores of the rows at some indices [size].
        size: how many rows there are.
    """
    rng = np.random.default_rng(seed)
    drawn = [score(rng.integers(0, size, size)) for _ in range(RESAMPLES)]
    found = {name: [scores[name] for scores in drawn if name in scores] for name in score(np.arange(size))}
    return {
        name: [float(bound) for bound in np.percentile(values, [2.5, 97.5])]
        for name, values in found.items()
        if values
    }


def intervals(
    score: Callable[[np.ndarray], dict[str, float]], size: int, seed: int = 0
) -> dict[str, list[float]]:
    """`bootstrap`, but for "accuracy", which is a share of the rows.

    It gets Wilson's interval, which stays honest where all answers are right and the bootstrap would
    say [1, 1].
    """
    from scipy.stats import binomtest

    bounds = bootstrap(score, size, seed)
    if "accuracy" in bounds:
        right = round(score(np.arange(size))["accuracy"] * size)
        wilson = binomtest(right, size).proportion_ci(method="wilson")
        bounds["accuracy"] = [float(wilson.low), float(wilson.high)]
    return bounds
