"""Thresholds for `calibrate`: they are fitted on calibrated probabilities, and scored by cross-fitting."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.errors import UserError, format_list
from bertkit.metrics.classification import Scores
from bertkit.metrics.thresholds import ThresholdCriterion, parse_criterion
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.tasks.base import Task
    from bertkit.tasks.label_type import LabelType

CURVE_THRESHOLDS = [round(0.05 * step, 2) for step in range(1, 20)]


@dataclass(frozen=True)
class ThresholdRows:
    """The rows that thresholds are fitted on.

    Attributes:
        logits: [rows, outputs] logits of the model as it was trained.
        gold: Encoded gold labels.
        folds: [rows] index of the fold of each row.
    """

    logits: np.ndarray
    gold: np.ndarray
    folds: np.ndarray


def require_criterion(task: "Task", text: str, run: object) -> ThresholdCriterion:
    """Return the criterion that `--threshold` names.

    Raises:
        UserError: The text is not a criterion, or the labels of the run have no thresholds.
    """
    criterion = parse_criterion(text)
    label_type = getattr(task, "label_type", None)
    if label_type is None or not label_type.labels_with_threshold:
        raise UserError(
            f"--threshold {text}: {run} predicts the most probable class; leave it out, or pass a run of "
            "classify with a positive label (--problem binary) or with label sets"
        )
    return criterion


def fit_thresholds(
    label_type: "LabelType",
    rows: ThresholdRows,
    criterion: ThresholdCriterion,
    temperature: float,
    fold_temperatures: Sequence[float],
    reporter: Reporter,
) -> dict[str, Any]:
    """Fit the thresholds on all rows, and score them by cross-fitting.

    Each fold is predicted with the temperature and the thresholds that are fitted on the other folds.

    Args:
        label_type: The labels of the run.
        rows: The rows.
        criterion: What the thresholds are chosen for.
        temperature: The temperature that is fitted on all rows.
        fold_temperatures: The temperature that is fitted on all rows except those of the fold, by fold.
        reporter: Receives a warning about labels without a threshold.

    Returns:
        `thresholds` by label, the `scores` "before" (default decisions) and "after" (cross-fitted), and the
        `curve` of the scores by threshold.

    Raises:
        UserError: No threshold meets the criterion.
    """
    fitted = label_type.fit_thresholds(rows.logits / temperature, rows.gold, criterion)
    thresholds = {label: value for label, value in fitted.items() if value is not None}
    if not thresholds:
        raise UserError(
            f"--threshold: no threshold reaches a {criterion.name} of {criterion.minimum} on these rows; "
            "pass a lower value, or rows with all labels"
        )
    if missing := [label for label in fitted if label not in thresholds]:
        reporter.warn(f"no threshold meets the criterion for {format_list(missing)}, which keep 0.5")
    default = _with_thresholds(label_type, {})
    predicted = default.predict(rows.logits)
    before = _score(default, rows.gold, predicted)
    for fold, fold_temperature in enumerate(fold_temperatures):
        members, logits = rows.folds == fold, rows.logits / fold_temperature
        fold_thresholds = default.fit_thresholds(logits[~members], rows.gold[~members], criterion)
        known = {label: value for label, value in fold_thresholds.items() if value is not None}
        predicted[members] = _with_thresholds(label_type, known).predict(logits[members])
    scores = {"before": before, "after": _score(default, rows.gold, predicted)}
    curve = _sweep_scores(default, rows.logits / temperature, rows.gold)
    return {"thresholds": thresholds, "scores": scores, "curve": curve}


def _sweep_scores(label_type: "LabelType", logits: np.ndarray, gold: np.ndarray) -> dict[str, list[float]]:
    """Return the scores on these rows if all labels have the same threshold, by threshold."""
    labels = label_type.labels_with_threshold
    scores = [
        _score(
            label_type, gold, _with_thresholds(label_type, dict.fromkeys(labels, threshold)).predict(logits)
        )
        for threshold in CURVE_THRESHOLDS
    ]
    names = [name for name in scores[0] if name.startswith(("positive_", "micro_", "macro_"))]
    return {"threshold": CURVE_THRESHOLDS, **{name: [part[name] for part in scores] for name in names}}


def _with_thresholds(label_type: "LabelType", thresholds: dict[str, float]) -> "LabelType":
    """Return a copy of the label type with other thresholds."""
    label_type = copy.copy(label_type)
    label_type.thresholds = thresholds
    return label_type


def _score(label_type: "LabelType", gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the scores of the labels; with a positive label, also its precision and recall."""
    scores = label_type.score(gold, predicted)
    if gold.ndim == 2:
        return scores
    [positive] = label_type.labels_with_threshold
    is_positive, is_predicted = (ids == label_type.labels.index(positive) for ids in (gold, predicted))
    num_correct = float((is_positive & is_predicted).sum())
    return scores | {
        "positive_precision": num_correct / max(int(is_predicted.sum()), 1),
        "positive_recall": num_correct / max(int(is_positive.sum()), 1),
    }
