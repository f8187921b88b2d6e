"""Compare the training of `bertkit qa` with a plain `transformers.Trainer` script, `qa_script.py`.

    python benchmarks/qa_data.py SETS/squad/dev-v1.1.json FOLDER
    python benchmarks/qa_train.py FOLDER --out qa_train.md

Both fine-tune the same model on the same questions with the same length, batch size, learning rate and
epochs, one after the other, each in a process of its own. Progress goes to standard error, the table to
standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import (
    SEED,
    Contestant,
    every_round,
    median_ratio,
    model_and_rounds,
    packaged_model,
    publish,
    report,
    run_all,
    shown_commands,
)  # fmt: skip

HERE = Path(__file__).resolve().parent
LENGTH, STEP, BATCH_SIZE, LEARNING_RATE = 256, 128, 12, 2e-4


@dataclass(frozen=True)
class Figures:
    """What one run of one contestant measured."""

    windows_per_second: float
    peak_memory_mb: float
    exact: float
    f1: float

    def __str__(self) -> str:
        return f"{self.windows_per_second:.2f} windows/s, {self.peak_memory_mb:.0f} MB, F1 {self.f1:.1f}"


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the train.json and dev.json of qa_data.py")
    parser.add_argument("--model", type=Path, default=packaged_model(), help="model folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, medians are shown")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    args = parser.parse_args()
    if not (args.folder / "train.json").is_file():
        parser.error(f"no train.json in {args.folder}")
    return args


def peer(name: str, epochs: int, *options: str) -> Contestant[Figures]:
    """Describe one run of the plain Trainer script."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, str(HERE / "qa_script.py"), "--train_file", str(data / "train.json")),
            *("--validation_file", str(data / "dev.json"), "--model_name_or_path", str(model)),
            *("--max_seq_length", str(LENGTH), "--learning_rate", str(LEARNING_RATE)),
            *("--per_device_train_batch_size", str(BATCH_SIZE), "--num_train_epochs", str(epochs)),
            *("--seed", str(SEED), "--output_dir", str(output), *options),
        ]

    def read(printed: dict[str, Any], _: float) -> Figures:
        return Figures(
            printed["examples_per_second"], *(printed[n] for n in ("peak_memory_mb", "exact", "f1"))
        )

    return Contestant(name, command, read)


def bertkit(name: str, epochs: int, *options: str) -> Contestant[Figures]:
    """Describe one run of `bertkit qa`."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", "qa", "--squad", "v1", "--data", str(data / "train.json")),
            *("--validation", str(data / "dev.json"), "--model", str(model), "--max-length", str(LENGTH)),
            *("--doc-stride", str(STEP), "--learning-rate", str(LEARNING_RATE), "--epochs", str(epochs)),
            *("--batch-size", str(BATCH_SIZE), *options, "--seed", str(SEED), "--json"),
            *("--output-dir", str(output)),
        ]

    def read(printed: dict[str, Any], _: float) -> Figures:
        training, scores = printed["training"], printed["validation"]
        speed, peak = training["examples_per_second"], training["peak_memory_mb"]
        return Figures(speed, peak, scores["exact"], scores["f1"])

    return Contestant(name, command, read)


def table(figures: dict[str, list[Figures]]) -> list[str]:
    """Lay out the medians as a Markdown table, and list every round."""
    base = [run.windows_per_second for run in next(iter(figures.values()))]
    lines = ["| | windows/s | ratio | peak MB | exact | F1 |", "|---|---:|---:|---:|---:|---:|"]
    for name, runs in figures.items():
        speeds = [run.windows_per_second for run in runs]
        peak, exact, f1 = (
            statistics.median(getattr(run, key) for run in runs) for key in ("peak_memory_mb", "exact", "f1")
        )
        ratio = median_ratio(speeds, base)
        row = [f"{statistics.median(speeds):.2f}", f"{ratio:.2f}", f"{peak:.0f}", f"{exact:.1f}", f"{f1:.1f}"]
        lines.append(f"| {' | '.join([name, *row])} |")
    rounds = {name: [str(run) for run in runs] for name, runs in figures.items()}
    return [*lines, *every_round("Runs", rounds, separator="; ")]


def main() -> None:
    """Run the contestants in turn and report."""
    args = parse_args()
    in_parts = ("--gradient-accumulation-steps", "3", "--batch-size", "4")
    entries = [
        peer("Trainer, padded to the maximum length", args.epochs),
        peer("Trainer, padded per batch", args.epochs, "--no_pad_to_max_length"),
        bertkit("bertkit qa", args.epochs),
        bertkit("bertkit qa, 3 x 4 windows", args.epochs, *in_parts),
    ]
    figures = run_all(entries, args.folder, args.model, args.rounds, alternate=True)
    about = (
        f"Questions of SQuAD 1.1's dev set, windows of {LENGTH}; batches of {BATCH_SIZE}, learning rate "
        f"{LEARNING_RATE}, epochs: {args.epochs}; {model_and_rounds(args.model, args.rounds)}."
    )
    own = f"qa_train.py FOLDER --epochs {args.epochs} --rounds {args.rounds}"
    commands = shown_commands(own, entries)
    publish(report("Training of bertkit qa", about, table(figures), commands), args.out)


if __name__ == "__main__":
    main()
