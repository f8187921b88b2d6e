"""Trainer of a student whose hidden states are compared with those of its teacher."""

from typing import Any

from bertkit.modeling.hidden_states import HiddenStateLoss
from bertkit.training.trainer import BertkitTrainer


class DistillationTrainer(BertkitTrainer):
    """Trainer that records the hidden states of the model for its loss."""

    loss: HiddenStateLoss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the contribution of this batch to the mean loss of the effective batch."""
        # The recording ends before the backward pass, in which gradient checkpointing runs the layers again.
        with self.loss.student.record():
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
