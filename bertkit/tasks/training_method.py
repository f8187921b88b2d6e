"""How the encoder and the head of a task are trained."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.models.losses import Loss


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


class TrainingMethod:
    """Encoder and head are trained together, on the training rows, by the loss of the predictions.

    Subclasses train them in other ways.

    Attributes:
        fits_head: Whether the head is fitted to vectors of the encoder, and not trained by gradients.
        trains_encoder: Whether the encoder is trained. Otherwise, the run has no training steps.
    """

    fits_head = False
    trains_encoder = True

    def precompute_features(self, model: Any, features: "Features", collator: Any) -> "Features":
        """Return features with the outputs of the encoder instead of token ids if the encoder is frozen."""
        return features

    def convert_inputs(self, inputs: TrainingInputs) -> TrainingInputs:
        """Return what the encoder is trained on.

        Args:
            inputs: The training rows, with the result of `Task.make_collator` and the loss of predictions.
        """
        return inputs

    def fit_head(self, model: Any, features: "Features", collator: Any) -> None:
        """Fit the head of `model` before an evaluation, unless it is trained together with the encoder.

        Args:
            model: The model with its current weights; all ranks call this.
            features: Features of the training rows.
            collator: Result of `Task.make_collator`.
        """
        return
