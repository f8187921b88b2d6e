"""Calibration of predicted probabilities: reliability diagrams and the expected calibration error."""

from dataclasses import dataclass

import numpy as np

NUM_BINS = 15  # Guo et al. 2017


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


def compute_calibration(confidence: np.ndarray, is_correct: np.ndarray, bins: int = NUM_BINS) -> Calibration:
    """Group predictions into bins by confidence.

    Bin m of M, counted from 1, covers the interval ((m - 1) / M, m / M].

    Args:
        confidence: [n] float from 0 to 1, probability of the predicted label.
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
