"""Compare the scores of training in bf16 and in fp32 on a CPU, with the same seeds.

    python benchmarks/bf16_accuracy.py --data-dir DATA --seeds 5 --out docs/benchmarks/bf16.json

Each run is a bertkit command in a separate process. bertkit scores in fp32 in both cases, so that only
training differs. The table has the mean difference over the seeds, with its 95 % interval (paired t-test).
Progress goes to standard error, the table to standard output; --out adds it to the measurements of
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_page import format_table
from harness import OUT_HELP, System, describe_machine, find_packaged_model, publish, run_system

FORMATS = {"bf16": "--bf16", "fp32": "--no-bf16"}
COLUMNS = ["bf16", "fp32", "drop, points", "95 % interval", "p"]


@dataclass(frozen=True)
class Dataset:
    """A dataset, the options of its bertkit command, and the score that is compared."""

    title: str
    command: tuple[str, ...]
    split: str
    metric: str


DATASETS = {
    "sst2": Dataset(
        "SST-2, 3,000 rows",
        ("classify", "--data", "sst2", "--max-train-samples", "3000"),
        "validation",
        "accuracy",
    ),
    "imdb": Dataset(
        "IMDB, 600 rows, 256 tokens",
        (
            *("classify", "--recipe", "imdb", "--max-train-samples", "600", "--max-eval-samples", "2500"),
            # in one epoch at the recommended learning rate, the model learns nothing from so few rows
            *("--max-length", "256", "--epochs", "2", "--learning-rate", "2e-4"),
        ),
        "validation",
        "accuracy",
    ),
    "wnut17": Dataset("WNUT-17, test split", ("ner", "--recipe", "ner/wnut17"), "test", "f1"),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds: 1, 2, ...")
    parser.add_argument("--options", default="", help="further options of bertkit: --options='--max-steps 2'")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    if args.seeds < 2:
        parser.error("--seeds must be at least 2, for an interval")
    return args


def describe_run(dataset: Dataset, number_format: str, seed: int, args: argparse.Namespace) -> System[float]:
    """Describe a run that is scored in percent."""
    data_dir = ["--data-dir", str(args.data_dir)] if args.data_dir else []

    def build_command(_: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", *dataset.command, *data_dir, "--model", str(model)),
            *("--seed", str(seed), "--split-seed", "0", FORMATS[number_format], *args.options.split()),
            *("--output-dir", str(output), "--json"),
        ]

    def read_output(printed: dict[str, Any], _: float) -> float:
        return 100 * float(printed[dataset.split][dataset.metric])

    return System(number_format, build_command, read_output)


def compare(dataset: Dataset, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the scores by number format, with one score for each seed."""
    scores: dict[str, list[float]] = {name: [] for name in FORMATS}
    model = find_packaged_model()
    if model is None:
        raise SystemExit("the model package is not installed")
    for seed in range(1, args.seeds + 1):
        for name, values in scores.items():
            values.append(run_system(describe_run(dataset, name, seed, args), Path(), model))
            print(f"{dataset.title}, seed {seed}, {name}: {values[-1]:.2f}", file=sys.stderr, flush=True)
    return scores


def format_cells(scores: dict[str, list[float]]) -> list[str]:
    """Format the mean scores, and the paired difference between fp32 and bf16."""
    from scipy.stats import ttest_rel

    result = ttest_rel(scores["fp32"], scores["bf16"])
    interval = result.confidence_interval(0.95)
    drop = statistics.mean(scores["fp32"]) - statistics.mean(scores["bf16"])
    means = [f"{statistics.mean(values):.2f}" for values in scores.values()]
    return [*means, f"{drop:+.2f}", f"{interval.low:+.2f} to {interval.high:+.2f}", f"{result.pvalue:.2f}"]


def list_scores(results: dict[str, dict[str, list[float]]]) -> Sequence[str]:
    """List the scores of each seed."""
    lines = ["", "Scores per seed:", ""]
    for title, scores in results.items():
        listed = "; ".join(
            f"{name} {', '.join(f'{value:.1f}' for value in values)}" for name, values in scores.items()
        )
        lines.append(f"- {title}: {listed}")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    results = {DATASETS[name].title: compare(DATASETS[name], args) for name in args.work}
    rows = {title: format_cells(scores) for title, scores in results.items()}
    command = f"python benchmarks/bf16_accuracy.py --data-dir DATA --work {' '.join(args.work)}"
    command += f" --seeds {args.seeds}" + (f" --options='{args.options}'" if args.options else "")
    report = [*format_table(COLUMNS, rows), *list_scores(results), "", *describe_machine()]
    text = "\n".join([*report, "", "```sh", command, "```"]) + "\n"
    publish(text, args.out)


if __name__ == "__main__":
    main()
