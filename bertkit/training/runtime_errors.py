"""Errors for the user instead of those `RuntimeError`s of PyTorch that are not bugs."""

from pathlib import Path

from bertkit.training.checkpoints import RESTART_HINT
from bertkit.training.determinism import WORKSPACE_SIZE, WORKSPACE_VARIABLE

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
