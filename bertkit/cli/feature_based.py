"""`bertkit feature-based`: the paper's table of frozen features, and ours beside it."""

from typing import Any

from bertkit.cli.options import build_training_command
from bertkit.cli.suites import print_suite
from bertkit.suites.config import FEATURE_BASED_HELP, FeatureBasedConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suites.feature_based import FeatureBasedSuite, run_feature_based

    print_suite(run_feature_based(given, recipe, ConsoleReporter()), as_json, FeatureBasedSuite.build_table)


feature_based = build_training_command("feature-based", FeatureBasedConfig, FEATURE_BASED_HELP, _run)
