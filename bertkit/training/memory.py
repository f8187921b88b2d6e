"""Out-of-memory errors: detection, a one-line report, and smaller batches with the same effective size."""

import dataclasses
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bertkit.config import ConfigT, RunConfig
from bertkit.errors import UserError

# PyTorch's CPU allocator raises a plain RuntimeError.
CPU_OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory")


class OutOfMemory(UserError):
    """The device or the machine has run out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an accelerator, PyTorch on a CPU, or Python has run out of memory."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in CPU_OUT_OF_MEMORY_MESSAGES)


def get_batch_settings(config: RunConfig) -> dict[str, int]:
    """Return the settings that determine the batch, as far as they are set."""
    names = ("batch_size", "tokens_per_batch", "gradient_accumulation_steps")
    return {name: value for name in names if (value := getattr(config, name)) is not None}


@contextmanager
def report_out_of_memory(message: str) -> Iterator[None]:
    """Raise `OutOfMemory` with this message if memory runs out in the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(message) from None


def suggest_memory_fixes(config: RunConfig) -> str:
    """Return an out-of-memory message that lists the settings that would help."""
    budget = config.tokens_per_batch
    flag, size = ("--batch-size", config.batch_size) if budget is None else ("--tokens-per-batch", budget)
    fixes = [
        *(["--gradient-checkpointing"] if not config.gradient_checkpointing else []),
        f"a smaller {flag} with more --gradient-accumulation-steps",
        "a smaller --max-length",
        *(["--bf16"] if not (config.bf16 or config.fp16) else []),
    ]
    return f"out of memory at {flag} {size}, --max-length {config.max_length}; try {', '.join(fixes)}"


def halve_batch(config: ConfigT, longest: int) -> ConfigT | None:
    """Return the settings with half the batch and the same effective batch size, or None if impossible.

    The new batch size is the largest one up to half the old size that divides the effective batch size.

    Args:
        config: the settings of the run.
        longest: tokens of the longest sequence, the minimum for `tokens_per_batch`.
    """
    assert isinstance(config, RunConfig)
    steps = config.gradient_accumulation_steps
    if config.tokens_per_batch is not None:
        budget = config.tokens_per_batch // 2
        if budget < longest:
            return None
        return dataclasses.replace(config, tokens_per_batch=budget, gradient_accumulation_steps=2 * steps)
    assert config.batch_size is not None
    effective = config.batch_size * steps
    sizes = (size for size in range(config.batch_size // 2, 0, -1) if effective % size == 0)
    if (size := next(sizes, None)) is None:
        return None
    return dataclasses.replace(config, batch_size=size, gradient_accumulation_steps=effective // size)


def release_memory() -> None:
    """Release the memory of a failed attempt; call it outside `except`, which keeps the tensors alive."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def get_peak_memory_mb() -> float:
    """Return the peak memory use so far in MB: of the GPU if there is one, else of this process."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
