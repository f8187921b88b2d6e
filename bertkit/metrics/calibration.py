"""Whether a model is right as often as it says: reliability and expected calibration error."""

from dataclasses import dataclass

import numpy as np

NUM_BINS = 15  # Guo et al. 2017


@dataclass(frozen=True)
class Calibration:
    """Decisions by how sure the model was, in bins of equal width; where a bin is empty, means are NaN.

    Attributes:
        count: [bins] int.
        confidence: [bins] float, its mean.
        accuracy: [bins] float, the share that is right.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """The mean gap between confidence and accuracy over all decisions (Guo et al. 2017, eq. 3)."""
        used = self.count > 0
        gaps = np.abs(self.accuracy[used] - self.confidence[used])
        return float((self.count[used] * gaps).sum() / max(self.count.sum(), 1))


def compute_calibration(confidence: np.ndarray, right: np.ndarray, bins: int = NUM_BINS) -> Calibration:
    """Bin m holds the confidences in ((m - 1) / bins, m / bins].

    Args:
        confidence: [n] float from 0 to 1, the probability of what was decided.
        right: [n] bool, whether it was.
    """
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(place, values, minlength=bins) / count for values in (confidence, right)]
    return Calibration(count, *means)
