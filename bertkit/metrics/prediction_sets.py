"""Prediction sets with a guaranteed coverage: split conformal prediction.

Vovk, Gammerman and Shafer 2005, "Algorithmic Learning in a Random World"; Angelopoulos and Bates 2021, "A
Gentle Introduction to Conformal Prediction", section 1.
"""

import numpy as np

from bertkit.metrics.classification import Scores

SET_LEVEL = 0.9  # fraction of the sets that contain the gold class
SET_SCORES = ("set_coverage", "set_size")


def compute_margins(logits: np.ndarray) -> np.ndarray:
    """Return [n, classes] the logit of each class minus the highest logit of the other classes.

    The margin is the conformity score of a class. A temperature divides all margins by the same
    number, so the sets do not depend on it. They are therefore valid although the temperature was fitted on
    the same rows.

    Args:
        logits: [n, classes] logits; -inf for a class that a row does not have.
    """
    order = np.sort(logits, axis=1)
    best, second = order[:, -1:], order[:, -2:-1]
    is_best = np.arange(logits.shape[1]) == logits.argmax(1)[:, None]
    return logits - np.where(is_best, second, best)


def fit_set_margin(logits: np.ndarray, gold: np.ndarray, level: float = SET_LEVEL) -> float:
    """Return the margin that a class of a prediction set has at least.

    Let k = floor((n + 1)(1 - level)). If all n + 1 rows are exchangeable, the gold class of a new row has a
    margin below the k-th lowest of these n margins with a probability of at most k / (n + 1). The result is
    halfway between this margin and the next lower one, so that rounding does not change a set.

    Args:
        logits: [n, classes] logits.
        gold: [n] gold class.
        level: Fraction of the sets that contain the gold class.
    """
    margins = np.sort(compute_margins(logits)[np.arange(len(gold)), gold])
    num_missed = int(np.floor((len(gold) + 1) * (1 - level) + 1e-9))
    if num_missed == 0:
        return -np.inf
    lower = margins[max(num_missed - 2, 0)]
    return float((margins[num_missed - 1] + lower) / 2)


def find_members(logits: np.ndarray, margin: float | np.ndarray) -> np.ndarray:
    """Return [n, classes] bool, which classes are in the prediction set of each row.

    Args:
        logits: [n, classes] logits.
        margin: Result of `fit_set_margin`, possibly one for each row, [n, 1].
    """
    return (compute_margins(logits) >= margin) & np.isfinite(logits)


def score_sets(is_member: np.ndarray, gold: np.ndarray) -> Scores:
    """Return `set_coverage`, the fraction of sets with the gold class, and `set_size`, the mean size."""
    has_gold = is_member[np.arange(len(gold)), gold]
    return {"set_coverage": float(has_gold.mean()), "set_size": float(is_member.sum(1).mean())}
