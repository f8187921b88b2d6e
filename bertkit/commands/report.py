"""`report`: write the page of one finished run or the comparison of several, from their directories."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal

from bertkit.commands.configs import NUM_EXPLAINED, ReportConfig
from bertkit.errors import UserError
from bertkit.report.finished_run import load_finished_run
from bertkit.run.finished_run import load_run_task
from bertkit.run_directory import REPORT_FILE
from bertkit.settings.validation import validate_settings
from bertkit.utils import devices
from bertkit.utils.console import print_json
from bertkit.utils.extras import require_extra
from bertkit.utils.files import check_output_file, expand_home, write_text

if TYPE_CHECKING:
    from bertkit.report.finished_run import FinishedRun


@dataclass(frozen=True)
class Report:
    """The path of a page that was written, and a summary of its content as plain values."""

    path: Path
    summary: dict[str, Any]


def report(settings: Mapping[str, Any]) -> Report:
    """Write the page of one run, or the comparison of several.

    Raises:
        UserError: A run is not finished, the runs cannot be compared or explained, or the page cannot be
            written.
    """
    from bertkit.report.comparison import compare_runs

    config = ReportConfig(**validate_settings(ReportConfig, settings, "report()"))
    require_extra("report", ["matplotlib"], "report")
    devices.request_device(config.device)
    if config.explain and len(config.runs) > 1:
        raise UserError(f"--explain: explains a single run, not {len(config.runs)}; pass one of them")
    runs = [load_finished_run(expand_home(run)) for run in config.runs]
    path = runs[0].folder / REPORT_FILE if len(runs) == 1 else Path(REPORT_FILE)
    if config.output:
        path = expand_home(config.output)
    conflict = "already exists and is not an HTML page; pass another file with --output"
    check_output_file(path, _is_html_page(path), "", conflict=conflict)
    summary: dict[str, Any] = {"runs": config.runs}
    if len(runs) == 1:
        html = _render_page(runs[0], config.explain)
    else:
        html, summary = compare_runs(runs)
    write_text(path, html)
    return Report(path, summary | {"bytes": path.stat().st_size})


def _render_page(run: "FinishedRun", is_explained: bool) -> str:
    from bertkit.commands.explain import explain_examples, require_explainable
    from bertkit.report.page import render_page

    if not is_explained:
        return render_page(run)
    require_explainable(load_run_task(run.folder), str(run.folder))
    return render_page(run, explain_examples(run, NUM_EXPLAINED))


def _is_html_page(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:100].lstrip().lower().startswith(b"<!doctype html")


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = report(settings)
    if as_json:
        print_json({"report": str(result.path), **result.summary})
    else:
        typer.echo(f"report: {result.path} ({decimal(result.summary['bytes'])})")
