"""What the commands of studies and suites run: the runs, and the tables of their results."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table

from bertkit.errors import format_count
from bertkit.report.tables import ResultTable
from bertkit.report.terminal import print_run_json
from bertkit.run.train import Run
from bertkit.settings.recipes import Recipe
from bertkit.studies.run import run_study
from bertkit.studies.tables import build_study_table, build_trial_table
from bertkit.suites import suite_class
from bertkit.suites.base import run_suite
from bertkit.utils.console import out_console


def run_study_command(task: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None) -> None:
    run = run_study(task, settings, recipe)
    tables = []
    if run.output_dir and not as_json:
        tables = [build_trial_table(run.metrics)] if run.metrics["search"] else []
        tables.append(build_study_table(run.metrics, run.output_dir))
    _print_results(run, as_json, tables, "study")


def run_suite_command(name: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None) -> None:
    run = run_suite(name, settings, recipe)
    tables = []
    if run.output_dir and not as_json:
        tables = [suite_class(name).build_table(run.metrics, run.output_dir)]
    _print_results(run, as_json, tables, "runs")


def _print_results(run: Run, as_json: bool, tables: Sequence[ResultTable], noun: str) -> None:
    if as_json:
        print_run_json(run)
    elif run.output_dir is None:
        print_plan(run.metrics)
    else:
        for table in tables:
            _print_result_table(table)
        out_console.print(f"{noun}: {run.output_dir}", markup=False, soft_wrap=True)


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
