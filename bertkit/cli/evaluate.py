"""`bertkit evaluate`: the scores of a finished run on other data."""

import json
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.infer.configs import EVALUATE_HELP, EvaluateConfig


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter, print_scores
    from bertkit.infer.evaluate import evaluate

    run = evaluate(given, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps({**run.metrics, "output_dir": str(run.output_dir)}, ensure_ascii=False))
    else:
        print_scores(run.metrics, run.output_dir)


evaluate = build_command(EvaluateConfig, EVALUATE_HELP, _run)
