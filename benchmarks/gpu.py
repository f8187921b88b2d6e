"""Measure pre-training and fine-tuning of BERT and ModernBERT on a GPU, in bertkit and in a plain Trainer.

    python benchmarks/gpu.py --out docs/benchmarks/gpu.json
    python benchmarks/gpu.py --quick
    python benchmarks/gpu.py --small

Measures BERT-BASE and -LARGE with 128 and 512 tokens, BERT-BASE on texts as short as those of SST-2, and
ModernBERT-base with 1,024 and 8,192 tokens: each precision, and the fastest one with --compile, --pack and
--gradient-checkpointing. Then it checks that a resumed run is bit-identical, and that fp16 is stable. Each
setup runs in a separate process with a time limit. Weights are random and texts are synthetic, so nothing is
downloaded. --quick measures BERT-BASE in bf16 only. Without a CUDA device,
or with --small, tiny models are used. Progress goes to standard error, the
tables to standard output; --out adds them to the measurements of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertkit.utils.devices import is_bf16_faster
from docs_page import format_table
from gpu_checks import format_checks
from gpu_step import BERTKIT, COMMANDS, SHORT_TEXTS, TRAINER, Measurements, Setup
from harness import OUT_HELP, describe_machine, publish

SCRIPT = Path(__file__).resolve().with_name("gpu_step.py")
CHECK_SCRIPT = SCRIPT.with_name("gpu_checks.py")
CASES = [  # workload, size of the model, maximum length
    *product(("pre-training", "fine-tuning"), ("base", "large"), (128, 512)),
    (SHORT_TEXTS, "base", 128),
    *product(("fine-tuning",), ("modernbert-base",), (1024, 8192)),
]
SIZES, LENGTHS = (sorted({case[column] for case in CASES}) for column in (1, 2))
SHORT_TEXTS_PER_BATCH = 32
QUICK_CASES = [("pre-training", "base", 512), ("fine-tuning", "base", 128), (SHORT_TEXTS, "base", 128)]
QUICK_OPTIONS = [("compile",), ("pack",)]
OPTIONS = [
    ("compile",), ("pack",), ("pack", "no_attention_dropout"), ("compile", "pack", "no_attention_dropout"),
    ("gradient_checkpointing",),
]  # fmt: skip
COLUMNS = ["ms/step", "sequences/s", "times Trainer's", "tokens/s", "MFU, %", "peak MB"]
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
    parser.add_argument("--quick", action="store_true", help="BERT-BASE in bf16 only")
    parser.add_argument("--rows", type=int, help="examples per batch, instead of --tokens")
    parser.add_argument("--small", action="store_true", help="a tiny model, 3 steps (default without a GPU)")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    args.small = args.small or not torch.cuda.is_available()
    if not list_cases(args):
        parser.error("no workload has this size and length; the cases are: " + "; ".join(
            f"{work}, {size}, {length}" for work, size, length in CASES
        ))  # fmt: skip
    return args


# ---- what is measured


def list_cases(args: argparse.Namespace) -> list[tuple[str, str, int]]:
    """List the cases that the command line selects."""
    return [
        (work, size, length)
        for work, size, length in (QUICK_CASES if args.quick else CASES)
        if work in args.work and size in args.size and length in args.length
    ]


def list_setups(args: argparse.Namespace) -> list[Setup]:
    """List all setups in the order of the tables."""
    setups = []
    for work, size, length in list_cases(args):
        rows = args.rows or (SHORT_TEXTS_PER_BATCH if work == SHORT_TEXTS else max(1, args.tokens // length))
        setup = Setup(BERTKIT, work, size, length, batch_size=rows, steps=args.steps)
        if args.small:
            setup = shrink_setup(setup)
        setups += [dataclasses.replace(setup, **variant) for variant in list_variants(args.quick)]
    return list(dict.fromkeys(setups))  # small setups are the same for all sizes and lengths


def list_variants(is_quick: bool) -> list[dict[str, Any]]:
    """List both systems in all supported precisions, and the options of bertkit in the fastest one.

    bf16 without CPU instructions is left out, because emulation is a hundred times slower.
    """
    half = ["bf16"] if is_bf16_faster() else []
    formats = ["fp32", *half, *(["fp16"] if torch.cuda.is_available() else [])]
    best = (half or formats)[0]
    formats, options = ([best], QUICK_OPTIONS) if is_quick else (formats, OPTIONS)
    plain: list[dict[str, Any]] = [
        {"system": system, "precision": precision} for precision in formats for system in (TRAINER, BERTKIT)
    ]
    return [*plain, *({"precision": best, "options": chosen} for chosen in options)]


def shrink_setup(setup: Setup) -> Setup:
    """Return the setup with a model and data that every machine can train in a second."""
    size = "modernbert-small" if setup.size.startswith("modernbert") else "small"
    return dataclasses.replace(
        setup, size=size, length=32, batch_size=4, warmup_steps=1, steps=3, vocab_size=200
    )


def measure_in_subprocess(setup: Setup, limit: int) -> Measurements | str:
    """Measure in a separate process; return the measurements or the reason of the failure."""
    printed = run_in_subprocess(SCRIPT, setup, limit)
    if isinstance(printed, str):
        return printed
    return str(printed["failed"]) if "failed" in printed else Measurements(**printed)


def run_in_subprocess(script: Path, setup: Setup, limit: int) -> dict[str, Any] | str:
    """Return what a script prints about a setup, or the reason of its failure."""
    settings = json.dumps(dataclasses.asdict(setup))
    try:
        process = subprocess.run(
            [sys.executable, str(script), settings],
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
    printed: dict[str, Any] = json.loads(process.stdout)
    return printed


def check_in_subprocess(setups: list[Setup], limit: int) -> dict[str, Any]:
    """Run the checks on the first fine-tuning setup of bertkit in the fastest precision."""
    (best,) = {setup.precision for setup in setups if setup.options}
    setup = next(
        setup for setup in setups if (setup.system, setup.precision, setup.options) == (BERTKIT, best, ())
    )
    printed = run_in_subprocess(CHECK_SCRIPT, setup, limit)
    return {"checks": printed} if isinstance(printed, str) else printed


# ---- the report


def format_model(size: str) -> str:
    """Return the name of a model in the titles."""
    family, _, variant = size.rpartition("-")
    return f"ModernBERT-{variant}" if family else f"BERT-{variant.upper()}"


def group_by_table(results: Results) -> dict[str, dict[Setup, Measurements | str]]:
    """Group the results into tables by workload, model size and length."""
    tables: dict[str, dict[Setup, Measurements | str]] = {}
    for setup, measurements in results.items():
        name = (
            f"{setup.workload}, {format_model(setup.size)}, up to {setup.length} tokens, "
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
    mfu, memory = f"{100 * measurements.mfu:.1f}", f"{measurements.peak_memory_mb:,.0f}"
    return [
        f"{measurements.step_ms:.1f}",
        f"{speed:,.1f}",
        ratio,
        f"{measurements.tokens_per_second:,.0f}",
        mfu,
        memory,
    ]


def format_text(args: argparse.Namespace, results: Results, checks: Mapping[str, Any]) -> str:
    """Return the section of the docs page about the runs."""
    setup = next(iter(results))
    sources = sorted({each.peak_source for each in results.values() if isinstance(each, Measurements)})
    about = (
        f"{setup.steps} timed steps after {setup.warmup_steps} warm-up steps, without steps that record a "
        "CUDA graph; random weights, synthetic texts. Trainer: the stock model with default settings, on the "
        "same examples in the same precision. Tokens exclude padding. MFU: 6 operations per weight of the "
        "layers and token, plus attention, as a fraction of the peak rate of the device "
        f"({'; '.join(sources)}); heads, padding and recomputation do not count."
    )
    lines = [about, ""]
    for name, group in group_by_table(results).items():
        rows = {
            str(setup): format_cells(setup, measurements, results) for setup, measurements in group.items()
        }
        lines += [f"**{name[0].upper()}{name[1:]}**", "", *format_table(COLUMNS, rows), ""]
    lines += ["**Checks**", "", *format_checks(checks), ""]
    command = f"python benchmarks/gpu.py --tokens {args.tokens} --steps {args.steps}"
    command += f" --work {' '.join(map(shlex.quote, args.work))} --size {' '.join(args.size)}"
    command += f" --rows {args.rows}" if args.rows else ""
    command += " --quick" if args.quick else ""
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
    checks = check_in_subprocess(list(results), 2 * args.limit)
    publish(format_text(args, results, checks), args.out)


if __name__ == "__main__":
    main()
