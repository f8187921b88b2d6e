"""The systems that `training.py` compares, and the command line of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, SEED, System
from workloads import Workload, compute_squad_f1

HERE = Path(__file__).resolve().parent
DEFAULT_FLAGS, BEST_FLAGS = "Trainer, default flags", "Trainer, best flags"
BEST_FLAGS_FP32 = "Trainer, best flags, fp32"
BERTKIT, BEFORE, BERTKIT_FP32 = "bertkit", "bertkit before", "bertkit --no-bf16"
SCRIPTS = {
    "classify": "classify_script.py", "qa": "qa_script.py", "ner": "ner_script.py",
    "swag": "choice_script.py", "pretrain-mlm-nsp": "pretrain_script.py",
}  # fmt: skip
OVERLAP = 128  # tokens that consecutive windows have in common, as in the example scripts
DOC_STRIDE = 240  # about the same in bertkit: 384 - 128 - the length of a question
NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS = 2, 128, 2  # of the pre-trained model
TASK_OPTIONS = {  # of bertkit; without warmup and weight decay as in Trainer, if there are few steps
    "qa": ("--squad", "v1", "--doc-stride", str(DOC_STRIDE)),
    "ner": ("--warmup", "0", "--weight-decay", "0"),
    "pretrain-mlm-nsp": (
        *("--text-format", "sentences", "--num-layers", str(NUM_LAYERS)),
        *("--hidden-size", str(HIDDEN_SIZE), "--num-heads", str(NUM_HEADS)),
    ),
}


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run of one system."""

    examples_per_second: float
    tokens_per_second: float
    first_step_seconds: float
    peak_memory_mb: float
    score: float
    process_seconds: float
    precision: str

    def __str__(self) -> str:
        return f"{self.examples_per_second:.1f} examples/s, {self.process_seconds:.1f} s in all"


def find_reference(name: str) -> str:
    """Return the system that a system is compared with: Trainer with its best flags in the same precision."""
    return BEST_FLAGS_FP32 if name in (BEST_FLAGS_FP32, BERTKIT_FP32) else BEST_FLAGS


def list_systems(
    work: Workload, folder: Path, before: Path | None = None, simpletransformers: str | None = None
) -> list[System[Measurements]]:
    """List the systems for a workload whose data is in `folder`.

    Without bf16 instructions, the systems that turn bf16 off equal others, and are left out.

    Args:
        before: Another checkout of bertkit, if any.
        simpletransformers: An interpreter with simpletransformers, if any.
    """
    from bertkit.utils.devices import is_bf16_faster

    has_bf16 = is_bf16_faster()
    best = ("--no_pad_to_max_length", "--train_sampling_strategy", "group_by_length")
    trainer = [sys.executable, str(HERE / SCRIPTS[work.task])]
    entries = [
        describe_script(DEFAULT_FLAGS, work, folder, trainer),
        describe_script(BEST_FLAGS, work, folder, [*trainer, *best, *(["--bf16"] if has_bf16 else [])]),
    ]
    if before is not None:
        entries.append(describe_bertkit(BEFORE, work, checkout=before))
    entries.append(describe_bertkit(BERTKIT, work))
    if has_bf16:
        entries.append(describe_script(BEST_FLAGS_FP32, work, folder, [*trainer, *best]))
        entries.append(describe_bertkit(BERTKIT_FP32, work, "--no-bf16"))
    if simpletransformers and work.task == "classify":
        command = [simpletransformers, str(HERE / "simpletransformers_script.py")]
        entries.append(describe_script("simpletransformers", work, folder, command))
    return entries


def describe_script(name: str, work: Workload, folder: Path, start: Sequence[str]) -> System[Measurements]:
    """Describe a run of a script that prints the result of `trainer_options.summarize_training`."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *start,
            *("--train_file", str(data / f"train.{work.file_format}")),
            *("--validation_file", str(data / f"validation.{work.file_format}")),
            *("--model_name_or_path", str(model), "--output_dir", str(output)),
            *("--max_seq_length", str(work.max_length), "--num_train_epochs", "1"),
            *("--per_device_train_batch_size", str(work.batch_size)),
            *("--learning_rate", str(work.learning_rate), "--seed", str(SEED)),
            *(["--doc_stride", str(OVERLAP)] if work.task == "qa" else []),
        ]

    def read(printed: dict[str, Any], seconds: float) -> Measurements:
        answers = printed.get("answers")
        if answers is not None:
            score = compute_squad_f1(folder, answers)
        else:
            score = work.score_factor * printed[work.metric]
        return _read_measurements(printed, score, seconds)

    return System(name, command, read)


def describe_bertkit(name: str, work: Workload, *options: str, checkout: Path = ROOT) -> System[Measurements]:
    """Describe a run of a bertkit command."""
    model_flag = "--tokenizer" if work.task == "pretrain-mlm-nsp" else "--model"

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", work.task),
            *("--data", str(data / f"train.{work.file_format}")),
            *("--validation", str(data / f"validation.{work.file_format}")),
            *(model_flag, str(model), "--output-dir", str(output)),
            *("--max-length", str(work.max_length), "--epochs", "1"),
            *("--batch-size", str(work.batch_size)),
            *("--learning-rate", str(work.learning_rate), "--seed", str(SEED)),
            *(*TASK_OPTIONS.get(work.task, ()), *options, "--json"),
        ]

    def read(printed: dict[str, Any], seconds: float) -> Measurements:
        score = printed["validation"][work.metric] * work.score_factor
        return _read_measurements(printed["training"], score, seconds)

    return System(name, command, read, checkout)


def _read_measurements(printed: dict[str, Any], score: float, seconds: float) -> Measurements:
    names = ("examples_per_second", "tokens_per_second", "first_step_seconds", "peak_memory_mb", "precision")
    return Measurements(score=score, process_seconds=seconds, **{name: printed[name] for name in names})
