"""Out of memory: known by its errors, told in one line, and which smaller batches train alike."""

import dataclasses
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bertkit.config import ConfigT, RunConfig
from bertkit.errors import UserError

# PyTorch's allocator for CPUs has no error of its own.
CPU_OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory")


class OutOfMemory(UserError):
    """There is not memory enough for what was asked."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is that of an accelerator, of PyTorch on a CPU, or of Python."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in CPU_OUT_OF_MEMORY_MESSAGES)


def get_batch_settings(config: RunConfig) -> dict[str, int]:
    """How much is trained on at a time, and how many times a step."""
    names = ("batch_size", "tokens_per_batch", "gradient_accumulation_steps")
    return {name: value for name in names if (value := getattr(config, name)) is not None}


@contextmanager
def report_out_of_memory(message: str) -> Iterator[None]:
    """Raise `OutOfMemory` with this message where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(message) from None


def suggest_memory_fixes(config: RunConfig) -> str:
    """What a user can do about a run that memory does not suffice for."""
    budget = config.tokens_per_batch
    flag, size = ("--batch-size", config.batch_size) if budget is None else ("--tokens-per-batch", budget)
    ways = [
        *(["--gradient-checkpointing"] if not config.gradient_checkpointing else []),
        f"a smaller {flag} with more --gradient-accumulation-steps",
        "a smaller --max-length",
        *(["--bf16"] if not (config.bf16 or config.fp16) else []),
    ]
    return f"out of memory at {flag} {size}, --max-length {config.max_length}; try {', '.join(ways)}"


def halve_batch(config: ConfigT, longest: int) -> ConfigT | None:
    """The settings with half as much at a time and as much an optimizer step; None: it cannot be divided.

    A batch of an odd number becomes the largest that divides the effective batch.

    Args:
        longest: pieces of the longest sequence, which a budget must hold.
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
    smaller = (size for size in range(config.batch_size // 2, 0, -1) if effective % size == 0)
    if (size := next(smaller, None)) is None:
        return None
    return dataclasses.replace(config, batch_size=size, gradient_accumulation_steps=effective // size)


def release_memory() -> None:
    """Give back what a failed attempt held; call it where nothing holds the error any more."""
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
