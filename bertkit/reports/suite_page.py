"""Render the page of a suite as a single HTML file that loads no other file."""

from collections.abc import Mapping, Sequence

from bertkit.reports.charts import Chart
from bertkit.reports.page import render_template
from bertkit.reports.result_table import ResultTable


def render_suite_page(tables: Mapping[str, ResultTable], charts: Sequence[Chart], runs: Sequence[str]) -> str:
    """Render the tables and charts of a suite as HTML, with a link to the page of each run.

    Args:
        tables: Tables by heading; the title of the first one is that of the page.
        charts: Charts of the results.
        runs: Directory of each finished run, relative to that of the suite.
    """
    title = next(iter(tables.values())).title
    return render_template("suite.html", title=title, tables=tables, charts=charts, runs=runs)
