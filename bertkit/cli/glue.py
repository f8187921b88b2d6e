"""`bertkit glue`: the paper's table, and ours beside it."""

from typing import Any

from bertkit.cli.options import build_training_command
from bertkit.cli.suites import print_suite
from bertkit.suites.config import GLUE_HELP, GlueConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suites.glue import GlueSuite, run_glue

    print_suite(run_glue(given, recipe, ConsoleReporter()), as_json, GlueSuite.build_table)


glue = build_training_command("glue", GlueConfig, GLUE_HELP, _run)
