"""Attention over packed sequences of different lengths.

On a GPU, a kernel for variable-length sequences reads the packed row directly. Elsewhere, the row is padded,
and a mask is passed to the attention function of the model. Both give the same result.
"""

from functools import lru_cache
from typing import Any

import torch

from bertkit.utils.compat import has_varlen_attention

VARLEN_DTYPES = (torch.float16, torch.bfloat16)
MIN_CAPABILITY = (8, 0)  # compute capability that the kernel requires (Ampere)
MAX_HEAD_DIM = 256
FULL_ATTENTION = (-1, -1)

Window = tuple[int, int]  # number of visible tokens to the left and to the right; -1 for all


def get_window(module: Any, options: dict[str, Any]) -> Window:
    """Return how far a token of this layer sees.

    Args:
        module: The attention layer.
        options: Arguments of its attention function. `sliding_window` counts the token itself.

    Returns:
        Number of visible tokens to the left and to the right; -1 for all.
    """
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    size = options.get("sliding_window")
    distance = -1 if size is None else size - 1
    return distance, 0 if is_causal else distance


# ---- the kernel


def can_use_varlen(query: torch.Tensor, dropout: float) -> bool:
    """Return whether the kernel for variable-length sequences can process these queries on a GPU that has it.

    The kernel has no dropout. To leave out the dropout of the attention weights would change the
    regularization, so a model with dropout gets padded attention.

    Args:
        query: `[1, heads, num_tokens, head_dim]`.
        dropout: Dropout probability of the attention weights.
    """
    head_dim = query.shape[-1]
    is_supported = query.dtype in VARLEN_DTYPES and head_dim <= MAX_HEAD_DIM and head_dim % 8 == 0
    return dropout == 0 and is_supported


@lru_cache
def supports_varlen(device: torch.device) -> bool:
    """Return whether a device can run the kernel: an NVIDIA GPU of the generation Ampere or newer."""
    is_cuda = device.type == "cuda" and torch.version.hip is None
    return is_cuda and has_varlen_attention() and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def attend_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor, max_length: int,
    window: Window, options: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """Return the attention output `[1, num_tokens, heads, head_dim]`.

    Args:
        query, key, value: `[1, heads, num_tokens, head_dim]`.
        cu_seqlens: `[num_sequences + 1]` int32 index of the first token of each sequence.
        max_length: Upper bound of the length of a sequence.
        window: Number of visible tokens to the left and to the right.
        options: Arguments of the attention function.
    """
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    output = varlen_attn(
        query, key, value, cu_seqlens, cu_seqlens, max_length, max_length,
        scale=options.get("scaling"), window_size=window,
    )  # fmt: skip
    assert isinstance(output, torch.Tensor)  # a tuple only with return_aux
    return output.unsqueeze(0)


# ---- padded attention


def build_mask(cu_seqlens: torch.Tensor, seq_len: int, window: Window) -> torch.Tensor:
    """Return the bool mask `[batch, 1, seq_len, seq_len]` of the padded batch, true for pairs that attend.

    The queries at padding attend as well, because a softmax over nothing would give NaN. Their outputs are
    dropped.

    Args:
        cu_seqlens: `[batch + 1]` index of the first token of each sequence in the packed row.
        seq_len: Length of the padded sequences.
        window: Number of visible tokens to the left and to the right; -1 for all.
    """
    positions = torch.arange(seq_len, device=cu_seqlens.device)
    is_token = positions < cu_seqlens.diff().unsqueeze(1)
    mask = is_token[:, None, None, :].expand(-1, -1, seq_len, -1)
    if window == FULL_ATTENTION:
        return mask
    distance = positions - positions.unsqueeze(1)  # of the key from the query
    is_near = torch.ones_like(distance, dtype=torch.bool)
    left, right = window
    if left >= 0:
        is_near &= distance >= -left
    if right >= 0:
        is_near &= distance <= right
    return (mask | ~is_token[:, None, :, None]) & is_near
