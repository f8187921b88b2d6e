"""Render the page of one run as a single HTML file that loads no other file."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bertkit._version import __version__
from bertkit.errors import format_count
from bertkit.metrics.modules import is_lower_better
from bertkit.reports.attributions import ExampleExplanation, add_explanation
from bertkit.reports.calibration_charts import build_calibration_charts
from bertkit.reports.charts import build_training_charts
from bertkit.reports.examples import build_error_browser
from bertkit.reports.finished_run import EXTRA_SPLITS, FinishedRun
from bertkit.reports.model_card import (
    format_baseline_names,
    format_comparison_rows,
    format_detail_rows,
    format_distillation_rows,
    format_score_rows,
    name_compared_run,
)
from bertkit.reports.views.registry import create_view
from bertkit.run_directory import REPORT_FILE
from bertkit.tasks import task_spec
from bertkit.utils.files import write_text

NO_EXPLANATIONS: Mapping[int, ExampleExplanation] = {}
TEMPLATE_DIR = Path(__file__).parent / "templates"


def write_page(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the page of a run. All other files must exist, except `metrics.json`, which is written last."""
    write_text(folder / REPORT_FILE, render_page(FinishedRun(folder, metrics, task_spec(metrics["task"]))))


def render_page(run: FinishedRun, explanations: Mapping[int, ExampleExplanation] = NO_EXPLANATIONS) -> str:
    """Render the scores, settings, data, training curves and examples of a run as HTML.

    Args:
        run: The run.
        explanations: Explanations of examples, by the index of the record.
    """
    view = create_view(run)
    error_browser = None
    if view:
        examples = [
            add_explanation(example, explanations[index]) if index in explanations else example
            for index, example in enumerate(view.build_examples())
        ]
        error_browser = build_error_browser(examples, view.measure_name, view.filter_names)
    return render_template(
        "page.html",
        title=run.name,
        run=run,
        scores=[(*row, compute_interval_bar(run.metrics, row[0])) for row in format_score_rows(run.metrics)],
        compared=format_comparison_rows(run.metrics),
        compared_name=name_compared_run(run.metrics),
        models=format_distillation_rows(run.metrics),
        details=format_detail_rows(run.metrics),
        baseline_names=format_baseline_names(run.metrics),
        extra_splits={split: run.metrics[split] for split in EXTRA_SPLITS if run.metrics.get(split)},
        training_charts=build_training_charts(run.log),
        result_charts=[*(view.build_charts() if view else []), *build_calibration_charts(run)],
        error_browser=error_browser,
        num_explained=len(explanations),
    )


def compute_interval_bar(metrics: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the positions of a score, its interval and its baselines on a bar, in percent of its length.

    Returns:
        `score`, `low` and `high`, and `baselines` by name. None if the metric has no interval or no upper
        bound (such as a loss or an error), or if a value is outside of the scale.
    """
    value, interval = metrics["validation"][name], metrics["intervals"].get(name)
    if interval is None or is_lower_better(name):
        return None
    baselines = {
        baseline: scores[name] for baseline, scores in metrics["baselines"].items() if name in scores
    }
    values = [value, *interval, *baselines.values()]
    # Scores are fractions, except those of SQuAD, which are percentages and usually exceed 1.
    upper_bound = 100.0 if max(values) > 1 else 1.0
    if min(values) < 0 or max(values) > upper_bound:
        return None

    def to_percent(scores: Mapping[str, float]) -> dict[str, float]:
        return {key: round(100 * score / upper_bound, 2) for key, score in scores.items()}

    bar = to_percent({"score": value, "low": interval[0], "high": interval[1]})
    return {**bar, "baselines": to_percent(baselines)}


def render_template(template: str, script_name: str = "browser.js", **values: Any) -> str:
    """Render a page with inline style and script; its security policy allows nothing else to be loaded.

    Args:
        template: File name of the template.
        script_name: File name of the script, which follows that of all pages.
        **values: Variables of the template.
    """
    style, common, own = (
        Markup((TEMPLATE_DIR / name).read_text("utf-8"))  # noqa: S704 (our own files)
        for name in ("page.css", "common.js", script_name)
    )
    script = common + own
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return get_environment().get_template(template).render(
        style=style, script=script, digest=digest, version=__version__, **values
    )  # fmt: skip


@cache
def get_environment() -> jinja2.Environment:
    """Return the environment of the templates."""
    loader = jinja2.FileSystemLoader(TEMPLATE_DIR)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = _format_value
    environment.filters["counted"] = format_count
    return environment


def _format_value(value: Any) -> str:
    """Format a number with thousands separators or four digits; return text as it is, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
