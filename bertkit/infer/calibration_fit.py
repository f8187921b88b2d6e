"""The temperature that `calibrate` fits, and the scores before and after."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from bertkit.metrics.calibration import Decisions


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and the decisions that it was fitted on.

    Attributes:
        trained: The decisions of the model as it was trained, without any temperature.
        calibrated: The same decisions; the logits of each fold are divided by the temperature of other folds.
        fold_temperatures: The temperature of each fold.
        temperature: The temperature that is fitted on all rows.
    """

    trained: "Decisions"
    calibrated: "Decisions"
    fold_temperatures: list[float]
    temperature: float


def fit_run(run: Path, decisions: "Decisions", folds: "np.ndarray") -> TemperatureFit:
    """Fit a temperature on all decisions, and score it by cross-fitting.

    Args:
        run: The run, for errors.
        decisions: The decisions of the model as it was trained.
        folds: [rows] index of the fold of each row.

    Raises:
        UserError: The decisions do not determine a temperature.
    """
    from bertkit.metrics.temperature import cross_fit, fit_temperature, is_at_bound

    temperature = fit_temperature(decisions)
    if is_at_bound(temperature):
        problem = _explain_bound(decisions, temperature)
        raise UserError(f"{run}: {problem}; pass other labeled rows with --data")
    fold_temperatures, calibrated = cross_fit(decisions, folds)
    return TemperatureFit(decisions, calibrated, fold_temperatures, temperature)


def _explain_bound(decisions: "Decisions", temperature: float) -> str:
    """Return why the rows do not determine a temperature."""
    if temperature > 1:
        return "the predictions are not better than guessing"
    _, is_correct = decisions.compute_confidence()
    if is_correct.all():
        return "all rows are classified correctly, which does not show how confident the model should be"
    return "the logits hardly differ between classes, because the model is hardly trained"


def describe_fit(fit: TemperatureFit, seed: int) -> dict[str, Any]:
    """Return the content of `calibration.json`, without the data."""
    from bertkit.metrics.calibration import ProbabilityScorer, compute_calibration

    parts = {"before": fit.trained, "after": fit.calibrated}
    return {
        "method": "temperature",
        "temperature": fit.temperature,
        "fold_temperatures": fit.fold_temperatures,
        "seed": seed,
        "decisions": len(fit.trained.gold),
        "scores": {name: ProbabilityScorer(part).score_all() for name, part in parts.items()},
        "reliability": {
            name: compute_calibration(*part.compute_confidence()).to_dict() for name, part in parts.items()
        },
    }
