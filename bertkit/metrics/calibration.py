"""Calibration of predicted probabilities: reliability diagrams and the expected calibration error."""

from dataclasses import dataclass

import numpy as np

NUM_BINS = 15  # Guo et al. 2017


@dataclass(frozen=True)
class Calibration:
    """Predictions in confidence bins of equal width; the means of an empty bin are NaN.

    Attributes:
        count: [bins] int, number of predictions.
        confidence: [bins] float, mean confidence.
        accuracy: [bins] float, fraction of correct predictions.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Mean gap between confidence and accuracy: expected calibration error (Guo et al. 2017, eq. 3)."""
        used = self.count > 0
        gaps = np.abs(self.accuracy[used] - self.confidence[used])
        return float((self.count[used] * gaps).sum() / max(self.count.sum(), 1))


def compute_calibration(confidence: np.ndarray, is_correct: np.ndarray, bins: int = NUM_BINS) -> Calibration:
    """Bin predictions by confidence; bin m, counted from 1, covers ((m - 1) / bins, m / bins].

    Args:
        confidence: [n] float from 0 to 1, the probability of the predicted label.
        is_correct: [n] bool, whether the prediction is correct.
        bins: Number of bins.
    """
    bin_index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [
            np.bincount(bin_index, values, minlength=bins) / count for values in (confidence, is_correct)
        ]
    return Calibration(count, *means)
