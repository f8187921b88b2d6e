"""Attention with dropout for training on a CPU.

It is registered with transformers' `AttentionInterface`, so the encoder's own layers call it.
"""

from typing import Any

import torch

from bertkit.modeling.attention import set_attention
from bertkit.modeling.cpu.blockwise_attention import BlockwiseAttention
from bertkit.modeling.cpu.short_attention import ShortAttention

FAST_SDPA = "sdpa_fast"
# Scores of a batch up to which `ShortAttention` is faster. In bf16, it saves 6 bytes for each score.
MAX_SHORT_SCORES = 2**21


def enable_fast_attention(model: Any) -> None:
    """Make `model` compute attention faster when it trains with dropout on a CPU.

    PyTorch's fused CPU kernel does not support dropout. The fallback keeps several tensors of shape
    `[batch, heads, seq_len, seq_len]` until the backward pass. These tensors dominate the memory, and reading
    them dominates the time. Architectures with an attention of their own (DeBERTa, Longformer) do not change.
    """
    from transformers import PreTrainedModel

    stock_model = model if isinstance(model, PreTrainedModel) else model.base_model
    if stock_model.config._attn_implementation == "sdpa" and stock_model._can_set_attn_implementation():
        set_attention(stock_model, FAST_SDPA, attend_fast, make_mask)


def make_mask(**kwargs: Any) -> torch.Tensor | None:
    """Return the bool mask of transformers' `sdpa_mask`, without its dimension of queries if possible.

    Returns:
        `[batch, 1, 1, seq_len]` if only padding is masked, because the mask is then the same for all queries.
        Else `[batch, 1, seq_len, seq_len]`, or None if nothing is masked.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    mask = sdpa_mask(**kwargs)
    masks_only_padding = kwargs.get("mask_function") is bidirectional_mask_function
    return mask[:, :, :1] if mask is not None and masks_only_padding else mask


def attend_fast(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Compute attention as transformers' `sdpa_attention_forward` does, faster where possible.

    Query, key and value are `[batch, heads, seq_len, head_dim]`.

    Returns:
        The output `[batch, seq_len, heads, head_dim]`, and None instead of attention weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_self_attention = query.shape == key.shape and kwargs.get("position_bias") is None
    # Models that rotate queries and keys in fp32 pass mixed formats under autocast, which PyTorch converts.
    has_one_dtype = query.dtype == key.dtype == value.dtype
    is_cpu = query.device.type == "cpu"
    is_supported = is_cpu and has_one_dtype and query.dtype in (torch.float32, torch.bfloat16)
    if not (is_self_attention and 0 < dropout < 1 and is_supported):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    if attention_mask is None and is_causal:
        attention_mask = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = attend_with_dropout(query, key, value, attention_mask, dropout, scaling)
    return output.transpose(1, 2), None


def attend_with_dropout(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    scaling: float,
) -> torch.Tensor:  # fmt: skip
    """Return the attention output; see `BlockwiseAttention.forward` for the arguments and shapes."""
    batch, heads, seq_len, _ = q.shape
    is_short = batch * heads * seq_len**2 <= MAX_SHORT_SCORES
    function = ShortAttention if is_short else BlockwiseAttention
    output: torch.Tensor = function.apply(q, k, v, mask, dropout, scaling)  # type: ignore[no-untyped-call]
    return output
