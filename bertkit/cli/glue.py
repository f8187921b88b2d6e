"""`bertkit glue`: the paper's table, and ours beside it."""

from typing import Any

from bertkit.cli.options import training_command
from bertkit.cli.suites import print_suite
from bertkit.suite.config import HELP, GlueConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suite.runs import GlueSuite, run_glue

    print_suite(run_glue(given, recipe, ConsoleReporter()), as_json, GlueSuite.shown)


glue = training_command("glue", GlueConfig, HELP, _run)
