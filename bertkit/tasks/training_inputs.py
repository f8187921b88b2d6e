"""What the encoder is trained on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.modeling.losses import Loss


class TrainingInputs(NamedTuple):
    """Examples, and how they become a loss.

    Attributes:
        examples: The training examples.
        collator: Function that turns examples into a batch.
        loss: The loss of a batch.
    """

    examples: "Features"
    collator: Callable[..., Any]
    loss: "Loss"
