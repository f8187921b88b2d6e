"""Charts as SVG that stands in a page: its text is text, its colours are the page's own, light and dark.

matplotlib draws in marker colours that no chart else would have; they become the page's CSS variables.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bertkit.metrics.calibration import Calibration

INK, MUTED, GRID, SURFACE = "#01020a", "#01020b", "#01020c", "#01020d"
LINE_COLORS = ["#010201", "#010202", "#010203", "#010204", "#010205", "#010206"]
ACCENT = LINE_COLORS[0]
CSS_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"} | {
    colour: f"line{number}" for number, colour in enumerate(LINE_COLORS)
}
WIDTH, HEIGHT = 370, 215  # points; as wide as a phone's screen, so that the letters keep their size there
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "bertkit", "text.parse_math": False, "font.size": 10.5,
    "axes.formatter.use_mathtext": False, "axes.edgecolor": GRID, "axes.facecolor": "none",
    "axes.labelcolor": MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "figure.facecolor": "none", "grid.color": GRID, "grid.linewidth": 0.8, "lines.linewidth": 1.8,
    "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.major.size": 0,
    "ytick.major.size": 0, "legend.frameon": False, "legend.labelcolor": INK,
    "lines.solid_capstyle": "round",
}  # fmt: skip
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
MAX_NAME_LENGTH = 18


@dataclass(frozen=True)
class Chart:
    """A drawing, what it shows, and how it is to be read.

    Attributes:
        names: of a matrix, the labels by which its cells are numbered.
    """

    title: str
    svg: Markup
    note: str = ""
    names: Sequence[str] = ()


def render_chart(
    title: str,
    draw: Callable[[Any], None],
    note: str = "",
    height_ratios: Sequence[float] = (1,),
    height: int = HEIGHT,
) -> Chart:
    """What `draw` draws on the axes it is given (a list where there are several `rows` of such heights)."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's font lacks are the browser's to draw
        figure = Figure((WIDTH / 72, height / 72))
        FigureCanvasSVG(figure)
        figure.subplots_adjust(left=0.12, right=0.96, top=0.96, bottom=0.19 * HEIGHT / height, hspace=0.12)
        axes = figure.subplots(len(height_ratios), sharex=True, height_ratios=height_ratios)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    return Chart(title, _inline(file.getvalue(), title), note)


def _inline(svg: str, title: str) -> Markup:
    """The `<svg>` alone, its ids its own, its colours and letters the page's, its size that of its place."""
    prefix = re.sub(r"\W+", "-", title)

    def tag(found: re.Match[str]) -> str:
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", found[0])
        text = re.sub(r"font-family:[^;\"]*;?", "", text)
        return re.sub(r"#0102[0-9a-f]{2}", lambda colour: f"var(--{CSS_VARIABLES[colour[0]]})", text)

    svg = re.sub(r"<[^>]+>", tag, svg[svg.index("<svg") :])  # what stands between tags is the data's
    svg = re.sub(r'(<svg[^>]*) width="\S+" height="\S+"', r"\1", svg, count=1)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))  # noqa: S704


def shorten_name(name: str) -> str:
    """A name that fits beside an axis."""
    name = " ".join(name.split())
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def plot_curves(
    title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x_label: str, note: str = ""
) -> Chart:
    """A line for each name, of x and y; a point where there is but one."""

    def draw(axes: Any) -> None:
        for number, (name, (across, up)) in enumerate(series.items()):
            few = "o" if len(across) < 8 else ""
            axes.plot(
                across,
                up,
                marker=few,
                markersize=4,
                color=LINE_COLORS[number % len(LINE_COLORS)],
                label=shorten_name(name),
            )
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        longest = max(len(f"{tick:g}") for tick in axes.get_yticks())
        axes.figure.subplots_adjust(left=max(0.12, (18 + 6.1 * longest) / WIDTH))
        if len(series) > 1:
            axes.legend(loc="best", fontsize=9.5)

    return render_chart(title, draw, note)


def plot_confusion_matrix(title: str, counts: np.ndarray, names: Sequence[str], note: str = "") -> Chart:
    """Gold by predicted, shaded by the share of a row; each cell is called `cell-GOLD-PREDICTED`."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = len(names)

    def draw(axes: Any) -> None:
        for row, column in np.ndindex(size, size):
            cell = Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, linewidth=0)
            cell.set(facecolor=ACCENT, alpha=0.05 + 0.6 * float(shares[row, column]))
            cell.set_gid(f"cell-{row}-{column}")
            axes.add_patch(cell)
            if counts[row, column]:
                axes.text(column + 0.5, row + 0.5, f"{counts[row, column]:,}", ha="center", va="center",
                          fontsize=min(13, 60 / size + 4), gid=f"count-{row}-{column}")  # fmt: skip
        axes.set(xlim=(0, size), ylim=(size, 0), xlabel="predicted", ylabel="gold")
        places, shown = np.arange(size) + 0.5, [shorten_name(name) for name in names]
        longest = max(map(len, shown))
        axes.set_xticks(places, shown, rotation=0 if longest * size < 55 else 40,
                        ha="center" if longest * size < 55 else "right", rotation_mode="anchor")  # fmt: skip
        axes.set_yticks(places, shown)
        axes.spines[:].set_visible(False)
        slanted = 0 if longest * size < 55 else 3.6 * longest / HEIGHT
        axes.figure.subplots_adjust(left=(34 + 6.1 * longest) / WIDTH, bottom=0.19 + slanted)

    return replace(render_chart(title, draw, note), names=names)


def plot_bars(title: str, values: Mapping[str, float], remarks: Sequence[str], note: str = "") -> Chart:
    """A bar from 0 to 1 for each name, with its value and a remark behind it."""
    names = list(values)
    height = 30 + 21 * len(names)

    def draw(axes: Any) -> None:
        places = np.arange(len(names))
        axes.barh(places, [1.0] * len(names), color=GRID, height=0.56, alpha=0.45)
        axes.barh(places, list(values.values()), color=ACCENT, height=0.56)
        for place, (name, remark) in enumerate(zip(names, remarks, strict=True)):
            axes.text(1.02, place, f"{values[name]:.3f}", va="center")
            axes.text(1.25, place, remark, va="center", color=MUTED, fontsize=9)
        axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xticks=[])
        axes.set_yticks(places, [shorten_name(name) for name in names])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.spines[:].set_visible(False)
        left = (16 + 6.1 * max(len(shorten_name(name)) for name in names)) / WIDTH
        axes.figure.subplots_adjust(left=left, right=0.68, top=1 - 4 / height, bottom=4 / height)

    return render_chart(title, draw, note, height=height)


def plot_reliability_diagram(calibration: Calibration, unit: str = "decisions") -> Chart:
    """How often the model is right at each confidence, over how many decisions there are of it."""
    bins, used = len(calibration.count), calibration.count > 0
    left = np.arange(bins)[used] / bins

    def draw(axes: Any) -> None:
        upper, lower = axes
        upper.bar(left, calibration.accuracy[used], 0.9 / bins, align="edge", color=ACCENT, alpha=0.75)
        upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, dashes=(4, 3))
        upper.plot(calibration.confidence[used], calibration.accuracy[used], "o", color=INK, markersize=3)
        upper.set(ylim=(0, 1), ylabel="share right", yticks=[0, 0.5, 1])
        upper.grid(axis="y")
        lower.bar(left, calibration.count[used], 0.9 / bins, align="edge", color=MUTED, alpha=0.5)
        lower.set(xlim=(0, 1), xlabel="confidence", ylabel=unit)
        lower.yaxis.set_major_locator(MaxNLocator(2, integer=True))

    note = (
        f"How often predictions are right that are so sure, in {bins} bins of equal width. Below the diagonal"
        " the model is surer than right; ECE, the expected calibration error, is the mean distance from it."
    )
    return render_chart(f"Reliability: ECE {calibration.ece:.3f}", draw, note, height_ratios=(2.6, 1))


def plot_scatter(title: str, gold: np.ndarray, predicted: np.ndarray, note: str = "") -> Chart:
    """Predicted over gold numbers, and the diagonal on which they would be the same."""
    both = np.concatenate([gold, predicted])
    low, high = both.min(), both.max()

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
    """Scores over a threshold, and the one in use."""

    def draw(axes: Any) -> None:
        for number, (name, values) in enumerate(scores.items()):
            axes.plot(threshold, values, color=LINE_COLORS[number], label=name, drawstyle="steps-post")
        if current_threshold is not None:
            axes.axvline(
                current_threshold, color=INK, linewidth=1, dashes=(4, 3), label=f"τ = {current_threshold:.3f}"
            )
        axes.grid(axis="y")
        axes.set(xlabel="threshold τ on the null odds", ylabel="%")
        axes.legend(loc="best", fontsize=9.5)

    return render_chart(title, draw, note)
