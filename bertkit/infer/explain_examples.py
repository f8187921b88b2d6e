"""Explanations of the worst examples of a run, for its report page."""

from collections.abc import Mapping
from typing import Any, cast

from bertkit.data.rows import Rows
from bertkit.infer.explain import Explanation, explain
from bertkit.infer.predictor import Predictor, load_predictor
from bertkit.reports.attributions import ExampleExplanation, compute_strengths
from bertkit.reports.examples import Attribution, sort_worst_first
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import COMMON_KEYS, View
from bertkit.reports.views.registry import create_view
from bertkit.tasks.base import Task
from bertkit.tasks.sequence import SequenceTask
from bertkit.tasks.sequence_predictions import SequenceEvaluation
from bertkit.utils import devices
from bertkit.utils.reporting import Reporter, silence_libraries


def explain_examples(
    run: FinishedRun, num_examples: int, reporter: Reporter
) -> dict[int, ExampleExplanation]:
    """Return the explanations of the worst examples, by the index of the record."""
    view = create_view(run)
    if view is None:
        return {}
    indices = sort_worst_first(view.build_examples())[:num_examples]
    records = [run.records[index] for index in indices]
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(run.folder, keep_stock_layers=True)
    predictor.model.to(devices.select_device())
    devices.report_device(reporter, predictor.model)
    keys = _map_columns_to_keys(predictor.task, view)
    rows = [{column: record.get(key) for column, key in keys.items()} for record in records]
    evaluation = _evaluate(predictor, Rows.from_dicts(rows, run.predictions_path.name), reporter)
    explanations = list(explain(predictor, evaluation, reporter))
    reporter.info(f"attributions of the {len(records):,} worst of {len(run.records):,} examples")
    return {
        index: _convert(record, explanation, keys)
        for index, record, explanation in zip(indices, records, explanations, strict=True)
    }


def _map_columns_to_keys(task: Task, view: View) -> dict[str, str]:
    """Return the keys of the text columns in the records; see `merge_prediction`."""
    reserved = view.predicted_keys | COMMON_KEYS
    columns = task.input_schema.text_columns
    return {column: f"input_{column}" if column in reserved else column for column in columns}


def _evaluate(predictor: Predictor, rows: Rows, reporter: Reporter) -> SequenceEvaluation:
    """Predict rows without fitted thresholds: the records have the predictions of training."""
    assert isinstance(predictor.task, SequenceTask)
    predictor.task.label_type.thresholds = {}
    with silence_libraries():
        return cast("SequenceEvaluation", predictor.evaluate_without_labels(rows, reporter))


def _convert(
    record: Mapping[str, Any], explanation: Explanation, keys: Mapping[str, str]
) -> ExampleExplanation:
    """Convert an explanation for the page, without the words that are not shaded.

    Args:
        record: The prediction.
        explanation: Its explanation.
        keys: The keys of the text columns in the record.
    """
    words = [(column, word) for column, column_words in explanation.words.items() for word in column_words]
    strengths = compute_strengths([word.attribution for _, word in words])
    attributions: dict[str, list[Attribution]] = {}
    for (column, word), strength in zip(words, strengths, strict=True):
        if strength:
            value = float(f"{word.attribution:.3g}")
            attribution = Attribution(word.start, word.end, value, round(strength, 2))
            attributions.setdefault(keys[column], []).append(attribution)
    return ExampleExplanation(_name_target(record), explanation.error, attributions)


def _name_target(record: Mapping[str, Any]) -> str:
    """Return what is explained: the predicted label, the most probable label of a set, or the number."""
    if isinstance(record["predicted"], str):
        return record["predicted"]
    probabilities = record.get("probabilities")
    return max(probabilities, key=probabilities.get) if probabilities else "the predicted number"
