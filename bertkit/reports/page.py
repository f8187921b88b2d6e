"""The page of a finished run, and what a notebook displays of it."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
from bertkit.data.groups_and_times import describe_sides
from bertkit.errors import format_count
from bertkit.reports import card
from bertkit.run_directory import EXTRA_SPLITS, CalibrationRecord, RiskCoverage, RunDir, ThresholdRecord
from bertkit.stats.calibration import Calibration
from bertkit.stats.metric_modules import is_lower_better
from bertkit.tasks import list_tasks
from bertkit.tasks.view import Attribution, FinishedRun, View, build_error_browser
from bertkit.utils.text import format_signed

RISK_NOTE = (
    "Fraction of wrong predictions among the answered rows, if the model answers only the most confident "
    "rows. The confidence of each row is computed with numbers that are fitted on other rows. AURC is the "
    "area under the curve."
)
THRESHOLD_NOTE = (
    "Scores on the calibration rows if a label is predicted above this probability, the same for all labels."
)
CLICK_NOTE = "Click a cell to see its examples."  # which a notebook does not have
MIN_STRENGTH = 0.1  # weaker words are not shaded
TEMPLATE_DIR = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ExampleExplanation:
    """The attributions of one example."""

    target: str  # what is explained, such as the predicted label
    error: float  # completeness error, as a fraction
    attributions: Mapping[str, list[Attribution]]  # of the words that are shaded, by the name of the field


def write_page(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the page of a run. All other files must exist, except `metrics.json`, which is written last."""
    run = FinishedRun(folder, metrics)
    run.write_report(render_page(run))


def render_page(run: FinishedRun, explanations: Mapping[int, ExampleExplanation] | None = None) -> str:
    """Render the scores, settings, data, training curves and examples of a run as HTML.

    `explanations` are those of some examples, by the index of the record.
    """
    explanations = explanations or {}
    metrics, view = run.metrics, create_view(run)
    error_browser = None
    if view:
        examples = view.build_examples()
        for index, found in explanations.items():
            fields = [
                replace(field, attributions=found.attributions.get(field.name, []))
                for field in examples[index].fields
            ]
            examples[index] = replace(examples[index], fields=fields, explained=(found.target, found.error))
        error_browser = build_error_browser(examples, view.measure_name, view.filter_names)
    return render_template(
        "page.html",
        title=run.name,
        run=run,
        data_facts={
            name: describe_sides(value) if isinstance(value, dict) else value
            for name, value in metrics["data"].items()
        },
        judgement=card.list_judgement(metrics, bool(run.calibration)),
        scores=[(row, compute_interval_bar(metrics, row[0])) for row in card.format_score_rows(metrics)],
        compared=card.format_comparison_rows(metrics),
        compared_name=card.name_compared_run(metrics),
        models=card.format_distillation_rows(metrics),
        details=card.format_detail_rows(metrics),
        slices=card.format_slice_tables(metrics),
        slices_summary=card.describe_slices(metrics) if metrics.get("slices") else None,
        baseline_names=card.format_baseline_names(metrics),
        extra_splits={split: metrics[split] for split in EXTRA_SPLITS if metrics.get(split)},
        training_charts=build_training_charts(run.log),
        result_charts=[*(view.build_charts() if view else []), *build_calibration_charts(run)],
        error_browser=error_browser,
        num_explained=len(explanations),
    )


def compute_interval_bar(metrics: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the positions of a score, its interval and its baselines on a bar, in percent of its length.

    The result is None if the metric has no interval or no upper bound (such as a loss or an error), or if a
    value is outside of the scale.
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

    The script follows that of all pages. `values` are the variables of the template.
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
    loader = jinja2.FileSystemLoader(TEMPLATE_DIR)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = _format_value
    environment.filters["counted"] = format_count
    environment.filters["signed"] = partial(format_signed, spec="+.3f")
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


def create_view(run: FinishedRun) -> View | None:
    """Create the view for the records of a run; None if no view matches them."""
    views = run.definition.load_views()
    view = next((view for record in run.records for view in views if view.matches(record)), None)
    return view(run, run.records) if view else None


def compute_strengths(attributions: Sequence[float]) -> list[float]:
    """Return attributions as fractions of the highest absolute one; 0 for words that are not shaded."""
    highest = max(map(abs, attributions), default=0.0) or 1.0
    strengths = [attribution / highest for attribution in attributions]
    return [strength if abs(strength) >= MIN_STRENGTH else 0.0 for strength in strengths]


# ---- charts of a calibrated run


def build_calibration_charts(run: FinishedRun) -> list[Chart]:
    """Return the charts of a calibrated run, each with a table of its values; empty without calibration."""
    calibration = run.calibration
    charts = []
    for part, reliability in calibration.get("reliability", {}).items():
        found = Calibration.from_dict(reliability)
        chart = plot_reliability_diagram(found, title=f"Reliability {part} calibration")
        bins = zip(found.count, found.confidence, found.accuracy, strict=True)
        rows = [
            [f"{count:,.0f}", f"{mean:.3f}", f"{accuracy:.3f}"] for count, mean, accuracy in bins if count
        ]
        table = [["predictions", "confidence", "accuracy"], *rows]
        note = ""
        if data := calibration.get("data"):
            is_validation = run.is_calibrated_on_validation
            name = "the validation split" if is_validation else data.get("name", "other data")
            note = f"Calibration rows: {data['rows']:,} of {name}. "
        charts.append(replace(chart, note=note + chart.note, table=table))
    if risk_coverage := calibration.get("risk_coverage"):
        charts.append(_plot_risk_coverage(risk_coverage, calibration))
    threshold = calibration.get("threshold")
    if threshold and "curve" in threshold:
        charts.append(_plot_thresholds(threshold))
    return charts


def _plot_risk_coverage(curve: RiskCoverage, calibration: CalibrationRecord) -> Chart:
    """Plot the risk by coverage, and mark the highest coverage without rows from which the model abstains."""
    points = list(zip(curve["coverage"], curve["min_confidence"], curve["risk"], strict=True))
    chosen = None
    if "abstention" in calibration:
        minimum = calibration["abstention"]["min_confidence"]
        chosen = max((coverage for coverage, confidence, _ in points if confidence >= minimum), default=None)

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
    table = [["coverage", "minimum confidence", "risk", "rows without answer", "wrong answers"]] + [
        [
            f"{coverage:.2f}", f"{confidence:.3f}", f"{risk:.3f}",
            f"{round(num_rows * (1 - coverage)):,}", f"{round(num_rows * coverage * risk):,}",
        ]
        for coverage, confidence, risk in points
    ]  # fmt: skip
    return render_chart(f"Risk and coverage: AURC {curve['aurc']:.3f}", draw, RISK_NOTE, table=table)


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

    rows = zip(x, *scores.values(), strict=True)
    table = [["threshold", *scores], *([f"{value:.3f}" for value in row] for row in rows)]
    return render_chart("Scores by threshold", draw, THRESHOLD_NOTE, table=table)


# ---- notebooks


def build_mime_bundle(folder: Path | None, metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the content that Jupyter displays, by MIME type.

    It has the scores and charts of a single run as HTML, and the table of a suite or a study as Markdown. All
    other results are JSON in a code block, such as those of a dry run, which has no directory.
    """
    if folder and metrics.get("task") in list_tasks():
        return {"text/html": render_run(FinishedRun(folder, metrics))}
    if folder and (text := RunDir(folder).read_card()) is not None:
        return {"text/markdown": text}
    content = json.dumps(metrics, indent=2, ensure_ascii=False, default=str)
    return {"text/markdown": f"```json\n{content}\n```"}


def render_run(run: FinishedRun) -> str:
    """Render the scores and the charts of a run as a fragment of HTML, in the colors of the notebook."""
    report, charts = run.folder / RunDir.REPORT_FILE, []
    if run.folder.exists():
        view = create_view(run)
        result_charts = view.build_charts() if view else []
        charts = [*build_training_charts(run.log), *result_charts, *build_calibration_charts(run)]
    return get_environment().get_template("notebook.html").render(
        metrics=run.metrics,
        folder=run.folder,
        report=report if report.exists() else None,
        is_calibrated=bool(run.calibration),
        judgement=card.list_judgement(run.metrics, bool(run.calibration)),
        scores=card.format_score_rows(run.metrics),
        baseline_names=card.format_baseline_names(run.metrics),
        charts=[replace(chart, note=chart.note.removesuffix(CLICK_NOTE)) for chart in charts],
    )  # fmt: skip
