"""`bertkit glue`: the paper's table, and ours beside it."""

import json
from typing import Any

import typer

from bertkit.cli.options import training_command
from bertkit.suite.config import HELP, GlueConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suite.runs import run_glue

    run = run_glue(given, recipe, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps({**run.metrics, "output_dir": str(run.output_dir)}, ensure_ascii=False))
    else:
        _print(run.metrics, run.output_dir)


def _print(metrics: dict[str, Any], folder: object) -> None:
    from rich.table import Table

    from bertkit.cli.console import out
    from bertkit.suite.submission import FOLDER
    from bertkit.suite.table import HEADINGS, SOURCE, lines

    table = Table(
        title=f"GLUE · {metrics['model']}", title_justify="left", caption_justify="left", caption=SOURCE
    )
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for line in lines(metrics):
        table.add_row(*line.cells)
    out.print(table)
    if metrics["submission"]:
        out.print(
            f"for the leaderboard: {folder}/{FOLDER}: {', '.join(metrics['submission'])}", soft_wrap=True
        )
    out.print(f"runs: {folder}", markup=False, soft_wrap=True)


glue = training_command("glue", GlueConfig, HELP, _run)
