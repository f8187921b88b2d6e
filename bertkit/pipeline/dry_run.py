"""`--dry-run`: everything that a run does before training, and one step on the most expensive batch."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.pipeline.prepare import PreparedRun
from bertkit.pipeline.session import Session
from bertkit.training.memory import get_peak_memory_mb, report_out_of_memory, suggest_memory_fixes
from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter


def dry_run(prepared: PreparedRun, reporter: Reporter) -> dict[str, Any]:
    """Train one step on the longest batch of each rank, and write nothing.

    Returns:
        Numbers of rows and steps, and estimates of time and memory. The time is that of the one step, scaled
        by tokens, so it is a rough estimate. With `compile`, an unmeasured step runs first.
    """
    with tempfile.TemporaryDirectory() as folder:  # Trainer creates its output directory
        return _measure(prepared, Path(folder), reporter)


def _measure(prepared: PreparedRun, folder: Path, reporter: Reporter) -> dict[str, Any]:
    session = Session(prepared, folder, reporter)
    config, features = prepared.config, prepared.features["train"]
    batches, steps = session.trainer.build_batch_sampler(), session.trainer.total_steps
    longest = [features[key] for key in batches.get_longest_batch()]
    lengths = [sum(map(len, example["input_ids"])) for example in longest]
    step = _build_step(session, longest)
    with report_out_of_memory(suggest_memory_fixes(config)):
        if config.compile:
            step()  # compiles
        started = time.perf_counter()
        loss = step()
    seconds = time.perf_counter() - started
    relative_cost = batches.count_tokens(0, steps) / sum(lengths) / distributed.get_world_size()
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
        "estimated_seconds": seconds * relative_cost,
        "peak_memory_mb": get_peak_memory_mb(),
        "precision": prepared.precision,
    }  # fmt: skip


def _build_step(session: Session, examples: list[Any]) -> Callable[[], float]:
    """Return a function that does one optimizer step on some examples and returns the loss."""
    trainer = session.trainer
    trainer.create_optimizer()
    model = trainer.accelerator.prepare(trainer.model)

    def step() -> float:
        batch = session.collator(examples)
        num_items = trainer._get_num_items_in_batch([batch], trainer.args.device)
        loss = trainer.training_step(model, batch, num_items)
        trainer.optimizer.step()
        return float(loss)

    return step
