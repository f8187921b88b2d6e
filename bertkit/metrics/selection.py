"""Selective prediction: a model that abstains from rows of low confidence (Geifman and El-Yaniv 2017).

Coverage is the fraction of rows that the model answers. Risk is the fraction of these rows with a wrong
prediction.
"""

from typing import Any

import numpy as np

from bertkit.metrics.classification import Scores

NUM_CURVE_POINTS = 20  # coverages 0.05, 0.1, ... 1


def fit_min_confidence(confidence: np.ndarray, coverage: float) -> float:
    """Return the confidence below which the model abstains, so that it answers a fraction of the rows.

    The result is halfway between the lowest answered confidence and the next lower one, so that rounding does
    not change which rows are answered. Rows of equal confidence are all answered, even if this makes the
    fraction higher.

    Args:
        confidence: [n] confidence of each row.
        coverage: Fraction of the rows to answer.
    """
    values = np.sort(confidence)[::-1]
    lowest_answered = values[max(1, int(np.ceil(coverage * len(values) - 1e-9))) - 1]
    lower = values[values < lowest_answered]
    return float((lowest_answered + (lower[0] if len(lower) else 0.0)) / 2)


def compute_risk_coverage(confidence: np.ndarray, is_correct: np.ndarray) -> dict[str, list[float]]:
    """Return points of the risk-coverage curve, from the most confident rows to all rows.

    Args:
        confidence: [n] confidence of each row.
        is_correct: [n] bool, whether the prediction is correct.

    Returns:
        `coverage`, `risk` and `min_confidence` of each point.
    """
    order = np.argsort(-confidence, kind="stable")
    num_answered = np.ceil(np.arange(1, NUM_CURVE_POINTS + 1) / NUM_CURVE_POINTS * len(order)).astype(int)
    risk = np.cumsum(~is_correct[order])[num_answered - 1] / num_answered
    return {
        "coverage": (num_answered / len(order)).tolist(),
        "risk": risk.tolist(),
        "min_confidence": confidence[order][num_answered - 1].tolist(),
    }


class SelectiveScorer:
    """The scores of a model that abstains, for any sample of the rows.

    * `coverage`: fraction of the rows that are answered.
    * `answered_accuracy`: fraction of the answered rows that are correct; missing if no row is answered.
    * `aurc`: area under the risk-coverage curve. It is the mean risk over the numbers of answered rows if the
      most confident rows are answered first. Rows of equal confidence are answered together.

    Args:
        confidence: [n] confidence of each row.
        is_correct: [n] bool, whether the prediction is correct.
        min_confidence: Confidence below which the model abstains.
    """

    def __init__(self, confidence: np.ndarray, is_correct: np.ndarray, min_confidence: float) -> None:
        self.is_answered = confidence >= min_confidence
        self.is_correct = is_correct
        _, self._group = np.unique(-confidence, return_inverse=True)  # the most confident group is the first

    def score(self, rows: np.ndarray) -> Scores:
        """Return the scores of the rows at these indices, which may repeat."""
        is_answered, is_correct, group = (
            values[rows] for values in (self.is_answered, self.is_correct, self._group)
        )
        scores = {"coverage": float(is_answered.mean())}
        if is_answered.any():
            scores["answered_accuracy"] = float(is_correct[is_answered].mean())
        sizes, errors = np.bincount(group), np.bincount(group, ~is_correct)
        risk = np.cumsum(errors) / np.maximum(np.cumsum(sizes), 1)
        return scores | {"aurc": float((risk * sizes).sum() / max(sizes.sum(), 1))}


SELECTIVE_SCORES = ("coverage", "answered_accuracy", "aurc")


def describe_coverage(
    confidence: np.ndarray, is_correct: np.ndarray, min_confidence: np.ndarray | float
) -> dict[str, Any]:
    """Return the scores of answering all rows ("before"), and of abstaining ("after").

    Args:
        confidence: [n] confidence of each row.
        is_correct: [n] bool, whether the prediction is correct.
        min_confidence: Confidence below which the model abstains, possibly one for each row.
    """
    is_answered = confidence >= min_confidence
    answered = is_correct[is_answered]
    return {
        "before": {"coverage": 1.0, "answered_accuracy": float(is_correct.mean())},
        "after": {
            "coverage": float(is_answered.mean()),
            "answered_accuracy": float(answered.mean()) if len(answered) else 0.0,
        },
    }
