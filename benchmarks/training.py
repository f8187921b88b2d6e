"""Compare training with bertkit, with a plain Trainer, and with simpletransformers.

    python benchmarks/training.py --data-dir DATA --work sst2,imdb,squad --rounds 3 --write

All systems fine-tune the same model on the same rows with the same settings for one epoch, in turn, each in
a separate process. DATA is a directory that contains SST-2/ as GLUE distributes it, and squad/dev-v1.1.json.
The reviews of IMDB come with a package. Progress goes to standard error, the tables to standard output;
--write puts them into docs/benchmarks.md, with a picture.
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

COLUMNS = {  # of the medians of the rounds: name, how it is shown
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
    """Read the command line and check what can be checked at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(
        parser, "SST-2/ and squad/", (None, "training rows of each (default: its own number)"), rounds=1
    )
    parser.add_argument(
        "--work",
        default=",".join(WORKLOADS),
        help="workloads, each with its training rows if you like: sst2=6000,imdb=600,squad=300",
    )
    parser.add_argument(
        "--simpletransformers",
        metavar="PYTHON",
        help="the interpreter of an environment that has simpletransformers; without it, it is left out",
    )
    parser.add_argument("--write", action="store_true", help="write tables and picture to docs/benchmarks.md")
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
    """Read `NAME[=ROWS],...`; `rows` are of those that do not say.

    Raises:
        ValueError: there is no such workload, or a number that is none.
    """
    found = []
    for part in text.split(","):
        name, _, own = part.partition("=")
        if name not in WORKLOADS or not (own.isdecimal() or part == name):
            raise ValueError(f"--work {part}: one of {', '.join(WORKLOADS)}, with =ROWS if you like")
        found.append(WORKLOADS[name].resize(int(own) if own else rows))
    return found


# ---- the report


def compute_ratios(runs: Runs) -> dict[str, float]:
    """Return how many times as fast each trains as Trainer with batches padded to their longest, in fp32."""
    base = [run.examples_per_second for run in runs[BASELINE]]
    return {
        name: compute_median_ratio([run.examples_per_second for run in some], base)
        for name, some in runs.items()
    }


def format_section(work: Workload, runs: Runs) -> list[str]:
    """Lay out the measurements of a workload."""
    faster, rows = compute_ratios(runs), {}
    for name, some in runs.items():
        middle = [
            shown.format(statistics.median(getattr(run, key) for run in some))
            for key, shown in COLUMNS.values()
        ]
        rows[name] = [f"{faster[name]:.2f}", *middle, some[0].precision]
    score = {"f1": "F1"}.get(work.metric, f"{work.metric}, %")
    columns = ["ratio", *(score if column == "score" else column for column in COLUMNS), "precision"]
    rounds = {name: [f"{run.examples_per_second:.1f}" for run in some] for name, some in runs.items()}
    several = len(next(iter(rounds.values()))) > 1
    listed = list_rounds("Examples a second", rounds) if several else []
    return [f"**{work.title}**: {work}.", "", *format_table(columns, rows), *listed, ""]


def format_text(args: argparse.Namespace, results: Mapping[str, Runs]) -> str:
    """Return the section of the docs page about the runs."""
    named = ",".join(f"{work.name}={work.rows}" for work in args.work)
    more = " --simpletransformers PYTHON" if args.simpletransformers else ""
    own = f"python benchmarks/training.py --data-dir DATA --work {named} --rounds {args.rounds}{more}"
    about = (
        f"One epoch; {describe_model_and_rounds(args.model, args.rounds)}. The ratio is of examples a "
        f"second, to the "
        "second row. Tokens do not count padding. The first step is counted from the start of the process. "
        "The whole process includes imports, features, scoring and saving the model."
    )
    sections = [line for work in args.work for line in format_section(work, results[work.name])]
    return "\n".join([about, "", *sections, *describe_machine(), "", "```sh", own, "```"]) + "\n"


def write_docs(args: argparse.Namespace, results: Mapping[str, Runs], report: str) -> None:
    """Write the report and its chart into the docs page."""
    groups = {work.title: compute_ratios(results[work.name]) for work in args.work}
    title = "Times as fast as Trainer with each batch padded to its longest"
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
