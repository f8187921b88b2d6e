"""Calibration of predicted probabilities: reliability diagrams, and scores of probabilities.

A decision is a choice between classes, whose probabilities are the softmax of their logits. A label that a
row may have or lack is a decision between two classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.metrics.classification import Scores

NUM_BINS = 15  # Guo et al. 2017
PROBABILITY_SCORES = ("ece", "nll", "brier")


@dataclass(frozen=True)
class Decisions:
    """Decisions with their gold classes. A row has one decision, or several such as those of its labels.

    Attributes:
        logits: [n, classes] float64; -inf for a class that a decision does not have.
        gold: [n] int, gold class; -1 if it is not known.
        row: [n] int, index of the row of each decision.
        num_rows: Number of rows; rows may have no decisions.
    """

    logits: np.ndarray
    gold: np.ndarray
    row: np.ndarray
    num_rows: int

    @classmethod
    def from_classes(cls, logits: np.ndarray, gold: np.ndarray | None) -> "Decisions":
        """Return one decision for each row.

        Args:
            logits: [n, classes] logits.
            gold: [n] gold class; None if it is not known.
        """
        gold = np.full(len(logits), -1) if gold is None else gold
        return cls(logits.astype(np.float64), gold, np.arange(len(logits)), len(logits))

    @classmethod
    def from_label_sets(cls, logits: np.ndarray, gold: np.ndarray | None) -> "Decisions":
        """Return a decision for each label of each row, between 0 (absent) and 1 (present).

        Args:
            logits: [n, labels] logits, whose sigmoid is the probability of the label.
            gold: [n, labels] int, 0 or 1; None if it is not known.
        """
        gold = np.full(logits.shape, -1) if gold is None else gold
        num_rows, num_labels = gold.shape
        present = logits.astype(np.float64).ravel()
        row = np.repeat(np.arange(num_rows), num_labels)
        return cls(np.stack([np.zeros_like(present), present], axis=1), gold.ravel(), row, num_rows)

    def scale(self, factor: float | np.ndarray) -> "Decisions":
        """Return the decisions with their logits multiplied by a factor, or by [n] factors."""
        factors = np.broadcast_to(factor, len(self.gold))
        return Decisions(self.logits * factors[:, None], self.gold, self.row, self.num_rows)

    def select(self, is_selected: np.ndarray) -> "Decisions":
        """Return the decisions where [n] `is_selected` is true; their rows keep their indices."""
        return Decisions(
            self.logits[is_selected], self.gold[is_selected], self.row[is_selected], self.num_rows
        )

    def compute_confidence(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [n] the probability of the most probable class, and [n] bool whether it is correct."""
        from scipy.special import softmax

        predicted = self.logits.argmax(1)
        probabilities = softmax(self.logits, axis=1)[np.arange(len(predicted)), predicted]
        return probabilities, predicted == self.gold

    def compute_row_confidence(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [rows] the lowest confidence of each row's decisions, and bool whether all are correct.

        The confidence of a row without decisions is 1.
        """
        confidence, is_correct = self.compute_confidence()
        row_confidence, row_is_correct = np.ones(self.num_rows), np.ones(self.num_rows, bool)
        np.minimum.at(row_confidence, self.row, confidence)
        np.logical_and.at(row_is_correct, self.row, is_correct)
        return row_confidence, row_is_correct


def make_yes_no_decisions(probability: np.ndarray, is_true: np.ndarray) -> Decisions:
    """Return one decision for each row, between false and true.

    Args:
        probability: [n] probability of true.
        is_true: [n] bool.
    """
    from scipy.special import logit

    clipped = np.clip(probability.astype(np.float64), 1e-12, 1 - 1e-12)
    return Decisions.from_label_sets(logit(clipped)[:, None], is_true.astype(int)[:, None])


@dataclass(frozen=True)
class Calibration:
    """Statistics of predictions in confidence bins of equal width.

    Attributes:
        count: [bins] int, number of predictions in each bin.
        confidence: [bins] float, mean confidence of each bin; NaN for an empty bin.
        accuracy: [bins] float, fraction of correct predictions in each bin; NaN for an empty bin.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy (Guo et al. 2017, eq. 3)."""
        used = self.count > 0
        gaps = np.abs(self.accuracy[used] - self.confidence[used])
        return float((self.count[used] * gaps).sum() / max(self.count.sum(), 1))

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return the fields as a JSON object; NaN becomes None."""
        return {
            name: [None if np.isnan(value) else value for value in getattr(self, name).tolist()]
            for name in ("count", "confidence", "accuracy")
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Calibration":
        """Return the object that `to_dict` converted."""
        count, confidence, accuracy = (
            np.array([np.nan if value is None else value for value in fields[name]])
            for name in ("count", "confidence", "accuracy")
        )
        return cls(count, confidence, accuracy)


def compute_calibration(confidence: np.ndarray, is_correct: np.ndarray, bins: int = NUM_BINS) -> Calibration:
    """Group predictions into bins by confidence.

    Bin m of M, counted from 1, covers the interval ((m - 1) / M, m / M].

    Args:
        confidence: [n] float from 0 to 1, probability of the predicted label.
        is_correct: [n] bool, whether the prediction is correct.
        bins: Number of bins.
    """
    bin_index = _find_bins(confidence, bins)
    count = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [
            np.bincount(bin_index, values, minlength=bins) / count for values in (confidence, is_correct)
        ]
    return Calibration(count, *means)


def _find_bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Return [n] the index of the bin of each confidence; NaN belongs to the first bin."""
    return np.clip(np.ceil(np.nan_to_num(confidence) * bins).astype(int) - 1, 0, bins - 1)


class EceScorer:
    """The expected calibration error (Guo et al. 2017, eq. 3), for any sample of the rows.

    It is computed from sums over rows, so a sample of the bootstrap costs one matrix product.

    Args:
        confidence: [n] confidence of each prediction.
        is_correct: [n] bool, whether the prediction is correct.
        row: [n] int, index of the row of each prediction.
        num_rows: Number of rows; rows may have no predictions.
    """

    def __init__(
        self, confidence: np.ndarray, is_correct: np.ndarray, row: np.ndarray, num_rows: int
    ) -> None:
        self.num_rows = num_rows
        bins = _find_bins(confidence, NUM_BINS)
        gaps = _sum_by_row(row, num_rows, is_correct - confidence, bins, NUM_BINS)
        self._sums = np.concatenate([gaps, _sum_by_row(row, num_rows, np.ones(len(row)))], axis=1)

    def score(self, rows: np.ndarray) -> float:
        """Return the score of the rows at these indices, which may repeat."""
        sums = np.bincount(rows, minlength=self.num_rows) @ self._sums
        return float(np.abs(sums[:-1]).sum() / max(sums[-1], 1))


def _sum_by_row(
    row: np.ndarray, num_rows: int, values: np.ndarray, column: np.ndarray | int = 0, num_columns: int = 1
) -> np.ndarray:
    """Return [num_rows, num_columns] the sums of the [n] values of each row in each column."""
    cell = row * num_columns + column
    return np.bincount(cell, values, minlength=num_rows * num_columns).reshape(-1, num_columns)


class ProbabilityScorer:
    """The scores of probabilistic predictions, for any sample of the rows.

    * `ece`: expected calibration error, the mean gap between confidence and accuracy in 15 bins of equal
      width (Guo et al. 2017, eq. 3).
    * `nll`: mean negative log-likelihood of the gold class.
    * `brier`: mean of half the squared distance between the probabilities and the gold class (Brier 1950).
      It ranges from 0 to 1. For two classes, it is the squared error of the probability of either class.
    """

    def __init__(self, decisions: Decisions) -> None:
        from scipy.special import log_softmax

        index = np.arange(len(decisions.gold))
        log_probabilities = log_softmax(decisions.logits, axis=1)
        errors = np.exp(log_probabilities)
        errors[index, decisions.gold] -= 1
        self.num_rows = decisions.num_rows
        self._ece = EceScorer(*decisions.compute_confidence(), decisions.row, decisions.num_rows)
        columns = (-log_probabilities[index, decisions.gold], (errors**2).sum(1) / 2, np.ones(len(index)))
        sums = [_sum_by_row(decisions.row, decisions.num_rows, values) for values in columns]
        self._sums = np.concatenate(sums, axis=1)  # [rows, 3]

    def score(self, rows: np.ndarray) -> Scores:
        """Return `ece`, `nll` and `brier` of the rows at these indices, which may repeat."""
        nll, brier, count = np.bincount(rows, minlength=self.num_rows) @ self._sums
        count = max(count, 1)
        return {"ece": self._ece.score(rows), "nll": float(nll / count), "brier": float(brier / count)}

    def score_all(self) -> Scores:
        """Return the scores of all rows."""
        return self.score(np.arange(self.num_rows))
