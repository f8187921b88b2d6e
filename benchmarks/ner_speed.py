"""Measure `bertkit ner` on WNUT-17: features, and cached vectors of a frozen encoder.

    python benchmarks/ner_speed.py --data-dir DATA --out ner.md

features: building features, compared with calls of the tokenizer.
vectors: computing and reading vectors, and training a BiLSTM on them, compared with a frozen encoder that
runs at every step.

`training.py` measures the speed of fine-tuning. DATA is a folder that contains the original files of WNUT-17
in wnut17/. Progress goes to standard error, the report to standard output.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ner_data
from bertkit.errors import UserError
from harness import (
    SEED,
    System,
    add_options,
    compute_median_ratio,
    describe_model_and_rounds,
    format_commands,
    format_report,
    limit_cores,
    list_rounds,
    publish,
    run_systems,
    validate_options,
)
from ner_data import BATCH_SIZE, MAX_LENGTH

if TYPE_CHECKING:
    from bertkit.run.prepare import PreparedRun

HERE = Path(__file__).resolve().parent
EPOCHS = 10
FROZEN = ("--features", "last", "--head", "bilstm")
LAYERS = ("last", "sum-last-4")
Section = tuple[list[str], list[System[Any]]]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run of one system."""

    examples_per_second: float
    tokens_per_second: float
    f1: float
    peak_memory_mb: float
    process_seconds: float
    precision: str

    def __str__(self) -> str:
        speed = f"{self.examples_per_second:.1f} sentences/s ({self.tokens_per_second:.0f} tokens/s)"
        return f"{speed}, F1 {self.f1:.4f}, {self.process_seconds:.1f} s in all"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "wnut17/", (3394, "sentences to sample from each split (default: all)"), rounds=3)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="repeatable (default: both)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of training on the vectors")
    parser.add_argument(
        "--cores", type=int, default=2, help="number of CPU cores to use, if the system supports it"
    )
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "wnut17").is_dir():
        parser.error("no wnut17/ found: give its parent folder with --data-dir")
    validate_options(parser, args)
    args.model = args.model.resolve()
    if args.cores < 1 or args.epochs < 1:
        parser.error("--cores and --epochs must be at least 1")
    return args


def link_data(folder: Path, data_dir: Path) -> None:
    """Link the original dataset into the data directory of the runs."""
    (folder / "wnut17").symlink_to((data_dir / "wnut17").resolve())


# ---- the runs


def describe_bertkit(
    name: str, rows: int, epochs: int, *options: str, program: Sequence[str] = ("-m", "bertkit")
) -> System[Measurements]:
    """Describe one run of `bertkit ner`, or of a program that takes the same command line."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, *program, "ner"),
            *("--data", "wnut17", "--data-dir", str(data)),
            *("--model", str(model)),
            *("--max-train-samples", str(rows)),
            *("--max-eval-samples", str(rows)),
            *("--epochs", str(epochs)),
            *("--batch-size", str(BATCH_SIZE)),
            *("--max-length", str(MAX_LENGTH)),
            *options,
            *("--output-dir", str(output)),
            *("--json", "--seed", str(SEED)),
            *("--warmup", "0", "--weight-decay", "0"),  # the defaults of Trainer, as in the script
        ]

    return System(name, command, read_measurements)


def read_measurements(printed: dict[str, Any], seconds: float) -> Measurements:
    """Read the measurements of a run of bertkit."""
    training = printed["training"]
    return Measurements(
        training["examples_per_second"],
        training["tokens_per_second"],
        printed["validation"]["f1"],
        training["peak_memory_mb"],
        seconds,
        training["precision"],
    )


# ---- the parts: each returns the lines of its section, and the systems


def compare_features(_: Path, args: argparse.Namespace, sampled: PreparedRun) -> Section:
    """Compare `build_word_features` with calls of the tokenizer."""
    about = "The sentences are repeated, in one process, without a cache. The ratio compares sentences/s."
    return ["## Features", "", about, "", *ner_data.time_features(sampled, args.rounds)], []


def compare_vectors(data: Path, args: argparse.Namespace, _: PreparedRun) -> Section:
    """Compare computing vectors with reading them, and runs without and with cached vectors."""
    epochs, uncached = args.epochs, (str(HERE / "ner_uncached.py"),)
    entries = [
        describe_bertkit("the frozen encoder at every step", args.rows, epochs, *FROZEN, program=uncached),
        describe_bertkit("bertkit ner, cached vectors", args.rows, epochs, *FROZEN),
    ]
    about = (
        "Vectors of all sentences are computed into an empty cache and then read as in an epoch of training, "
        f"in batches of {BATCH_SIZE}, from files in the page cache. The ratio compares seconds."
    )
    about_runs = (
        f"Runs with `{' '.join(FROZEN)}`, epochs: {epochs}, with an empty cache. The ratio compares "
        "whole processes, which include the computation of the vectors; sentences/s exclude it."
    )
    computed = ner_data.time_vectors(data, args.model, args.rows, LAYERS, args.rounds)
    measurements = run_systems(entries, data, args.model, args.rounds, alternate=True)
    lines = format_table(measurements, lambda run: 1 / run.process_seconds)
    return ["## Vectors", "", about, "", *computed, "", about_runs, "", *lines], entries


PARTS = {"features": compare_features, "vectors": compare_vectors}


# ---- the report


def format_table(
    measurements: dict[str, list[Measurements]], speed: Callable[[Measurements], float]
) -> list[str]:
    """Format the medians as a Markdown table with ratios of `speed`, and list every round."""
    base = [speed(run) for run in next(iter(measurements.values()))]
    lines = [
        "| | training sentences/s | tokens/s | dev F1 | peak MB | whole process, s | ratio | precision |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    rounds: dict[str, list[str]] = {}
    for name, runs in measurements.items():
        row = [
            f"{compute_median(runs, 'examples_per_second'):.1f}",
            f"{compute_median(runs, 'tokens_per_second'):.0f}",
            f"{compute_median(runs, 'f1'):.4f}",
            f"{compute_median(runs, 'peak_memory_mb'):.0f}",
            f"{compute_median(runs, 'process_seconds'):.1f}",
            f"{compute_median_ratio([speed(run) for run in runs], base):.2f}",
        ]
        lines.append(f"| {' | '.join([name, *row, runs[0].precision])} |")
        ratios = [speed(run) / reference for run, reference in zip(runs, base, strict=True)]
        rounds[name] = [f"{run}, ratio {ratio:.2f}" for run, ratio in zip(runs, ratios, strict=True)]
    return [*lines, *list_rounds("Runs", rounds, separator="; ")]


def compute_median(runs: Sequence[Measurements], name: str) -> float:
    """Return the median of one measurement."""
    return statistics.median(getattr(run, name) for run in runs)


def describe_setup(sampled: PreparedRun, args: argparse.Namespace) -> str:
    """Describe the data and the rounds."""
    train, validation = sampled.splits["train"], sampled.splits["validation"]
    return (
        f"{len(train)} training and {len(validation)} dev sentences of WNUT-17, sampled with seed {SEED}; at "
        f"most {MAX_LENGTH} tokens; {describe_model_and_rounds(args.model, args.rounds)}. Ratios are "
        "medians of the ratios to the first row per round. The order alternates between rounds."
    )


def main() -> None:
    """Sample the sentences, run the parts and report."""
    args = parse_args()
    limit_cores(args.cores)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["BERTKIT_CACHE_DIR"] = str(Path(scratch) / "cache")
        try:
            sampled = ner_data.prepare_wnut17(args.data_dir, args.model, args.rows)
        except UserError as error:
            raise SystemExit(str(error)) from None
        link_data(Path(scratch), args.data_dir)
        parts = [PARTS[name](Path(scratch), args, sampled) for name in args.part or PARTS]
    own = [
        f"{Path(__file__).name} --data-dir DATA --model MODEL",
        f"--rows {args.rows}",
        f"--rounds {args.rounds}",
    ]
    own += [f"--part {name}" for name in args.part or []] + [f"--epochs {args.epochs}"]
    results = [line for lines, _ in parts for line in [*lines, ""]]
    commands = format_commands(" ".join(own), [entry for _, entries in parts for entry in entries])
    title = "Speed of bertkit ner: features, cached vectors"
    publish(format_report(title, describe_setup(sampled, args), results[:-1], commands), args.out)


if __name__ == "__main__":
    main()
