"""Predictions beside what they are about, as `predictions.jsonl` and `bertkit predict` tell them."""

from collections.abc import Container, Iterator, Mapping
from itertools import repeat
from typing import Any

from bertkit.tasks.base import Outputs, Task

NONE: Mapping[str, Any] = {}


def records(task: Task, outputs: Outputs) -> Iterator[dict[str, Any]]:
    """Predictions with the input columns before them; a column that clashes becomes `input_NAME`."""
    predictions = task.decode(outputs)
    rows = iter(outputs.rows) if task.rows_told else repeat(NONE)
    for number, (row, prediction) in enumerate(zip(rows, predictions, strict=task.rows_told)):
        yield beside(number, row, task.retold, prediction)


def beside(
    number: int, row: Mapping[str, Any], retold: Container[str], prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """The number of a row, its columns but those that are told again, and its prediction."""
    keys = {"id", *prediction}
    inputs: dict[str, Any] = {}
    for name, value in row.items():
        if name in retold:
            continue
        while name in keys:
            name = f"input_{name}"
        keys.add(name)
        inputs[name] = value
    return {"id": number, **inputs, **prediction}
