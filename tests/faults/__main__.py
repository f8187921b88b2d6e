"""Inject faults of every kind at random, and verify that --resume is bit-identical to an uninterrupted run.

    PYTHONPATH=tests python -m faults --count 100 --seed 0

Each fault hits a process forked from this one, which has imported everything and computed nothing. So a fault
takes a second or two, and no thread is lost in the fork. The results are compared with a run of the same task
without faults.
"""

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}

import pytest
import typer
from conftest import freeze_libraries, import_libraries, make_runs_cheap

from bertkit.cli.app import app
from faults.fault_types import FAULTS
from faults.harness import FaultHarness

TASKS = ("classify", "ner", "qa", "swag", "pretrain-mlm-nsp")


def inject_fault(harness: FaultHarness, kind: str) -> str | None:
    """Inject a fault, resume the run, and return what went wrong, or None."""
    harness.remove_run()
    try:
        outcome = FAULTS[kind](harness)
        outcome.check()
        harness.verify_files_complete()
        if not (harness.run / "metrics.json").exists():
            child = harness.resume()
            assert child.wait() == 0, f"--resume: {child.last_line}"
        harness.verify_same_as_reference()
    except (AssertionError, OSError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def prepare_harnesses(tasks: list[str], folder: Path, seed: int) -> dict[str, FaultHarness]:
    """Return a harness per task, each with its reference run."""
    harnesses = {}
    for task in tasks:
        harnesses[task] = FaultHarness(task, folder / task, random.Random(f"{seed} {task}"))
        harnesses[task].folder.mkdir()
        harnesses[task].prepare()
    return harnesses


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """Read these arguments, or the command line."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument(
        "--minutes", type=float, default=600, help="start no further fault after these minutes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="inject only faults whose name contains this text")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument(
        "--cheap", action="store_true", help="leave out charts, linear probes and most resamples"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Inject all faults, print a table, and return 1 if anything went wrong."""
    args = parse_args(arguments)
    kinds = [kind for kind in FAULTS if args.kinds in kind]
    injected: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    rng, started = random.Random(args.seed), time.monotonic()
    gc.disable()  # collections would take a quarter of the time of the imports
    import_libraries()  # once, as the commands of the command line, and not in each fork
    command_line = typer.main.get_command(app)
    typer.main.get_command = lambda _: command_line
    freeze_libraries()
    gc.enable()
    if args.cheap:
        make_runs_cheap(pytest.MonkeyPatch())
    with make_temporary_folder() as folder:
        harnesses = prepare_harnesses(args.tasks.split(","), folder, args.seed)
        for number, (task, harness) in zip(range(args.count), cycle(harnesses.items()), strict=False):
            if time.monotonic() - started > 60 * args.minutes:
                break
            kind = kinds[number] if number < len(kinds) else rng.choice(kinds)
            injected[kind] += 1
            if problem := inject_fault(harness, kind):
                wrong[kind] += 1
                print(f"{number} {task}: {kind}: {problem}", file=sys.stderr, flush=True)
    print(format_table(injected, wrong, (time.monotonic() - started) / 60))
    return 1 if wrong else 0


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """Create a folder for all temporary files, writable by all users, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        Path(name).chmod(0o777)
        tempfile.tempdir = name
        yield Path(name)
    tempfile.tempdir = None


def format_table(injected: Counter[str], wrong: Counter[str], minutes: float) -> str:
    """Return a table of how often each fault was injected, and how often something went wrong."""
    rows = [("fault", "injected", "wrong"), ("---", "---:", "---:")]
    rows += [(kind, injected[kind], wrong[kind]) for kind in sorted(injected)]
    rows += [("all", injected.total(), wrong.total())]
    lines = ["| {} | {} | {} |".format(*row) for row in rows]
    return "\n".join([*lines, "", f"{minutes:.0f} min"])


if __name__ == "__main__":
    sys.exit(main())
