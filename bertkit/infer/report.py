"""`report`: write the page of one finished run or the comparison of several, from their directories."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.common_settings import device_setting
from bertkit.errors import UserError
from bertkit.run_directory import REPORT_FILE
from bertkit.setting import OUTPUT, Settings, setting
from bertkit.utils import devices
from bertkit.utils.extras import require_extra
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.reports.finished_run import FinishedRun

REPORT_HELP = "Write the report page of a finished run again, or compare several runs on one page."
NUM_EXPLAINED = 20  # examples with --explain: the first page of the error browser


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
    explain: bool = setting(
        False,
        f"Shade the words of the {NUM_EXPLAINED} worst examples by their attribution to the prediction "
        "(classify and nli).",
        OUTPUT,
    )
    device: str = device_setting()


@dataclass(frozen=True)
class Report:
    """The path of a page that was written, and a summary of its content as plain values."""

    path: Path
    summary: dict[str, Any]


def report(settings: Mapping[str, Any], reporter: Reporter | None = None) -> Report:
    """Write the page of one run, or the comparison of several.

    Raises:
        UserError: A run is not finished, the runs cannot be compared or explained, or the page cannot be
            written.
    """
    from bertkit.reports.comparison import compare_runs
    from bertkit.reports.finished_run import load_finished_run
    from bertkit.utils.files import write_text
    from bertkit.utils.output_paths import check_output_file

    config = ReportConfig(**validate_settings(ReportConfig, settings, "report()"))
    reporter = reporter or Reporter()
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
        html = _render_page(runs[0], config.explain, reporter)
    else:
        html, summary = compare_runs(runs, reporter)
    write_text(path, html)
    return Report(path, summary | {"bytes": path.stat().st_size})


def _render_page(run: "FinishedRun", is_explained: bool, reporter: Reporter) -> str:
    from bertkit.infer.explain import require_explainable
    from bertkit.infer.explain_examples import explain_examples
    from bertkit.pipeline.finished_run import load_run_task
    from bertkit.reports.page import render_page

    if not is_explained:
        return render_page(run)
    require_explainable(load_run_task(run.folder), str(run.folder))
    return render_page(run, explain_examples(run, NUM_EXPLAINED, reporter))


def _is_html_page(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:100].lstrip().lower().startswith(b"<!doctype html")
