"""How the command line shows a suite."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bertkit.run import Run


def print_suite(run: "Run", as_json: bool, show: Callable[[Mapping[str, Any], object], None]) -> None:
    """The scores as one JSON object, or by `show` and with where the runs lie; of a dry run the plan."""
    if as_json:
        where = {"output_dir": str(run.output_dir)} if run.output_dir else {}
        typer.echo(json.dumps({**run.metrics, **where}, ensure_ascii=False))
        return
    from bertkit.cli.console import out

    if run.output_dir is None:
        _print_plan(run.metrics)
        return
    show(run.metrics, run.output_dir)
    out.print(f"runs: {run.output_dir}", markup=False, soft_wrap=True)


def _print_plan(metrics: Mapping[str, Any]) -> None:
    """A line a run, however wide the terminal: what stands there is to be copied."""
    from bertkit.cli.console import out

    plan = metrics["runs"]
    model = f" with {metrics['model']}" if metrics["model"] else ""
    out.print(f"dry run of {len(plan)} runs{model}: nothing was written", markup=False, soft_wrap=True)
    lines = [list(plan[0]), *(row.values() for row in plan)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        out.print(line.rstrip(), markup=False, soft_wrap=True)


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], source: str, texts: int
) -> None:
    """The paper's figures beside ours; the first `texts` columns are no numbers."""
    from rich.table import Table

    from bertkit.cli.console import out

    table = Table(title=title, title_justify="left", caption_justify="left", caption=source)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < texts else "right", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    out.print(table)
