"""Numbers that `calibrate` fits and stores in `config.json`, besides the temperature and the thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIDENCE_KEY = "bertkit_confidence"  # in config.json


@dataclass(frozen=True)
class FittedConfidence:
    """What a run says about its confidence in a prediction; None for a number that is not fitted.

    Attributes:
        min_confidence: Confidence below which the model abstains.
        set_margin: Margin of the classes in a prediction set; see `bertkit.metrics.prediction_sets`.
        answer_weights: Weights of the probability that an answer is right; see
            `bertkit.metrics.answer_probability`.
    """

    min_confidence: float | None = None
    set_margin: float | None = None
    answer_weights: Mapping[str, float] | None = None

    @classmethod
    def load(cls, model_config: Any) -> "FittedConfidence":
        """Return the numbers in the model config of a finished run."""
        return cls(**(getattr(model_config, CONFIDENCE_KEY, None) or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted numbers as a JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


NOT_FITTED = FittedConfidence()


def remove_fitted_confidence(model_config: Any) -> None:
    """Remove the numbers from a model config: they were fitted for the model that a run starts from."""
    vars(model_config).pop(CONFIDENCE_KEY, None)
