"""`bertkit report`: the page of a run, or a comparison of several."""

import json
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.reports.report import REPORT_HELP, ReportConfig


def _run(given: dict[str, Any], as_json: bool) -> None:
    from rich.filesize import decimal

    from bertkit.cli.console import ConsoleReporter
    from bertkit.reports.report import report

    made = report(given, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps({"report": str(made.path), **made.summary}, ensure_ascii=False))
        return
    typer.echo(f"report: {made.path} ({decimal(made.summary['bytes'])})")


report = build_command(ReportConfig, REPORT_HELP, _run)
