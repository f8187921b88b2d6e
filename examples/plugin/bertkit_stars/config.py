"""The settings and the definition of `bertkit rate`, for `--help`: this file imports nothing heavy."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.declaration import Panel, setting
from bertkit.tasks import TaskDef
from bertkit.tasks.text.config import CLASSIFY, ClassifyConfig


@dataclass(frozen=True, kw_only=True)
class RateConfig(ClassifyConfig):
    """The settings of `classify` that also apply to ratings, and one more."""

    excluded_settings = frozenset(
        {"head", "pooling", "method", "problem", "class_weights", "label_smoothing"}
    )

    problem: Literal["multi-class"] = "multi-class"
    distance_weight: float = setting(
        0.5, "Weight of the expected distance in the loss.", Panel.TUNING, min=0.0
    )


RATE = TaskDef(
    name="rate",
    help="Fine-tune on ratings, such as 1 to 5 stars: the order of the labels counts.",
    config=RateConfig,
    task="bertkit_stars.task:Rate",
    checks=CLASSIFY.checks,
    views=CLASSIFY.views[:1],
    labeled_unit="text",
)
