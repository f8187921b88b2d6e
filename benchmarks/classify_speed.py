"""Compare the training speed of `bertkit classify` with a plain `transformers.Trainer` script.

All contestants fine-tune the same model on the same sentences of SST-2, one after the other, each
in a process of its own: `trainer_script.py` with padding to the longest sentence of a batch, and
with sentences grouped by length; then bertkit. `--padded` adds the script with padding to the
maximum length, its default, which takes the longest by far.

    python benchmarks/classify_speed.py --data-dir GLUE --out speed.md

GLUE is a folder that holds SST-2/ as GLUE distributes it. Progress goes to standard error, the
table to standard output.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import (
    SEED,
    Contestant,
    add_options,
    check_options,
    every_round,
    model_and_rounds,
    publish,
    report,
    run_all,
    shown_commands,
)

PEER = Path(__file__).resolve().with_name("trainer_script.py")
BATCH_SIZE = 32
MAX_LENGTH = 128
LEARNING_RATE = 5e-5


@dataclass(frozen=True)
class Figures:
    """What one run of one contestant measured."""

    samples_per_second: float
    accuracy: float
    process_seconds: float
    precision: str

    def __str__(self) -> str:
        return f"{self.samples_per_second:.1f} samples/s"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line and check the two folders it names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "SST-2/", (6000, "training sentences to draw"), rounds=1)
    parser.add_argument("--padded", action="store_true", help="also with padding to the maximum length")
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "SST-2" / "train.tsv").is_file():
        parser.error("no SST-2/train.tsv found: give its parent folder with --data-dir")
    check_options(parser, args)
    return args


def draw_rows(source: Path, target: Path, rows: int) -> int:
    """Write `rows` training rows, drawn with a fixed seed, and the dev set; return their number."""
    header, *lines = (source / "train.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    drawn = random.Random(SEED).sample(lines, min(rows, len(lines)))
    target.mkdir(parents=True)
    (target / "train.tsv").write_text("\n".join([header, *drawn]) + "\n", encoding="utf-8")
    (target / "dev.tsv").write_bytes((source / "dev.tsv").read_bytes())
    return len(drawn)


def peer(name: str, *options: str) -> Contestant[Figures]:
    """Describe one run of the plain Trainer script."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, str(PEER)),
            *("--train_file", str(data / "SST-2" / "train.tsv")),
            *("--validation_file", str(data / "SST-2" / "dev.tsv")),
            *("--model_name_or_path", str(model)),
            *("--max_seq_length", str(MAX_LENGTH)),
            *("--per_device_train_batch_size", str(BATCH_SIZE)),
            *("--learning_rate", str(LEARNING_RATE)),
            *("--num_train_epochs", "1"),
            *("--seed", str(SEED)),
            *("--output_dir", str(output)),
            *options,
        ]

    def read(report: dict[str, Any], seconds: float) -> Figures:
        precision = "bf16" if "--bf16" in options else "fp32"
        return Figures(report["train_samples_per_second"], report["accuracy"], seconds, precision)

    return Contestant(name, command, read)


def bertkit(rows: int) -> Contestant[Figures]:
    """Describe one run of `bertkit classify`."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", "classify"),
            *("--data", "sst2", "--data-dir", str(data)),
            *("--model", str(model)),
            *("--max-train-samples", str(rows)),
            *("--epochs", "1"),
            *("--learning-rate", str(LEARNING_RATE)),
            *("--batch-size", str(BATCH_SIZE)),
            *("--max-length", str(MAX_LENGTH)),
            *("--output-dir", str(output)),
            *("--json", "--seed", str(SEED)),
        ]

    def read(report: dict[str, Any], seconds: float) -> Figures:
        training = report["training"]
        return Figures(
            training["examples_per_second"],
            report["validation"]["accuracy"],
            seconds,
            str(training["precision"]),
        )

    return Contestant("bertkit classify", command, read)


def contestants(rows: int, padded: bool) -> list[Contestant[Figures]]:
    """List the rows of the table; the first is what the others are compared with."""
    grouped = ("--no_pad_to_max_length", "--train_sampling_strategy", "group_by_length")
    slowest = [peer("Trainer, padded to the maximum length")] if padded else []
    return [
        peer("Trainer, padded per batch", "--no_pad_to_max_length"),
        peer("Trainer, padded per batch, grouped by length", *grouped),
        bertkit(rows),
        *slowest,
    ]


def median(results: list[Figures]) -> Figures:
    """Reduce the rounds of one contestant to their medians."""
    return Figures(
        statistics.median(result.samples_per_second for result in results),
        statistics.median(result.accuracy for result in results),
        statistics.median(result.process_seconds for result in results),
        results[0].precision,
    )


def table(figures: dict[str, list[Figures]]) -> list[str]:
    """Lay the figures out as a Markdown table."""
    medians = {name: median(results) for name, results in figures.items()}
    base = next(iter(medians.values())).samples_per_second
    lines = [
        "| | training samples/s | ratio | accuracy | whole process, s | precision |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, row in medians.items():
        speed = row.samples_per_second
        lines.append(
            f"| {name} | {speed:.1f} | {speed / base:.2f} | {row.accuracy:.4f} "
            f"| {row.process_seconds:.1f} | {row.precision} |"
        )
    return lines


def about(rows: int, model: Path, rounds: int) -> str:
    """Say what was run."""
    return (
        f"{rows} training sentences of SST-2, drawn with seed {SEED}, one epoch, batches of "
        f"{BATCH_SIZE}, at most {MAX_LENGTH} tokens; {model_and_rounds(model, rounds)}. "
        "Accuracy is on the whole dev set. The ratio is to the first row. "
        "The whole process includes imports, tokenization, evaluation and saving the model."
    )


def results(figures: dict[str, list[Figures]]) -> list[str]:
    """Lay the table out, and each round where there are several."""
    rounds = {name: [f"{run.samples_per_second:.1f}" for run in runs] for name, runs in figures.items()}
    several = len(next(iter(rounds.values()))) > 1
    listed = every_round("Training samples per second", rounds) if several else []
    return [*table(figures), *listed]


def main() -> None:
    """Draw the rows, run everything and report."""
    args = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        rows = draw_rows(args.data_dir / "SST-2", data / "SST-2", args.rows)
        entries = contestants(rows, args.padded)
        figures = run_all(entries, data, args.model.resolve(), args.rounds)
    title = "Training speed: bertkit classify and a plain Trainer script"
    own = f"{Path(__file__).name} --data-dir GLUE --model MODEL --rows {rows} --rounds {args.rounds}"
    what = about(rows, args.model, args.rounds)
    publish(report(title, what, results(figures), shown_commands(own, entries)), args.out)


if __name__ == "__main__":
    main()
