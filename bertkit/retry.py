"""Training where memory runs out: once more, with smaller batches that make the same steps."""

from typing import Any

from bertkit import rundir
from bertkit.config import RunConfig
from bertkit.session import Session
from bertkit.training.memory import OutOfMemory, halved, release, sizes


def trained(session: Session) -> dict[str, Any]:
    """Train to the end; where memory runs out, once more with batches of half the size, twice as many a step.

    Raises:
        OutOfMemory: it ran out again, or batches cannot be divided.
        Stopped: see `Session.train`.
    """
    before = session.prepared.config
    try:
        return session.train(go_on=before.resume)
    except OutOfMemory:
        if (smaller := _smaller(session)) is None:
            raise
    # Not within `except`, since the error holds what memory ran out of.
    _begin_again(session, smaller)
    return session.train(go_on=True)


def _smaller(session: Session) -> RunConfig | None:
    """The settings to go on with; None where there are none.

    All ranks would have to agree on them. Another budget lays out an epoch in another way, so what was
    trained before cannot be gone on with.
    """
    config, task = session.prepared.config, session.prepared.task
    begun = config.tokens_per_batch is not None and rundir.last_checkpoint(session.folder) is not None
    return None if begun or session.arguments.world_size > 1 else halved(config, task.longest_trained)


def _begin_again(session: Session, smaller: RunConfig) -> None:
    """A new model and trainer with these settings, which are told and become those of the run directory."""
    before, session.prepared.task.config = session.prepared.config, smaller
    del session.trainer, session.model
    release()
    session.set_up()
    rundir.change_settings(session.folder, smaller, {"out_of_memory_at": sizes(before)})
    old, new = (
        ", ".join(f"{name} {value}" for name, value in sizes(one).items()) for one in (before, smaller)
    )
    checkpoint = rundir.last_checkpoint(session.folder)
    where = "goes on from the last checkpoint" if checkpoint else "begins again"
    session.reporter.warn(f"out of memory at {old}: training {where} with {new}, as much a step as before")
