"""Predictions beside what they are about, as `predictions.jsonl` and `bertkit predict` tell them."""

from collections.abc import Container, Iterator, Mapping
from itertools import repeat
from typing import Any

from bertkit.tasks.base import Outputs, Task

EMPTY_ROW: Mapping[str, Any] = {}


def iter_prediction_records(task: Task, outputs: Outputs) -> Iterator[dict[str, Any]]:
    """Predictions with the input columns before them; a column that clashes becomes `input_NAME`."""
    predictions = task.iter_predictions(outputs)
    rows = iter(outputs.rows) if task.row_level else repeat(EMPTY_ROW)
    for number, (row, prediction) in enumerate(zip(rows, predictions, strict=task.row_level)):
        yield merge_prediction(number, row, task.dropped_columns, prediction)


def merge_prediction(
    number: int, row: Mapping[str, Any], dropped_columns: Container[str], prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """The number of a row, its columns but those that are told again, and its prediction."""
    keys = {"id", *prediction}
    inputs: dict[str, Any] = {}
    for name, value in row.items():
        if name in dropped_columns:
            continue
        while name in keys:
            name = f"input_{name}"
        keys.add(name)
        inputs[name] = value
    return {"id": number, **inputs, **prediction}
