"""The settings that `classify` and `nli` share."""

from dataclasses import dataclass
from typing import Literal

from bertkit.common_settings import Pooling, pooling_setting
from bertkit.config import FineTuningConfig
from bertkit.setting import DATA, MODEL, setting


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(FineTuningConfig):
    """The settings that `classify` and `nli` share."""

    label_column: str | None = setting(None, "Column of the label.", DATA, default_text="guessed")
    long_texts: Literal["head", "tail", "head+tail", "windows"] = setting(
        "head",
        "How to read texts over --max-length: truncate to the head, the tail or both, or split into windows.",
        MODEL,
    )
    pooling: Pooling = pooling_setting()
    shots: int | None = setting(
        None, "Number of training rows per class (or per label), sampled at random.", DATA, min=1,
        replaces=("max_train_samples",),
    )  # fmt: skip
    class_weights: Literal["balanced"] | None = setting(
        None, "Weight classes in the loss by the inverse of their frequency."
    )
    label_smoothing: float = setting(
        0.0, "Fraction of the target probability spread over all classes.", min=0.0, max=0.99
    )
