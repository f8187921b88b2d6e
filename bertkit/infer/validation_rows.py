"""A finished run with the rows that it was validated on."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.rows import Rows, combine_fingerprints
from bertkit.errors import UserError
from bertkit.infer.predictor import load_predictor
from bertkit.modeling import loading
from bertkit.pipeline.prepare import load_run_task, prepare
from bertkit.tasks.base import Scores, Task
from bertkit.tasks.evaluation import Outputs
from bertkit.utils.reporting import Reporter

INPUT_PREFIX = "input_"  # before a column of the input whose name a prediction has


@dataclass(frozen=True)
class ValidationSet:
    """A run's task and model, and the features of some rows.

    Attributes:
        rows_from: where the rows come from, in words.
        as_then: whether they are those that `metrics.json` tells the scores of.
    """

    task: Task
    model: Any
    tokenizer: Any
    features: Any
    rows: Rows
    rows_source: str
    matches_metrics: bool = False

    def compute_metrics(self, logits: Any) -> Scores:
        """Of all rows; none where they have no labels."""
        if self.features.labels is None:
            return {}
        return self.task.evaluate(Outputs(logits, self.features, self.rows)).scores


def load_validation_set(
    folder: Path, metrics: dict[str, Any], max_rows: int | None, reporter: Reporter
) -> ValidationSet:
    """The validation rows, read as they were for the run; where that cannot be, the texts it told.

    Args:
        metrics: the run's.
        rows: at most so many, drawn by seed; None: all.

    Raises:
        UserError: there are neither.
    """
    task = load_run_task(folder)
    try:
        return _read_again(folder, task, metrics, max_rows, reporter)
    except UserError as error:
        told = folder / f"{task.spec.predictions_name}.jsonl"
        if not task.spec.row_level or not told.exists():
            raise
        reporter.warn(f"the rows cannot be read again ({error}); what is exported is checked on the texts "
                      f"in {told}, and not scored")  # fmt: skip
        return _told(folder, told, max_rows)


def _read_again(
    folder: Path, task: Task, metrics: dict[str, Any], rows: int | None, reporter: Reporter
) -> ValidationSet:
    config = task.config.continued_from(folder)
    config = config if rows is None else dataclasses.replace(config, max_eval_samples=rows)
    prepared = prepare(task.spec.name, config, Reporter())
    same = combine_fingerprints(prepared.fingerprints) == metrics["data"]["fingerprint"]
    if not same and rows is None:
        reporter.warn(
            f"the data have changed since {folder} was trained: its scores were those of other rows"
        )
    model = prepared.task.build_model(prepared.model_config, prepared.model_source).eval()
    if prepared.task.spec.row_level:
        prepared.task.load_state(loading.load_config(prepared.model_source))
    features, found = prepared.features["validation"], prepared.splits["validation"]
    return ValidationSet(prepared.task, model, prepared.tokenizer, features, found, "validation", same)


def _told(folder: Path, path: Path, rows: int | None) -> ValidationSet:
    """The rows of a file of predictions, without their labels."""
    predictor = load_predictor(folder)
    with path.open(encoding="utf-8") as file:
        records = [_inputs(json.loads(line), predictor.task) for line in file]
    table, _ = predictor.task.parse_rows(Rows.from_dicts(records[:rows], str(path)))
    features = predictor.task.featurize(table, predictor.tokenizer)
    return ValidationSet(
        predictor.task, predictor.model.cpu(), predictor.tokenizer, features, table, path.name
    )


def _inputs(record: dict[str, Any], task: Task) -> dict[str, Any]:
    """What was read of a row, in a record with what was predicted of it."""
    named = {name: value for name, value in record.items() if not name.startswith(INPUT_PREFIX)}
    clashed = {name.removeprefix(INPUT_PREFIX): value for name, value in record.items() if name not in named}
    return {name: value for name, value in {**named, **clashed}.items() if name not in task.inputs.gold_columns}
