"""What the commands of studies and suites run: the runs, and the tables of their results."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table

from bertkit.errors import format_count
from bertkit.experiments.config import find_experiment
from bertkit.experiments.experiment import run_experiment
from bertkit.reports.tables import ResultTable
from bertkit.reports.terminal import print_run_json
from bertkit.settings.recipes import Recipe
from bertkit.utils.console import out_console


def run_command(command: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None) -> None:
    run = run_experiment(command, settings, recipe)
    if as_json:
        print_run_json(run)
    elif run.output_dir is None:
        print_plan(run.metrics)
    else:
        experiment = find_experiment(command)
        for table in experiment.build_tables(run.metrics, run.output_dir):
            _print_result_table(table)
        out_console.print(f"{experiment.noun}: {run.output_dir}", markup=False, soft_wrap=True)


def print_plan(metrics: Mapping[str, Any]) -> None:
    """Print one line for each planned run. Lines are not wrapped, so paths can be copied."""
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


def _print_result_table(result: ResultTable) -> None:
    """Print the table of a suite, its caption and its notes."""
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
