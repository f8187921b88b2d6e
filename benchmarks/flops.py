"""Count the floating-point operations of training, and measure the peak speed of a device."""

from __future__ import annotations

import time
from typing import Any

import torch

ATTEMPTS = 20  # timed matrix products


def count_training_flops(model: Any, lengths: torch.Tensor) -> float:
    """Return the floating-point operations of the encoder's layers, forward and backward.

    The count is 6 per weight and token, plus 12 * num_layers * hidden_size * seq_len ** 2 for attention.
    Heads, padding and recomputation (gradient checkpointing) do not count.

    Args:
        lengths: `[num_sequences]` number of tokens.
    """
    weights = sum(weight.numel() for weight in model.base_model.encoder.parameters())
    config, squares = model.config, float(lengths.double().square().sum())
    attention = 12 * config.num_hidden_layers * config.hidden_size * squares
    return 6 * weights * float(lengths.sum()) + attention


def measure_peak_flops(dtype: torch.dtype) -> float:
    """Measure the operations per second of a large matrix product, an upper bound of training speed."""
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 512)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for attempts in (3, ATTEMPTS):  # the first 3 are a warm-up
        started = time.perf_counter()
        for _ in range(attempts):
            left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return 2 * size**3 * ATTEMPTS / seconds
