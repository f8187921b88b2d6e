"""Attention while training on a CPU: a few examples at a time, their scores computed again for the gradient.

PyTorch's kernel for CPUs knows no dropout. With it, what is left is one step after the other over
[batch, heads, length, length], each held until the gradient is known: most of a step's memory, and more
time in fetching that memory and in drawing what is dropped than in arithmetic.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bertkit.modeling.dropout import RANDOM_LEVELS, sample_keep_mask

CHUNKED_SDPA = "sdpa_by_parts"  # among transformers' implementations of attention
MAX_SCORES_PER_CHUNK = 2**20  # scores: 4 MB, which stay in the processor's cache


def enable_chunked_attention(model: Any) -> None:
    """Have `model` attend by parts where it trains with dropout on a CPU, in fp32; elsewhere it stays as is.

    Architectures with an attention of their own (DeBERTa, Longformer) keep it.
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    stock = model if isinstance(model, PreTrainedModel) else model.base_model
    if stock.config._attn_implementation == "sdpa" and stock._can_set_attn_implementation():
        AttentionInterface.register(CHUNKED_SDPA, _attention)
        AttentionMaskInterface.register(CHUNKED_SDPA, sdpa_mask)
        stock.set_attn_implementation(CHUNKED_SDPA)


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What transformers calls: queries, keys and values [batch, heads, length, width]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    plain = query.shape == key.shape and others.get("position_bias") is None
    if not (plain and dropout and query.device.type == "cpu" and query.dtype == torch.float32):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    causal = others.get("is_causal")
    if attention_mask is None and (getattr(module, "is_causal", False) if causal is None else causal):
        attention_mask = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    found = ChunkedAttention.apply(query, key, value, attention_mask, dropout, scaling)  # type: ignore[no-untyped-call]
    return found.transpose(1, 2), None


class ChunkedAttention(torch.autograd.Function):
    """softmax(q k^T scaling + mask) with dropout, times v (Vaswani et al. 2017, 3.2.1).

    Of the scores only what was dropped is kept, a byte each; the rest is computed again for the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """[batch, heads, length, width]; `mask` is bool, true where attended, or is added to the scores."""
        dropped = round(dropout * RANDOM_LEVELS)
        ctx.rest, ctx.scaling = 1 - dropped / RANDOM_LEVELS, scaling
        found, kept = torch.empty_like(q), []
        for part in _parts(q):
            shares = _shares(q[part], k[part], _of(mask, part), scaling)
            kept.append(sample_keep_mask(shares.shape, dropped))
            found[part] = (shares.mul_(kept[-1]) @ v[part]).div_(ctx.rest)
        ctx.save_for_backward(q, k, v, mask, *kept)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of queries, keys and values, part by part as before."""
        q, k, v, mask, *kept = ctx.saved_tensors
        of_q, of_k, of_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for part, keep in zip(_parts(q), kept, strict=True):
            shares = _shares(q[part], k[part], _of(mask, part), ctx.scaling)
            out = gradient[part] / ctx.rest
            of_v[part] = (shares * keep).mT @ out
            of_shares = (out @ v[part].mT).mul_(keep)
            of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype).mul_(ctx.scaling)
            of_q[part], of_k[part] = of_scores @ k[part], of_scores.mT @ q[part]
        return of_q, of_k, of_v, None, None, None


def _parts(q: torch.Tensor) -> list[slice]:
    """Examples that are taken together."""
    batch, heads, length, _ = q.shape
    size = max(1, MAX_SCORES_PER_CHUNK // (heads * length * length))
    return [slice(first, first + size) for first in range(0, batch, size)]


def _of(mask: torch.Tensor | None, part: slice) -> torch.Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[part]


def _shares(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """[examples, heads, length, length] how much each place attends to each."""
    scores = (q @ k.mT).mul_(scaling)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(q.dtype).min)
    return (scores if mask is None else scores.add_(mask)).softmax(-1)
