"""What can make a step fail: memory, number formats, algorithms that are not deterministic, NaN losses."""

import dataclasses
import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertkit.errors import NAN_HINT, TrainingFailed, UserError
from bertkit.models.layers import supports_activation_checkpointing
from bertkit.settings.run_settings import RunConfig
from bertkit.training.arguments import WORKSPACE_SIZE, WORKSPACE_VARIABLE
from bertkit.utils import devices
from bertkit.utils.system import get_peak_memory

RESTART_HINT = "start again with --overwrite"

# ---- memory

# Parts of the messages of PyTorch's allocators for CPU and MPS, which raise a plain RuntimeError.
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
BATCH_SETTINGS = ("batch_size", "tokens_per_batch", "gradient_accumulation_steps")


class OutOfMemory(TrainingFailed):
    """The device or the machine has run out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of an accelerator, PyTorch on a CPU, or Python."""
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
    """Return an out-of-memory message that lists settings which reduce memory use."""
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


def halve_batch(config: RunConfig, min_tokens: int) -> RunConfig | None:
    """Return the settings with at most half the batch size and the same effective batch size, or None.

    The new batch size is the largest such divisor of the effective batch size. A token budget must hold
    `min_tokens`, the longest sequence.
    """
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
    """Release the memory of a failed attempt. Not in `except`, where the error keeps the tensors alive."""
    gc.collect()
    if devices.has_accelerator():
        getattr(torch, devices.get_device().type).empty_cache()


def get_peak_memory_mb() -> float:
    """Return the peak memory use of this process in MB: on the GPU if it is used, else in RAM."""
    if devices.get_device().type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return get_peak_memory() / 1e6


# ---- errors of PyTorch

# In errors of operations that mix number formats, or do not have one of them.
PRECISION_ERROR = re.compile(r"BFloat16|Half\b|\bdtypes?\b|scalar type")


def explain_runtime_error(message: str, checkpoint: Path | None) -> str | None:
    """Return the error for the user; None if the error is a bug. A resumed run has a checkpoint."""
    first, *others = message.splitlines() or [""]
    operation, separator, _ = first.partition(" does not have a deterministic implementation")
    if separator:
        return f"--deterministic: {operation} has no deterministic algorithm on this device; omit it"
    if first.startswith("Deterministic behavior was enabled"):
        return (
            "--deterministic: this process has used the GPU before; start a new process, or set "
            f"{WORKSPACE_VARIABLE}={WORKSPACE_SIZE} before the first use"
        )
    if first.startswith("DataLoader worker"):
        return (
            f"--set dataloader_num_workers: a worker process died ({first}); "
            "if it ran out of memory, omit the flag to load batches in the main process"
        )
    if checkpoint is not None and first.startswith("Error(s) in loading state_dict"):
        mismatch = " ".join(others[:1]).strip().rstrip(".")
        return (
            f"{checkpoint}: its weights do not fit the settings in run.yaml ({mismatch}); "
            f"restore run.yaml, or {RESTART_HINT}"
        )
    return None


def make_precision_error(model: Any, precision: str, reason: str) -> UserError:
    """Return the error for an architecture whose operations do not run in a number format."""
    fix = "pass --no-bf16" if precision == "bf16" else "omit --fp16"
    return UserError(f"{model.config.model_type}: cannot be trained in {precision} ({reason}); {fix}")


@contextmanager
def report_precision_errors(model: Any, precision: str) -> Iterator[None]:
    """Raise a `UserError` for a step that is not possible in a number format.

    The check of a loaded model finds most such architectures; some need long sequences to fail (BigBird).
    """
    try:
        yield
    except RuntimeError as error:
        if precision == "fp32" or not PRECISION_ERROR.search(str(error)):
            raise
        raise make_precision_error(model, precision, str(error).splitlines()[0]) from error


# ---- the loss


class LossCheck:
    """Check that the loss of every step is finite.

    On a CPU, the check is immediate. On an accelerator, reading the loss of each step would wait for all
    pending kernels. There, a tensor on the device records the first step whose loss is not finite, and
    `raise_if_recorded` reads it: before weights are evaluated or a checkpoint is written. Logging reads it
    together with the loss. `recorded` is `[2]`, step and loss; the step is 0 if all losses are finite.
    """

    def __init__(self) -> None:
        self._is_deferred = devices.runs_asynchronously()
        self.recorded: torch.Tensor | None = None

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Check the loss of a step, or record it if it is the first that is not finite."""
        if not self._is_deferred:
            raise_if_not_finite(float(loss), step)
            return
        loss = loss.detach().float()  # some accelerators have no float64
        current = torch.stack([torch.full_like(loss, step), loss])
        if self.recorded is None:
            self.recorded = torch.zeros_like(current)
        is_first = ~torch.isfinite(loss) & (self.recorded[0] == 0)
        self.recorded = torch.where(is_first, current, self.recorded)

    def raise_if_recorded(self) -> None:
        """Raise a `UserError` if a loss has been recorded; on an accelerator, wait for all pending steps."""
        if self.recorded is not None:
            step, loss = self.recorded.tolist()
            raise_if_not_finite(loss, int(step))


def raise_if_not_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise TrainingFailed(f"the loss is {loss} at step {step}; {NAN_HINT}")
