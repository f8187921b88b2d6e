"""Attention with dropout on a CPU for short sequences, all examples at once."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bertkit.modeling.cpu.blockwise_attention import MASKED_SCORE
from bertkit.modeling.cpu.random_bits import KeepMasks, draw_seed, drop, drop_, mask_dtype


class ShortAttention(torch.autograd.Function):
    """Scaled dot-product attention with dropout (Vaswani et al. 2017, 3.2.1).

    The probabilities and the dropout mask are saved for the backward pass. For short sequences, they are
    small, and reading them takes less time than the many small operators of `BlockwiseAttention`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention output `[batch, heads, seq_len, head_dim]`; see `BlockwiseAttention`."""
        ctx.shape, ctx.scaling = q.shape, scaling
        q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
        if mask is None:
            scores = torch.bmm(q, k.mT).mul_(scaling)
        else:
            scores = torch.baddbmm(_expand_mask(mask, ctx.shape, q.dtype), q, k.mT, alpha=scaling)
        probs = torch.softmax(scores, -1)  # PyTorch computes it in fp32, also for bf16
        keep_masks = KeepMasks(dropout, draw_seed())
        ctx.keep_prob = keep_masks.keep_prob
        keep = keep_masks.draw(probs.shape, mask_dtype(probs))
        dropped_probs = drop(probs, keep)
        ctx.save_for_backward(q, k, v, probs, keep, dropped_probs)
        return torch.bmm(dropped_probs, v).mul_(1 / ctx.keep_prob).view(ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of q, k and v."""
        q, k, v, probs, keep, dropped_probs = ctx.saved_tensors
        grad = (grad_output * (1 / ctx.keep_prob)).flatten(0, 1)
        grad_probs = drop_(torch.bmm(grad, v.mT), keep)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_scores.mul_(ctx.scaling)
        products = ((grad_scores, k), (grad_scores.mT, q), (dropped_probs.mT, grad))
        return *(torch.bmm(*factors).view(ctx.shape) for factors in products), None, None, None


def _expand_mask(mask: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Convert a bool or float mask to one that is added to the scores.

    Args:
        mask: `[1 or batch, 1 or heads, 1 or seq_len, seq_len]`.
        shape: `[batch, heads, seq_len, head_dim]`.
        dtype: Number format of the result.

    Returns:
        `[batch * heads, 1 or seq_len, seq_len]`.
    """
    batch, heads, seq_len, _ = shape
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, MASKED_SCORE)
    added = mask.clamp_min(MASKED_SCORE).to(dtype)
    return added.expand(batch, heads, -1, seq_len).flatten(0, 1)
