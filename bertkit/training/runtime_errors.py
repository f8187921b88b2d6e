"""Errors for the user instead of those `RuntimeError`s of PyTorch that are not bugs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit.errors import UserError
from bertkit.training.checkpoints import RESTART_HINT
from bertkit.training.determinism import WORKSPACE_SIZE, WORKSPACE_VARIABLE

PRECISION_FIXES = {"bf16": "pass --no-bf16", "fp16": "omit --fp16"}
# In errors of operations that mix number formats, or do not have one of them.
PRECISION_ERROR = re.compile(r"BFloat16|Half\b|\bdtypes?\b|scalar type")
NO_DETERMINISTIC_ALGORITHM = " does not have a deterministic implementation"


def explain_runtime_error(message: str, checkpoint: Path | None) -> str | None:
    """Return the error for the user; None if the error is a bug.

    Args:
        message: Message of the `RuntimeError`.
        checkpoint: The checkpoint of a resumed run; None for a new run.
    """
    first, *others = message.splitlines() or [""]
    if problem := _explain_determinism(first):
        return problem
    if first.startswith("DataLoader worker"):
        return (
            f"--set dataloader_num_workers: a worker process died ({first}); "
            "if it ran out of memory, leave out the flag to load batches in the main process"
        )
    if checkpoint is not None and first.startswith("Error(s) in loading state_dict"):
        mismatch = " ".join(others[:1]).strip().rstrip(".")
        return (
            f"{checkpoint}: its weights do not fit the settings in run.yaml ({mismatch}); "
            f"restore run.yaml, or {RESTART_HINT}"
        )
    return None


def _explain_determinism(first_line: str) -> str | None:
    """Return the error for the user if an operation is refused because of `--deterministic`, else None."""
    operation, separator, _ = first_line.partition(NO_DETERMINISTIC_ALGORITHM)
    if separator:
        return f"--deterministic: {operation} has no deterministic algorithm on this device; leave it out"
    if first_line.startswith("Deterministic behavior was enabled"):
        return (
            "--deterministic: this process has used the GPU before; start a new process, or set "
            f"{WORKSPACE_VARIABLE}={WORKSPACE_SIZE} before the first use"
        )
    return None


def make_precision_error(model: Any, precision: str, reason: str) -> UserError:
    """Return the error for an architecture whose operations do not run in a number format."""
    name, fix = model.config.model_type, PRECISION_FIXES[precision]
    return UserError(f"{name}: cannot be trained in {precision} ({reason}); {fix}")


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
