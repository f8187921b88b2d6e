"""Decision thresholds of binary labels: the probability above which a label is predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertkit.errors import UserError

DEFAULT_THRESHOLD = 0.5
CRITERIA_WITH_VALUE = ("recall", "precision")


@dataclass(frozen=True)
class ThresholdCriterion:
    """What a threshold is chosen for.

    Attributes:
        name: "f1" or "macro_f1", which are maximized, or "recall" or "precision".
        minimum: Smallest accepted recall or precision. Of the thresholds that reach it, the one with the
            highest precision or recall is chosen. None for the other criteria.
    """

    name: Literal["f1", "macro_f1", "recall", "precision"]
    minimum: float | None = None


def parse_criterion(text: str) -> ThresholdCriterion:
    """Return the criterion that `--threshold` names.

    Raises:
        UserError: The text is not a criterion.
    """
    if text in ("f1", "macro_f1"):
        return ThresholdCriterion(text)  # type: ignore[arg-type]
    name, _, value = text.partition("=")
    try:
        minimum = float(value)
    except ValueError:
        minimum = -1.0
    if name not in CRITERIA_WITH_VALUE or not 0 < minimum <= 1:
        raise UserError(
            f"--threshold {text}: is not a criterion; use f1, macro_f1, recall=R or precision=P, with a "
            "number above 0 and up to 1"
        )
    return ThresholdCriterion(name, minimum)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Sweep:
    """Counts at every threshold that changes a prediction, from no predictions to all rows.

    Attributes:
        threshold: [k] probability above which the label is predicted.
        num_predicted: [k] number of rows with the predicted label.
        num_correct: [k] number of these rows that have the label.
        num_positive: Number of rows that have the label.
        num_rows: Number of rows.
    """

    threshold: np.ndarray
    num_predicted: np.ndarray
    num_correct: np.ndarray
    num_positive: int
    num_rows: int

    @property
    def recall(self) -> np.ndarray:
        """[k] fraction of the rows with the label that are predicted."""
        return self.num_correct / max(self.num_positive, 1)

    @property
    def precision(self) -> np.ndarray:
        """[k] fraction of the predicted rows that have the label; 0 without predictions."""
        return self.num_correct / np.maximum(self.num_predicted, 1)

    @property
    def f1(self) -> np.ndarray:
        """[k] F1 of the label; 0 if it occurs neither in the rows nor in the predictions."""
        return 2 * self.num_correct / np.maximum(self.num_predicted + self.num_positive, 1)

    @property
    def f1_of_rest(self) -> np.ndarray:
        """[k] F1 of the rows without the label."""
        num_left = self.num_rows - self.num_predicted
        num_negative = self.num_rows - self.num_positive
        num_correct = num_negative - (self.num_predicted - self.num_correct)
        return 2 * num_correct / np.maximum(num_left + num_negative, 1)


def _sweep(probability: np.ndarray, is_positive: np.ndarray) -> _Sweep:
    """Return the counts at thresholds halfway between adjacent probabilities.

    Rows with a probability of 0 are never predicted, because no threshold is below 0.
    """
    order = np.argsort(-probability, kind="stable")
    values = probability[order]
    is_boundary = np.concatenate([[True], values[1:] < values[:-1], values[-1:] > 0])
    num_predicted = np.flatnonzero(is_boundary)
    edges = np.concatenate([[1.0], values, [0.0]])
    threshold = (edges[num_predicted] + edges[num_predicted + 1]) / 2
    correct = np.concatenate([[0], np.cumsum(is_positive[order])])
    return _Sweep(threshold, num_predicted, correct[num_predicted], int(is_positive.sum()), len(probability))


def fit_binary_threshold(
    probability: np.ndarray, is_positive: np.ndarray, criterion: ThresholdCriterion
) -> float | None:
    """Return the threshold that meets a criterion; None if no threshold does.

    Of equally good thresholds, the one nearest to 0.5 is returned.

    Args:
        probability: [n] probability of the label.
        is_positive: [n] bool, whether the row has the label.
        criterion: The criterion. `macro_f1` is the mean F1 of the rows with and without the label.
    """
    sweep = _sweep(probability, is_positive)
    scores: dict[str, Callable[[], np.ndarray]] = {
        "f1": lambda: sweep.f1,
        "macro_f1": lambda: (sweep.f1 + sweep.f1_of_rest) / 2,
        "recall": lambda: np.where(sweep.recall >= criterion.minimum, sweep.precision, -1.0),
        "precision": lambda: np.where(
            (sweep.precision >= criterion.minimum) & (sweep.num_correct > 0), sweep.recall, -1.0
        ),
    }
    score = scores[criterion.name]()
    if not sweep.num_positive or score.max() < 0:
        return None
    best = np.flatnonzero(score >= score.max() - 1e-12)
    return float(min(sweep.threshold[best], key=lambda threshold: abs(threshold - DEFAULT_THRESHOLD)))


def fit_label_thresholds(
    probabilities: np.ndarray, gold: np.ndarray, criterion: ThresholdCriterion
) -> list[float | None]:
    """Return the threshold of each label of label sets; None if no threshold meets the criterion.

    With `f1`, all labels have the same threshold, which maximizes the micro F1. Otherwise, each label has its
    own threshold. The thresholds of `macro_f1` maximize the F1 of each label, and thus their mean.

    Args:
        probabilities: [n, labels] probability of each label.
        gold: [n, labels] int, 0 or 1.
        criterion: The criterion.
    """
    if criterion.name == "f1":
        threshold = fit_binary_threshold(probabilities.ravel(), gold.ravel() == 1, criterion)
        return [threshold] * gold.shape[1]
    if criterion.name == "macro_f1":
        criterion = ThresholdCriterion("f1")
    return [
        fit_binary_threshold(probabilities[:, label], gold[:, label] == 1, criterion)
        for label in range(gold.shape[1])
    ]
