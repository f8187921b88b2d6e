"""`bertkit glue`: the paper's table, and ours beside it."""

from collections.abc import Mapping
from typing import Any

from bertkit.cli.options import training_command
from bertkit.cli.suites import print_suite, print_table
from bertkit.suite.config import HELP, GlueConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suite.runs import run_glue

    print_suite(run_glue(given, recipe, ConsoleReporter()), as_json, _print)


def _print(metrics: Mapping[str, Any], folder: object) -> None:
    from bertkit.cli.console import out
    from bertkit.suite.submission import FOLDER
    from bertkit.suite.table import HEADINGS, SOURCE, lines

    print_table(f"GLUE · {metrics['model']}", HEADINGS, [line.cells for line in lines(metrics)], SOURCE, 2)
    if metrics["submission"]:
        out.print(
            f"for the leaderboard: {folder}/{FOLDER}: {', '.join(metrics['submission'])}", soft_wrap=True
        )


glue = training_command("glue", GlueConfig, HELP, _run)
