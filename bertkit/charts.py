"""Draw charts as inline SVG with selectable text and colors that follow the theme of the page.

matplotlib draws with placeholder colors. Each placeholder is then replaced by a CSS variable. matplotlib is
an optional package, which only the functions that draw import.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from rich.cells import cell_len

from bertkit.stats.calibration import Calibration
from bertkit.stats.linear_probe import PROBE_PREFIX
from bertkit.stats.metric_modules import is_lower_better
from bertkit.utils.compat import is_installed

TrainingLog = Sequence[Mapping[str, Any]]

INK, MUTED, GRID, SURFACE = "#01020a", "#01020b", "#01020c", "#01020d"
LINE_COLORS = ["#010201", "#010202", "#010203", "#010204", "#010205", "#010206"]
ACCENT = LINE_COLORS[0]
CSS_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"} | {
    color: f"line{number}" for number, color in enumerate(LINE_COLORS)
}
WIDTH, HEIGHT = 370, 215  # points; the width of a phone screen, so that text keeps its size there
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "bertkit", "text.parse_math": False, "font.size": 10.5,
    "axes.formatter.use_mathtext": False, "axes.edgecolor": GRID, "axes.facecolor": "none",
    "axes.labelcolor": MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "figure.facecolor": "none", "grid.color": GRID, "grid.linewidth": 0.8, "lines.linewidth": 1.8,
    "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.major.size": 0,
    "ytick.major.size": 0, "xtick.major.pad": 6.5, "legend.frameon": False, "legend.labelcolor": INK,
    "lines.solid_capstyle": "round",
}  # fmt: skip
MAX_NAME_LENGTH = 18  # characters; Hangul and Chinese characters are twice as wide and count as two
CHARACTER_WIDTH = 6.1  # points, on average
MAX_SCORES = 4  # curves in the chart of validation scores
STEP = "step"
LINE_STYLE = "stroke-linejoin: round; stroke-linecap: butt"  # what matplotlib sets for all elements of a page
MISSING_CHART = Markup(
    "<p>matplotlib is not installed. This chart needs it: <code>pip install 'bertkit[report]'</code></p>"
)


@dataclass(frozen=True)
class Chart:
    """A chart as inline SVG."""

    title: str
    svg: Markup  # the `<svg>` element
    note: str = ""  # how to read the chart
    names: Sequence[str] = ()  # labels of a confusion matrix, in the order of its rows and columns
    table: Sequence[
        Sequence[str]
    ] = ()  # the values of the chart: the header and the rows; empty for no table


def render_chart(
    title: str,
    draw: Callable[[Any], None],
    note: str = "",
    height_ratios: Sequence[float] = (1,),
    height: int = HEIGHT,
    **values: Any,
) -> Chart:
    """Draw a chart and convert it to SVG.

    `draw` draws on its argument: the axes, or an array of axes if there are several. The height is in points,
    and `height_ratios` are the relative heights of the axes, from top to bottom. `values` are further
    attributes of the chart.
    """
    if not is_installed("matplotlib"):
        return Chart(title, MISSING_CHART, note, **values)
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # The browser has the characters that matplotlib's font lacks.
        warnings.simplefilter("ignore")
        figure = Figure((WIDTH / 72, height / 72))
        FigureCanvasSVG(figure)
        figure.subplots_adjust(left=0.12, right=0.96, top=0.96, bottom=0.19 * HEIGHT / height, hspace=0.12)
        axes = figure.subplots(len(height_ratios), sharex=True, height_ratios=height_ratios)
        draw(axes)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=no_metadata)
    return Chart(title, _inline(file.getvalue(), title), note, **values)


def _inline(svg: str, title: str) -> Markup:
    """Return the `<svg>` element with unique ids, and with the colors, font and width of the page."""
    prefix = re.sub(r"\W+", "-", title)

    def rewrite_tag(match: re.Match[str]) -> str:
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", match[0])
        text = re.sub(r"font-family:[^;\"]*;?", "", text)
        return re.sub(r"#0102[0-9a-f]{2}", lambda color: f"var(--{CSS_VARIABLES[color[0]]})", text)

    svg = re.sub(r"<[^>]+>", rewrite_tag, svg[svg.index("<svg") :])  # only tags, not the text between them
    svg = re.sub(r'(<svg[^>]*) width="\S+" height="\S+"', r"\1", svg, count=1)
    # A style element would apply to the whole page. The properties of the element are inherited.
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    attributes = f'role="img" aria-label="{escape(title)}" style="{LINE_STYLE}"'
    return Markup(svg.replace("<svg", f"<svg {attributes}", 1))  # noqa: S704


def shorten_name(name: str) -> str:
    """Shorten a name to fit next to an axis."""
    name = " ".join(name.split())
    if cell_len(name) <= MAX_NAME_LENGTH:
        return name
    while cell_len(name) >= MAX_NAME_LENGTH:
        name = name[:-1]
    return name + "…"


def fit_left_margin(axes: Any) -> None:
    """Make room for the tick labels and the label of the y axis."""
    ticks = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks())
    margin = 26 if axes.get_ylabel() else 18
    left = (margin + CHARACTER_WIDTH * max(map(cell_len, ticks))) / WIDTH
    axes.figure.subplots_adjust(left=max(0.12, left))


def plot_curves(
    title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x_label: str, note: str = ""
) -> Chart:
    """Plot one curve for each name, of its x and y values. Curves with few points show them as markers."""

    def draw(axes: Any) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        for number, (name, (x, y)) in enumerate(series.items()):
            color, marker = LINE_COLORS[number % len(LINE_COLORS)], "o" if len(x) < 8 else ""
            axes.plot(x, y, marker=marker, markersize=4, color=color, label=shorten_name(name))
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        fit_left_margin(axes)
        if len(series) > 1:
            axes.legend(loc="best", fontsize=9.5)

    return render_chart(title, draw, note)


def plot_intervals(
    title: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, Sequence[float]],
    x_label: str,
    baseline: float | None = None,
    note: str = "",
) -> Chart:
    """Plot a point and an interval for each score, from top to bottom, and a dashed line at the baseline."""

    def draw(axes: Any) -> None:
        for position, (name, score) in enumerate(scores.items()):
            if name in intervals:
                axes.plot(intervals[name], [position, position], color=ACCENT, linewidth=2)
            axes.plot([score], [position], "o", color=ACCENT, markersize=6)
        if baseline is not None:
            axes.axvline(baseline, color=MUTED, linewidth=1, dashes=(4, 3))
        axes.grid(axis="x")
        axes.set_xlabel(x_label)
        axes.set_yticks(range(len(scores)), [shorten_name(name) for name in scores])
        axes.set_ylim(len(scores) - 0.5, -0.5)
        fit_left_margin(axes)

    return render_chart(title, draw, note, height=80 + 26 * len(scores))


def plot_confusion_matrix(title: str, counts: np.ndarray, names: Sequence[str], note: str = "") -> Chart:
    """Plot the counts of gold labels (rows) by predicted labels (columns).

    Each cell is shaded by its fraction of the row, and has the id `cell-ROW-COLUMN`.
    """
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = len(names)

    def draw(axes: Any) -> None:
        from matplotlib.patches import Rectangle

        for row, column in np.ndindex(size, size):
            cell = Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, linewidth=0)
            cell.set(facecolor=ACCENT, alpha=0.05 + 0.6 * float(fractions[row, column]))
            cell.set_gid(f"cell-{row}-{column}")
            axes.add_patch(cell)
            if counts[row, column]:
                axes.text(column + 0.5, row + 0.5, f"{counts[row, column]:,}", ha="center", va="center",
                          fontsize=min(13, 60 / size + 4), gid=f"count-{row}-{column}")  # fmt: skip
        axes.set(xlim=(0, size), ylim=(size, 0), xlabel="predicted", ylabel="gold")
        positions, labels = np.arange(size) + 0.5, [shorten_name(name) for name in names]
        longest = max(map(cell_len, labels))
        if longest * size < 55:  # characters of all labels that fit side by side
            rotation, alignment, extra_bottom = 0, "center", 0.0
        else:
            rotation, alignment, extra_bottom = 40, "right", 3.6 * longest / HEIGHT
        axes.set_xticks(positions, labels, rotation=rotation, ha=alignment, rotation_mode="anchor")
        axes.set_yticks(positions, labels)
        axes.spines[:].set_visible(False)
        axes.figure.subplots_adjust(left=(34 + CHARACTER_WIDTH * longest) / WIDTH, bottom=0.19 + extra_bottom)

    return render_chart(title, draw, note, names=names)


def plot_bars(title: str, values: Mapping[str, float], remarks: Sequence[str], note: str = "") -> Chart:
    """Plot one bar for each name. Bars range from 0 to 1; the value and a remark follow each bar."""
    names = list(values)
    height = 30 + 21 * len(names)

    def draw(axes: Any) -> None:
        positions = np.arange(len(names))
        axes.barh(positions, [1.0] * len(names), color=GRID, height=0.56, alpha=0.45)
        axes.barh(positions, list(values.values()), color=ACCENT, height=0.56)
        for position, (name, remark) in enumerate(zip(names, remarks, strict=True)):
            axes.text(1.02, position, f"{values[name]:.3f}", va="center")
            axes.text(1.25, position, remark, va="center", color=MUTED, fontsize=9)
        axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xticks=[])
        axes.set_yticks(positions, [shorten_name(name) for name in names])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.spines[:].set_visible(False)
        left = (16 + CHARACTER_WIDTH * max(cell_len(shorten_name(name)) for name in names)) / WIDTH
        axes.figure.subplots_adjust(left=left, right=0.68, top=1 - 4 / height, bottom=4 / height)

    return render_chart(title, draw, note, height=height)


def plot_reliability_diagram(
    calibration: Calibration, unit: str = "decisions", title: str = "Reliability"
) -> Chart:
    """Plot accuracy by confidence (top), and the number of predictions by confidence (bottom).

    The ECE is added to the title. `unit` is what is predicted, in the plural.
    """
    num_bins = len(calibration.count)
    used = calibration.count > 0
    left_edges = np.arange(num_bins)[used] / num_bins

    def draw(axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        top, bottom = axes
        top.bar(
            left_edges, calibration.accuracy[used], 0.9 / num_bins, align="edge", color=ACCENT, alpha=0.75
        )
        top.plot([0, 1], [0, 1], color=MUTED, linewidth=1, dashes=(4, 3))
        top.plot(calibration.confidence[used], calibration.accuracy[used], "o", color=INK, markersize=3)
        top.set(ylim=(0, 1), ylabel="accuracy", yticks=[0, 0.5, 1])
        top.grid(axis="y")
        bottom.bar(left_edges, calibration.count[used], 0.9 / num_bins, align="edge", color=MUTED, alpha=0.5)
        bottom.set(xlim=(0, 1), xlabel="confidence", ylabel=unit)
        bottom.yaxis.set_major_locator(MaxNLocator(2, integer=True))

    note = (
        f"Accuracy of the predictions by their confidence, in {num_bins} bins of equal width. Below the"
        " diagonal, the model is overconfident. ECE, the expected calibration error, is the mean distance"
        " from the diagonal."
    )
    return render_chart(f"{title}: ECE {calibration.ece:.3f}", draw, note, height_ratios=(2.6, 1))


def plot_scatter(title: str, gold: np.ndarray, predicted: np.ndarray, note: str = "") -> Chart:
    """Plot predicted against gold values, and the diagonal, on which both are equal."""
    values = np.concatenate([gold, predicted])
    low, high = values.min(), values.max()

    def draw(axes: Any) -> None:
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1, dashes=(4, 3))
        axes.plot(gold, predicted, "o", color=ACCENT, markersize=3.5, alpha=0.45, markeredgewidth=0)
        axes.grid(axis="both")
        axes.set(xlabel="gold", ylabel="predicted")

    return render_chart(title, draw, note)


def plot_threshold_curves(
    title: str,
    threshold: np.ndarray,
    scores: Mapping[str, np.ndarray],
    current_threshold: float | None,
    note: str,
) -> Chart:
    """Plot scores against a threshold, and mark the threshold that the model uses."""

    def draw(axes: Any) -> None:
        for number, (name, values) in enumerate(scores.items()):
            axes.plot(threshold, values, color=LINE_COLORS[number], label=name, drawstyle="steps-post")
        if current_threshold is not None:
            axes.axvline(
                current_threshold, color=INK, linewidth=1, dashes=(4, 3), label=f"τ = {current_threshold:.3f}"
            )
        axes.grid(axis="y")
        axes.set(xlabel="threshold τ of the null odds", ylabel="%")
        axes.legend(loc="best", fontsize=9.5)

    return render_chart(title, draw, note)


# ---- training


def build_training_charts(log: TrainingLog) -> list[Chart]:
    """Plot the loss, its components, validation scores and the learning rate; empty without a log."""
    names = list(dict.fromkeys(name for line in log for name in line))
    components = [name for name in names if name.endswith("_loss") and not name.startswith("eval_")]
    component_labels = {}
    if len(components) > 1:
        component_labels = {
            f"{prefix}{name}": f"{split} {name.removesuffix('_loss').upper()}"
            for prefix, split in (("", "training"), ("eval_", "validation"))
            for name in components
        }
    probes = {name: name.removeprefix(PROBE_PREFIX) for name in names if name.startswith(PROBE_PREFIX)}
    scores = {}
    for name in names:
        score = name.removeprefix("eval_")
        # Losses and errors are not scores. SQuAD also logs scores of subsets (such as `HasAns_f1`) and scores
        # with the best threshold (such as `best_f1`).
        is_partial = score != score.lower() or score.startswith("best_")
        if name.startswith("eval_") and name not in probes and not is_partial and not is_lower_better(score):
            scores[name] = score
    charts = [
        ("Loss", {"loss": "training", "eval_loss": "validation"}, "Training loss as logged."),
        ("Components of the loss", component_labels, ""),
        ("Probe", probes, "Linear probe on the vectors of the encoder, or accuracy on minimal pairs."),
        ("Validation scores", dict(list(scores.items())[:MAX_SCORES]), ""),
        ("Learning rate", {"learning_rate": "learning rate"}, ""),
    ]
    plotted = [
        plot_logged(title, {label: (log, name) for name, label in labels.items()}, note)
        for title, labels, note in charts
    ]
    # a run with a word budget logs the number of words
    plotted += [
        plot_logged(f"{title} by words", {title: (log, name)}, "", "words")
        for name, title in (("eval_bits_per_byte", "Bits per byte"), *((name, "Probe") for name in probes))
    ]
    return [chart for chart in plotted if chart]


def plot_logged(
    title: str, columns: Mapping[str, tuple[TrainingLog, str]], note: str = "", x: str = STEP
) -> Chart | None:
    """Plot by label the values that were logged under a name; None if nothing was logged."""
    series = {}
    for label, (log, name) in columns.items():
        lines = [line for line in log if isinstance(line.get(name), (int, float)) and x in line]
        if lines:
            series[label] = ([line[x] for line in lines], [line[name] for line in lines])
    return plot_curves(title, series, x, note) if series else None
