"""Errors for the user instead of those `RuntimeError`s of PyTorch that are not bugs."""

from pathlib import Path

from bertkit.training.checkpoints import RESTART_HINT


def explain_runtime_error(message: str, checkpoint: Path | None) -> str | None:
    """Return the error for the user; None if the error is a bug.

    Args:
        message: Message of the `RuntimeError`.
        checkpoint: The checkpoint of a resumed run; None for a new run.
    """
    first, *others = message.splitlines() or [""]
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
