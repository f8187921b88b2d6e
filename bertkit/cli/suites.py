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
        plan = run.metrics["runs"]
        model = f" with {run.metrics['model']}" if run.metrics["model"] else ""
        title = f"dry run of {len(plan)} runs{model}: nothing was written"
        print_table(title, list(plan[0]), [list(row.values()) for row in plan], "", len(plan[0]))
        return
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
