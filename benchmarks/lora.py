"""Compare LoRA with full fine-tuning: scores on MRPC with the same seeds, and memory of a large model.

    python benchmarks/lora.py --data-dir DATA --work mrpc --seeds 3
    python benchmarks/lora.py --work memory

* `mrpc`: bertkit's defaults in both cases. The table has the mean difference over the seeds, with its 95 %
  interval (paired t-test).
* `memory`: one training step of a model with the sizes of BERT-large and random weights, as `--dry-run` does
  it, in a separate process. Its memory is sampled from /proc, so this needs Linux. The weights of the encoder
  are memory-mapped and only training copies them, so this is the resident memory, not the anonymous one.

Progress goes to standard error, the tables to standard output.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import synthetic
from docs_page import format_table
from harness import OUT_HELP, System, describe_machine, find_packaged_model, publish, run_system
from process_memory import run_sampled

METHODS: dict[str, tuple[str, ...]] = {"full fine-tuning": (), "LoRA": ("--lora", "RANK")}
SCORE_COLUMNS = [*METHODS, "difference, points", "95 % interval", "p"]
MEMORY_COLUMNS = ["peak MB", "of full fine-tuning"]
LARGE, VOCABULARY = (24, 1024, 16), 30_522  # BERT-large: layers, hidden size, heads
BATCH_SIZE, LENGTH = 8, 128


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=["mrpc", "memory"], default=["mrpc", "memory"])
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 1, 2, ...")
    parser.add_argument("--options", default="", help="further options of bertkit: --options='--no-bf16'")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def build_command(method: str, args: argparse.Namespace, *options: str) -> list[str]:
    """Return a command of `bertkit classify` with a method."""
    flags = [str(args.rank) if flag == "RANK" else flag for flag in METHODS[method]]
    command = [sys.executable, "-m", "bertkit", "classify", *options, *flags]
    return [*command, *shlex.split(args.options), "--json"]


# ---- scores


def describe_run(method: str, seed: int, args: argparse.Namespace) -> System[float]:
    """Describe a run on MRPC, whose accuracy on the validation split is read in percent."""
    data_dir = ["--data-dir", str(args.data_dir)] if args.data_dir else []

    def build(_: Path, model: Path, output: Path) -> list[str]:
        options = ["--data", "mrpc", *data_dir, "--model", str(model), "--seed", str(seed)]
        return build_command(method, args, *options, "--output-dir", str(output))

    def read_output(printed: dict[str, Any], _: float) -> float:
        return 100 * float(printed["validation"]["accuracy"])

    return System(method, build, read_output)


def measure_scores(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the accuracies by method, with one for each seed."""
    scores: dict[str, list[float]] = {method: [] for method in METHODS}
    model = find_packaged_model()
    if model is None:
        raise SystemExit("the model package is not installed")
    for seed in range(1, args.seeds + 1):
        for method, values in scores.items():
            values.append(run_system(describe_run(method, seed, args), Path(), model))
            print(f"MRPC, seed {seed}, {method}: {values[-1]:.2f}", file=sys.stderr, flush=True)
    return scores


def format_scores(scores: dict[str, list[float]]) -> Sequence[str]:
    """Format the mean scores, the paired difference of LoRA, and the scores of each seed."""
    from scipy.stats import ttest_rel

    full, lora = scores.values()
    cells = [f"{statistics.mean(values):.2f}" for values in scores.values()]
    cells.append(f"{statistics.mean(lora) - statistics.mean(full):+.2f}")
    if len(full) > 1:
        result = ttest_rel(lora, full)
        interval = result.confidence_interval(0.95)
        cells += [f"{interval.low:+.2f} to {interval.high:+.2f}", f"{result.pvalue:.2f}"]
    else:
        cells += ["", ""]
    listed = (
        f"{method} {', '.join(f'{value:.1f}' for value in values)}" for method, values in scores.items()
    )
    table = format_table(SCORE_COLUMNS, {"MRPC, accuracy": cells})
    return [*table, "", f"Accuracy per seed: {'; '.join(listed)}"]


# ---- memory


def measure_memory(args: argparse.Namespace) -> dict[str, float]:
    """Return the peak of the resident memory in MB by method, of one training step."""
    with tempfile.TemporaryDirectory() as folder:
        model = synthetic.write_model(Path(folder) / "model", VOCABULARY, LARGE)
        rows = synthetic.write_rows(Path(folder) / "rows.jsonl", 60, LENGTH, VOCABULARY, median=2 * LENGTH)
        options = ["--data", str(rows), "--model", str(model), "--max-length", str(LENGTH), "--dry-run"]
        options += ["--batch-size", str(BATCH_SIZE)]
        return {
            method: measure_peak(build_command(method, args, *options), Path(folder)) for method in METHODS
        }


def measure_peak(command: list[str], folder: Path) -> float:
    """Run a command, and return the peak of its resident memory in MB."""
    environment = {"BERTKIT_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    process = run_sampled(command, folder, environment)
    if process.returncode != 0:
        raise SystemExit(f"failed:\n{(folder / 'stderr').read_text('utf-8')[-4000:]}")
    peak = max(sample.resident_mb for sample in process.samples)
    anonymous = max(sample.anonymous_mb for sample in process.samples)
    print(
        f"{shlex.join(command[2:])}: {peak:,.0f} MB ({anonymous:,.0f} MB anonymous)",
        file=sys.stderr,
        flush=True,
    )
    return peak


def format_memory(peaks: dict[str, float]) -> Sequence[str]:
    """Format the peaks, and their ratio to that of full fine-tuning."""
    base = peaks["full fine-tuning"]
    rows = {method: [f"{peak:,.0f}", f"{peak / base:.0%}"] for method, peak in peaks.items()}
    return format_table(MEMORY_COLUMNS, rows)


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    report: list[str] = []
    if "mrpc" in args.work:
        report += [*format_scores(measure_scores(args)), ""]
    if "memory" in args.work:
        report += [*format_memory(measure_memory(args)), ""]
    command = f"python benchmarks/lora.py --data-dir DATA --work {' '.join(args.work)} --rank {args.rank}"
    command += f" --seeds {args.seeds}" + (f" --options='{args.options}'" if args.options else "")
    lines = [*report, *describe_machine(), "", "```sh", command, "```"]
    publish("\n".join(lines) + "\n", args.out)


if __name__ == "__main__":
    main()
