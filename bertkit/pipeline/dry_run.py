"""The dry run: one training step on the most expensive batch, without writing anything."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.pipeline.prepare import PreparedRun
from bertkit.pipeline.session import Session
from bertkit.pipeline.time_limit import plan_time_limit
from bertkit.training.determinism import restore_algorithms
from bertkit.training.memory import get_peak_memory_mb, report_out_of_memory, suggest_memory_fixes
from bertkit.training.runtime_errors import report_precision_errors
from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter


@restore_algorithms()
def dry_run(prepared: PreparedRun, reporter: Reporter) -> dict[str, Any]:
    """Train one step on the longest batch, and estimate the time and memory of the run.

    The time is a rough estimate: the duration of this step, scaled by the number of tokens. With `compile`,
    the measured step is the second one.

    Returns:
        Summary of the data and the model, number of steps, and estimates of time and memory.
    """
    with tempfile.TemporaryDirectory() as folder:  # Trainer requires an output directory
        return _measure(prepared, Path(folder), reporter)


def _measure(prepared: PreparedRun, folder: Path, reporter: Reporter) -> dict[str, Any]:
    session = Session(prepared, folder, reporter)
    plan_time_limit(session)
    session.warn_about_long_warmup()
    config, features = prepared.config, prepared.features["train"]
    is_trained = prepared.task.spec.trains_encoder
    with (
        report_out_of_memory(suggest_memory_fixes(config, session.model)),
        report_precision_errors(session.model, prepared.precision),
    ):
        cost = _measure_training(session) if is_trained else _measure_forward_pass(session)
    return {
        "task": prepared.task.spec.name,
        "data": {
            "name": prepared.dataset.name, "source": prepared.dataset.source,
            **{split: len(rows) for split, rows in prepared.splits.items()},
        },
        "model": prepared.model_source.name,
        "summary": prepared.task.describe(),
        "truncated": (
            None if prepared.task.spec.resamples_examples else features.num_truncated / len(features)
        ),
        "windowed": features.windowed_fraction if prepared.task.spec.uses_windows else None,
        "max_length": config.max_length,
        **cost,
        "peak_memory_mb": get_peak_memory_mb(),
        "precision": prepared.precision,
    }  # fmt: skip


def _measure_training(session: Session) -> dict[str, Any]:
    """Return the longest batch, the number of steps, the loss of one step, and the estimated duration."""
    batch_sampler, total_steps = session.trainer.build_batch_sampler(), session.trainer.total_steps
    examples = session.trainer.train_dataset
    longest_examples = [examples[key] for key in batch_sampler.get_longest_batch()]
    lengths = [sum(map(len, example["input_ids"])) for example in longest_examples]
    train_step = _build_train_step(session, longest_examples)
    # the first step compiles layers, and up to two more are recorded as CUDA graphs
    for _ in range(3 if session.trainer.use_graphs else int(session.prepared.config.compile)):
        train_step()
    started = time.perf_counter()
    loss = train_step()
    step_seconds = time.perf_counter() - started
    tokens_per_rank = batch_sampler.estimate_tokens(0, total_steps) / distributed.get_world_size()
    return {
        "longest_batch": [len(longest_examples), max(lengths)],
        "steps": total_steps,
        "loss": loss,
        "estimated_seconds": step_seconds * tokens_per_rank / sum(lengths),
    }


def _measure_forward_pass(session: Session) -> dict[str, Any]:
    """Return the same for an encoder that is not trained: its vectors are computed once."""
    import torch

    from bertkit.modeling.forward import batch_by_length, compute_logits

    features, batch_size = session.prepared.features["train"], session.prepared.config.eval_batch_size
    longest = batch_by_length(features, batch_size)[0]
    batch = session.collator([features[index] for index in longest])
    started = time.perf_counter()
    with torch.no_grad():
        compute_logits(
            session.model, {name: tensor.to(session.training_args.device) for name, tensor in batch.items()}
        )
    seconds, lengths = time.perf_counter() - started, features.lengths
    return {
        "longest_batch": [len(longest), int(lengths[longest].max())],
        "steps": 0,
        "loss": None,
        "estimated_seconds": seconds * float(lengths.sum() / lengths[longest].sum()),
    }


def _build_train_step(session: Session, examples: list[Any]) -> Callable[[], float]:
    """Return a function that runs one optimizer step on `examples` and returns the loss."""
    trainer = session.trainer
    trainer.create_optimizer()
    model, collate = trainer.accelerator.prepare(trainer.model), trainer.build_training_collator()

    def train_step() -> float:
        batch = collate(examples)
        num_items = trainer._get_num_items_in_batch([batch], trainer.args.device)
        loss = trainer.training_step(model, batch, num_items)
        trainer.optimizer.step()
        return float(loss)

    return train_step
