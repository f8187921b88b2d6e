"""Confident learning: find labels that out-of-fold probabilities contradict (Northcutt et al. 2021).

The paper is "Confident Learning: Estimating Uncertainty in Dataset Labels", Journal of Artificial
Intelligence Research 70. Every row needs probabilities of a model that was not trained on the row.
"""

import numpy as np

TOLERANCE = 1e-6  # a probability that is less than this below the threshold of its class reaches it
MIN_RESIDUAL = 3.5  # Iglewicz and Hoaglin 1993, section 3
NORMAL_MAD = 0.6745  # median absolute deviation of the standard normal distribution


def compute_class_thresholds(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [classes] the mean probability of each class over the rows with this label.

    Args:
        labels: [n] int, given class.
        probabilities: [n, classes] probabilities.
    """
    thresholds = np.full(probabilities.shape[1], np.inf)  # a class without rows can never be confident
    for label in np.unique(labels):
        thresholds[label] = probabilities[labels == label, label].mean()
    return thresholds


def find_off_diagonal(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the ascending indices of the rows whose confident class differs from the given class.

    A class is confident if it reaches its threshold; of several, it is the most probable class of the row
    (Northcutt et al. 2021, section 3.1). A row whose given class is the most probable one is left out.
    """
    is_confident = probabilities >= compute_class_thresholds(labels, probabilities) - TOLERANCE
    num_confident, most_probable = is_confident.sum(1), probabilities.argmax(1)
    confident = np.where(num_confident > 1, most_probable, is_confident.argmax(1))
    return np.flatnonzero((num_confident > 0) & (confident != labels) & (most_probable != labels))


def compute_self_confidence(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the probability of the given class."""
    return probabilities[np.arange(len(labels)), labels]


def suggest_classes(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the most probable class other than the given one."""
    others = probabilities.astype(float)
    others[np.arange(len(labels)), labels] = -np.inf
    return others.argmax(1)


def compute_robust_scores(residuals: np.ndarray) -> np.ndarray:
    """Return [n] modified z-scores of residuals: distances from the median in units of the scaled MAD.

    If more than half of the residuals are equal, the mean absolute deviation replaces the MAD (Iglewicz and
    Hoaglin 1993, section 3).
    """
    deviations = np.abs(residuals - np.median(residuals))
    scale = np.median(deviations) / NORMAL_MAD
    if scale == 0:
        scale = deviations.mean() * np.sqrt(np.pi / 2)
    return (residuals - np.median(residuals)) / (scale or 1.0)
