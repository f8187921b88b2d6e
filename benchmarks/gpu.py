"""Measure pre-training and fine-tuning of BERT-BASE and -LARGE on a GPU, in bertkit and in a plain Trainer.

    python benchmarks/gpu.py --write
    python benchmarks/gpu.py --small

Measures each precision with 128 and 512 tokens, and the fastest one with --compile, --pack and
--gradient-checkpointing. Each setup runs in a separate process with a time limit. Weights are random and
texts are synthetic, so nothing is downloaded. Without a CUDA device, or with --small, a tiny model is used.
Progress goes to standard error, the tables to standard output; --write puts them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertkit.training.defaults import is_bf16_faster
from docs_page import format_table, replace_section
from gpu_step import BERTKIT, COMMANDS, TRAINER, Measurements, Setup
from harness import describe_machine

SCRIPT = Path(__file__).resolve().with_name("gpu_step.py")
SIZES, LENGTHS = ["base", "large"], [128, 512]
OPTIONS = [("compile",), ("pack",), ("compile", "pack"), ("gradient_checkpointing",)]
COLUMNS = ["sequences/s", "times Trainer's", "tokens/s", "MFU", "peak MB"]
Results = Mapping[Setup, Measurements | str]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=list(COMMANDS), nargs="+", default=list(COMMANDS))
    parser.add_argument("--size", choices=SIZES, nargs="+", default=SIZES)
    parser.add_argument("--length", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens per batch, padding included")
    parser.add_argument("--steps", type=int, default=30, help="number of timed steps")
    parser.add_argument("--limit", type=int, default=240, help="time limit of a process in seconds")
    parser.add_argument("--small", action="store_true", help="a tiny model, 3 steps (default without a GPU)")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/benchmarks.md")
    args = parser.parse_args(argv)
    args.small = args.small or not torch.cuda.is_available()
    if args.small and args.write:
        parser.error("--write is for a GPU and models of real size")
    return args


# ---- what is measured


def list_setups(args: argparse.Namespace) -> list[Setup]:
    """List all setups in the order of the tables."""
    setups = []
    for work, size, length in product(args.work, args.size, args.length):
        rows = max(1, args.tokens // length)
        setup = Setup(BERTKIT, work, size, length, batch_size=rows, steps=args.steps)
        if args.small:
            setup = shrink_setup(setup)
        setups += [dataclasses.replace(setup, **variant) for variant in list_variants()]
    return list(dict.fromkeys(setups))  # small setups are the same for all sizes and lengths


def list_variants() -> list[dict[str, Any]]:
    """List both systems in all supported precisions, and the options of bertkit in the fastest one.

    bf16 without CPU instructions is left out, because emulation is a hundred times slower.
    """
    half = ["bf16"] if is_bf16_faster() else []
    formats = ["fp32", *half, *(["fp16"] if torch.cuda.is_available() else [])]
    best = (half or formats)[0]
    plain: list[dict[str, Any]] = [
        {"system": system, "precision": precision} for precision in formats for system in (TRAINER, BERTKIT)
    ]
    return [*plain, *({"precision": best, "options": options} for options in OPTIONS)]


def shrink_setup(setup: Setup) -> Setup:
    """Return the setup with a model and data that every machine can train in a second."""
    return dataclasses.replace(
        setup, size="small", length=32, batch_size=4, warmup_steps=1, steps=3, vocab_size=200
    )


def measure_in_subprocess(setup: Setup, limit: int) -> Measurements | str:
    """Measure in a separate process; return the measurements or the reason of the failure."""
    settings = json.dumps(dataclasses.asdict(setup))
    try:
        process = subprocess.run(
            [sys.executable, str(SCRIPT), settings],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"over {limit} s"
    if process.returncode:
        message = (process.stderr.strip() or f"exit status {process.returncode}").splitlines()[-1]
        return f"failed: {message[:150]}"
    printed = json.loads(process.stdout)
    return str(printed["failed"]) if "failed" in printed else Measurements(**printed)


# ---- the report


def group_by_table(results: Results) -> dict[str, dict[Setup, Measurements | str]]:
    """Group the results into tables by workload, model size and length."""
    tables: dict[str, dict[Setup, Measurements | str]] = {}
    for setup, measurements in results.items():
        name = (
            f"{setup.workload}, BERT-{setup.size.upper()}, {setup.length} tokens, "
            f"{setup.batch_size} per batch"
        )
        tables.setdefault(name, {})[setup] = measurements
    return tables


def format_cells(setup: Setup, measurements: Measurements | str, results: Results) -> list[str]:
    """Format a row; the ratio compares with Trainer in the same precision."""
    if isinstance(measurements, str):
        return [measurements, *[""] * (len(COLUMNS) - 1)]
    stock = results.get(dataclasses.replace(setup, system=TRAINER, options=()))
    speed = measurements.sequences_per_second
    ratio = f"{speed / stock.sequences_per_second:.2f}" if isinstance(stock, Measurements) else ""
    mfu, memory = f"{measurements.mfu:.1%}", f"{measurements.peak_memory_mb:,.0f}"
    return [f"{speed:,.1f}", ratio, f"{measurements.tokens_per_second:,.0f}", mfu, memory]


def format_text(args: argparse.Namespace, results: Results) -> str:
    """Return the section of the docs page about the runs."""
    setup = next(iter(results))
    about = (
        f"{setup.steps} timed steps after {setup.warmup_steps} warm-up steps; random weights, synthetic "
        "texts. Trainer: the stock model with default settings, on the same examples in the same precision. "
        "Tokens exclude padding. MFU: 6 operations per weight of the layers and token, plus attention, "
        "as a fraction of the measured speed of a large matrix product in the same precision on this device; "
        "heads, padding and recomputation do not count."
    )
    lines = [about, ""]
    for name, group in group_by_table(results).items():
        rows = {
            str(setup): format_cells(setup, measurements, results) for setup, measurements in group.items()
        }
        lines += [f"**{name[0].upper()}{name[1:]}**", "", *format_table(COLUMNS, rows), ""]
    command = f"python benchmarks/gpu.py --tokens {args.tokens} --steps {args.steps}"
    command += f" --work {' '.join(args.work)} --size {' '.join(args.size)}"
    command += f" --length {' '.join(map(str, args.length))}"
    command = "python benchmarks/gpu.py --small" if args.small else command
    return "\n".join([*lines, *describe_machine(), "", "```sh", command, "```"]) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Measure everything and report."""
    args = parse_args(argv)
    results: dict[Setup, Measurements | str] = {}
    for setup in list_setups(args):
        print(f"{setup.workload}, {setup.size}, {setup.length}: {setup} ...", file=sys.stderr, flush=True)
        results[setup] = measure_in_subprocess(setup, args.limit)
        print(f"  {results[setup]}", file=sys.stderr, flush=True)
    report = format_text(args, results)
    print(report, end="")
    if args.write:
        replace_section("gpu", report)


if __name__ == "__main__":
    main()
