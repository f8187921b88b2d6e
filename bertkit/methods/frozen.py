"""`--features`: the head is trained on the outputs of a frozen encoder (Devlin et al. 2018, section 5.3)."""

from typing import TYPE_CHECKING, Any

from bertkit.data.features import Features
from bertkit.methods.base import Method
from bertkit.models.encoder import VectorFeatures, compute_vectors

if TYPE_CHECKING:
    from bertkit.run.prepare import PreparedRun


class FrozenFeatures(Method):
    """The vectors of the encoder are computed once, and only the head is trained."""

    flag = "--features"
    # A head on a frozen encoder needs a higher learning rate and more epochs than fine-tuning.
    default_hyperparameters = {"learning_rate": 1e-3, "epochs": 10.0}

    def precompute(
        self, run: "PreparedRun", model: Any, features: dict[str, Features], collator: Any
    ) -> dict[str, Features]:
        """Return features with the outputs of the encoder instead of token ids."""
        batch_size = run.config.eval_batch_size
        inputs: dict[str, Any] = dict(features)
        return {
            split: VectorFeatures(part, compute_vectors(model, part, collator, batch_size))
            for split, part in inputs.items()
        }
