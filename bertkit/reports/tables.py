"""The tables and pages of several runs: suites and studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit import charts
from bertkit.charts import ACCENT, INK, LINE_COLORS, MUTED, Chart, shorten_name
from bertkit.reports.page import render_template

Trial = Mapping[str, Any]
STATES = {"complete": (ACCENT, "o"), "pruned": (MUTED, "v"), "failed": (INK, "x")}


@dataclass(frozen=True)
class ResultTable:
    """The table of several runs, with its caption and notes."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str  # explanation of the scores and their sources
    run_notes: Sequence[str]  # one line about the runs of each row or task
    text_columns: int = 1  # columns at the left that contain text instead of numbers
    page_title: str = ""  # of the Markdown page; if empty, `title` is used
    notes: Sequence[str] = ()  # lines below the printed table
    failures: Mapping[str, str] = field(default_factory=dict)  # reason of each failed run by name

    def describe_failures(self) -> list[str]:
        return [f"{name} failed: {reason}" for name, reason in self.failures.items()]

    def to_markdown(self, heading: str = "") -> str:
        """Return the title (or another heading), the table, its caption and notes on runs as Markdown."""
        heading = heading or f"# {self.page_title or self.title}"
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in [*self.run_notes, *self.describe_failures()])
        page = f"{heading}\n\n{table}\n\n{self.caption}\n"
        return f"{page}\n## Runs\n\n{runs}\n" if runs else page


def format_score(percent: float | None, digits: int = 1) -> str:
    """Format a score that is already in percent (`84.6`); None becomes an empty string."""
    return "" if percent is None else f"{percent:.{digits}f}"


def format_percent(value: float | None, std: float | None = None) -> str:
    """Format a fraction in percent (`84.6` or `84.6 ± 0.3`); None becomes an empty string."""
    if value is None:
        return ""
    return format_score(100 * value) + ("" if std is None else f" ± {format_score(100 * std)}")


# ---- the pages of studies and ladders


def render_experiment_page(
    metrics: Mapping[str, Any],
    tables: Mapping[str, ResultTable],
    notes: Sequence[str],
    plots: Sequence[Chart],
) -> str:
    """Render the tables and the charts of a study or a ladder as HTML.

    `metrics` is the content of `study.json` or `ladder.json`. The notes are below the first table.
    """
    return render_template(
        "experiment.html",
        title=f"{metrics['task']} {metrics['command']} · {metrics['data']['name']} · {metrics['model']}",
        metrics=metrics,
        tables=tables,
        notes=notes,
        charts=plots,
    )


LABEL_HEIGHT, LABEL_WIDTH = 10.0, 60.0  # points


def format_margin(points: float) -> str:
    return f"{points:g} {'point' if points == 1 else 'points'}"


def build_ladder_charts(metrics: Mapping[str, Any]) -> list[Chart]:
    """Plot the scores of the candidates, and those of the models against speed and training time."""
    candidates, best = metrics["candidates"], metrics["best"]
    [highest] = [one["score"] for one in candidates if one["name"] == best]
    sign = 1 if all(one["difference"] <= 0 for one in candidates) else -1
    models = [one for one in candidates if one["megabytes"] is not None]

    def plot(title: str, key: str, x_label: str) -> Chart:
        def draw(axes: Any) -> None:
            from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

            axes.set_xscale("log")
            axes.margins(x=0.25, y=0.2)
            axes.plot([one[key] for one in models], [one["score"] for one in models], "o", color=MUTED)
            axes.autoscale_view()
            placed: list[np.ndarray] = []  # the left ends of the labels, in points
            for one in models:
                x, y = one[key], one["score"]
                point = axes.transData.transform((x, y)) * 72 / axes.figure.dpi
                label = point.copy()
                while any(np.all(np.abs(label - other) < (LABEL_WIDTH, LABEL_HEIGHT)) for other in placed):
                    label[1] += LABEL_HEIGHT
                placed.append(label)
                color = ACCENT if one["name"] == metrics["recommended"] else INK
                axes.plot([x], [y], "o", color=color, markersize=5)
                axes.annotate(
                    shorten_name(one["name"]), (x, y), label - point + (5, 3), color=color, fontsize=8.5,
                    textcoords="offset points",
                )  # fmt: skip
            _finish(axes, x_label, metrics["metric"])
            axes.xaxis.set_major_locator(LogLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())

        return charts.render_chart(title, draw, "The recommended model is colored.")

    return [
        charts.plot_intervals(
            "Scores", {one["name"]: one["score"] for one in candidates},
            {one["name"]: one["interval"] for one in candidates}, metrics["metric"],
            highest - sign * metrics["margin"] / 100,
            f"95 % intervals. The dashed line is {format_margin(metrics['margin'])} from the best one.",
        ),
        plot("Score against speed", "rows_per_second", "rows per second, in batches"),
        plot("Score against training time", "train_seconds", "seconds of training for one fold"),
    ]  # fmt: skip


def build_study_charts(metrics: Mapping[str, Any]) -> list[Chart]:
    """Plot the trials and the final runs of the content of `study.json`."""
    metric, search = metrics["metric"], metrics["search"]
    run_charts = [_plot_runs(metrics["settings"], metric)]
    trials = [trial for trial in search["table"] if trial["score"] is not None] if search else []
    if not trials:
        return run_charts
    best, space, defaults = search["best_trial"], search["space"], search["default_settings"]
    values = {name: [trial["settings"].get(name, defaults[name]) for trial in trials] for name in space}
    is_minimized = search["best_score"] < max(
        trial["score"] for trial in trials if trial["state"] == "complete"
    )
    return [
        _plot_trials(trials, best, metric),
        _plot_time(trials, metric, is_minimized),
        *(_plot_effect(name, column, space[name], trials, metric) for name, column in values.items()),
        _plot_parallel_coordinates(values, space, trials, best, metric),
        *run_charts,
    ]


def _scatter(axes: Any, x: Sequence[float] | np.ndarray, trials: Sequence[Trial]) -> None:
    """Plot a marker for each trial, whose color and shape show how the trial ended."""
    for state, (color, marker) in STATES.items():
        chosen = [index for index, trial in enumerate(trials) if trial["state"] == state]
        if chosen:
            scores = [trials[index]["score"] for index in chosen]
            axes.plot([x[index] for index in chosen], scores, marker, color=color, markersize=5, label=state)


def _finish(axes: Any, x_label: str, metric: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.grid(axis="y")
    axes.set_xlabel(x_label)
    axes.set_ylabel(metric)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    charts.fit_left_margin(axes)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(loc="best", fontsize=9)


def _plot_trials(trials: Sequence[Trial], best: int, metric: str) -> Chart:
    def draw(axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        numbers = [trial["trial"] for trial in trials]
        _scatter(axes, numbers, trials)
        [score] = [trial["score"] for trial in trials if trial["trial"] == best]
        axes.plot([best], [score], "o", markersize=11, color=ACCENT, fillstyle="none", label="best")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _finish(axes, "trial", metric)

    return charts.render_chart("Trials in order", draw, "Trial 0 has the default settings.")


def _plot_time(trials: Sequence[Trial], metric: str, is_minimized: bool) -> Chart:
    minutes = np.cumsum([trial["seconds"] for trial in trials]) / 60
    scores = np.array([trial["score"] if trial["state"] == "complete" else np.nan for trial in trials])
    so_far = (np.fmin if is_minimized else np.fmax).accumulate(scores)

    def draw(axes: Any) -> None:
        axes.step(minutes, so_far, where="post", color=ACCENT)
        axes.plot(minutes, scores, "o", color=MUTED, markersize=4)
        axes.set_xlim(left=0)
        _finish(axes, "minutes of training", metric)

    return charts.render_chart(
        "Score against time", draw, "The line is the best score of the complete trials so far."
    )


def _plot_effect(name: str, values: Sequence[Any], space: str, trials: Sequence[Trial], metric: str) -> Chart:
    """Plot the scores by the values of one setting."""
    positions, names = _encode(values, space)

    def draw(axes: Any) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        _scatter(axes, positions, trials)
        if space.endswith(":log"):
            axes.set_xscale("log")
            is_narrow = positions.max() < 100 * positions.min()
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_narrow else (1,)))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if names:
            axes.set_xticks(range(len(names)), [shorten_name(name) for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
        _finish(axes, name, metric)

    return charts.render_chart(f"Effect of {name}", draw)


def _encode(values: Sequence[Any], space: str) -> tuple[np.ndarray, list[str]]:
    """Return the values of a setting as numbers, and the names of these numbers if the space has no range."""
    if ".." in space:
        return np.array(values, float), []
    labels = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    names = sorted(set(labels), key=_sort_key)
    return np.array([names.index(label) for label in labels], float), names


def _sort_key(label: str) -> tuple[bool, float, str]:
    """Sort numbers by value, before other labels."""
    try:
        return (False, float(label), label)
    except ValueError:
        return (True, 0.0, label)


def _plot_parallel_coordinates(
    values: Mapping[str, Sequence[Any]],
    space: Mapping[str, str],
    trials: Sequence[Trial],
    best: int,
    metric: str,
) -> Chart:
    """Plot one line for each trial through its values and its score, each on an axis of its own."""
    names, lines, ends = [*values, metric], [], []
    axis_values, spaces = {**values, metric: [trial["score"] for trial in trials]}, {**space, metric: ".."}
    for name, column in axis_values.items():
        numbers, _ = _encode(column, spaces[name])
        extremes = (column[int(numbers.argmin())], column[int(numbers.argmax())])
        ends.append([f"{value:.3g}" if isinstance(value, float) else str(value) for value in extremes])
        numbers = np.log(numbers) if spaces[name].endswith(":log") else numbers
        extent = np.ptp(numbers)  # each axis is from 0 to 1
        lines.append(np.full(len(numbers), 0.5) if extent == 0 else (numbers - numbers.min()) / extent)

    def draw(axes: Any) -> None:
        for index, trial in enumerate(trials):
            is_best = trial["trial"] == best
            axes.plot(
                range(len(names)), [column[index] for column in lines],
                color=ACCENT if is_best else MUTED, alpha=1.0 if is_best else 0.45,
                linewidth=2.4 if is_best else 1.2, zorder=3 if is_best else 2,
            )  # fmt: skip
        for position, (low, high) in enumerate(ends):
            axes.text(position, -0.06, low, ha="center", va="top", color=MUTED, fontsize=9)
            axes.text(position, 1.06, high, ha="center", va="bottom", color=MUTED, fontsize=9)
        axes.set_xticks(range(len(names)), [shorten_name(name) for name in names])
        axes.tick_params(axis="x", pad=18)
        axes.spines[:].set_visible(False)
        axes.figure.subplots_adjust(left=0.06, top=0.9, bottom=0.21)
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.set_xlim(-0.15, len(names) - 0.85)

    note = "Each line is a trial; the best one is emphasized. Each axis names its lowest and highest value."
    return charts.render_chart("Parallel coordinates", draw, note)


def _plot_runs(settings: Mapping[str, Any], metric: str) -> Chart:
    """Plot the scores of the final runs by fold, or by seed without folds."""
    runs = [run for summary in settings.values() for run in summary["runs"]]
    by = "fold" if any(run["fold"] is not None for run in runs) else "seed"

    def draw(axes: Any) -> None:
        for number, (name, summary) in enumerate(settings.items()):
            scored = [run for run in summary["runs"] if run["score"] is not None]
            x = [run[by] + 0.12 * number for run in scored]
            axes.plot(x, [run["score"] for run in scored], "o", color=LINE_COLORS[number], label=name)
        axes.set_xticks(sorted({run[by] for run in runs}))
        _finish(axes, by, metric)

    return charts.render_chart(f"Final runs by {by}", draw, "Scores of the test rows of each run.")
