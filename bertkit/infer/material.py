"""A finished run with the rows that it was validated on."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.rows import Rows, fingerprint
from bertkit.errors import UserError
from bertkit.infer.predictor import load
from bertkit.modeling import loading
from bertkit.prepare import prepare, task_of_run
from bertkit.reporter import Reporter
from bertkit.tasks.base import Outputs, Scores, Task

INPUT = "input_"  # before a column of the input whose name a prediction has


@dataclass(frozen=True)
class Material:
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
    rows_from: str
    as_then: bool = False

    def scores(self, logits: Any) -> Scores:
        """Of all rows; none where they have no labels."""
        if self.features.labels is None:
            return {}
        return self.task.metrics(Outputs(logits, self.features, self.rows))


def material(folder: Path, metrics: dict[str, Any], rows: int | None, reporter: Reporter) -> Material:
    """The validation rows, read as they were for the run; where that cannot be, the texts it told.

    Args:
        metrics: the run's.
        rows: at most so many, drawn by seed; None: all.

    Raises:
        UserError: there are neither.
    """
    task = task_of_run(folder)
    try:
        return _read_again(folder, task, metrics, rows, reporter)
    except UserError as error:
        told = folder / f"{task.told}.jsonl"
        if not task.rows_told or not told.exists():
            raise
        reporter.warn(f"the rows cannot be read again ({error}); what is exported is checked on the texts "
                      f"in {told}, and not scored")  # fmt: skip
        return _told(folder, told, rows)


def _read_again(
    folder: Path, task: Task, metrics: dict[str, Any], rows: int | None, reporter: Reporter
) -> Material:
    config = task.of_run(folder)
    config = config if rows is None else dataclasses.replace(config, max_eval_samples=rows)
    prepared = prepare(task.name, config, Reporter())
    same = fingerprint(prepared.fingerprints) == metrics["data"]["fingerprint"]
    if not same and rows is None:
        reporter.warn(
            f"the data have changed since {folder} was trained: its scores were those of other rows"
        )
    model = prepared.task.model(prepared.model_config, prepared.source).eval()
    if prepared.task.rows_told:
        prepared.task.restore(loading.load_config(prepared.source))
    features, found = prepared.features["validation"], prepared.splits["validation"]
    return Material(prepared.task, model, prepared.tokenizer, features, found, "validation", same)


def _told(folder: Path, path: Path, rows: int | None) -> Material:
    """The rows of a file of predictions, without their labels."""
    predictor = load(folder)
    with path.open(encoding="utf-8") as file:
        records = [_inputs(json.loads(line), predictor.task) for line in file]
    table = predictor.task.readable(Rows.from_dicts(records[:rows], str(path)))
    features = predictor.task.prepare(table, predictor.tokenizer)
    return Material(predictor.task, predictor.model.cpu(), predictor.tokenizer, features, table, path.name)


def _inputs(record: dict[str, Any], task: Task) -> dict[str, Any]:
    """What was read of a row, in a record with what was predicted of it."""
    named = {name: value for name, value in record.items() if not name.startswith(INPUT)}
    clashed = {name.removeprefix(INPUT): value for name, value in record.items() if name not in named}
    return {name: value for name, value in {**named, **clashed}.items() if name not in task.gold_columns}
