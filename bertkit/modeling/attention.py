"""Chunked attention for training on CPUs.

It is registered with transformers' `AttentionInterface`, so the encoder's own layers call it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bertkit.modeling.dropout import RANDOM_LEVELS, sample_keep_mask

CHUNKED_SDPA = "sdpa_chunked"
MAX_SCORES_PER_CHUNK = 2**20  # attention scores; 4 MB in fp32, which fits in the processor's cache

AttentionFunction = Callable[..., tuple[torch.Tensor, Any]]


def set_attention(model: Any, name: str, attention: AttentionFunction, mask_function: Any) -> None:
    """Register an attention function with transformers, and make a model use it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_function)
    model.set_attn_implementation(name)


# ---- chunked attention


def enable_chunked_attention(model: Any) -> None:
    """Make `model` compute attention in chunks when it trains in fp32 with dropout on a CPU.

    PyTorch's fused CPU kernel does not support dropout. The fallback keeps several tensors of shape
    `[batch, heads, seq_len, seq_len]` until the backward pass. These tensors dominate the memory, and reading
    them dominates the time. Architectures with an attention of their own (DeBERTa, Longformer) do not change.
    """
    from transformers import PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    stock_model = model if isinstance(model, PreTrainedModel) else model.base_model
    if stock_model.config._attn_implementation == "sdpa" and stock_model._can_set_attn_implementation():
        set_attention(stock_model, CHUNKED_SDPA, _chunked_sdpa, sdpa_mask)


def _chunked_sdpa(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Compute attention as transformers' `sdpa_attention_forward` does, in chunks where this is faster.

    Query, key and value are `[batch, heads, seq_len, head_dim]`.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_self_attention = query.shape == key.shape and kwargs.get("position_bias") is None
    is_cpu_fp32 = query.device.type == "cpu" and query.dtype == torch.float32
    if not (is_self_attention and dropout and is_cpu_fp32):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    if attention_mask is None and is_causal:
        attention_mask = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = ChunkedAttention.apply(query, key, value, attention_mask, dropout, scaling)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


class ChunkedAttention(torch.autograd.Function):
    """Scaled dot-product attention with dropout (Vaswani et al. 2017, 3.2.1), a few examples at a time.

    Of the scores, the forward pass saves only the dropout mask, one byte per score. The backward pass
    recomputes the rest.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention output `[batch, heads, seq_len, head_dim]`.

        Args:
            ctx: Autograd's context.
            q, k, v: `[batch, heads, seq_len, head_dim]`.
            mask: A bool mask that is true for pairs that attend, a float mask that is added to the scores,
                or None.
            dropout: Probability of dropping an attention weight.
            scaling: Factor that multiplies the scores.
        """
        # dropout is rounded to a multiple of 1 / RANDOM_LEVELS: see `sample_keep_mask`
        dropped_levels = round(dropout * RANDOM_LEVELS)
        ctx.keep_prob, ctx.scaling = 1 - dropped_levels / RANDOM_LEVELS, scaling
        output, keep_masks = torch.empty_like(q), []
        for chunk in _chunk_slices(q):
            weights = _attention_weights(q[chunk], k[chunk], _slice_mask(mask, chunk), scaling)
            keep_masks.append(sample_keep_mask(weights.shape, dropped_levels))
            output[chunk] = (weights.mul_(keep_masks[-1]) @ v[chunk]).div_(ctx.keep_prob)
        ctx.save_for_backward(q, k, v, mask, *keep_masks)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of q, k and v, computed in the same chunks."""
        q, k, v, mask, *keep_masks = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for chunk, keep in zip(_chunk_slices(q), keep_masks, strict=True):
            weights = _attention_weights(q[chunk], k[chunk], _slice_mask(mask, chunk), ctx.scaling)
            grad = grad_output[chunk] / ctx.keep_prob
            grad_v[chunk] = (weights * keep).mT @ grad
            grad_weights = (grad @ v[chunk].mT).mul_(keep)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(
                ctx.scaling
            )
            grad_q[chunk], grad_k[chunk] = grad_scores @ k[chunk], grad_scores.mT @ q[chunk]
        return grad_q, grad_k, grad_v, None, None, None


def _chunk_slices(q: torch.Tensor) -> list[slice]:
    """Split the batch into slices; the scores of one slice fit in the processor's cache."""
    batch, heads, seq_len, _ = q.shape
    size = max(1, MAX_SCORES_PER_CHUNK // (heads * seq_len * seq_len))
    return [slice(start, start + size) for start in range(0, batch, size)]


def _slice_mask(mask: torch.Tensor | None, chunk: slice) -> torch.Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[chunk]


def _attention_weights(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Return the softmax weights `[chunk, heads, seq_len, seq_len]` before dropout."""
    scores = (q @ k.mT).mul_(scaling)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(q.dtype).min)
    return (scores if mask is None else scores.add_(mask)).softmax(-1)
