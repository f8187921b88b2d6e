"""Measure the time from the start of `bertkit classify` to the end of its first training step.

    python benchmarks/start_speed.py --before CHECKOUT --rounds 5

The data is the sample that bertkit contains. With --before, another checkout is measured as well. A process
that imports only `Trainer` and a model class shows how much of the time is spent importing libraries.
The commands alternate, each in a new process with an empty cache. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import (
    OUT_HELP,
    ROOT,
    System,
    compute_median_ratio,
    describe_model_and_rounds,
    find_packaged_model,
    format_commands,
    format_report,
    list_rounds,
    publish,
    run_systems,
    validate_model,
)

NOW, BEFORE, IMPORTS = "bertkit classify", "bertkit classify, before", "imports of Trainer"
IMPORT_CODE = (
    "import json, time, psutil, transformers; transformers.Trainer, transformers.BertModel; "
    "print(json.dumps(time.time() - psutil.Process().create_time()))"
)


@dataclass(frozen=True)
class Seconds:
    """Time to the first step, or to the end of the imports."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.2f}"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="another checkout of bertkit to compare with")
    parser.add_argument("--model", type=Path, default=find_packaged_model(), help="model folder")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each command, in turn")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    validate_model(parser, args)
    return args


def list_systems(before: Path | None) -> list[System[Seconds]]:
    """List the commands to measure."""

    def build_command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", "classify", "--data", str(data), "--model", str(model)),
            *("--max-steps", "1", "--output-dir", str(output), "--json"),
        ]

    def build_imports(data: Path, model: Path, output: Path) -> list[str]:  # noqa: ARG001
        return [sys.executable, "-c", IMPORT_CODE]

    def read_first_step(printed: dict[str, Any], seconds: float) -> Seconds:  # noqa: ARG001
        return Seconds(printed["training"]["first_step_seconds"])

    systems = [System(NOW, build_command, read_first_step, ROOT)]
    if before is not None:
        systems.append(System(BEFORE, build_command, read_first_step, before.resolve()))
    return [*systems, System(IMPORTS, build_imports, lambda printed, _: Seconds(float(str(printed))))]


def format_table(measurements: dict[str, list[Seconds]]) -> list[str]:
    """Return the medians, the ratios to bertkit, and every round."""
    seconds = {name: [run.value for run in runs] for name, runs in measurements.items()}
    lines = ["| | s | ratio |", "|---|---:|---:|"]
    for name, runs in seconds.items():
        lines.append(
            f"| {name} | {statistics.median(runs):.2f} | {compute_median_ratio(runs, seconds[NOW]):.2f} |"
        )
    shown = {name: list(map(str, runs)) for name, runs in measurements.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def main() -> None:
    """Measure everything and report."""
    args = parse_args()
    systems = list_systems(args.before)
    measurements = run_systems(systems, Path("sample"), args.model, args.rounds, alternate=True)
    about = (
        "Time to the end of the first step on the sample of classify; "
        f"{describe_model_and_rounds(args.model, args.rounds)}. The ratio is the median of the ratios per "
        "round."
    )
    own = f"start_speed.py {'--before CHECKOUT ' if args.before else ''}--rounds {args.rounds}"
    report = format_report(
        "Time to the first step", about, format_table(measurements), format_commands(own, systems[:1])
    )
    publish(report, args.out)


if __name__ == "__main__":
    main()
