"""Charts of a calibrated run: reliability, risk by coverage, and scores by threshold.

Each chart has a table of its values.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bertkit._version import __version__
from bertkit.charts import (
    INK,
    LINE_COLORS,
    Chart,
    build_training_charts,
    fit_left_margin,
    plot_reliability_diagram,
    render_chart,
)
from bertkit.errors import format_count
from bertkit.report.card import (
    format_baseline_names,
    format_comparison_rows,
    format_detail_rows,
    format_distillation_rows,
    format_score_rows,
    name_compared_run,
)
from bertkit.report.finished_run import (
    EXTRA_SPLITS,
    CalibrationRecord,
    FinishedRun,
    RiskCoverage,
    ThresholdRecord,
)
from bertkit.run_directory import CARD_FILE, REPORT_FILE
from bertkit.stats.calibration import Calibration
from bertkit.stats.metric_modules import is_lower_better
from bertkit.tasks import TASKS, task_definition
from bertkit.tasks.view import Attribution, Example, View, build_error_browser
from bertkit.utils.files import write_text

RISK_NOTE = (
    "Fraction of wrong predictions among the answered rows, if the model answers only the most confident "
    "rows. The confidence of each row is computed with numbers that are fitted on other rows. AURC is the "
    "area under the curve."
)
THRESHOLD_NOTE = (
    "Scores on the calibration rows if a label is predicted above this probability, the same for all labels."
)


def build_calibration_charts(run: FinishedRun) -> list[Chart]:
    """Return the charts of a calibrated run; empty if the run is not calibrated."""
    calibration = run.calibration
    charts = [
        _plot_reliability(Calibration.from_dict(reliability), part, _describe_rows(run))
        for part, reliability in calibration.get("reliability", {}).items()
    ]
    if risk_coverage := calibration.get("risk_coverage"):
        charts.append(_plot_risk_coverage(risk_coverage, calibration))
    threshold = calibration.get("threshold")
    if threshold and "curve" in threshold:
        charts.append(_plot_thresholds(threshold))
    return charts


def _describe_rows(run: FinishedRun) -> str:
    """Return one sentence on the calibration rows; empty if they are not known."""
    if (data := run.calibration.get("data")) is None:
        return ""
    name = "the validation split" if run.is_calibrated_on_validation else data.get("name", "other data")
    return f"Calibration rows: {data['rows']:,} of {name}. "


def _plot_reliability(calibration: Calibration, part: str, rows_note: str) -> Chart:
    chart = plot_reliability_diagram(calibration, title=f"Reliability {part} calibration")
    columns = zip(calibration.count, calibration.confidence, calibration.accuracy, strict=True)
    rows = [
        [f"{count:,.0f}", f"{confidence:.3f}", f"{accuracy:.3f}"]
        for count, confidence, accuracy in columns
        if count
    ]
    table = [["predictions", "confidence", "accuracy"], *rows]
    return replace(chart, note=rows_note + chart.note, table=table)


def _plot_risk_coverage(curve: RiskCoverage, calibration: CalibrationRecord) -> Chart:
    """Plot the risk by coverage, and mark the coverage at which the model abstains."""
    chosen = _find_chosen_coverage(curve, calibration)

    def draw(axes: Any) -> None:
        axes.plot(curve["coverage"], curve["risk"], color=LINE_COLORS[0], marker="o", markersize=3)
        if chosen is not None:
            axes.axvline(chosen, color=INK, linewidth=1, dashes=(4, 3), label="answered")
            axes.legend(loc="best", fontsize=9.5)
        axes.grid(axis="y")
        axes.set(xlim=(0, 1), xlabel="coverage", ylabel="risk")
        axes.set_ylim(bottom=0)
        fit_left_margin(axes)

    num_rows = calibration.get("data", {"rows": 0})["rows"]
    chart = render_chart(f"Risk and coverage: AURC {curve['aurc']:.3f}", draw, RISK_NOTE)
    return replace(chart, table=_list_costs(curve, num_rows))


def _find_chosen_coverage(curve: RiskCoverage, calibration: CalibrationRecord) -> float | None:
    """Return the highest coverage of the curve without rows from which the model abstains."""
    if "abstention" not in calibration:
        return None
    minimum = calibration["abstention"]["min_confidence"]
    points = zip(curve["coverage"], curve["min_confidence"], strict=True)
    return max((coverage for coverage, confidence in points if confidence >= minimum), default=None)


def _list_costs(curve: RiskCoverage, num_rows: int) -> list[list[str]]:
    """Return what each coverage costs: the rows without an answer, and the wrong answers."""
    header = ["coverage", "minimum confidence", "risk", "rows without answer", "wrong answers"]
    points = zip(curve["coverage"], curve["min_confidence"], curve["risk"], strict=True)
    return [header] + [
        [
            f"{coverage:.2f}",
            f"{confidence:.3f}",
            f"{risk:.3f}",
            f"{round(num_rows * (1 - coverage)):,}",
            f"{round(num_rows * coverage * risk):,}",
        ]
        for coverage, confidence, risk in points
    ]


def _plot_thresholds(threshold: ThresholdRecord) -> Chart:
    """Plot the scores by threshold, and mark the fitted thresholds."""
    scores = dict(threshold["curve"])
    x = scores.pop("threshold")

    def draw(axes: Any) -> None:
        for number, (name, values) in enumerate(scores.items()):
            axes.plot(x, values, color=LINE_COLORS[number % len(LINE_COLORS)], label=name)
        for value in set(threshold["thresholds"].values()):
            axes.axvline(value, color=INK, linewidth=1, dashes=(4, 3))
        axes.grid(axis="y")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold", ylabel="score")
        axes.legend(loc="best", fontsize=9.5)

    chart = render_chart("Scores by threshold", draw, THRESHOLD_NOTE)
    return replace(chart, table=_list_scores(x, scores))


def _list_scores(x: Sequence[float], scores: Mapping[str, Sequence[float]]) -> list[list[str]]:
    rows = zip(x, *scores.values(), strict=True)
    return [["threshold", *scores], *([f"{value:.3f}" for value in row] for row in rows)]


MIN_STRENGTH = 0.1  # weaker words are not shaded


@dataclass(frozen=True)
class ExampleExplanation:
    """The attributions of one example.

    Attributes:
        target: What is explained, such as the predicted label.
        error: Completeness error, as a fraction.
        attributions: The attributions of the words that are shaded, by the name of the field.
    """

    target: str
    error: float
    attributions: Mapping[str, list[Attribution]]


def compute_strengths(attributions: Sequence[float]) -> list[float]:
    """Return attributions as fractions of the highest absolute one; 0 for words that are not shaded."""
    highest = max(map(abs, attributions), default=0.0) or 1.0
    strengths = [attribution / highest for attribution in attributions]
    return [strength if abs(strength) >= MIN_STRENGTH else 0.0 for strength in strengths]


def add_explanation(example: Example, explanation: ExampleExplanation) -> Example:
    """Return the example with the attributions of its words."""
    fields = [
        dataclasses.replace(field, attributions=explanation.attributions.get(field.name, []))
        for field in example.fields
    ]
    return dataclasses.replace(example, fields=fields, explained=(explanation.target, explanation.error))


def create_view(run: FinishedRun) -> View | None:
    """Create the view for the records of a run; None if no view matches them.

    Raises:
        UserError: A record is invalid; the message has its line number.
    """
    views = run.definition.load_views()
    view = next((view for record in run.records for view in views if view.matches(record)), None)
    return view(run, run.records) if view else None


NO_EXPLANATIONS: Mapping[int, ExampleExplanation] = {}
TEMPLATE_DIR = Path(__file__).parent / "templates"


def write_page(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the page of a run. All other files must exist, except `metrics.json`, which is written last."""
    write_text(
        folder / REPORT_FILE, render_page(FinishedRun(folder, metrics, task_definition(metrics["task"])))
    )


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
        return {"text/html": render_run(FinishedRun(folder, metrics, task_definition(metrics["task"])))}
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
