"""Abstention and prediction sets for `calibrate`: they are fitted on calibrated confidences."""

from typing import Any

import numpy as np

from bertkit.infer.calibration_fit import RowConfidence, TemperatureFit
from bertkit.metrics.prediction_sets import SET_LEVEL, find_members, fit_set_margin, score_sets
from bertkit.metrics.selection import (
    SelectiveScorer,
    compute_risk_coverage,
    describe_coverage,
    fit_min_confidence,
)


def describe_risk_coverage(confidence: RowConfidence) -> dict[str, Any]:
    """Return the cross-fitted risk-coverage curve, and the area under it."""
    values, is_correct = confidence.cross_fitted, confidence.is_correct
    scores = SelectiveScorer(values, is_correct, 0.0).score(np.arange(len(values)))
    return {**compute_risk_coverage(values, is_correct), "aurc": scores["aurc"]}


def fit_abstention(confidence: RowConfidence, coverage: float) -> dict[str, Any]:
    """Fit the confidence below which the model abstains, and score it by cross-fitting.

    Args:
        confidence: The confidence in each row.
        coverage: Fraction of the rows to answer.

    Returns:
        `min_confidence`, the `requested` coverage, and the `scores` "before" and "after".
    """
    folds = confidence.folds
    min_confidences = np.array([
        fit_min_confidence(values[folds != fold], coverage) for fold, values in enumerate(confidence.by_fold)
    ])  # fmt: skip
    return {
        "requested": coverage,
        "min_confidence": fit_min_confidence(confidence.fitted, coverage),
        "scores": describe_coverage(
            confidence.cross_fitted, confidence.is_correct, min_confidences[folds]
        ),
    }  # fmt: skip


def fit_sets(fit: TemperatureFit) -> dict[str, Any]:
    """Fit the margin of prediction sets, and score it by cross-fitting.

    The margin is that of calibrated logits. Each row must have one decision.

    Returns:
        `level`, `margin`, and the scores of the sets.
    """
    logits, gold = fit.trained.logits, fit.trained.gold
    folds = range(fit.folds.max() + 1)
    margins = [fit_set_margin(logits[fit.folds != fold], gold[fit.folds != fold]) for fold in folds]
    is_member = find_members(logits, np.array(margins)[fit.folds, None])
    margin = fit_set_margin(logits, gold) / fit.temperature
    return {"level": SET_LEVEL, "margin": margin, "scores": score_sets(is_member, gold)}
