"""How Jupyter displays the result of a training command."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.reports.calibration_charts import build_calibration_charts
from bertkit.reports.charts import Chart, build_training_charts
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.model_card import format_baseline_names, format_score_rows
from bertkit.reports.page import get_environment
from bertkit.reports.views.registry import create_view
from bertkit.run_directory import CARD_FILE, REPORT_FILE
from bertkit.tasks import TASKS, task_spec

CLICK_NOTE = "Click a cell to see its examples."  # which a notebook does not have


def build_mime_bundle(folder: Path | None, metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the content that Jupyter displays, by MIME type.

    Args:
        folder: The run directory; None after a dry run or a preview.
        metrics: Content of `metrics.json`, or measurements of a dry run or a preview.

    Returns:
        Scores and charts of a single run as HTML, and the table of a suite or a study as Markdown. All other
        results are JSON in a code block.
    """
    if folder and metrics.get("task") in TASKS:
        return {"text/html": render_run(FinishedRun(folder, metrics, task_spec(metrics["task"])))}
    if folder and (folder / CARD_FILE).exists():
        return {"text/markdown": (folder / CARD_FILE).read_text("utf-8")}
    content = json.dumps(metrics, indent=2, ensure_ascii=False, default=str)
    return {"text/markdown": f"```json\n{content}\n```"}


def render_run(run: FinishedRun) -> str:
    """Render the scores and the charts of a run as a fragment of HTML, in the colors of the notebook."""
    report = run.folder / REPORT_FILE
    return get_environment().get_template("notebook.html").render(
        metrics=run.metrics,
        folder=run.folder,
        report=report if report.exists() else None,
        is_calibrated=bool(run.calibration),
        scores=format_score_rows(run.metrics),
        baseline_names=format_baseline_names(run.metrics),
        charts=_build_charts(run) if run.folder.exists() else [],
    )  # fmt: skip


def _build_charts(run: FinishedRun) -> list[Chart]:
    view = create_view(run)
    result_charts = view.build_charts() if view else []
    charts = [*build_training_charts(run.log), *result_charts, *build_calibration_charts(run)]
    return [replace(chart, note=chart.note.removesuffix(CLICK_NOTE)) for chart in charts]
