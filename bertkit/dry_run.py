"""`--dry-run`: all of a run but its training, with one step on the batch that costs the most."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit import ranks
from bertkit.prepare import Prepared
from bertkit.reporter import Reporter
from bertkit.session import Session, peak_memory_mb
from bertkit.training.memory import memory_told, ways_out


def dry_run(prepared: Prepared, reporter: Reporter) -> dict[str, Any]:
    """One step on the longest batch, each rank's; tells rows, steps, and an estimate of time and memory.

    Nothing is written. The time is that one step's, scaled by pieces, and so about right; with --compile a
    step goes before it.
    """
    with tempfile.TemporaryDirectory() as folder:  # Trainer makes its directory
        return _measured(prepared, Path(folder), reporter)


def _measured(prepared: Prepared, folder: Path, reporter: Reporter) -> dict[str, Any]:
    session = Session(prepared, folder, reporter)
    config, features = prepared.config, prepared.features["train"]
    batches, steps = session.trainer.batches(), session.trainer.total_steps
    longest = [features[key] for key in batches.longest()]
    lengths = [sum(map(len, example["input_ids"])) for example in longest]
    step = _step_of(session, longest)
    with memory_told(ways_out(config)):
        if config.compile:
            step()  # which compiles
        started = time.perf_counter()
        loss = step()
    seconds = time.perf_counter() - started
    return {
        "task": prepared.task.name,
        "data": {
            "name": prepared.found.name, "source": prepared.found.source,
            **{split: len(rows) for split, rows in prepared.splits.items()},
        },
        "model": prepared.source.name,
        "summary": prepared.task.summary(),
        "truncated": None if prepared.task.drawn_to_fit else features.truncated / len(features),
        "windowed": features.windowed if prepared.task.in_windows else None,
        "max_length": config.max_length,
        "longest_batch": [len(longest), max(lengths)],
        "steps": steps,
        "loss": loss,
        "estimated_seconds": seconds * batches.pieces(0, steps) / sum(lengths) / ranks.count(),
        "peak_memory_mb": peak_memory_mb(),
        "precision": prepared.precision,
    }  # fmt: skip


def _step_of(session: Session, examples: list[Any]) -> Callable[[], float]:
    """Forward, backward and optimizer step on some examples, which give the loss."""
    trainer = session.trainer
    trainer.create_optimizer()
    model = trainer.accelerator.prepare(trainer.model)

    def step() -> float:
        batch = session.collator(examples)
        counts = trainer._get_num_items_in_batch([batch], trainer.args.device)
        loss = trainer.training_step(model, batch, counts)
        trainer.optimizer.step()
        return float(loss)

    return step
