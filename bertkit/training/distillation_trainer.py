"""Trainer of a student whose hidden states are compared with those of its teacher."""

from typing import Any

import torch

from bertkit.modeling.hidden_states import HiddenStateLoss
from bertkit.training.trainer import BertkitTrainer, PassResult


class DistillationTrainer(BertkitTrainer):
    """Trainer that records the hidden states of the model for its loss."""

    loss: HiddenStateLoss

    def _compute_pass(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: dict[str, torch.Tensor]
    ) -> tuple[PassResult, Any]:
        # The recording ends before the backward pass, in which gradient checkpointing runs the layers again.
        with self.loss.student.record():
            return super()._compute_pass(model, inputs, num_items_in_batch)
