"""`report`: write the page of one finished run or the comparison of several, from their directories."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer
from rich.filesize import decimal

from bertkit.commands.configs import NUM_EXPLAINED, ReportConfig
from bertkit.commands.explain import explain, require_explainable
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.reports.comparison import compare_runs
from bertkit.reports.finished_run import FinishedRun, load_finished_run
from bertkit.reports.page import ExampleExplanation, compute_strengths, create_view, render_page
from bertkit.run.predictor import load_predictor
from bertkit.run_directory import RunDir
from bertkit.settings.validation import validate_settings
from bertkit.tasks.text.predictions import SequenceEvaluation
from bertkit.tasks.trained_model import load_run_task
from bertkit.tasks.view import COMMON_KEYS, Attribution, sort_worst_first
from bertkit.utils import devices
from bertkit.utils.console import print_json
from bertkit.utils.extras import require_extra
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
        html = render_page(runs[0], explain_examples(runs[0], NUM_EXPLAINED))
    else:
        html = render_page(runs[0])
    write_text(path, html)
    return Report(path, summary | {"bytes": path.stat().st_size})


def explain_examples(run: FinishedRun, num_examples: int) -> dict[int, ExampleExplanation]:
    """Return the explanations of the worst examples, by the index of the record."""
    task = load_run_task(run.folder)
    require_explainable(task, str(run.folder))
    view = create_view(run)
    if view is None:
        return {}
    indices = sort_worst_first(view.build_examples())[:num_examples]
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(run.folder, keep_stock_layers=True)
    predictor.model.to(devices.select_device())
    devices.report_device(predictor.model)
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


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = report(settings)
    if as_json:
        print_json({"report": str(result.path), **result.summary})
    else:
        typer.echo(f"report: {result.path} ({decimal(result.summary['bytes'])})")
