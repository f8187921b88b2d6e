"""Embeddings whose gradient reuses one buffer, for training on a CPU."""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

MIN_VALUES = 2**20  # in smaller tables, filling the gradient with zeros takes no time


class FastEmbedding(nn.Embedding):
    """`nn.Embedding` that writes its gradient into a buffer, and clears only the rows of the previous step.

    PyTorch fills a new gradient of the size of the table with zeros in each step, although a batch contains
    only a few hundred distinct tokens. The gradient is written to `weight.grad` directly, so hooks on
    `weight` do not see it (DDP): use this class in a single process only.
    """

    buffer: torch.Tensor | None = None
    used_rows: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the vectors `[..., embedding_dim]` of the indices `[...]`."""
        is_training = torch.is_grad_enabled() and self.weight.requires_grad
        if not is_training or self.weight.device.type != "cpu":
            return super().forward(input)
        output: torch.Tensor = EmbeddingFunction.apply(self.weight, input, self)  # type: ignore[no-untyped-call]
        return output

    def add_gradient(self, ids: torch.Tensor, grad_output: torch.Tensor) -> None:
        """Add the gradient of a lookup to `weight.grad`.

        Args:
            ids: `[n]` looked up rows.
            grad_output: `[n, embedding_dim]` gradient of their vectors.
        """
        rows, positions = torch.unique(ids, return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(grad_output, positions, len(rows), -1, False)
        if self.padding_idx is not None:
            sums[rows == self.padding_idx] = 0
        if self.weight.grad is None:
            self.weight.grad = self._clear_buffer()
        if self.weight.grad is self.buffer:
            self.used_rows = rows if self.used_rows is None else torch.cat([self.used_rows, rows])
        self.weight.grad[rows] += sums

    def get_used_rows(self) -> torch.Tensor | None:
        """Return the sorted indices of the rows of the gradient that can differ from 0, or None for all."""
        if self.weight.grad is not self.buffer or self.used_rows is None:
            return None
        return torch.unique(self.used_rows)

    def _clear_buffer(self) -> torch.Tensor:
        """Return the gradient buffer, filled with zeros."""
        if self.buffer is None:
            self.buffer = torch.zeros_like(self.weight)
        elif self.used_rows is not None:
            self.buffer[self.used_rows] = 0
        self.used_rows = None
        return self.buffer


class EmbeddingFunction(torch.autograd.Function):
    """Look up rows of a table; the backward pass adds the gradient to the table's `grad`."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, module: FastEmbedding) -> torch.Tensor:
        """Return the vectors `[..., embedding_dim]` of the rows `ids`, `[...]`."""
        ctx.module = module
        ctx.save_for_backward(ids)
        return torch.nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[None, None, None]:
        """Add the gradient to the table's `grad`; autograd itself gets none."""
        (ids,) = ctx.saved_tensors
        ctx.module.add_gradient(ids.flatten(), grad_output.flatten(0, -2))
        return None, None, None
