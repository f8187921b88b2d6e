"""Forms in which predictions are written: JSON lines, CSV, column files."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from bertkit.errors import UserError, format_list
from bertkit.tasks.evaluation import Evaluation
from bertkit.utils.files import replace_non_finite

Format = Literal["jsonl", "csv", "conll"]
FORMAT_BY_SUFFIX: dict[str, Format] = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".conll": "conll"}
CONLL_FILE = "predictions.conll"  # what a task that can be written so calls it


@dataclass(frozen=True)
class PredictionBatch:
    """Some predictions: as records, and what they were made from."""

    records: list[dict[str, Any]]
    evaluation: Evaluation
    task_name: str


def infer_format(output: str) -> Format:
    """By a file's ending. Raises `UserError` where it says nothing."""
    ending = PurePath(output).suffix.lower()
    if ending not in FORMAT_BY_SUFFIX:
        raise UserError(f"--output {output}: end it in {format_list(FORMAT_BY_SUFFIX)}, or say --format")
    return FORMAT_BY_SUFFIX[ending]


def serialize_predictions(batches: Iterable[PredictionBatch], output_format: Format) -> Iterator[str]:
    """The predictions as text, part by part.

    Raises:
        UserError: they cannot be written so.
    """
    return WRITERS[output_format](batches)


def _jsonl(parts: Iterable[PredictionBatch]) -> Iterator[str]:
    for part in parts:
        for record in part.records:
            yield _json(replace_non_finite(record)) + "\n"


def _csv(parts: Iterable[PredictionBatch]) -> Iterator[str]:
    """A row a line under the columns of the first ones; probabilities a column each, lists as JSON."""
    names: list[str] = []
    for part in parts:
        rows, file = [flatten_record(record) for record in part.records], io.StringIO()
        if not names:
            names = list(dict.fromkeys(name for row in rows for name in row))
            csv.writer(file, lineterminator="\n").writerow(names)
        try:
            csv.DictWriter(file, names, lineterminator="\n").writerows(rows)
        except ValueError as error:  # dict contains fields not in fieldnames
            raise UserError(
                f"--format csv: row {part.records[0]['id'] + 1} or one behind it has a column that the first "
                "rows lack; take jsonl"
            ) from error
        yield file.getvalue()


def flatten_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record as cells of a table: one probability as `probability`, several a cell each."""
    cells: dict[str, Any] = {}
    for name, value in record.items():
        if name == "probabilities" and isinstance(value, dict) and isinstance(record["predicted"], str):
            one = len(value) == 1
            cells |= {"probability" if one else f"probability of {k}": share for k, share in value.items()}
        else:
            cells[name] = _json(value) if isinstance(value, (list, tuple, dict)) else value
    return cells


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _conll(parts: Iterable[PredictionBatch]) -> Iterator[str]:
    for part in parts:
        files = part.evaluation.files()
        if CONLL_FILE not in files:
            raise UserError(f"--format conll: {part.task_name} tags no tokens; take jsonl or csv")
        yield from files[CONLL_FILE]


WRITERS: dict[Format, Callable[[Iterable[PredictionBatch]], Iterator[str]]] = {
    "jsonl": _jsonl, "csv": _csv, "conll": _conll,
}  # fmt: skip
