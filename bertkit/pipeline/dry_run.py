"""`--dry-run`: all of a run but its training, with one step on the batch that costs the most."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.pipeline.prepare import PreparedRun
from bertkit.pipeline.session import Session, get_peak_memory_mb
from bertkit.training.memory import report_out_of_memory, suggest_memory_fixes
from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter


def dry_run(prepared: PreparedRun, reporter: Reporter) -> dict[str, Any]:
    """One step on the longest batch, each rank's; tells rows, steps, and an estimate of time and memory.

    Nothing is written. The time is that one step's, scaled by pieces, and so about right; with --compile a
    step goes before it.
    """
    with tempfile.TemporaryDirectory() as folder:  # Trainer makes its directory
        return _measured(prepared, Path(folder), reporter)


def _measured(prepared: PreparedRun, folder: Path, reporter: Reporter) -> dict[str, Any]:
    session = Session(prepared, folder, reporter)
    config, features = prepared.config, prepared.features["train"]
    batches, steps = session.trainer.build_batch_sampler(), session.trainer.total_steps
    longest = [features[key] for key in batches.get_longest_batch()]
    lengths = [sum(map(len, example["input_ids"])) for example in longest]
    step = _step_of(session, longest)
    with report_out_of_memory(suggest_memory_fixes(config)):
        if config.compile:
            step()  # which compiles
        started = time.perf_counter()
        loss = step()
    seconds = time.perf_counter() - started
    return {
        "task": prepared.task.spec.name,
        "data": {
            "name": prepared.dataset.name, "source": prepared.dataset.source,
            **{split: len(rows) for split, rows in prepared.splits.items()},
        },
        "model": prepared.model_source.name,
        "summary": prepared.task.describe(),
        "truncated": None if prepared.task.spec.dynamic_examples else features.num_truncated / len(features),
        "windowed": features.windowed_fraction if prepared.task.spec.uses_windows else None,
        "max_length": config.max_length,
        "longest_batch": [len(longest), max(lengths)],
        "steps": steps,
        "loss": loss,
        "estimated_seconds": seconds * batches.count_tokens(0, steps) / sum(lengths) / distributed.get_world_size(),
        "peak_memory_mb": get_peak_memory_mb(),
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
