"""`bertkit feature-based`: the paper's table of frozen features, and ours beside it."""

from collections.abc import Mapping
from typing import Any

from bertkit.cli.options import training_command
from bertkit.cli.suites import print_suite, print_table
from bertkit.suite.config import FEATURE_BASED_HELP, FeatureBasedConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suite.feature_based import run_feature_based

    print_suite(run_feature_based(given, recipe, ConsoleReporter()), as_json, _print)


def _print(metrics: Mapping[str, Any], _: object) -> None:
    from bertkit.suite.feature_based import HEADINGS, rows, source, title

    print_table(title(metrics), HEADINGS, rows(metrics), source(metrics), 1)


feature_based = training_command("feature-based", FeatureBasedConfig, FEATURE_BASED_HELP, _run)
