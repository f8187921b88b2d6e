"""Measure one training setup in this process: steps per second, utilization of the device, memory.

    python benchmarks/gpu_step.py '{"system": "bertkit", "workload": "fine-tuning", "size": "base", "length":
    128}'

bertkit is measured with the same settings, features, session and trainer as in its commands. The other
system is a plain `Trainer` with default settings and the stock model, on the same examples. `gpu.py` runs
this script.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import synthetic
from bertkit.data.masking import IGNORE_INDEX
from bertkit.errors import UserError
from bertkit.run.prepare import PreparedRun, prepare
from bertkit.tasks import task_class
from bertkit.tasks.pretrain.config import MODEL_SIZES
from bertkit.utils.reporting import silence_libraries
from flops import SequenceCounts, count_training_flops, find_peak_flops
from harness import SEED
from trainer_options import get_peak_memory_mb

BERTKIT, TRAINER = "bertkit", "Trainer"
SHORT_TEXTS = "fine-tuning on short texts"  # as short as those of SST-2
COMMANDS = {"pre-training": "pretrain-mlm-nsp", "fine-tuning": "classify", SHORT_TEXTS: "classify"}
MEDIAN_SHORT_TEXT = 20  # tokens of the median sentence of SST-2's validation split
SMALL_SHAPE = (2, 64, 2)
SHAPES = {  # num_layers, hidden_size, num_heads
    **MODEL_SIZES,
    "small": SMALL_SHAPE,
    "modernbert-small": SMALL_SHAPE,
    "modernbert-base": (22, 768, 12),
}
OPTION_SETTINGS = {"no_attention_dropout": {"attention_dropout": 0.0}}  # other options are set to True


@dataclass(frozen=True)
class Setup:
    """A training setup; `options` are the enabled flags of bertkit."""

    system: str
    workload: str
    size: str
    length: int
    precision: str = "fp32"
    options: tuple[str, ...] = ()
    batch_size: int = 32
    warmup_steps: int = 20  # not timed: the device warms up, layers are compiled, most graphs are recorded
    steps: int = 40
    vocab_size: int = 30_522

    def __str__(self) -> str:
        return ", ".join(
            [self.system, self.precision, *(option.replace("_", " ") for option in self.options)]
        )


@dataclass(frozen=True)
class Measurements:
    """Measurements of a setup; `mfu` is the fraction of the peak rate of the device."""

    sequences_per_second: float
    tokens_per_second: float
    mfu: float
    peak_memory_mb: float
    step_ms: float = 0.0  # mean duration of a step
    peak_source: str = ""  # where the peak rate is from

    def __str__(self) -> str:
        return f"{self.sequences_per_second:.1f} sequences/s, {self.mfu:.0%} of the device's speed"


class StepTimer(TrainerCallback):
    """A collator that counts tokens, and a callback that times the steps after the warm-up.

    Steps that record a CUDA graph are not timed: a run has at most one for each shape of a batch.
    """

    def __init__(self, trainer: Any, setup: Setup) -> None:
        self.trainer, self.collator, self.setup = trainer, trainer.data_collator, setup
        self.lengths: list[torch.Tensor] = []  # number of tokens of each sequence, per batch
        self.predictions: list[int] = []  # number of predicted tokens in pre-training, per batch
        self.ends: list[Any] = []  # time of the end of each step
        self.num_graphs: list[int] = []  # number of recorded graphs at the end of each step
        trainer.data_collator = self
        trainer.add_callback(self)

    def __call__(self, items: list[Any]) -> dict[str, torch.Tensor]:
        """Return the batch of these examples."""
        batch = self.collator(items)
        self.lengths.append(batch["attention_mask"].sum(1))
        num_predictions = 0
        if "next_sentence_label" in batch:  # the stock model has labels for all positions
            token_labels = batch["masked_lm_labels" if "masked_lm_labels" in batch else "labels"]
            num_predictions = int((token_labels != IGNORE_INDEX).sum())
        self.predictions.append(num_predictions)
        return batch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time on the device, for which a step does not wait."""
        if torch.cuda.is_available():
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self.ends.append(end)
        else:
            self.ends.append(time.perf_counter())
        graphs = getattr(self.trainer, "step_graphs", None)
        self.num_graphs.append(len(graphs.graphs) if graphs else 0)

    def list_timed_steps(self) -> list[int]:
        """Return the numbers of the timed steps, from 0."""
        steps = range(self.setup.warmup_steps, self.setup.warmup_steps + self.setup.steps)
        return [step for step in steps if self.num_graphs[step] == self.num_graphs[step - 1]]

    @property
    def seconds(self) -> float:
        """Duration of all timed steps."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            durations = [
                self.ends[step - 1].elapsed_time(self.ends[step]) for step in self.list_timed_steps()
            ]
            return float(sum(durations)) / 1000
        return float(sum(self.ends[step] - self.ends[step - 1] for step in self.list_timed_steps()))

    def count_timed_sequences(self) -> SequenceCounts:
        """Return the counts of the timed steps."""
        steps = self.list_timed_steps()
        lengths = torch.cat([self.lengths[step] for step in steps])
        return SequenceCounts(torch.bincount(lengths), sum(self.predictions[step] for step in steps))


def measure(setup: Setup) -> Measurements:
    """Train with this setup.

    Raises:
        UserError: bertkit refuses the setup, or training ends with NaN or infinite weights.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch, silence_libraries():
        prepared = prepare_setup(setup, Path(scratch))
        build_trainer = {BERTKIT: build_bertkit_trainer, TRAINER: build_stock_trainer}[setup.system]
        trainer = build_trainer(setup, prepared, Path(scratch) / "run")
        timer = StepTimer(trainer, setup)
        trainer.train()
    if not all(weight.isfinite().all() for weight in trainer.model.parameters()):
        raise UserError("NaN or infinite weights after training")
    counts, peak_memory = timer.count_timed_sequences(), get_peak_memory_mb()
    peak = find_peak_flops(trainer.args.device, setup.precision)
    flops = count_training_flops(trainer.model, counts) or 0.0
    return Measurements(
        int(counts.length_counts.sum()) / timer.seconds, counts.num_tokens / timer.seconds,
        flops / timer.seconds / peak.value, peak_memory,
        timer.seconds / len(timer.list_timed_steps()) * 1000, peak.source,
    )  # fmt: skip


# ---- data and trainers


def prepare_setup(setup: Setup, folder: Path) -> PreparedRun:
    """Create synthetic data and a model, and prepare them as bertkit's command does."""
    steps = setup.warmup_steps + setup.steps
    rows = max(40, 2 * steps * setup.batch_size)
    write_model = synthetic.write_modernbert if setup.size.startswith("modernbert") else synthetic.write_model
    model = write_model(folder / "model", setup.vocab_size, SHAPES[setup.size])
    settings: dict[str, Any] = {"model": str(model)}
    for option in setup.options:
        settings |= OPTION_SETTINGS.get(option, {option: True})
    if setup.workload == "pre-training":
        settings |= {"text_format": "sentences"}
        # in long documents, 90 % of the examples have the maximum length
        num_tokens, sentences = rows * setup.length // 2, max(12, setup.length // 4)
        data = synthetic.write_text(folder / "text.txt", num_tokens, setup.vocab_size, sentences)
    else:
        median = MEDIAN_SHORT_TEXT if setup.workload == SHORT_TEXTS else 0.4 * setup.length
        data = synthetic.write_rows(folder / "rows.jsonl", rows, setup.length, setup.vocab_size, median)
    task = task_class(COMMANDS[setup.workload])
    config = task.definition.config(
        data=str(data), max_length=setup.length, batch_size=setup.batch_size, max_steps=steps, seed=SEED,
        bf16=setup.precision == "bf16", fp16=setup.precision == "fp16", **settings,
    )  # fmt: skip
    return prepare(task.definition.name, config)


def build_bertkit_trainer(_: Setup, prepared: PreparedRun, folder: Path) -> Any:
    """Return the trainer of a session, without evaluation and saving, because only training is measured."""
    from bertkit.run.session import Session
    from bertkit.training.callbacks import EvaluateAndSaveCallback

    trainer = Session(prepared, folder).trainer
    trainer.remove_callback(EvaluateAndSaveCallback)
    return trainer


def build_stock_trainer(setup: Setup, prepared: PreparedRun, folder: Path) -> Any:
    """Return a plain Trainer of the stock model, with default settings except for the precision."""
    from transformers import AutoModelForSequenceClassification, BertForPreTraining

    model_class = (
        BertForPreTraining if setup.workload == "pre-training" else AutoModelForSequenceClassification
    )
    model = model_class.from_pretrained(prepared.model_source.folder)
    collate = prepared.task.make_collator(prepared.tokenizer, model)
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=setup.batch_size, max_steps=setup.warmup_steps + setup.steps,
        bf16=setup.precision == "bf16", fp16=setup.precision == "fp16", seed=SEED, report_to="none",
        save_strategy="no", remove_unused_columns=False, use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )  # fmt: skip
    return Trainer(
        model, arguments, add_dense_labels(collate) if setup.workload == "pre-training" else collate,
        prepared.features["train"],
    )  # fmt: skip


def add_dense_labels(collate: Any) -> Any:
    """Return a collator with labels for all positions, mostly -100, as the stock model expects them."""

    def collate_with_labels(items: list[Any]) -> dict[str, torch.Tensor]:
        batch = dict(collate(items))
        positions, token_ids = batch.pop("masked_lm_positions"), batch.pop("masked_lm_labels")
        return batch | {"labels": torch.full_like(batch["input_ids"], -100).scatter(1, positions, token_ids)}

    return collate_with_labels


def main() -> None:
    """Measure, and print the measurements or the reason of the failure."""
    settings = json.loads(sys.argv[1])
    setup = Setup(**settings | {"options": tuple(settings.get("options", ()))})
    with contextlib.redirect_stdout(sys.stderr):
        try:
            printed = dataclasses.asdict(measure(setup))
        except torch.OutOfMemoryError:
            printed = {"failed": "out of memory"}
        except UserError as error:
            printed = {"failed": str(error)}
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
