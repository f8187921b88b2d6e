"""`report`: write the page of one finished run or the comparison of several, from their directories."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import typer
from rich.filesize import decimal

from bertkit.charts import LINE_COLORS, plot_logged
from bertkit.commands.configs import NUM_EXPLAINED, ReportConfig
from bertkit.commands.explain import explain, require_explainable
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_list
from bertkit.reports.page import (
    ExampleExplanation,
    compute_interval_bar,
    compute_strengths,
    create_view,
    render_page,
    render_template,
)
from bertkit.run.predictor import load_predictor
from bertkit.run_directory import RunDir
from bertkit.settings.validation import validate_settings
from bertkit.stats.significance import ScoreDifference, compare_scorers
from bertkit.tasks.text.task import SequenceEvaluation
from bertkit.tasks.trained_model import load_run_task
from bertkit.tasks.view import (
    COMMON_KEYS,
    Attribution,
    Example,
    Field,
    FinishedRun,
    View,
    build_error_browser,
    load_finished_run,
    sort_worst_first,
)
from bertkit.utils import devices
from bertkit.utils.compat import require_extra
from bertkit.utils.console import print_json
from bertkit.utils.files import check_output_file, expand_home, write_text
from bertkit.utils.reporting import report_info, silence_libraries


@dataclass(frozen=True)
class Report:
    """The path of a page that was written, and a summary of its content as plain values."""

    path: Path
    summary: dict[str, Any]


def report(settings: Mapping[str, Any]) -> Report:
    """Write the page of one run, or the comparison of several."""
    config = ReportConfig(**validate_settings(ReportConfig, settings, "report()"))
    require_extra("report", ["matplotlib"], "report")
    devices.request_device(config.device)
    if config.explain and len(config.runs) > 1:
        raise UserError(f"--explain: explains a single run, not {len(config.runs)}; pass one of them")
    runs = [load_finished_run(expand_home(run)) for run in config.runs]
    path = runs[0].folder / RunDir.REPORT_FILE if len(runs) == 1 else Path(RunDir.REPORT_FILE)
    if config.output:
        path = expand_home(config.output)
    is_page = path.is_file() and path.read_bytes()[:100].lstrip().lower().startswith(b"<!doctype html")
    conflict = "already exists and is not an HTML page; pass another file with --output"
    check_output_file(path, is_page, "", conflict=conflict)
    summary: dict[str, Any] = {"runs": config.runs}
    if len(runs) > 1:
        html, summary = compare_runs(runs)
    elif config.explain:
        html = render_page(runs[0], explain_examples(runs[0]))
    else:
        html = render_page(runs[0])
    write_text(path, html)
    return Report(path, summary | {"bytes": path.stat().st_size})


def explain_examples(run: FinishedRun) -> dict[int, ExampleExplanation]:
    """Return the explanations of the worst examples, by the index of the record."""
    task = load_run_task(run.folder)
    require_explainable(task, str(run.folder))
    view = create_view(run)
    if view is None:
        return {}
    indices = sort_worst_first(view.build_examples())[:NUM_EXPLAINED]
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(run.folder, keep_stock_layers=True)
    predictor.model.to(devices.select_device())
    predictor.report_device()
    reserved = view.predicted_keys | COMMON_KEYS  # columns of these names are renamed, see `merge_prediction`
    columns = predictor.task.input_schema.text_columns
    keys = {column: f"input_{column}" if column in reserved else column for column in columns}
    records = [{column: run.records[index].get(key) for column, key in keys.items()} for index in indices]
    rows = Rows.from_dicts(records, run.predictions_path.name)
    predictor.task.state.label_type.thresholds = {}  # type: ignore[attr-defined]  # records are without thresholds
    with silence_libraries():
        evaluation = cast("SequenceEvaluation", predictor.evaluate_without_labels(rows))
    found = {}
    for index, explanation in zip(indices, explain(predictor, evaluation), strict=True):
        record = run.records[index]
        target, probabilities = record["predicted"], record.get("probabilities")
        if not isinstance(target, str):  # a label set, or a number
            target = max(probabilities, key=probabilities.get) if probabilities else "the predicted number"
        words = [(column, word) for column, words in explanation.words.items() for word in words]
        strengths = compute_strengths([word.attribution for _, word in words])
        attributions: dict[str, list[Attribution]] = {}
        for (column, word), strength in zip(words, strengths, strict=True):
            if strength:  # other words are not shaded
                value = float(f"{word.attribution:.3g}")
                shade = Attribution(word.start, word.end, value, round(strength, 2))
                attributions.setdefault(keys[column], []).append(shade)
        found[index] = ExampleExplanation(target, explanation.error, attributions)
    report_info(f"attributions of the {len(indices):,} worst of {len(run.records):,} examples")
    return found


# ---- the comparison of several runs

ALL_RUNS, NO_RUN = "all", "none"
NO_STATISTIC = "–"  # of a run that was not trained, such as an evaluation
TRAINING_STATISTICS = ("seconds", "steps", "examples_per_second", "peak_memory_mb")


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
    table = [
        (name, [_build_cell(name, runs[0], *pair) for pair in zip(runs, [{}, *tests], strict=True)])
        for name in runs[0].metrics["validation"]
    ]
    aligned_views = [view for view in views if view]
    error_browser = None
    if len(aligned_views) == len(runs):
        rows = zip(*(view.build_examples() for view in aligned_views), strict=True)
        examples = [_merge_examples(names, row) for row in rows]
        # Its filter is the set of correct runs; disagreements come first.
        error_browser = build_error_browser(examples, "spread", ("gold", "correct runs"))
    logs, score = [run.log for run in runs], next(iter(runs[0].metrics["validation"]))
    charts = [
        plot_logged(title, {name: (log, key) for name, log in zip(names, logs, strict=True)})
        for title, key in {"Training loss": "loss", f"Validation {score}": f"eval_{score}"}.items()
    ]
    html = render_template(
        "comparison.html",
        title=" · ".join(names),
        runs=list(zip(names, runs, strict=True)),
        table=table,
        notes=notes,
        settings=_build_settings_table(runs),
        charts=list(filter(None, charts)),
        error_browser=error_browser,
    )
    return html, {
        "runs": [str(run.folder) for run in runs],
        "scores": [run.metrics["validation"] for run in runs],
        "differences": [{name: asdict(test) for name, test in run_tests.items()} for run_tests in tests],
    }


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


def _build_cell(
    name: str, first: FinishedRun, run: FinishedRun, tests: Mapping[str, ScoreDifference]
) -> dict[str, Any]:
    """Return a score of a run, and its difference from that of the first run."""
    value = run.metrics["validation"].get(name)
    if value is None:
        return {"value": None}
    return {
        "value": value,
        "interval": run.metrics["intervals"].get(name),
        "interval_bar": compute_interval_bar(run.metrics, name),
        "difference": None if run is first else value - first.metrics["validation"][name],
        "test": tests.get(name),
    }


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


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = report(settings)
    if as_json:
        print_json({"report": str(result.path), **result.summary})
    else:
        typer.echo(f"report: {result.path} ({decimal(result.summary['bytes'])})")
