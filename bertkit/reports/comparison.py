"""Compare several runs on one page: scores, the significance of score differences, and predictions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.charts import LINE_COLORS, STEP, Chart, extract_series, plot_curves
from bertkit.errors import UserError, format_list
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.page import compute_interval_bar, create_view, render_template
from bertkit.stats.significance import ScoreDifference, compare_scorers
from bertkit.tasks.view import Example, Field, View, build_error_browser
from bertkit.utils.reporting import report_info

ALL_RUNS, NO_RUN = "all", "none"
NO_STATISTIC = "–"  # of a run that was not trained, such as an evaluation
TRAINING_STATISTICS = ("seconds", "steps", "examples_per_second", "peak_memory_mb")


@dataclass(frozen=True)
class ComparisonCell:
    """A score of one run, and its difference from the first run's score.

    Attributes:
        value: The score; None if the run does not have it.
        interval: 95 % interval of the score.
        interval_bar: Positions from `compute_interval_bar`.
        difference: Score minus the score of the first run.
        test: Significance of the difference.
    """

    value: float | None
    interval: list[float] | None = None
    interval_bar: dict[str, Any] | None = None
    difference: float | None = None
    test: ScoreDifference | None = None


def compare_runs(runs: Sequence[FinishedRun]) -> tuple[str, dict[str, Any]]:
    """Return the HTML page that compares all runs with the first one, and a summary as plain values."""
    tasks = list(dict.fromkeys(run.metrics["task"] for run in runs))
    if len(tasks) > 1:
        raise UserError(
            f"runs: belong to different tasks ({format_list(tasks)}), which share no scores; "
            "pass runs of one task"
        )
    if len(runs) > len(LINE_COLORS):
        raise UserError(f"runs: expected at most {len(LINE_COLORS)}, found {len(runs)}; pass fewer runs")
    counts = Counter(run.name for run in runs)
    names = [run.name if counts[run.name] == 1 else str(run.folder) for run in runs]
    views = _align_views(runs)
    first, *scorers = [view.scorer() if view else None for view in views]
    tests = [compare_scorers(first, scorer) if first and scorer else {} for scorer in scorers]
    notes = [
        f"{name}: was not scored on the same rows as {names[0]}, or lacks predictions of some rows; "
        "its differences are not tested for significance"
        for name, view in zip(names, views, strict=True)
        if not view
    ]
    for note in notes:
        report_info(note)
    table = []
    for name, value in runs[0].metrics["validation"].items():
        others = [_build_cell(*pair, name, value) for pair in zip(runs[1:], tests, strict=True)]
        table.append((name, [_build_cell(runs[0], {}, name, None), *others]))
    aligned_views = [view for view in views if view]
    error_browser = None
    if len(aligned_views) == len(runs):
        rows = zip(*(view.build_examples() for view in aligned_views), strict=True)
        examples = [_merge_examples(names, row) for row in rows]
        # Its filter is the set of correct runs; disagreements come first.
        error_browser = build_error_browser(examples, "spread", ("gold", "correct runs"))
    html = render_template(
        "comparison.html",
        title=" · ".join(names),
        runs=list(zip(names, runs, strict=True)),
        table=table,
        notes=notes,
        settings=_build_settings_table(runs),
        charts=_build_charts(names, runs),
        error_browser=error_browser,
    )
    return html, {
        "runs": [str(run.folder) for run in runs],
        "scores": [run.metrics["validation"] for run in runs],
        "differences": [{name: test.to_dict() for name, test in run_tests.items()} for run_tests in tests],
    }


# ---- rows that all runs share


def _align_views(runs: Sequence[FinishedRun]) -> list[View | None]:
    """Return a view of each run with its rows in the order of the first run.

    The view is None if the run has other rows, or if rows cannot be compared.
    """
    first = create_view(runs[0])
    if first is None or first.scorer() is None:
        return [None] * len(runs)
    keys = _build_keys(first)
    views: list[View | None] = [first]
    for run in runs[1:]:
        view = create_view(run)
        if view is not None:
            index_by_key = {key: index for index, key in enumerate(_build_keys(view))}
            has_same_rows = len(index_by_key) == len(keys) and all(key in index_by_key for key in keys)
            records = [view.records[index_by_key[key]] for key in keys] if has_same_rows else []
            view = type(view)(run, records) if has_same_rows else None
        views.append(view)
    return views


def _build_keys(view: View) -> list[tuple[str, int]]:
    """Return keys that identify rows independently of the model.

    A key consists of the input columns with the gold label, and of a counter that distinguishes equal rows.
    """
    predicted_keys = view.predicted_keys | {"id"}
    counts = Counter[str]()
    keys = []
    for record in view.records:
        inputs = {name: value for name, value in record.items() if name not in predicted_keys}
        text = json.dumps(inputs, sort_keys=True)
        counts[text] += 1
        keys.append((text, counts[text]))
    return keys


# ---- content of the page


def _build_cell(
    run: FinishedRun, tests: Mapping[str, ScoreDifference], name: str, first_value: float | None
) -> ComparisonCell:
    value = run.metrics["validation"].get(name)
    if value is None:
        return ComparisonCell(None)
    difference = None if first_value is None else value - first_value
    interval = run.metrics["intervals"].get(name)
    return ComparisonCell(
        value, interval, compute_interval_bar(run.metrics, name), difference, tests.get(name)
    )


def _build_settings_table(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Any]]]:
    """Return rows with the settings in which the runs differ, and rows with their training statistics."""
    settings = [run.settings | {"data fingerprint": run.metrics["data"]["fingerprint"]} for run in runs]
    names = dict.fromkeys(name for run_settings in settings for name in run_settings)
    rows = [(name, [run_settings.get(name) for run_settings in settings]) for name in names]
    rows = [(name, values) for name, values in rows if any(value != values[0] for value in values)]
    training = [run.metrics.get("training", {}) for run in runs]  # empty for evaluations
    if any(training):
        rows += [
            (name.replace("_", " "), [statistics.get(name, NO_STATISTIC) for statistics in training])
            for name in TRAINING_STATISTICS
        ]
    return rows


def _build_charts(names: Sequence[str], runs: Sequence[FinishedRun]) -> list[Chart]:
    """Plot the training loss and the first validation score of all runs."""
    score = next(iter(runs[0].metrics["validation"]))
    charts = []
    for title, key in {"Training loss": "loss", f"Validation {score}": f"eval_{score}"}.items():
        series = {name: extract_series(run.log, key) for name, run in zip(names, runs, strict=True)}
        series = {name: line for name, line in series.items() if line[0]}
        if series:
            charts.append(plot_curves(title, series, STEP))
    return charts


def _merge_examples(names: Sequence[str], row: Sequence[Example]) -> Example:
    """Merge the examples that the runs have for one row into one example with all predictions."""
    priorities = [example.priority for example in row]
    if row[0].is_correct is None:  # regression: only the closest prediction counts as correct
        correct_runs = [names[priorities.index(min(priorities))]]
    else:
        correct_runs = [name for name, example in zip(names, row, strict=True) if example.is_correct]
    label = ALL_RUNS if len(correct_runs) == len(row) else ", ".join(correct_runs) or NO_RUN
    gold = row[0].display_labels[0] if row[0].display_labels else ", ".join(row[0].gold)
    inputs = [field for field in row[0].fields if field.name not in ("predicted", "gold and predicted")]
    predictions = []  # the label of each run, or the text with its marks
    for name, example in zip(names, row, strict=True):
        text = example.display_labels[1] if example.display_labels else ", ".join(example.predicted)
        predictions.append(Field(name, text) if text else replace(example.fields[-1], name=name))
    return replace(
        row[0],
        predicted=[label],
        is_correct=label == ALL_RUNS,
        measure=None,
        priority=max(priorities) - min(priorities),
        fields=[*inputs, *predictions],
        display_labels=(gold, label),
    )
