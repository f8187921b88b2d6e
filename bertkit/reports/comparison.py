"""Several runs side by side: scores, whether they differ by more than luck, and who is right where."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.errors import UserError, format_list
from bertkit.metrics.significance import ScoreDifference, compare_scorers
from bertkit.reports.charts import LINE_COLORS, Chart, plot_curves
from bertkit.reports.curves import STEP, extract_series
from bertkit.reports.example import Example, Field
from bertkit.reports.examples import ExampleBrowser, build_browser
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.page import compute_interval_bar, render_template
from bertkit.reports.views import create_view
from bertkit.reports.views.base import View
from bertkit.utils.reporting import Reporter

ALL_RUNS, NO_RUN = "all", "none"
NOT_TRAINED = "–"


@dataclass(frozen=True)
class ComparisonCell:
    """A score of one run, and how it differs from the first run's."""

    value: float | None
    interval: list[float] | None = None
    interval_bar: dict[str, Any] | None = None
    difference: float | None = None
    test: ScoreDifference | None = None


def compare_runs(runs: Sequence[FinishedRun], reporter: Reporter) -> tuple[str, dict[str, Any]]:
    """The page that compares runs with the first of them, and its differences as plain values.

    Raises:
        UserError: they are of different tasks.
    """
    _check(runs)
    names, views = _names(runs), _matched(runs)
    tests, notes = (
        _tests(views),
        [_unmatched(name, names[0]) for name, view in zip(names, views, strict=True) if not view],
    )
    for note in notes:
        reporter.info(note)
    text = render_template(
        "comparison.html",
        title=" · ".join(names),
        runs=list(zip(names, runs, strict=True)),
        table=_table(runs, tests),
        notes=notes,
        settings=_settings(runs),
        charts=_charts(names, runs),
        browser=_browser(names, [view for view in views if view]) if all(views) else None,
    )
    return text, {
        "runs": [str(run.folder) for run in runs],
        "scores": [run.metrics["validation"] for run in runs],
        "differences": [{name: test.to_dict() for name, test in some.items()} for some in tests[1:]],
    }


def _check(runs: Sequence[FinishedRun]) -> None:
    tasks = list(dict.fromkeys(run.metrics["task"] for run in runs))
    if len(tasks) > 1:
        raise UserError(
            f"runs of different tasks ({format_list(tasks)}) share no scores; name runs of one task"
        )
    if len(runs) > len(LINE_COLORS):
        raise UserError(f"{len(runs)} runs are too many for one page; name {len(LINE_COLORS)} at most")


def _unmatched(name: str, first: str) -> str:
    return (
        f"{name} was not scored on the rows of {first}, or keeps no predictions that can be matched: "
        "no test tells whether their scores differ by more than luck"
    )


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    """What the runs are called: by their folders, with those above where these are called alike."""
    often = Counter(run.name for run in runs)
    return [run.name if often[run.name] == 1 else str(run.folder) for run in runs]


# ---- the same rows


def _matched(runs: Sequence[FinishedRun]) -> list[View | None]:
    """A view of each run, with the rows in the order of the first; None where they are others."""
    first = create_view(runs[0])
    if first is None or first.scorer() is None:
        return [None] * len(runs)
    keys = _keys(first)
    return [first, *(_in_order(run, keys) for run in runs[1:])]


def _in_order(run: FinishedRun, keys: Sequence[Any]) -> View | None:
    view = create_view(run)
    if view is None:
        return None
    place = {key: number for number, key in enumerate(_keys(view))}
    if len(place) != len(keys) or not all(key in place for key in keys):
        return None
    return type(view)(run, [view.records[place[key]] for key in keys])


def _keys(view: View) -> list[tuple[str, int]]:
    """What tells rows apart, whatever a model decides: their columns and gold, and which of equals it is."""
    own, seen, keys = view.predicted_keys | {"id"}, Counter[str](), []
    for record in view.records:
        text = json.dumps({name: value for name, value in record.items() if name not in own}, sort_keys=True)
        seen[text] += 1
        keys.append((text, seen[text]))
    return keys


def _tests(views: Sequence[View | None]) -> list[dict[str, ScoreDifference]]:
    scorers = [view.scorer() if view else None for view in views]
    first = scorers[0]
    return [{}, *(compare_scorers(first, other) if first and other else {} for other in scorers[1:])]


# ---- what is shown


def _table(
    runs: Sequence[FinishedRun], tests: Sequence[Mapping[str, ScoreDifference]]
) -> list[tuple[str, list[ComparisonCell]]]:
    """A row for each score of the first run, a cell for each run."""
    rows = []
    for name, base in runs[0].metrics["validation"].items():
        cells = [
            ComparisonCell(
                base, runs[0].metrics["intervals"].get(name), compute_interval_bar(runs[0].metrics, name)
            )
        ]
        for run, test in zip(runs[1:], tests[1:], strict=True):
            value = run.metrics["validation"].get(name)
            cells.append(
                ComparisonCell(None) if value is None
                else ComparisonCell(value, run.metrics["intervals"].get(name), compute_interval_bar(run.metrics, name), value - base,
                          test.get(name))
            )  # fmt: skip
        rows.append((name, cells))
    return rows


def _settings(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Any]]]:
    """The settings in which runs differ, and what they took."""
    told = [run.settings | {"data fingerprint": run.metrics["data"]["fingerprint"]} for run in runs]
    names = dict.fromkeys(name for settings in told for name in settings)
    rows = [(name, [settings.get(name) for settings in told]) for name in names]
    rows = [(name, values) for name, values in rows if any(value != values[0] for value in values)]
    trained = [run.metrics.get("training", {}) for run in runs]  # an evaluation was not
    taken = ("seconds", "steps", "examples_per_second", "peak_memory_mb") if any(trained) else ()
    return [
        *rows,
        *((name.replace("_", " "), [some.get(name, NOT_TRAINED) for some in trained]) for name in taken),
    ]


def _charts(names: Sequence[str], runs: Sequence[FinishedRun]) -> list[Chart]:
    """Loss and the first score, run by run."""
    score = next(iter(runs[0].metrics["validation"]))
    wanted = {"Training loss": "loss", f"Validation {score}": f"eval_{score}"}
    charts = []
    for title, figure in wanted.items():
        lines = {name: extract_series(run.log, figure) for name, run in zip(names, runs, strict=True)}
        lines = {name: line for name, line in lines.items() if line[0]}
        if lines:
            charts.append(plot_curves(title, lines, STEP))
    return charts


def _browser(names: Sequence[str], views: Sequence[View]) -> ExampleBrowser:
    """Examples by who is right, those first on which the runs disagree."""
    rows = zip(*(view.build_examples() for view in views), strict=True)
    return build_browser([_side_by_side(names, row) for row in rows], "spread", ("gold", "who is right"))


def _side_by_side(names: Sequence[str], row: Sequence[Example]) -> Example:
    right = [name for name, example in zip(names, row, strict=True) if example.is_correct]
    if row[0].is_correct is None:  # numbers: who is nearest
        right = [names[min(range(len(row)), key=lambda at: row[at].priority)]]
    who = ALL_RUNS if len(right) == len(row) else ", ".join(right) or NO_RUN
    badness = [example.priority for example in row]
    said = [_said(name, example) for name, example in zip(names, row, strict=True)]
    fields = [field for field in row[0].fields if field.name not in ("predicted", "gold and predicted")]
    return replace(
        row[0], predicted=[who], is_correct=who == ALL_RUNS, measure=None, priority=max(badness) - min(badness),
        fields=[*fields, *said], display_labels=((row[0].display_labels or (", ".join(row[0].gold), ""))[0], who),
    )  # fmt: skip


def _said(name: str, example: Example) -> Field:
    """What a run predicted, under its name: in words, or marked in the text."""
    text = example.display_labels[1] if example.display_labels else ", ".join(example.predicted)
    return Field(name, text) if text else replace(example.fields[-1], name=name)
