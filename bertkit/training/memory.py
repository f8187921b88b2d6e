"""Out-of-memory errors: detection, messages, and smaller batches of the same effective batch size."""

import dataclasses
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.config import RunConfig
from bertkit.errors import TrainingFailed
from bertkit.modeling.layers import supports_activation_checkpointing
from bertkit.setting import ConfigT
from bertkit.utils import devices
from bertkit.utils.memory import get_peak_memory

# Parts of the messages of PyTorch's allocators for CPU and MPS, which raise a plain RuntimeError.
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
BATCH_SETTINGS = ("batch_size", "tokens_per_batch", "gradient_accumulation_steps")


class OutOfMemory(TrainingFailed):
    """The device or the machine has run out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of an accelerator, PyTorch on a CPU, or Python."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in OUT_OF_MEMORY_MESSAGES)


def get_batch_settings(config: RunConfig) -> dict[str, int]:
    """Return those settings that determine the effective batch size and are set."""
    return {name: value for name in BATCH_SETTINGS if (value := getattr(config, name)) is not None}


@contextmanager
def report_out_of_memory(message: str) -> Iterator[None]:
    """Raise `OutOfMemory` with this message if memory runs out in the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(message) from None


def suggest_memory_fixes(config: RunConfig, model: Any) -> str:
    """Return an out-of-memory message that lists settings which reduce memory use.

    Args:
        config: The settings of the run.
        model: The model, which may not support `--gradient-checkpointing`.
    """
    if config.tokens_per_batch is None:
        flag, size = "--batch-size", config.batch_size
    else:
        flag, size = "--tokens-per-batch", config.tokens_per_batch
    fixes = [f"a smaller {flag} with more --gradient-accumulation-steps", "a smaller --max-length"]
    if supports_activation_checkpointing(model) and not config.gradient_checkpointing:
        fixes.insert(0, "--gradient-checkpointing")
    if not (config.bf16 or config.fp16):
        fixes.append("--bf16")
    return f"out of memory at {flag} {size}, --max-length {config.max_length}; try {', '.join(fixes)}"


def halve_batch(config: ConfigT, min_tokens: int) -> ConfigT | None:
    """Return the settings with at most half the batch size and the same effective batch size.

    The new batch size is the largest such divisor of the effective batch size.

    Args:
        config: The settings of the run.
        min_tokens: Smallest valid `tokens_per_batch`, the length of the longest sequence.

    Returns:
        The settings, or None if the batch cannot be made smaller.
    """
    assert isinstance(config, RunConfig)
    steps = config.gradient_accumulation_steps
    if config.tokens_per_batch is not None:
        half_budget = config.tokens_per_batch // 2
        if half_budget < min_tokens:
            return None
        return dataclasses.replace(
            config, tokens_per_batch=half_budget, gradient_accumulation_steps=2 * steps
        )
    assert config.batch_size is not None
    effective_batch_size = config.batch_size * steps
    for size in range(config.batch_size // 2, 0, -1):
        if effective_batch_size % size == 0:
            steps = effective_batch_size // size
            return dataclasses.replace(config, batch_size=size, gradient_accumulation_steps=steps)
    return None


def release_memory() -> None:
    """Release the memory of a failed attempt.

    Call this outside the `except` block, where the error keeps the tensors alive.
    """
    import torch

    gc.collect()
    if devices.has_accelerator():
        getattr(torch, devices.get_device().type).empty_cache()


def get_peak_memory_mb() -> float:
    """Return the peak memory use of this process in MB: on the GPU if it is used, else in RAM."""
    import torch

    if devices.get_device().type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return get_peak_memory() / 1e6
