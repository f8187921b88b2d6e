"""Profile the training steps of bertkit: the time per step of groups of operators.

    python benchmarks/step_profile.py --data-dir DATA --work sst2,imdb --steps 20 --before CHECKOUT

--before profiles another checkout of bertkit as well. Each profile is made in a separate process. Progress is
printed to standard error, the tables to standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from docs_page import format_table
from harness import (
    System,
    add_options,
    describe_machine,
    describe_model_and_rounds,
    publish,
    run_systems,
    validate_checkout,
    validate_options,
)
from profiled_command import GROUPS
from systems import describe_bertkit
from training import parse_workloads, require_data
from workloads import Workload, write_data

HERE = Path(__file__).resolve().parent
BEFORE, NOW = "before", "now"
MAX_EVAL_ROWS = 100  # the command also evaluates, which is not profiled


class Profile(dict[str, float]):
    """Milliseconds per step by group of operators."""

    def __str__(self) -> str:
        return f"{sum(self.values()):.0f} ms per step"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(
        parser, "the datasets", (None, "training rows per workload (default: enough for all steps)"), rounds=1
    )
    parser.add_argument("--work", default="sst2,imdb", help="workloads of training.py: NAME[=ROWS],...")
    parser.add_argument("--steps", type=int, default=20, help="number of profiled steps")
    parser.add_argument("--warmup-steps", type=int, default=10, help="number of steps before the profile")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of bertkit")
    parser.add_argument("--options", default="", help="further options of bertkit: --options='--no-bf16'")
    args = parser.parse_args(argv)
    if min(args.steps, args.warmup_steps) < 1:
        parser.error("--steps and --warmup-steps must be at least 1")
    try:
        args.work = [fit_rows(work, args) for work in parse_workloads(args.work, args.rows)]
    except ValueError as error:
        parser.error(str(error))
    require_data(parser, args.work, args.data_dir)
    validate_options(parser, args)
    validate_checkout(parser, args.before)
    return args


def fit_rows(work: Workload, args: argparse.Namespace) -> Workload:
    """Return the workload with at most as many rows as the steps need, and with few validation rows."""
    rows = min(work.rows, (args.steps + args.warmup_steps) * work.batch_size)
    return dataclasses.replace(work, rows=rows, eval_rows=min(work.eval_rows, MAX_EVAL_ROWS))


def list_systems(work: Workload, args: argparse.Namespace) -> list[System[Profile]]:
    """List the profiled checkouts."""
    options = args.options.split()
    entries = [describe_profile(describe_bertkit(NOW, work, *options), args)]
    if args.before:
        before = describe_bertkit(BEFORE, work, *options, checkout=args.before)
        entries.insert(0, describe_profile(before, args))
    return entries


def describe_profile(system: System, args: argparse.Namespace) -> System[Profile]:
    """Describe a profile of the command of a system."""

    def command(data: Path, model: Path, output: Path) -> list[str]:
        python, _, _, *rest = system.build_command(data, model, output)  # python -m bertkit TASK ...
        script = [python, str(HERE / "profiled_command.py"), str(args.warmup_steps), str(args.steps)]
        return [*script, *rest, "--max-steps", str(args.warmup_steps + args.steps)]

    return System(system.name, command, lambda printed, _: Profile(printed), system.checkout)


# ---- the report


def compute_medians(profiles: list[Profile]) -> Profile:
    """Return the median milliseconds of each group over the rounds."""
    return Profile({group: statistics.median(profile[group] for profile in profiles) for group in GROUPS})


def format_section(work: Workload, profiles: Mapping[str, Profile]) -> list[str]:
    """Format the milliseconds and fractions of a workload."""
    columns = [heading for name in profiles for heading in (f"{name}, ms", "fraction")]
    rows = {group: _format_cells(profiles, group) for group in GROUPS}
    totals = [cell for profile in profiles.values() for cell in (f"{sum(profile.values()):.1f}", "100 %")]
    title = f"**{work.title}**, batches of {work.batch_size}, at most {work.max_length} tokens"
    return [title, "", *format_table(columns, {**rows, "step": totals}), ""]


def _format_cells(profiles: Mapping[str, Profile], group: str) -> list[str]:
    return [
        cell
        for profile in profiles.values()
        for cell in (f"{profile[group]:.1f}", f"{profile[group] / sum(profile.values()):.0%}")
    ]


def format_text(args: argparse.Namespace, results: Mapping[str, Mapping[str, Profile]]) -> str:
    """Return the section of the docs page."""
    work = ",".join(work.name for work in args.work)
    before = " --before CHECKOUT" if args.before else ""
    options = f" --options='{args.options}'" if args.options else ""
    own = f"python benchmarks/step_profile.py --data-dir DATA --work {work} --steps {args.steps}"
    about = (
        f"Milliseconds per training step, means of {args.steps} steps after {args.warmup_steps}; "
        f"{describe_model_and_rounds(args.model, args.rounds)}. The profiler itself makes steps slower."
    )
    sections = [line for work in args.work for line in format_section(work, results[work.name])]
    command = ["```sh", own + before + options, "```"]
    return "\n".join([about, "", *sections, *describe_machine(), "", *command]) + "\n"


def main() -> None:
    """Sample the rows, profile everything and report."""
    args = parse_args()
    results: dict[str, dict[str, Profile]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for work in args.work:
            print(f"{work.title}: {work}", file=sys.stderr)
            folder = Path(scratch) / work.name
            write_data(work, args.data_dir, folder)
            profiles = run_systems(list_systems(work, args), folder, args.model.resolve(), args.rounds)
            results[work.name] = {name: compute_medians(rounds) for name, rounds in profiles.items()}
    publish(format_text(args, results), args.out)


if __name__ == "__main__":
    main()
