"""Compare the time of a study of five folds with the time of five separate runs on the same folds.

    python benchmarks/study_cost.py --data-dir DATA --rows 2000 --rounds 3

The study is `bertkit study classify --folds 5`. The five runs are `bertkit classify` commands, each of which
trains on four folds and scores the fifth. The two alternate, with empty caches. The table shows the seconds
of the whole commands, and those of the training alone. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import (
    System,
    add_options,
    compute_median_ratio,
    describe_model_and_rounds,
    format_commands,
    format_report,
    list_rounds,
    publish,
    run_systems,
    validate_options,
)

STUDY, RUNS = "study of five folds", "five runs"
NUM_FOLDS = 5


@dataclass(frozen=True)
class Seconds:
    """Seconds of the commands, and of training in the five runs."""

    command: float
    training: float = 0.0

    def __str__(self) -> str:
        return f"{self.command:.1f}"


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "SST-2", (2000, "rows of SST-2"), 3)
    parser.add_argument("--run-folds", nargs=3, metavar=("FOLDS", "MODEL", "OUTPUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    validate_options(parser, args)
    return args


def write_folds(folder: Path, args: argparse.Namespace) -> None:
    """Write all rows, and the training and the test rows of each fold."""
    import numpy as np

    from bertkit.data.sources import load_dataset
    from bertkit.data.split import assign_folds

    rows = load_dataset("sst2", "classify", args.data_dir).splits["train"].select(range(args.rows))
    texts, labels = [str(text) for text in rows["sentence"]], [str(label) for label in rows["label"]]
    groups, classes = (np.unique(np.array(column), return_inverse=True)[1] for column in (texts, labels))
    folds = assign_folds(groups, classes, NUM_FOLDS, seed=0)
    parts = {"all": folds >= 0}
    parts |= {f"train{fold}": folds != fold for fold in range(NUM_FOLDS)}
    parts |= {f"test{fold}": folds == fold for fold in range(NUM_FOLDS)}
    for name, is_inside in parts.items():
        lines = (json.dumps({"text": texts[row], "label": labels[row]}) for row in np.flatnonzero(is_inside))
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def run_folds(folds: Path, model: str, output: Path) -> Iterator[Seconds]:
    """Run the commands of the five folds one after the other."""
    for fold in range(NUM_FOLDS):
        command = [
            *(sys.executable, "-m", "bertkit", "classify", "--data", str(folds / f"train{fold}.jsonl")),
            *("--test", str(folds / f"test{fold}.jsonl"), "--model", model),
            *("--output-dir", str(output / str(fold)), "--json"),
        ]
        started = time.perf_counter()
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield Seconds(time.perf_counter() - started, json.loads(printed)["training"]["seconds"])


def list_systems() -> list[System[Seconds]]:
    """List the study and the five runs."""

    def build_study(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", "study", "classify", "--data", str(data / "all.jsonl")),
            *("--folds", str(NUM_FOLDS), "--model", str(model), "--output-dir", str(output), "--json"),
        ]

    def build_runs(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "benchmarks/study_cost.py", "--run-folds"),
            *map(str, (data, model, output)),
        ]

    def read_study(printed: dict[str, Any], seconds: float) -> Seconds:  # noqa: ARG001
        return Seconds(seconds)

    def read_runs(printed: dict[str, Any], seconds: float) -> Seconds:  # noqa: ARG001
        return Seconds(printed["command"], printed["training"])

    return [System(STUDY, build_study, read_study), System(RUNS, build_runs, read_runs)]


def format_table(measurements: dict[str, list[Seconds]]) -> list[str]:
    """Return the medians, the ratios of the study to them, and every round."""
    runs = measurements[RUNS]
    seconds = {name: [run.command for run in systems] for name, systems in measurements.items()}
    seconds["training in the five runs"] = [run.training for run in runs]
    lines = ["| | s | study / this |", "|---|---:|---:|"]
    for name, values in seconds.items():
        ratio = compute_median_ratio(seconds[STUDY], values)
        lines.append(f"| {name} | {statistics.median(values):.1f} | {ratio:.2f} |")
    return [
        *lines,
        *list_rounds("Seconds", {name: [f"{s:.1f}" for s in values] for name, values in seconds.items()}),
    ]


def main() -> None:
    """Measure both and report."""
    args = parse_args()
    if args.run_folds:
        runs = list(run_folds(Path(args.run_folds[0]), args.run_folds[1], Path(args.run_folds[2])))
        total = {"command": sum(run.command for run in runs), "training": sum(run.training for run in runs)}
        print(json.dumps(total))
        return
    systems = list_systems()
    with tempfile.TemporaryDirectory() as folder:
        write_folds(Path(folder), args)
        measurements = run_systems(systems, Path(folder), args.model, args.rounds, alternate=True)
    about = f"{args.rows} rows of SST-2; {describe_model_and_rounds(args.model, args.rounds)}."
    own = f"study_cost.py --data-dir DATA --rows {args.rows} --rounds {args.rounds}"
    commands = format_commands(own, systems[:1])
    publish(format_report("Cost of a study", about, format_table(measurements), commands), args.out)


if __name__ == "__main__":
    main()
