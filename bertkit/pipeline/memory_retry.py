"""Training that is retried once with smaller batches if memory runs out."""

from typing import TYPE_CHECKING, Any

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.training.memory import OutOfMemory, get_batch_settings, halve_batch, release_memory

if TYPE_CHECKING:
    from bertkit.pipeline.session import Session


def train_with_retry(session: "Session") -> dict[str, Any]:
    """Train to the end; if memory runs out, retry once with smaller batches.

    The effective batch size stays the same.

    Returns:
        The section "training" of `metrics.json`.

    Raises:
        OutOfMemory: Memory ran out again, or a retry is not possible.
        RunInterrupted: See `Session.train`.
    """
    config = session.prepared.config
    try:
        return session.train(resume=config.resume)
    except OutOfMemory:
        smaller_config = _choose_smaller_batches(session)
        if smaller_config is None:
            raise
    # This is outside the `except` block, because the error keeps the model and its activations in memory.
    _restart(session, smaller_config)
    return session.train(resume=True)


def _choose_smaller_batches(session: "Session") -> RunConfig | None:
    """Return the settings for a retry, or None if a retry is not possible.

    With several ranks, a retry is not possible because all ranks would have to choose the same settings.
    With `tokens_per_batch`, a retry is not possible after a checkpoint. A smaller budget changes the batches
    of the epoch, so the steps after the checkpoint would repeat some examples and skip others.
    """
    config, task = session.prepared.config, session.prepared.task
    has_checkpoint = run_directory.find_last_checkpoint(session.folder) is not None
    if session.training_args.world_size > 1 or (config.tokens_per_batch is not None and has_checkpoint):
        return None
    if not task.spec.trains_encoder:
        return None
    return halve_batch(config, min_tokens=task.config.max_training_length())


def _restart(session: "Session", config: RunConfig) -> None:
    """Create a new model and trainer with these settings, and save the settings in the run directory."""
    previous_config = session.prepared.config
    session.prepared.task.config = config
    del session.trainer, session.model
    release_memory()
    session.set_up()
    reason = {"out_of_memory_at": get_batch_settings(previous_config)}
    run_directory.update_settings(session.folder, config, reason)
    has_checkpoint = run_directory.find_last_checkpoint(session.folder) is not None
    action = "resumes from the last checkpoint" if has_checkpoint else "restarts"
    session.reporter.warn(
        f"out of memory at {_format_batch_settings(previous_config)}: training {action} with "
        f"{_format_batch_settings(config)} (same effective batch size)"
    )


def _format_batch_settings(config: RunConfig) -> str:
    return ", ".join(f"{name} {value}" for name, value in get_batch_settings(config).items())
