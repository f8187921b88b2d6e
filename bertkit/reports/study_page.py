"""Render the page of a study as a single HTML file that loads no other file."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.reports.page import render_template
from bertkit.reports.result_table import ResultTable
from bertkit.reports.study_charts import build_study_charts


def render_study_page(
    metrics: Mapping[str, Any], tables: Mapping[str, ResultTable], notes: Sequence[str]
) -> str:
    """Render the scores, the trials and the charts of a study as HTML.

    Args:
        metrics: Content of `study.json`.
        tables: Tables by heading.
        notes: Lines on the search, the paired test and the ensemble.
    """
    return render_template(
        "study.html",
        title=f"study {metrics['command']} · {metrics['data']['name']} · {metrics['model']}",
        metrics=metrics,
        tables=tables,
        notes=notes,
        charts=build_study_charts(metrics),
    )
