"""Temperature scaling (Guo et al. 2017, section 4.2), and its evaluation by cross-fitting.

The logits are divided by one number, the temperature. It changes the probabilities, but not which class is
the most probable one.
"""

import numpy as np

from bertkit.metrics.calibration import Decisions

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 1e4


def fit_temperature(decisions: Decisions) -> float:
    """Return the temperature with the lowest negative log-likelihood of the gold classes.

    The negative log-likelihood is convex in the inverse temperature, so its minimum is the only root of its
    derivative. If there is no root between `MIN_TEMPERATURE` and `MAX_TEMPERATURE`, the nearer bound is
    returned. If all predictions are correct, for example, a lower temperature is always better.
    """
    from scipy.optimize import brentq
    from scipy.special import softmax

    gold_logits = decisions.logits[np.arange(len(decisions.gold)), decisions.gold]
    margins = decisions.logits - gold_logits[:, None]
    finite_margins = np.where(np.isfinite(margins), margins, 0.0)

    def compute_slope(inverse: float) -> float:
        """Return the derivative of the mean negative log-likelihood."""
        return float((softmax(margins * inverse, axis=1) * finite_margins).sum(1).mean())

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if compute_slope(low) >= 0:
        return MAX_TEMPERATURE
    if compute_slope(high) <= 0:
        return MIN_TEMPERATURE
    return 1 / float(brentq(compute_slope, low, high, xtol=1e-14, rtol=1e-14))


def is_at_bound(temperature: float) -> bool:
    """Return whether `fit_temperature` found no minimum."""
    return temperature in (MIN_TEMPERATURE, MAX_TEMPERATURE)


def cross_fit(decisions: Decisions, folds: np.ndarray) -> tuple[list[float], Decisions]:
    """Divide the logits of each fold by a temperature that is fitted on all other folds.

    Args:
        decisions: The decisions.
        folds: [rows] index of the fold of each row.

    Returns:
        The temperature of each fold, and the scaled decisions.
    """
    fold_by_decision = folds[decisions.row]
    temperatures = [
        fit_temperature(decisions.select(fold_by_decision != fold)) for fold in range(folds.max() + 1)
    ]
    return temperatures, decisions.scale(1 / np.array(temperatures)[fold_by_decision])
