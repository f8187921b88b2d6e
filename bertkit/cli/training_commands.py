"""The training commands: one for each task, and one for each suite."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.cli.launch import exit_with_launcher, launch
from bertkit.cli.options import build_training_command
from bertkit.errors import format_count
from bertkit.suites import SUITES, suite_class
from bertkit.tasks import TASKS, task_definition
from bertkit.utils import devices, distributed, system

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from bertkit.report.tables import ResultTable


def run_task(task_name: str, settings: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    """Train a task and print its scores as tables or as one JSON object."""
    from bertkit.cli.console import (
        print_dry_run,
        print_preview,
        print_run_json,
        print_scores,
    )
    from bertkit.run.train import train

    if settings.get("nproc", 1) > 1 and system.get_launched_world_size() == 1:
        sys.exit(launch(settings["nproc"], settings.get("device", devices.AUTO)))
    exit_with_launcher()
    run = train(task_name, settings, recipe)
    if not distributed.is_main_process():
        return
    if as_json:
        print_run_json(run)
    elif run.samples:
        print_preview(run.metrics, run.samples)
    elif run.output_dir is None:
        print_dry_run(run.metrics)
    else:
        print_scores(run.metrics, run.output_dir)


def run_suite_command(name: str, settings: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    """Run a suite and print its table, or its metrics as one JSON object."""
    from bertkit.cli.console import out_console, print_run_json
    from bertkit.suites.base import run_suite

    run = run_suite(name, settings, recipe)
    if as_json:
        print_run_json(run)
    elif run.output_dir is None:
        print_plan(run.metrics)
    else:
        print_result_table(suite_class(name).build_table(run.metrics, run.output_dir))
        out_console.print(f"runs: {run.output_dir}", markup=False, soft_wrap=True)


def print_plan(metrics: Mapping[str, Any]) -> None:
    """Print one line for each planned run. Lines are not wrapped, so paths can be copied."""
    from rich.cells import cell_len

    from bertkit.cli.console import out_console

    plan: Sequence[Mapping[str, str]] = metrics["runs"]
    model = f" with {metrics['model']}" if metrics["model"] else ""
    title = f"dry run of {format_count(len(plan), 'run')}{model}: nothing was written"
    out_console.print(title, markup=False, soft_wrap=True)
    lines = [list(plan[0]), *(list(run.values()) for run in plan)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        out_console.print(line.rstrip(), markup=False, soft_wrap=True)


def print_result_table(result: "ResultTable") -> None:
    """Print the table of a suite, its caption and its notes."""
    from rich.table import Table

    from bertkit.cli.console import out_console

    table = Table(title=result.title, title_justify="left", caption=result.caption, caption_justify="left")
    for index, column in enumerate(zip(result.headings, *result.rows, strict=True)):
        justify: JustifyMethod = "left" if index < result.text_columns else "right"
        longest_word = max(len(word) for cell in column for word in cell.split() or [""])
        table.add_column(column[0], justify=justify, overflow="fold", min_width=longest_word)
    for cells in result.rows:
        table.add_row(*cells)
    out_console.print(table)
    for note in [*result.notes, *result.describe_failures()]:
        out_console.print(note, soft_wrap=True)


TASK_COMMANDS = {
    name: build_training_command(name, task_definition(name).config, task_definition(name).help, run_task)
    for name in TASKS
}
SUITE_COMMANDS = {
    name: build_training_command(name, spec.config, spec.help, run_suite_command)
    for name, spec in SUITES.items()
}
