"""How the command line shows a suite."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bertkit.run import Run


def print_suite(run: "Run", as_json: bool, show: Callable[[Mapping[str, Any], object], None]) -> None:
    """The scores as one JSON object, or by `show` and with where the runs lie."""
    if as_json:
        typer.echo(json.dumps({**run.metrics, "output_dir": str(run.output_dir)}, ensure_ascii=False))
        return
    from bertkit.cli.console import out

    show(run.metrics, run.output_dir)
    out.print(f"runs: {run.output_dir}", markup=False, soft_wrap=True)


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], source: str, texts: int
) -> None:
    """The paper's figures beside ours; the first `texts` columns are no numbers."""
    from rich.table import Table

    from bertkit.cli.console import out

    table = Table(title=title, title_justify="left", caption_justify="left", caption=source)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < texts else "right")
    for cells in rows:
        table.add_row(*cells)
    out.print(table)
