"""Charts of a calibrated run: reliability, risk by coverage, and scores by threshold.

Each chart has a table of its values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertkit.metrics.calibration import Calibration
from bertkit.reports.charts import (
    INK,
    LINE_COLORS,
    Chart,
    fit_left_margin,
    plot_reliability_diagram,
    render_chart,
)
from bertkit.reports.finished_run import CalibrationRecord, FinishedRun, RiskCoverage, ThresholdRecord

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
