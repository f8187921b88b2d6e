"""Measure one training alone and two side by side, with several settings of OpenMP's waiting threads.

    python benchmarks/shared_machine.py --data-dir DATA --before CHECKOUT --rounds 9

The rows are short questions of SQuAD, 16 per step. DATA contains squad/dev-v1.1.json. For each system and
setting, two processes are started, which pause between steps. In each round, all of them train in turn for a
few seconds, alone and two side by side. The order is reversed in every other round. Progress goes to standard
error, the table to standard output; --out adds it to the measurements of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bertkit.utils.system import USER_VARIABLES
from docs_page import format_table
from harness import (
    System,
    add_options,
    compute_median_ratio,
    describe_machine,
    describe_model_and_rounds,
    publish,
    validate_checkout,
    validate_options,
)
from systems import BEFORE, BERTKIT, BEST_FLAGS, Measurements, list_systems
from training import require_data
from workloads import WORKLOADS, write_data

HERE = Path(__file__).resolve().parent
DEFAULT, PASSIVE, BOUNDED = "default", "OMP_WAIT_POLICY=PASSIVE", "GOMP_SPINCOUNT=1000"
SYSTEMS = (BEST_FLAGS, BEFORE, BERTKIT)


@dataclass(frozen=True)
class Speeds:
    """Steps per second of a round: of one training alone, and the mean of two side by side."""

    alone: float
    side_by_side: float

    def __str__(self) -> str:
        return f"{self.alone:.2f} alone, {self.side_by_side:.2f} each side by side"


class PausedTraining:
    """A process of `paused_command.py`."""

    def __init__(
        self, system: System[Measurements], setting: str, data: Path, model: Path, scratch: Path
    ) -> None:
        scratch.mkdir(parents=True)
        command = system.build_command(data, model, scratch / "output")
        program = command[2:] if command[1] == "-m" else command[1:]
        inherited = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
        chosen = [] if setting == DEFAULT else [setting.split("=", 1)]
        caches = {name: str(scratch / "cache") for name in ("HF_DATASETS_CACHE", "BERTKIT_CACHE_DIR")}
        checkout = str(system.checkout.resolve())
        self.messages = scratch / "stderr"
        with self.messages.open("w") as messages:  # a pipe that nobody reads would become full
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "paused_command.py"), *program],
                env={**inherited, **caches, "HF_HUB_OFFLINE": "1", "PYTHONPATH": checkout, **dict(chosen)},
                cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, text=True,
            )  # fmt: skip

    def request(self, seconds: float) -> None:
        """Make the process train for `seconds`."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)

    def read(self) -> list[float]:
        """Wait for the process to pause, and return the seconds of each step."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args!r}:\n{self.messages.read_text()[-4000:]}")
        steps: list[float] = json.loads(line)
        return steps

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def measure(trainings: Sequence[PausedTraining], seconds: float) -> float:
    """Train in all processes at the same time, and return the mean of their steps per second."""
    for training in trainings:
        training.request(seconds)
    measured = [training.read() for training in trainings]
    return statistics.mean(len(steps) / sum(steps) for steps in measured)


def run_rounds(
    pairs: Mapping[tuple[str, str], Sequence[PausedTraining]], rounds: int, seconds: float
) -> dict[tuple[str, str], list[Speeds]]:
    """Measure all systems and settings in turn, in reverse order in every other round."""
    speeds: dict[tuple[str, str], list[Speeds]] = {key: [] for key in pairs}
    for number in range(1, rounds + 1):
        for key in list(pairs)[:: 1 if number % 2 else -1]:
            alone = measure(pairs[key][number % 2 :][:1], seconds)
            speeds[key].append(Speeds(alone, measure(pairs[key], seconds)))
            print(
                f"round {number}/{rounds}: {', '.join(key)}: {speeds[key][-1]}", file=sys.stderr, flush=True
            )
    return speeds


# ---- the report


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "squad/", (3600, "training rows, of which each step takes 16"), rounds=5)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of bertkit")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each measurement")
    parser.add_argument(
        "--settings", default=f"{DEFAULT},{PASSIVE},{BOUNDED}",
        help=f"environment variables NAME=VALUE, separated by ','; '{DEFAULT}' sets none",
    )  # fmt: skip
    parser.add_argument(
        "--systems", default=";".join(SYSTEMS), help="names of the systems, separated by ';' (default: all)"
    )
    args = parser.parse_args(argv)
    if not 0 < args.seconds < float("inf"):
        parser.error("--seconds must be a number above 0")
    for setting in args.settings.split(","):
        if setting != DEFAULT and not setting.partition("=")[2]:
            parser.error(f"--settings {setting!r}: is neither NAME=VALUE nor '{DEFAULT}'")
    available = [name for name in SYSTEMS if name != BEFORE or args.before]
    unknown = set(args.systems.split(";")) - set(SYSTEMS)
    if unknown or not set(args.systems.split(";")) & set(available):
        parser.error(f"--systems {args.systems!r}: choose some of {'; '.join(available)}")
    args.work = WORKLOADS["questions"].resize(args.rows)
    require_data(parser, [args.work], args.data_dir)
    validate_options(parser, args)
    validate_checkout(parser, args.before)
    return args


def format_text(args: argparse.Namespace, speeds: Mapping[tuple[str, str], Sequence[Speeds]]) -> str:
    """Return the section of the docs page."""
    reference = speeds[next(iter(speeds))]
    rows = {}
    for (system, setting), measured in speeds.items():
        cells = []
        for name in ("alone", "side_by_side"):
            values, base = ([getattr(each, name) for each in runs] for runs in (measured, reference))
            cells += [f"{statistics.median(values):.2f}", f"{compute_median_ratio(values, base):.2f}"]
        rows[f"{system}, {setting}"] = cells
    columns = ["alone, steps/s", "ratio", "side by side, steps/s each", "ratio"]
    rounds = describe_model_and_rounds(args.model, args.rounds)
    about = (
        f"Batches of {args.work.batch_size} questions; {rounds} of {args.seconds:g} s. The ratios to the "
        "first row are medians of the ratios per round."
    )
    before = " --before CHECKOUT" if args.before else ""
    command = f"python benchmarks/shared_machine.py --data-dir DATA{before} --rounds {args.rounds}"
    command += f" --seconds {args.seconds:g} --settings {args.settings}"
    command += f" --systems '{args.systems}'" if args.systems != ";".join(SYSTEMS) else ""
    table = format_table(columns, rows)
    return "\n".join([about, "", *table, "", *describe_machine(), "", "```sh", command, "```"]) + "\n"


def main() -> None:
    """Start the processes, measure and report."""
    args = parse_args()
    names = args.systems.split(";")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as started:
        data = Path(scratch) / "data"
        write_data(args.work, args.data_dir, data)
        systems = [system for system in list_systems(args.work, data, args.before) if system.name in names]
        pairs: dict[tuple[str, str], list[PausedTraining]] = {}
        for system in systems:
            for setting in args.settings.split(","):
                folder = Path(scratch) / f"{len(pairs)}"
                pair = [PausedTraining(system, setting, data, args.model.resolve(), folder / n) for n in "01"]
                for training in pair:
                    started.callback(training.close)
                for training in pair:
                    training.read()
                pairs[system.name, setting] = pair
        speeds = run_rounds(pairs, args.rounds, args.seconds)
    publish(format_text(args, speeds), args.out)


if __name__ == "__main__":
    main()
