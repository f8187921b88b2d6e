"""Floating-point operations: what training takes, and what a device can do."""

from __future__ import annotations

import time
from typing import Any

import torch

ATTEMPTS = 20  # products by which the device's speed is measured


def count_training_flops(model: Any, lengths: torch.Tensor) -> float:
    """Return the floating-point operations of the encoder's layers, forth and back, on these sequences.

    Six per weight and token, plus those of attention: 12 x layers x width x length squared. What is
    computed on padding, or twice to save memory, or in heads, does not count.

    Args:
        lengths: `[num_sequences]` tokens of each sequence.
    """
    weights = sum(weight.numel() for weight in model.base_model.encoder.parameters())
    config, squares = model.config, float(lengths.double().square().sum())
    attention = 12 * config.num_hidden_layers * config.hidden_size * squares
    return 6 * weights * float(lengths.sum()) + attention


def measure_peak_flops(kind: torch.dtype) -> float:
    """Measure the operations a second of a big product of matrices, which no training can exceed."""
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 512)
    one, other = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    for attempts in (3, ATTEMPTS):  # the first ones warm up
        started = time.perf_counter()
        for _ in range(attempts):
            one @ other
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return 2 * size**3 * ATTEMPTS / seconds
