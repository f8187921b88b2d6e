"""Confident learning: find labels that out-of-fold probabilities contradict (Northcutt et al. 2021).

The paper is "Confident Learning: Estimating Uncertainty in Dataset Labels", Journal of Artificial
Intelligence Research 70. Every row needs probabilities of a model that was not trained on the row.
"""

from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-6  # a probability that is less than this below the threshold of its class reaches it
MIN_RESIDUAL = 3.5  # Iglewicz and Hoaglin 1993, section 3
NORMAL_MAD = 0.6745  # median absolute deviation of the standard normal distribution


class ConfidentClasses(NamedTuple):
    """Rows with a confidently predicted class.

    Attributes:
        thresholds: [classes] mean probability of the class over the rows with this label.
        rows: Indices of the rows in which at least one class reaches its threshold.
        classes: The most probable of these classes, for each of `rows`.
    """

    thresholds: np.ndarray
    rows: np.ndarray
    classes: np.ndarray


def find_confident_classes(labels: np.ndarray, probabilities: np.ndarray) -> ConfidentClasses:
    """Find the rows with a confidently predicted class (Northcutt et al. 2021, section 3.1).

    If several classes reach their thresholds, the most probable class of the row is chosen.

    Args:
        labels: [n] int, given class.
        probabilities: [n, classes] probabilities.
    """
    thresholds = np.full(probabilities.shape[1], np.inf)  # a class without rows can never be confident
    for label in np.unique(labels):
        thresholds[label] = probabilities[labels == label, label].mean()
    is_confident = probabilities >= thresholds - TOLERANCE
    num_confident = is_confident.sum(1)
    rows = np.flatnonzero(num_confident)
    classes = np.where(num_confident > 1, probabilities.argmax(1), is_confident.argmax(1))
    return ConfidentClasses(thresholds, rows, classes[rows])


def compute_confident_joint(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [given class, confident class] int counts; each class has at least one count on the diagonal.

    Args:
        labels: [n] int, given class.
        probabilities: [n, classes] probabilities.
    """
    num_classes = probabilities.shape[1]
    _, rows, classes = find_confident_classes(labels, probabilities)
    cells = labels[rows] * num_classes + classes
    joint = np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)
    np.fill_diagonal(joint, joint.diagonal().clip(min=1))
    return joint


def calibrate_joint(joint: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scale the confident joint to the number of rows with each label (Northcutt et al. 2021, eq. 3).

    Returns:
        [classes, classes] int. The rows of the matrix add up to the number of rows with each label; those
        entries are rounded the other way for which this changes least.
    """
    counts = np.bincount(labels, minlength=len(joint))
    scaled = joint / joint.sum(1, keepdims=True) * counts[:, None]
    rounded = np.round(scaled).astype(int)
    for row, count in enumerate(counts):
        missing = count - rounded[row].sum()
        order = np.argsort(scaled[row] - rounded[row], kind="stable")
        changed = order[::-1][:missing] if missing > 0 else order[: abs(missing)]
        rounded[row, changed] += np.sign(missing)
    return rounded


def find_off_diagonal(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the ascending indices of the rows whose confident class differs from the given class.

    A row whose given class is the most probable one is left out.
    """
    _, rows, classes = find_confident_classes(labels, probabilities)
    given = labels[rows]
    return rows[(classes != given) & (probabilities[rows].argmax(1) != given)]


def prune_by_noise_rate(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the ascending indices of rows with probable errors (Northcutt et al. 2021, section 3.2).

    For each pair of a given and another class, these are the rows with the largest margins between the other
    and the given class. Their number is the estimated number of errors of this pair. A row whose given class
    is the most probable one is left out.
    """
    joint = calibrate_joint(compute_confident_joint(labels, probabilities), labels)
    is_issue = np.zeros(len(labels), bool)
    for given in range(len(joint)):
        rows = np.flatnonzero(labels == given)
        margins = probabilities[rows] - probabilities[rows, given, None]
        for other in np.flatnonzero(joint[given]):
            if other != given:
                order = np.argsort(-margins[:, other], kind="stable")
                is_issue[rows[order[: joint[given, other]]]] = True
    return np.flatnonzero(is_issue & (probabilities.argmax(1) != labels))


def compute_self_confidence(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the probability of the given class."""
    return probabilities[np.arange(len(labels)), labels]


def compute_normalized_margin(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the margin between the given class and the most probable other class, scaled to 0 to 1."""
    others = probabilities.astype(float)
    others[np.arange(len(labels)), labels] = -np.inf
    return (compute_self_confidence(labels, probabilities) - others.max(1) + 1) / 2


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
