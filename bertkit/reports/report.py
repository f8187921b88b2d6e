"""`report`: write the page of one finished run or the comparison of several, from their directories."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.run_directory import REPORT_FILE
from bertkit.setting import OUTPUT, Settings, setting
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

REPORT_HELP = "Write the report page of a finished run again, or compare several runs on one page."


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """Settings of `bertkit report`."""

    runs: list[str] = setting(
        dataclasses.MISSING,
        "Finished runs; if there are several, each is compared with the first.",
        OUTPUT,
        is_positional=True,
    )
    output: str | None = setting(
        None,
        "HTML file to write.",
        OUTPUT,
        flags=("--output", "-o"),
        default_text=f"RUN/{REPORT_FILE}; for several runs {REPORT_FILE}",
    )


@dataclass(frozen=True)
class Report:
    """The path of a page that was written, and a summary of its content as plain values."""

    path: Path
    summary: dict[str, Any]


def report(settings: Mapping[str, Any], reporter: Reporter | None = None) -> Report:
    """Write the page of one run, or the comparison of several.

    Raises:
        UserError: A run is not finished, the runs cannot be compared, or the page cannot be written.
    """
    from bertkit.reports.comparison import compare_runs
    from bertkit.reports.finished_run import load_finished_run
    from bertkit.reports.page import render_page
    from bertkit.utils.files import write_text
    from bertkit.utils.output_paths import check_output_file

    config = ReportConfig(**validate_settings(ReportConfig, settings, "report()"))
    runs = [load_finished_run(Path(run).expanduser()) for run in config.runs]
    summary: dict[str, Any] = {"runs": config.runs}
    if len(runs) == 1:
        path, html = runs[0].folder / REPORT_FILE, render_page(runs[0])
    else:
        path = Path(REPORT_FILE)
        html, summary = compare_runs(runs, reporter or Reporter())
    if config.output:
        path = Path(config.output).expanduser()
    conflict = "already exists and is not an HTML page; pass another file with --output"
    check_output_file(path, _is_html_page(path), "", conflict=conflict)
    write_text(path, html)
    return Report(path, summary | {"bytes": path.stat().st_size})


def _is_html_page(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:100].lstrip().lower().startswith(b"<!doctype html")
