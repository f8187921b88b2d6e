"""`report`: the page of a finished run, and the comparison of several, from their directories alone."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import OUTPUT, Settings, setting
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

REPORT_HELP = "Write the page of a finished run anew, or compare several runs in one."
REPORT_FILE = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """The settings of `bertkit report`."""

    runs: list[str] = setting(
        dataclasses.MISSING, "Finished runs. Several are compared with the first.", OUTPUT, is_positional=True
    )
    output: str | None = setting(
        None,
        "The page to write.",
        OUTPUT,
        flags=("--output", "-o"),
        default_text=f"RUN/{REPORT_FILE}, of several runs {REPORT_FILE}",
    )


@dataclass(frozen=True)
class Report:
    """A page that was written: where it lies, and what it tells, as plain values."""

    path: Path
    summary: dict[str, Any]


def report(settings: Mapping[str, Any], reporter: Reporter | None = None) -> Report:
    """Write the page of one run, or the comparison of several.

    Raises:
        UserError: no finished run, runs of different tasks, or a page that cannot be written.
    """
    from bertkit.reports.comparison import compare_runs
    from bertkit.reports.finished_run import load_finished_run
    from bertkit.reports.page import render_page
    from bertkit.utils.files import write_text
    from bertkit.utils.output_paths import check_output_file

    reporter = reporter or Reporter()
    config = ReportConfig(**validate_settings(ReportConfig, settings, "report()"))
    runs = [load_finished_run(Path(run).expanduser()) for run in config.runs]
    if len(runs) == 1:
        path, (text, figures) = runs[0].folder / REPORT_FILE, (render_page(runs[0]), {"runs": config.runs})
    else:
        path, (text, figures) = Path(REPORT_FILE), compare_runs(runs, reporter)
    path = Path(config.output).expanduser() if config.output else path
    check_output_file(
        path, _is_html_page(path), "", conflict="exists and is not an HTML page; choose another file with --output"
    )
    write_text(path, text)
    return Report(path, figures | {"bytes": path.stat().st_size})


def _is_html_page(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:100].lstrip().lower().startswith(b"<!doctype html")
