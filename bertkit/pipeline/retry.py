"""Training where memory runs out: once more, with smaller batches that make the same steps."""

from typing import Any

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.pipeline.session import Session
from bertkit.training.memory import OutOfMemory, get_batch_settings, halve_batch, release_memory


def train_with_retry(session: Session) -> dict[str, Any]:
    """Train to the end; where memory runs out, once more with batches of half the size, twice as many a step.

    Raises:
        OutOfMemory: it ran out again, or batches cannot be divided.
        RunInterrupted: see `Session.train`.
    """
    before = session.prepared.config
    try:
        return session.train(resume=before.resume)
    except OutOfMemory:
        if (smaller := _smaller(session)) is None:
            raise
    # Not within `except`, since the error holds what memory ran out of.
    _begin_again(session, smaller)
    return session.train(resume=True)


def _smaller(session: Session) -> RunConfig | None:
    """The settings to go on with; None where there are none.

    All ranks would have to agree on them. Another budget lays out an epoch in another way, so what was
    trained before cannot be gone on with.
    """
    config = session.prepared.config
    begun = config.tokens_per_batch is not None and run_directory.last_checkpoint(session.folder) is not None
    return (
        None if begun or session.training_args.world_size > 1 else halve_batch(config, config.train_max_length())
    )


def _begin_again(session: Session, smaller: RunConfig) -> None:
    """A new model and trainer with these settings, which are told and become those of the run directory."""
    before, session.prepared.task.config = session.prepared.config, smaller
    del session.trainer, session.model
    release_memory()
    session.set_up()
    run_directory.update_settings(session.folder, smaller, {"out_of_memory_at": get_batch_settings(before)})
    old, new = (
        ", ".join(f"{name} {value}" for name, value in get_batch_settings(one).items())
        for one in (before, smaller)
    )
    checkpoint = run_directory.last_checkpoint(session.folder)
    where = "goes on from the last checkpoint" if checkpoint else "begins again"
    session.reporter.warn(f"out of memory at {old}: training {where} with {new}, as much a step as before")
