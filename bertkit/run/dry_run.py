"""Measurements before training: the steps that fit into `--time-limit`, and the estimates of `--dry-run`."""

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.split import sample_rows
from bertkit.errors import UserError, format_count
from bertkit.methods.linear_text import LinearText
from bertkit.models.forward import batch_by_length, compute_logits
from bertkit.run.prepare import PreparedRun, find_linear_text
from bertkit.run.session import Session
from bertkit.training.arguments import restore_algorithms
from bertkit.training.failures import (
    get_peak_memory_mb,
    release_memory,
    report_out_of_memory,
    report_precision_errors,
    suggest_memory_fixes,
)
from bertkit.training.samplers import LengthGroupedBatchSampler, PhasedBatchSampler
from bertkit.training.scoring import bind_logits
from bertkit.training.trainer import MAX_EVALUATIONS
from bertkit.utils import distributed
from bertkit.utils.reporting import report_info

UNTIMED_STEPS = 2  # allocate memory, and compile the layers with --compile
MEASURED_FRACTION = 0.02  # of the time limit
MAX_MEASURED_SECONDS = 60.0
USED_FRACTION = 0.97  # of the time limit; the rest is a reserve for checkpoints and for slower steps
EVALUATED_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class MeasuredTimes:
    """Durations in seconds."""

    step: float  # of an optimizer step, as the mean over the phases
    evaluation: float  # including the probe
    probe: float  # 0 without one
    measurement: float  # the duration of the measurement itself

    @property
    def sufficient_limit(self) -> float:
        """A time limit in seconds that is long enough for a step, with any number of steps per epoch."""
        seconds = self.measurement + 2 * self.probe + 2 * self.evaluation + self.step
        return seconds / USED_FRACTION

    def count_steps(self, limit: float, steps_per_epoch: int, save_steps: int | None) -> int:
        """Return the number of steps that fit into `limit` seconds, with all evaluations and probes."""
        budget = USED_FRACTION * limit - self.measurement - self.probe - self.evaluation
        step = self.step if save_steps is None else self.step + self.probe / save_steps
        with_each_epoch = budget / (step + self.evaluation / steps_per_epoch)
        with_fewest = (budget - MAX_EVALUATIONS * self.evaluation) / step  # more, if there are more epochs
        return int(max(with_each_epoch, with_fewest))


def plan_time_limit(session: Session) -> None:
    """Set `max_steps` if the run has a time limit, and no number of steps yet.

    The steps of the measurement are discarded, and `max_steps` is saved, so a resumed run is bit-identical to
    an uninterrupted one.
    """
    config = session.prepared.config
    limit = config.time_limit
    if limit is None or config.max_steps is not None:
        return
    with report_out_of_memory(suggest_memory_fixes(config, session.model)):
        times = distributed.gather_object(measure_times(session, 60 * limit))[0]  # those of the first rank
    steps = times.count_steps(60 * limit, session.trainer.steps_per_epoch, config.save_steps)
    probe = f", {times.probe:.1f} s per probe" if times.probe else ""
    durations = f"{times.step:.2f} s per step, {times.evaluation - times.probe:.1f} s per evaluation{probe}"
    if steps < 1:
        minutes = math.ceil(100 * times.sufficient_limit / 60) / 100  # rounded up, so that it is enough
        is_probe_longer = times.probe > times.evaluation - times.probe
        alternative = "omit --probe" if is_probe_longer else "evaluate less with --max-eval-samples"
        raise UserError(
            f"--time-limit {limit:g}: too short ({durations}); pass at least {minutes:g} minutes, or "
            f"{alternative}"
        )
    report_info(f"--time-limit {limit:g}: {format_count(steps, 'step')} ({durations})")
    session.prepared.task.resolve(max_steps=steps)
    del session.trainer, session.model
    release_memory()
    session.set_up()


def measure_times(session: Session, limit: float) -> MeasuredTimes:
    """Measure training and evaluation for a small fraction of `limit` seconds. The weights do not change."""
    started = time.perf_counter()
    seconds = min(MEASURED_FRACTION * limit, MAX_MEASURED_SECONDS)
    sampler = session.trainer.build_batch_sampler()
    assert isinstance(sampler, PhasedBatchSampler)
    run_step = _build_step(session)
    step = sum(
        phase.fraction * _measure_steps(run_step, phase_sampler, session, seconds / len(sampler.phases))
        for phase, phase_sampler in zip(sampler.phases, sampler.samplers, strict=True)
    )
    probe = 0.0 if session.prepared.probe is None else _measure(session.score_probe)
    evaluation = _measure_evaluation(session) + probe
    return MeasuredTimes(step, evaluation, probe, time.perf_counter() - started)


def _build_step(session: Session) -> Callable[[list[list[int]]], None]:
    """Return a function that trains one optimizer step on batches of example keys."""
    trainer = session.trainer
    trainer.create_optimizer()
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0  # without warmup, the weights could diverge
    # The prepared optimizer skips steps whose gradients overflow in fp16. Such gradients would set the
    # weights to NaN even at a rate of 0.
    model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    collate, examples = trainer.build_training_collator(), trainer.train_dataset

    def run_step(keys: list[list[int]]) -> None:
        batches: list[Any] = [collate([examples[key] for key in batch]) for batch in keys]
        num_items = trainer._get_num_items_in_batch(batches, trainer.args.device)
        losses = [trainer.training_step(model, batch, num_items) for batch in batches]
        if trainer.args.max_grad_norm:
            trainer._clip_grad_norm(model)
        optimizer.step()
        model.zero_grad()
        losses[-1].item()  # waits for the device

    return run_step


def _measure_steps(
    run_step: Callable[[list[list[int]]], None], sampler: LengthGroupedBatchSampler, session: Session,
    seconds: float,
) -> float:  # fmt: skip
    """Return the mean duration of the steps of a phase that fit into `seconds`, of at least one."""

    def repeat_first_epoch() -> Iterator[list[list[int]]]:
        while True:
            batches = iter(sampler)
            while step := list(islice(batches, session.training_args.gradient_accumulation_steps)):
                yield step

    steps = repeat_first_epoch()
    for _ in range(UNTIMED_STEPS):
        run_step(next(steps))
    started, count = time.perf_counter(), 0
    # all ranks run equally many steps
    while not count or not distributed.any_rank(time.perf_counter() - started > seconds):
        run_step(next(steps))
        count += 1
    return (time.perf_counter() - started) / count


def _measure_evaluation(session: Session) -> float:
    """Return the duration of an evaluation, extrapolated from some random batches."""
    features, batch_size = session.features["validation"], session.prepared.config.eval_batch_size
    batches = batch_by_length(features, batch_size)
    sample = np.random.default_rng(0).permutation(len(batches))[:EVALUATED_BATCHES]
    compute, device = bind_logits(session.model), session.training_args.device

    @torch.no_grad()
    def score_sample() -> None:
        session.model.eval()
        for examples in (batches[index] for index in sample):
            batch = session.collator([features[index] for index in examples])
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            features.reduce_logits(compute(batch).float(), examples, batch).cpu()

    return _measure(score_sample) * len(batches) / len(sample) / distributed.get_world_size()


def _measure(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


# ---- the dry run


@restore_algorithms()
def dry_run(prepared: PreparedRun) -> dict[str, Any]:
    """Train one step on the longest batch, and estimate the time and memory of the run.

    The time is a rough estimate: the duration of this step, scaled by the number of tokens. With `compile`,
    the measured step is the second one.
    """
    config, task, features = prepared.config, prepared.task, prepared.features["train"]
    common = {
        "task": task.definition.name,
        "data": {
            "name": prepared.dataset.name, "source": prepared.dataset.source,
            **{split: len(rows) for split, rows in prepared.splits.items()},
        },
        "model": prepared.model_source.name,
        "summary": task.describe(),
    }  # fmt: skip
    if method := find_linear_text(prepared.methods):
        cost = _measure_fit(prepared, method)
        return {**common, **cost, "peak_memory_mb": get_peak_memory_mb(), "precision": prepared.precision}
    with tempfile.TemporaryDirectory() as folder:  # Trainer requires an output directory
        session = Session(prepared, Path(folder))
        plan_time_limit(session)
        session.warn_about_long_warmup()
        with (
            report_out_of_memory(suggest_memory_fixes(prepared.config, session.model)),
            report_precision_errors(session.model, prepared.precision),
        ):
            measure = _measure_training if prepared.has_training_steps else _measure_forward_pass
            cost = measure(session)
    return {
        **common,
        "truncated": None if task.definition.resamples_examples else features.num_truncated / len(features),
        "windowed": features.windowed_fraction if task.uses_windows else None,
        "max_length": config.max_length,
        **cost,
        "peak_memory_mb": get_peak_memory_mb(),
        "precision": prepared.precision,
    }  # fmt: skip


MEASURED_ROWS = 500


def _measure_fit(prepared: PreparedRun, method: LinearText) -> dict[str, Any]:
    """Return the same for a linear model of texts, which is fitted to a sample of the rows."""
    rows = sample_rows(prepared.splits["train"], MEASURED_ROWS, prepared.config.seed)
    task: Any = prepared.task
    started = time.perf_counter()
    labels = task.get_training_labels(rows)
    method.fit(task, prepared.model_config, prepared.model_source, rows, labels)
    seconds = time.perf_counter() - started
    scale = len(prepared.splits["train"]) / len(rows)
    return {
        "truncated": None, "windowed": None, "max_length": None, "longest_batch": None, "steps": 0,
        "loss": None, "estimated_seconds": seconds * scale,
    }  # fmt: skip


def _measure_training(session: Session) -> dict[str, Any]:
    """Return the longest batch, the number of steps, the loss of one step, and the estimated duration."""
    trainer, batch_sampler = session.trainer, session.trainer.build_batch_sampler()
    examples = [trainer.train_dataset[key] for key in batch_sampler.get_longest_batch()]
    lengths = [sum(map(len, example["input_ids"])) for example in examples]
    trainer.create_optimizer()
    model, collate = trainer.accelerator.prepare(trainer.model), trainer.build_training_collator()

    def train_step() -> float:
        batch = collate(examples)
        num_items = trainer._get_num_items_in_batch([batch], trainer.args.device)
        loss = trainer.training_step(model, batch, num_items)
        trainer.optimizer.step()
        return float(loss)

    # the first step compiles layers, and up to two more are recorded as CUDA graphs
    for _ in range(3 if trainer.use_graphs else int(session.prepared.config.compile)):
        train_step()
    started = time.perf_counter()
    loss = train_step()
    step_seconds = time.perf_counter() - started
    num_tokens = batch_sampler.estimate_tokens(0, trainer.total_steps) / distributed.get_world_size()
    return {
        "longest_batch": [len(examples), max(lengths)],
        "steps": trainer.total_steps,
        "loss": loss,
        "estimated_seconds": step_seconds * num_tokens / sum(lengths),
    }


def _measure_forward_pass(session: Session) -> dict[str, Any]:
    """Return the same for an encoder that is not trained: its vectors are computed once."""
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
