"""The one training pipeline: settings and data in, a run directory out. It knows no task by name."""

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import rundir
from bertkit.card import model_card
from bertkit.config import saved_settings
from bertkit.data.rows import fingerprint
from bertkit.errors import Stopped, UserError
from bertkit.files import write_jsonl, write_text
from bertkit.prepare import Prepared, parameters_of, prepare, settings
from bertkit.quiet import quiet_libraries
from bertkit.reporter import Reporter
from bertkit.tasks.base import Outputs, Scores
from bertkit.training.arguments import parse_set, training_arguments
from bertkit.training.stopping import StopRequest


@dataclass(frozen=True)
class Run:
    """A finished run: what `metrics.json` holds, and where it lies (None after a dry run)."""

    output_dir: Path | None
    metrics: dict[str, Any]


def train(
    task_name: str, given: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Train `task_name` with the settings in `given`, which go before those of `recipe`.

    Raises:
        UserError: anything the user can mend, before weights are loaded where it can be known.
        Stopped: Ctrl-C or SIGTERM; a checkpoint is written.
    """
    reporter = reporter or Reporter()
    config, data_before = settings(task_name, given, recipe)
    if config.resume and (finished := rundir.read_metrics(Path(config.output_dir or ""))):
        reporter.say("the run is finished; these are its scores")
        return Run(Path(config.output_dir or ""), finished)
    with quiet_libraries():
        prepared = prepare(task_name, config, reporter)
        data = fingerprint(prepared.splits)
        if data_before not in (None, data):
            raise UserError(
                f"--resume {config.output_dir}: its data has changed (fingerprint {data_before} then, "
                f"{data} now); restore the data, or start again with --overwrite"
            )
        if config.dry_run:
            from bertkit.dry_run import dry_run

            return Run(None, dry_run(prepared, reporter))
        return _train(prepared, data, reporter)


def _train(prepared: Prepared, data: str, reporter: Reporter) -> Run:
    config, task = prepared.config, prepared.task
    default = rundir.default_directory(task.name, prepared.found.name, prepared.source.name)
    folder = Path(config.output_dir or default)
    if not config.resume:
        rundir.check_writable(folder, config.overwrite)
        rundir.require_room(folder, parameters_of(prepared.model_config))
    session = Session(prepared, folder, reporter)
    if not config.resume:
        rundir.create(folder, config.overwrite)
    try:
        if not config.resume:
            rundir.write_settings(folder, task.name, config, data)
        figures = session.train()
        return _finish(session, figures, data)
    except KeyboardInterrupt:
        if rundir.last_checkpoint(folder):
            raise Stopped(f"stopped; {session.way_on}") from None
        rundir.discard_unstarted(folder)
        raise Stopped("stopped before the first checkpoint; nothing was kept") from None
    except UserError:
        rundir.discard_unstarted(folder)
        raise


class Session:
    """One training: the model, the trainer around it, and the scores of each split.

    Args:
        prepared: all but the weights.
        folder: the run directory; nothing is written before `train`.
    """

    def __init__(self, prepared: Prepared, folder: Path, reporter: Reporter) -> None:
        from transformers import set_seed

        self.prepared, self.folder, self.reporter = prepared, folder, reporter
        self.stop = StopRequest()
        self.logits: dict[int, Any] = {}  # step -> validation logits, of the best step so far
        checkpoints = folder / rundir.CHECKPOINTS
        self.arguments = training_arguments(prepared.config, checkpoints, prepared.precision)
        set_seed(prepared.config.seed)
        self.model = prepared.task.model(prepared.model_config, prepared.source)
        self.collator = prepared.task.collator(prepared.tokenizer, self.model)
        self.trainer = self._trainer()

    def _trainer(self) -> Any:
        from transformers import PrinterCallback

        from bertkit.training.callbacks import Progress, Schedule
        from bertkit.training.trainer import BertkitTrainer

        config, train = self.prepared.config, self.prepared.features["train"]
        trainer = BertkitTrainer(
            model=self.model, args=self.arguments, train_dataset=train, data_collator=self.collator,
            loss=self.prepared.task.loss(train), evaluate_with=self._validate, best=self.prepared.task.best,
            early_stopping=config.early_stopping, layer_decay=getattr(config, "layer_decay", None),
            own_order="train_sampling_strategy" not in parse_set(config),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Schedule(trainer.steps_per_epoch, config.save_steps, self.stop))
        trainer.add_callback(Progress(self.reporter))
        return trainer

    def train(self) -> dict[str, Any]:
        """Train to the end, put the best weights back, and tell the figures of `metrics.json`.

        Raises:
            Stopped: asked to by a signal; the last checkpoint is what --resume goes on from.
        """
        checkpoint = rundir.last_checkpoint(self.folder) if self.prepared.config.resume else None
        started = time.perf_counter()
        try:
            with self.stop:
                self.trainer.train_from(checkpoint)
        finally:
            self.reporter.training_ended()
        seconds = time.perf_counter() - started - self.trainer.evaluation_seconds
        state = self.trainer.state
        if self.stop.requested:
            raise Stopped(f"stopped at step {state.global_step} of {state.max_steps}; {self.way_on}")
        self._restore_best()
        return self._figures(seconds, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)

    @property
    def way_on(self) -> str:
        """How to go on with a run that was stopped."""
        return f"go on with: bertkit {self.prepared.task.name} --resume --output-dir {self.folder}"

    def _figures(self, seconds: float, before: int) -> dict[str, Any]:
        """Throughput counts the training loop with its first step and checkpoints, without evaluation."""
        lengths, state = self.prepared.features["train"].lengths, self.trainer.state
        steps = state.global_step - before
        examples = len(lengths) * steps / self.trainer.steps_per_epoch
        return {
            "seconds": seconds,
            "steps": state.global_step,
            "examples_per_second": examples / seconds,
            "tokens_per_second": examples * float(lengths.mean()) / seconds,
            "peak_memory_mb": peak_memory_mb(),
            "loss": self.trainer.mean_loss(),
            "precision": self.prepared.precision,
            "resumed_from": before or None,
        }

    def _restore_best(self) -> None:
        """Load the weights of the best evaluation, where training went on after it."""
        best = self.trainer.state.best_global_step
        if best is not None and best != self.trainer.state.global_step:
            self.trainer._load_from_checkpoint(str(self.folder / rundir.CHECKPOINTS / f"checkpoint-{best}"))
            self.reporter.say(f"the best weights are those of step {best}")

    def _validate(self) -> Scores:
        outputs = self._outputs("validation")
        scores = self.prepared.task.metrics(outputs)
        name, sign = self.prepared.task.best
        best = self.trainer.state.best_metric
        if best is None or sign * scores[name] > sign * best:
            self.logits = {self.trainer.state.global_step: outputs.logits}
        return scores

    def outputs(self, split: str) -> Outputs:
        """A split scored by the best weights; validation logits are reused where they are theirs."""
        logits = self.logits.get(self.trainer.state.best_global_step) if split == "validation" else None
        return self._outputs(split, logits)

    def _outputs(self, split: str, logits: Any = None) -> Outputs:
        from bertkit.training.scoring import predict_logits

        features = self.prepared.features[split]
        if logits is None:
            size = self.prepared.config.eval_batch_size
            logits = predict_logits(self.model, features, self.collator, size, self.reporter)
        return Outputs(logits, features, self.prepared.splits[split])


def _finish(session: Session, figures: dict[str, Any], data: str) -> Run:
    """Score every split and write the run directory, `metrics.json` last."""
    prepared, folder = session.prepared, session.folder
    task, splits = prepared.task, prepared.splits
    outputs = {split: session.outputs(split) for split in splits if split != "train"}
    scores = {
        split: task.metrics(found) for split, found in outputs.items() if found.features.labels is not None
    }
    sizes = {split: len(rows) for split, rows in splits.items()}
    metrics = {
        "task": task.name,
        "data": {"name": prepared.found.name, "source": prepared.found.source, "fingerprint": data, **sizes},
        "model": prepared.source.name,
        "validation": {}, "test": {}, **scores,
        "intervals": task.intervals(outputs["validation"]),
        "baselines": task.baselines(splits["train"], splits["validation"]),
        "training": figures,
    }  # fmt: skip
    _write_model(session)
    for split, found in outputs.items():
        suffix = "" if split == "validation" else f"-{split}"
        write_jsonl(
            folder / f"predictions{suffix}.jsonl", records(task.decode(found), found.rows, task.config)
        )
    made_with = rundir.read_made_with(folder)
    card = model_card(folder, metrics, saved_settings(task.config), made_with, task.text_columns)
    write_text(folder / "README.md", card)
    rundir.write_metrics(folder, metrics)
    return Run(folder, metrics)


def _write_model(session: Session) -> None:
    """Model and tokenizer, as `transformers` loads them; `max_length` and the side to cut go along."""
    tokenizer, config = session.prepared.tokenizer, session.prepared.config
    tokenizer.model_max_length = config.max_length
    tokenizer.truncation_side = "left" if getattr(config, "long", "head") == "tail" else "right"
    with rundir.written_aside(session.folder) as aside:
        session.model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)


def records(predictions: Any, rows: Any, config: Any) -> Any:
    """Predictions with the input columns before them; a column that clashes becomes `input_NAME`."""
    label = getattr(config, "label_column", None)
    for number, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
        keys = {"id", *prediction}
        inputs = {f"input_{k}" if k in keys else k: v for k, v in row.items() if k != label}
        yield {"id": number, **inputs, **prediction}


def peak_memory_mb() -> float:
    """The most memory used so far: the device's where there is one, else this process's."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
