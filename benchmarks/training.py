"""Compare training with bertkit, with a plain Trainer, and with simpletransformers.

    python benchmarks/training.py --data-dir DATA --work sst2,imdb,squad --rounds 3 --write

All systems fine-tune the same model on the same rows with the same settings for one epoch, in turn, each in
a separate process. DATA is a directory that contains SST-2/ as GLUE distributes it, and squad/dev-v1.1.json.
The reviews of IMDB are part of a package. Progress goes to standard error, the tables to standard output;
--write puts them into docs/benchmarks.md, with a chart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from docs_page import IMAGES, draw_bars, format_table, replace_section
from harness import (
    add_options,
    compute_median_ratio,
    describe_machine,
    describe_model_and_rounds,
    list_rounds,
    publish,
    run_systems,
    validate_options,
)
from systems import BASELINE, Measurements, list_systems
from workloads import WORKLOADS, Workload, write_data

COLUMNS = {  # heading -> attribute of Measurements, format of its median
    "examples/s": ("examples_per_second", "{:.1f}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
    "first step, s": ("first_step_seconds", "{:.1f}"),
    "peak MB": ("peak_memory_mb", "{:,.0f}"),
    "score": ("score", "{:.1f}"),
    "whole process, s": ("process_seconds", "{:.1f}"),
}
CHART = "training.svg"
Runs = Mapping[str, list[Measurements]]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        "SST-2/ and squad/",
        (None, "training rows per workload (default: its own)"),
        rounds=1,
    )
    parser.add_argument(
        "--work",
        default=",".join(WORKLOADS),
        help="workloads, optionally with their training rows: sst2=6000,imdb=600,squad=300",
    )
    parser.add_argument(
        "--simpletransformers",
        metavar="PYTHON",
        help="interpreter of an environment with simpletransformers (default: leave it out)",
    )
    parser.add_argument("--write", action="store_true", help="write tables and chart to docs/benchmarks.md")
    args = parser.parse_args(argv)
    try:
        args.work = parse_workloads(args.work, args.rows)
    except ValueError as error:
        parser.error(str(error))
    for work in args.work:
        folder = {"sst2": "SST-2", "squad": "squad"}.get(work.name)
        if folder and (args.data_dir is None or not (args.data_dir / folder).is_dir()):
            parser.error(f"no {folder}/ found: give its parent folder with --data-dir")
    validate_options(parser, args)
    return args


def parse_workloads(text: str, rows: int | None) -> list[Workload]:
    """Parse `NAME[=ROWS],...`; `rows` is the number for names without one.

    Raises:
        ValueError: a name or a number is invalid.
    """
    workloads = []
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name not in WORKLOADS or not (number.isdecimal() or part == name):
            raise ValueError(f"--work {part}: pass one of {', '.join(WORKLOADS)}, optionally with =ROWS")
        workloads.append(WORKLOADS[name].resize(int(number) if number else rows))
    return workloads


# ---- the report


def compute_ratios(runs: Runs) -> dict[str, float]:
    """Return the training speed of each system relative to Trainer with dynamic padding in fp32."""
    base = [run.examples_per_second for run in runs[BASELINE]]
    return {
        name: compute_median_ratio([run.examples_per_second for run in measurements], base)
        for name, measurements in runs.items()
    }


def format_section(work: Workload, runs: Runs) -> list[str]:
    """Format the measurements of a workload."""
    ratios, rows = compute_ratios(runs), {}
    for name, measurements in runs.items():
        medians = [
            template.format(statistics.median(getattr(run, key) for run in measurements))
            for key, template in COLUMNS.values()
        ]
        rows[name] = [f"{ratios[name]:.2f}", *medians, measurements[0].precision]
    score = {"f1": "F1"}.get(work.metric, f"{work.metric}, %")
    columns = ["ratio", *(score if column == "score" else column for column in COLUMNS), "precision"]
    rounds = {
        name: [f"{run.examples_per_second:.1f}" for run in measurements]
        for name, measurements in runs.items()
    }
    has_several_rounds = len(next(iter(rounds.values()))) > 1
    per_round = list_rounds("Examples per second", rounds) if has_several_rounds else []
    return [f"**{work.title}**: {work}.", "", *format_table(columns, rows), *per_round, ""]


def format_text(args: argparse.Namespace, results: Mapping[str, Runs]) -> str:
    """Return the section of the docs page about the runs."""
    workloads = ",".join(f"{work.name}={work.rows}" for work in args.work)
    option = " --simpletransformers PYTHON" if args.simpletransformers else ""
    own = f"python benchmarks/training.py --data-dir DATA --work {workloads} --rounds {args.rounds}{option}"
    about = (
        f"One epoch; {describe_model_and_rounds(args.model, args.rounds)}. The ratio compares examples/s "
        "with the second row. Tokens exclude padding. The time of the first step begins with the process. "
        "The whole process includes imports, features, evaluation and saving the model."
    )
    sections = [line for work in args.work for line in format_section(work, results[work.name])]
    return "\n".join([about, "", *sections, *describe_machine(), "", "```sh", own, "```"]) + "\n"


def write_docs(args: argparse.Namespace, results: Mapping[str, Runs], report: str) -> None:
    """Write the report and its chart into the docs page."""
    groups = {work.title: compute_ratios(results[work.name]) for work in args.work}
    title = "Training speed relative to Trainer with dynamic padding"
    (IMAGES / CHART).write_text(draw_bars(title, groups) + "\n", "utf-8")
    replace_section("training", f"![{title}](images/{CHART})\n\n{report}")


def main() -> None:
    """Sample the rows, run everything and report."""
    args = parse_args()
    results: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for work in args.work:
            print(f"{work.title}: {work}", file=sys.stderr)
            folder = Path(scratch) / work.name
            write_data(work, args.data_dir, folder)
            entries = list_systems(work, folder, args.simpletransformers)
            results[work.name] = run_systems(
                entries, folder, args.model.resolve(), args.rounds, alternate=True
            )
    report = format_text(args, results)
    publish(report, args.out)
    if args.write:
        write_docs(args, results, report)


if __name__ == "__main__":
    main()
