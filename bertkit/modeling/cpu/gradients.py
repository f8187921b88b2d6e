"""Gradient clipping on a CPU that skips the zeros of embedding gradients.

A batch contains a few hundred of the tens of thousands of tokens, and the gradients of the others are 0.
"""

from collections.abc import Iterator

import torch
from torch import nn

from bertkit.modeling.cpu.embedding import FastEmbedding


class GradientClipper:
    """Scale the gradients of a model so that their norm does not exceed a maximum.

    Of the gradient of a `FastEmbedding`, only the rows that can differ from 0 are read and scaled. If the
    norm is small enough, no gradient is changed.

    Args:
        model: The model, whose modules and parameters are listed once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.parameters())
        self.tables = {
            id(module.weight): module for module in model.modules() if isinstance(module, FastEmbedding)
        }

    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients, and return their norm before that, as `torch.nn.utils.clip_grad_norm_` does."""
        gradients = list(self._select_gradients())
        norms = [torch.linalg.vector_norm(grad if rows is None else grad[rows]) for grad, rows in gradients]
        total_norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        factor = max_norm / (float(total_norm) + 1e-6)  # 1e-6 as in PyTorch
        if factor < 1:
            for grad, rows in gradients:
                if rows is None:
                    grad.mul_(factor)
                else:
                    grad[rows] *= factor
        return total_norm

    def _select_gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield each gradient with the indices of its rows that can differ from 0, or None for all rows."""
        for weight in self.weights:
            if weight.grad is not None:
                table = self.tables.get(id(weight))
                yield weight.grad, None if table is None else table.get_used_rows()
