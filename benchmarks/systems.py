"""The systems that `training.py` compares, and the command line of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import SEED, System
from workloads import Workload, compute_squad_f1

HERE = Path(__file__).resolve().parent
BASELINE = "Trainer, padded per batch"  # the reference of the ratios
OVERLAP = 128  # tokens that consecutive windows have in common, as in the example scripts
DOC_STRIDE = 240  # about the same in bertkit: 384 - 128 - the length of a question


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


def list_systems(work: Workload, folder: Path, simpletransformers: str | None) -> list[System[Measurements]]:
    """List the systems for a workload whose data is in `folder`.

    Args:
        simpletransformers: an interpreter with simpletransformers, if any.
    """
    from bertkit.training.defaults import is_bf16_faster

    best = ("--train_sampling_strategy", "group_by_length", *(["--bf16"] if is_bf16_faster() else []))
    script = HERE / ("qa_script.py" if work.task == "qa" else "trainer_script.py")
    trainer, dynamic = [sys.executable, str(script)], "--no_pad_to_max_length"
    entries = [
        describe_script("Trainer, padded to the maximum", work, folder, trainer),
        describe_script(BASELINE, work, folder, [*trainer, dynamic]),
        describe_script("Trainer, its best flags", work, folder, [*trainer, dynamic, *best]),
    ]
    if simpletransformers and work.task == "classify":
        command = [simpletransformers, str(HERE / "simpletransformers_script.py")]
        entries.append(describe_script("simpletransformers", work, folder, command))
    return [*entries, describe_bertkit("bertkit", work), describe_bertkit("bertkit --pack", work, "--pack")]


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
        score = 100 * printed["accuracy"] if answers is None else compute_squad_f1(folder, answers)
        return _read_measurements(printed, score, seconds)

    return System(name, command, read)


def describe_bertkit(name: str, work: Workload, *options: str) -> System[Measurements]:
    """Describe a run of a bertkit command."""
    qa_options = ["--squad", "v1", "--doc-stride", str(DOC_STRIDE)] if work.task == "qa" else []

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", work.task),
            *("--data", str(data / f"train.{work.file_format}")),
            *("--validation", str(data / f"validation.{work.file_format}")),
            *("--model", str(model), "--output-dir", str(output)),
            *("--max-length", str(work.max_length), "--epochs", "1"),
            *("--batch-size", str(work.batch_size)),
            *("--learning-rate", str(work.learning_rate), "--seed", str(SEED)),
            *(*qa_options, *options, "--json"),
        ]

    def read(printed: dict[str, Any], seconds: float) -> Measurements:
        score = printed["validation"][work.metric] * (1 if work.task == "qa" else 100)
        return _read_measurements(printed["training"], score, seconds)

    return System(name, command, read)


def _read_measurements(printed: dict[str, Any], score: float, seconds: float) -> Measurements:
    names = ("examples_per_second", "tokens_per_second", "first_step_seconds", "peak_memory_mb", "precision")
    return Measurements(score=score, process_seconds=seconds, **{name: printed[name] for name in names})
