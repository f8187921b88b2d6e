"""Forms in which predictions are written: JSON lines, CSV, column files."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from bertkit.errors import UserError, listed
from bertkit.files import plain
from bertkit.tasks.base import Outputs, Task

Format = Literal["jsonl", "csv", "conll"]
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".conll": "conll"}
CONLL = "predictions.conll"  # what a task that can be written so calls it


@dataclass(frozen=True)
class Part:
    """Some predictions: as records, and what they were made from."""

    records: list[dict[str, Any]]
    task: Task
    outputs: Outputs


def format_of(output: str) -> Format:
    """By a file's ending. Raises `UserError` where it says nothing."""
    ending = PurePath(output).suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"--output {output}: end it in {listed(ENDINGS)}, or say --format")
    return ENDINGS[ending]


def written(parts: Iterable[Part], form: Format) -> Iterator[str]:
    """The predictions as text, part by part.

    Raises:
        UserError: they cannot be written so.
    """
    return WRITERS[form](parts)


def _jsonl(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        for record in part.records:
            yield _json(plain(record)) + "\n"


def _csv(parts: Iterable[Part]) -> Iterator[str]:
    """A row a line under the columns of the first ones; probabilities a column each, lists as JSON."""
    names: list[str] = []
    for part in parts:
        rows, file = [flat(record) for record in part.records], io.StringIO()
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


def flat(record: dict[str, Any]) -> dict[str, Any]:
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


def _conll(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        files = part.task.files(part.outputs)
        if CONLL not in files:
            raise UserError(f"--format conll: {part.task.name} tags no tokens; take jsonl or csv")
        yield from files[CONLL]


WRITERS: dict[Format, Callable[[Iterable[Part]], Iterator[str]]] = {
    "jsonl": _jsonl, "csv": _csv, "conll": _conll,
}  # fmt: skip
