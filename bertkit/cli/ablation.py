"""`bertkit ablation`: the paper's tables of what matters in pre-training, and ours beside them."""

from typing import Any

from bertkit.cli.options import build_training_command
from bertkit.cli.suites import print_suite
from bertkit.suites.config import ABLATION_HELP, AblationConfig


def _run(_: str, given: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.suites.ablation import AblationSuite, run_ablation

    print_suite(run_ablation(given, recipe, ConsoleReporter()), as_json, AblationSuite.build_table)


ablation = build_training_command("ablation", AblationConfig, ABLATION_HELP, _run)
