"""What training refuses, one row after the other: it stops at the first, here they are counted.

The task itself is asked, so that what is refused, and in which words, is nowhere said twice. An error
names file and row; that row is left aside, and the task is asked again.
"""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bertkit.checks.findings import MAX_LOCATIONS, Finding
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError
from bertkit.tasks.base import Task

MAX_PASSES = 20  # rows left aside where each takes another pass over all of the data
CHUNK_SIZE = 256  # rows asked for at once where they are asked for in parts
ROW_LOCATION = re.compile(r"(?P<file>.+?): (row|line) (?P<number>\d+)")
FIX_FIRST = "to be mended first: training stops here"
VALUE_PATTERN = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass
class ErrorCollector:
    """The errors so far, in their order.

    Attributes:
        complete: whether all rows were asked for.
    """

    errors: list[str] = field(default_factory=list)
    is_complete: bool = True

    def to_findings(self) -> Iterator[Finding]:
        """One of each kind (they differ in place and values alone), in the words of the first of them."""
        kinds: dict[str, list[str]] = {}
        for error in self.errors:
            kinds.setdefault(VALUE_PATTERN.sub("_", ROW_LOCATION.sub("", error, count=1)), []).append(error)
        for alike in kinds.values():
            found = [match[0] for error in alike[:MAX_LOCATIONS] if (match := ROW_LOCATION.match(error))]
            more = f" ({len(alike):,} rows are refused so)" if len(alike) > 1 else ""
            yield Finding("error", "refused", alike[0] + more, FIX_FIRST, len(alike), found)
        if not self.is_complete:
            yield Finding("note", "not-all", "there may be more of this: the rows behind were not looked at")


def locate_error(error: UserError, splits: Splits) -> tuple[str, int] | None:
    """Split and index of the row that an error names; None where it names none of these."""
    match = ROW_LOCATION.match(str(error))
    if match is None:
        return None
    for name, rows in splits.items():
        index = _index(rows, match["file"], int(match["number"]))
        if index is not None:
            return name, index
    return None


def _index(rows: Rows, file: str, number: int) -> int | None:
    """The row of that number; where numbers are lines, the one whose first line is not behind it."""
    own = [at for at, other in enumerate(rows.files) if other == file]
    candidates = np.flatnonzero(np.isin(rows.file_index, own))
    numbers = rows.row_numbers[candidates]
    fits = candidates[numbers <= number if file in rows.line_numbered_files else numbers == number]
    return int(fits[-1]) if len(fits) else None


def parse_valid_rows(
    task: Task, dataset: LoadedDataset, collector: ErrorCollector
) -> tuple[Task, LoadedDataset, LoadedDataset | None]:
    """The task that knows its columns, the rows it did not refuse, and what it made of them.

    None where it refuses something that is no row: there is nothing to go on with.
    """
    for _ in range(MAX_PASSES):
        attempt = copy.copy(task)
        try:
            return attempt, dataset, _read(attempt, dataset)
        except UserError as error:
            collector.errors.append(str(error))
            place = locate_error(error, dataset.splits)
            if place is None:
                return task, dataset, None
            dataset = _without(dataset, *place)
            if not len(dataset.splits[place[0]]):
                return task, dataset, None
    collector.is_complete = False
    return task, dataset, None


def _read(task: Task, found: LoadedDataset) -> LoadedDataset:
    """With the columns found."""
    return task.parse_dataset(found)


def _without(found: LoadedDataset, split: str, index: int) -> LoadedDataset:
    rows = found.splits[split]
    kept = rows.select(other for other in range(len(rows)) if other != index)
    return dataclasses.replace(found, splits={**found.splits, split: kept})


def drop_invalid_rows(task: Task, splits: Splits, collector: ErrorCollector) -> Splits:
    """The rows of each split whose values the task takes, in the form it works on."""
    taken = {}
    for name, rows in splits.items():
        refused = _refused(
            lambda part, name=name: task.validate_splits({name: task.normalize_rows(part)}),  # type: ignore[misc]
            rows,
            collector,
        )
        kept = rows if not refused else rows.select(i for i in range(len(rows)) if i not in refused)
        taken[name] = kept
    return taken


def _refused(ask: Callable[[Rows], None], rows: Rows, refusals: ErrorCollector) -> set[int]:
    """The rows that are refused one by one: where all of them pass together, none is."""
    if _error(ask, rows) is None:
        return set()
    found = set()
    for start in range(0, len(rows), CHUNK_SIZE):
        chunk = range(start, min(start + CHUNK_SIZE, len(rows)))
        if _error(ask, rows.select(chunk)) is None:
            continue
        for index in chunk:
            error = _error(ask, rows.select([index]))
            if error is not None:
                refusals.errors.append(error)
                found.add(index)
    return found


def _error(ask: Callable[[Rows], None], rows: Rows) -> str | None:
    """What is said against one of these rows; what is said against all of them together does not count."""
    try:
        ask(rows)
    except UserError as error:
        return str(error) if locate_error(error, {"": rows}) is not None else None
    return None
