"""Gradient clipping on a CPU that skips the zeros of embedding gradients."""

from collections.abc import Iterator

import torch
from torch import nn

from bertkit.modeling.cpu.embedding import FastEmbedding


def clip_gradients(model: nn.Module, max_norm: float) -> torch.Tensor:
    """Scale the gradients of `model` so that their norm is at most `max_norm`.

    Of the gradient of a `FastEmbedding`, only the rows that can differ from 0 are read and scaled. If the
    norm is small enough, no gradient is changed.

    Returns:
        The norm of all gradients before clipping, as in `torch.nn.utils.clip_grad_norm_`.
    """
    gradients = list(_select_gradients(model))
    norms = [torch.linalg.vector_norm(values if rows is None else values[rows]) for values, rows in gradients]
    total_norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    factor = max_norm / (float(total_norm) + 1e-6)
    if factor < 1:
        for values, rows in gradients:
            if rows is None:
                values.mul_(factor)
            else:
                values[rows] *= factor
    return total_norm


def _select_gradients(model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Yield each gradient, with the indices of its rows that can differ from 0, or None for all rows."""
    tables = {id(module.weight): module for module in model.modules() if isinstance(module, FastEmbedding)}
    for weight in model.parameters():
        if weight.grad is not None:
            table = tables.get(id(weight))
            yield weight.grad, None if table is None else table.get_used_rows()
