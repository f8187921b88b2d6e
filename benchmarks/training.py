"""Compare training with bertkit, with a plain Trainer, and with an earlier version of bertkit.

    python benchmarks/training.py --data-dir DATA --rounds 3 --out docs/benchmarks/training.json

All systems train on the same rows with the same settings for one epoch, in turn, each in a separate process.
The order is reversed in every other round. DATA is a directory that contains SST-2/ as GLUE distributes it,
squad/dev-v1.1.json, wnut17/ and codah/. The reviews of IMDB are part of a package. Progress goes to standard
error, the tables to standard output; --out adds them to the measurements of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs_page import format_table
from harness import (
    add_options,
    compute_median_ratio,
    describe_machine,
    describe_model_and_rounds,
    list_rounds,
    publish,
    run_systems,
    validate_checkout,
    validate_options,
)
from systems import BEFORE, Measurements, find_reference, list_systems
from workloads import WORKLOADS, Workload, write_data

COLUMNS = {  # heading -> attribute of Measurements, format of its median
    "examples/s": ("examples_per_second", "{:.1f}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
    "first step, s": ("first_step_seconds", "{:.1f}"),
    "peak MB": ("peak_memory_mb", "{:,.0f}"),
    "score": ("score", "{:.1f}"),
    "whole process, s": ("process_seconds", "{:.1f}"),
}
UNKNOWN = "–"
Runs = Mapping[str, list[Measurements]]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        "SST-2/, squad/, wnut17/ and codah/",
        (None, "training rows per workload (default: its own)"),
        rounds=1,
    )
    parser.add_argument(
        "--work",
        default=",".join(WORKLOADS),
        help="workloads, optionally with their training rows: sst2=5000,imdb=500,squad=300",
    )
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="another checkout of bertkit to compare with"
    )
    parser.add_argument(
        "--systems", help="names of the systems, separated by ';' (default: all of them)", metavar="NAMES"
    )
    parser.add_argument(
        "--simpletransformers",
        metavar="PYTHON",
        help="interpreter of an environment with simpletransformers (default: leave it out)",
    )
    args = parser.parse_args(argv)
    try:
        args.work = parse_workloads(args.work, args.rows)
    except ValueError as error:
        parser.error(str(error))
    require_data(parser, args.work, args.data_dir)
    validate_options(parser, args)
    validate_checkout(parser, args.before)
    return args


def require_data(
    parser: argparse.ArgumentParser, workloads: Sequence[Workload], data_dir: Path | None
) -> None:
    """Refuse workloads whose data is missing."""
    for folder in (work.folder for work in workloads):
        if folder and (data_dir is None or not (data_dir / folder).is_dir()):
            parser.error(f"no {folder}/ found: give its parent folder with --data-dir")


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


def select_systems(entries: list, names: str | None) -> list:
    """Return the systems with these names, or all of them.

    Raises:
        SystemExit: a system does not exist.
    """
    if names is None:
        return entries
    by_name = {entry.name: entry for entry in entries}
    selected = [name.strip() for name in names.split(";")]
    if unknown := [name for name in selected if name not in by_name]:
        raise SystemExit(f"--systems {unknown[0]}: pass some of {'; '.join(by_name)}")
    return [by_name[name] for name in selected]


# ---- the report


def compute_ratios(work: Workload, runs: Runs, reference: str | None = None) -> dict[str, float | None]:
    """Return the speed of each system relative to another; None if the other was not run.

    Args:
        reference: A system. By default, each system is compared with Trainer with its best flags.
    """
    speeds = {name: [getattr(run, work.speed) for run in measured] for name, measured in runs.items()}
    bases = {name: speeds.get(reference or find_reference(name)) for name in speeds}
    return {name: compute_median_ratio(speeds[name], base) if base else None for name, base in bases.items()}


def format_section(work: Workload, runs: Runs) -> list[str]:
    """Format the measurements of a workload."""
    ratios = compute_ratios(work, runs)
    gains = compute_ratios(work, runs, BEFORE) if BEFORE in runs else None
    rows = {}
    for name, measurements in runs.items():
        medians = [
            template.format(statistics.median(getattr(run, key) for run in measurements))
            for key, template in COLUMNS.values()
        ]
        compared = [ratios[name], *([gains[name]] if gains else [])]
        rows[name] = [
            *(UNKNOWN if ratio is None else f"{ratio:.2f}" for ratio in compared),
            *medians, measurements[0].precision,
        ]  # fmt: skip
    score = f"{work.metric}{', %' if work.score_factor == 100 else ''}"
    columns = ["ratio", *(["to before"] if gains else []), *COLUMNS, "precision"]
    title = f"**{work.title}: {work.rows:,} rows of at most {work.max_length} tokens; {score}**"
    return [title, "", *format_table(columns, rows), *format_rounds(work, runs), ""]


def format_rounds(work: Workload, runs: Runs) -> list[str]:
    """List the speeds of each round, if there are several."""
    rounds = {name: [f"{getattr(run, work.speed):.1f}" for run in runs[name]] for name in runs}
    unit = work.speed.replace("_per_second", " per second").capitalize()
    return list_rounds(unit, rounds) if len(next(iter(rounds.values()))) > 1 else []


def format_command(args: argparse.Namespace) -> str:
    """Return the command line that repeats the runs."""
    workloads = ",".join(f"{work.name}={work.rows}" for work in args.work)
    before = " --before CHECKOUT" if args.before else ""
    option = " --simpletransformers PYTHON" if args.simpletransformers else ""
    script = "python benchmarks/training.py --data-dir DATA"
    systems = f' --systems "{args.systems}"' if args.systems else ""
    return f"{script} --work {workloads} --rounds {args.rounds}{before}{systems}{option}"


def format_text(args: argparse.Namespace, results: Mapping[str, Runs]) -> str:
    """Return the section of the docs page about the runs."""
    to_before = f'"To before" compares with "{BEFORE}" in its default precision, also for rows in fp32. '
    about = (
        f"One epoch; {describe_model_and_rounds(args.model, args.rounds)}. The ratio compares examples/s "
        "(pre-training: tokens/s) with Trainer with its best flags, in the same precision. "
        f"{to_before if args.before else ''}Tokens exclude padding. The time of the first step "
        "begins with the process. The whole process includes imports, features, evaluation and saving the "
        "model."
    )
    sections = [line for work in args.work for line in format_section(work, results[work.name])]
    command = ["```sh", format_command(args), "```"]
    return "\n".join([about, "", *sections, *describe_machine(), "", *command]) + "\n"


def main() -> None:
    """Sample the rows, run everything and report."""
    args = parse_args()
    results: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for work in args.work:
            print(f"{work.title}: {work}", file=sys.stderr)
            folder = Path(scratch) / work.name
            write_data(work, args.data_dir, folder)
            entries = list_systems(work, folder, args.before, args.simpletransformers)
            results[work.name] = run_systems(
                select_systems(entries, args.systems),
                folder,
                args.model.resolve(),
                args.rounds,
                alternate=True,
            )
    publish(format_text(args, results), args.out)


if __name__ == "__main__":
    main()
