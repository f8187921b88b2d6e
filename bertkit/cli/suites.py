"""How the command line shows a suite."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from bertkit.errors import format_count

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import JustifyMethod

    from bertkit.pipeline.run import Run
    from bertkit.suites.result_table import ResultTable


def print_suite(
    run: "Run", as_json: bool, build_table: "Callable[[Mapping[str, Any], Path], ResultTable]"
) -> None:
    """The scores as one JSON object, or as `shown` and with where the runs lie; of a dry run the plan."""
    if as_json:
        where = {"output_dir": str(run.output_dir)} if run.output_dir else {}
        typer.echo(json.dumps({**run.metrics, **where}, ensure_ascii=False))
        return
    from bertkit.cli.console import out_console

    if run.output_dir is None:
        _print_plan(run.metrics)
        return
    _print_table(build_table(run.metrics, run.output_dir))
    out_console.print(f"runs: {run.output_dir}", markup=False, soft_wrap=True)


def _print_plan(metrics: Mapping[str, Any]) -> None:
    """A line a run, however wide the terminal: what stands there is to be copied."""
    from bertkit.cli.console import out_console

    plan = metrics["runs"]
    model = f" with {metrics['model']}" if metrics["model"] else ""
    runs = format_count(len(plan), "run")
    out_console.print(f"dry run of {runs}{model}: nothing was written", markup=False, soft_wrap=True)
    lines = [list(plan[0]), *(row.values() for row in plan)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        out_console.print(line.rstrip(), markup=False, soft_wrap=True)


def _print_table(shown: "ResultTable") -> None:
    """The paper's figures beside ours."""
    from rich.table import Table

    from bertkit.cli.console import out_console

    table = Table(title=shown.title, title_justify="left", caption_justify="left", caption=shown.caption)
    for number, column in enumerate(zip(shown.headings, *shown.rows, strict=True)):
        justify: JustifyMethod = "left" if number < shown.text_columns else "right"
        longest = max(len(word) for cell in column for word in cell.split() or [""])
        table.add_column(column[0], justify=justify, overflow="fold", min_width=longest)  # no word is broken
    for cells in shown.rows:
        table.add_row(*cells)
    out_console.print(table)
    for note in shown.notes:
        out_console.print(note, soft_wrap=True)
