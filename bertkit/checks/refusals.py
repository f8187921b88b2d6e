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

from bertkit.data.findings import FIRST, Finding
from bertkit.data.rows import Rows, Splits
from bertkit.data.sources import Found
from bertkit.errors import UserError
from bertkit.tasks.base import Task

MOST = 20  # rows left aside where each takes another pass over all of the data
CHUNK = 256  # rows asked for at once where they are asked for in parts
PLACE = re.compile(r"(?P<file>.+?): (row|line) (?P<number>\d+)")
TO_MEND = "to be mended first: training stops here"
VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass
class Refusals:
    """The errors so far, in their order.

    Attributes:
        complete: whether all rows were asked for.
    """

    errors: list[str] = field(default_factory=list)
    complete: bool = True

    def findings(self) -> Iterator[Finding]:
        """One of each kind (they differ in place and values alone), in the words of the first of them."""
        kinds: dict[str, list[str]] = {}
        for error in self.errors:
            kinds.setdefault(VALUE.sub("_", PLACE.sub("", error, count=1)), []).append(error)
        for alike in kinds.values():
            found = [match[0] for error in alike[:FIRST] if (match := PLACE.match(error))]
            more = f" ({len(alike):,} rows are refused so)" if len(alike) > 1 else ""
            yield Finding("error", "refused", alike[0] + more, TO_MEND, len(alike), found)
        if not self.complete:
            yield Finding("note", "not-all", "there may be more of this: the rows behind were not looked at")


def place_of(error: UserError, splits: Splits) -> tuple[str, int] | None:
    """Split and index of the row that an error names; None where it names none of these."""
    match = PLACE.match(str(error))
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
    candidates = np.flatnonzero(np.isin(rows.file_of, own))
    numbers = rows.number[candidates]
    fits = candidates[numbers <= number if file in rows.by_line else numbers == number]
    return int(fits[-1]) if len(fits) else None


def columns(task: Task, found: Found, refusals: Refusals) -> tuple[Task, Found, Found | None]:
    """The task that knows its columns, the rows it did not refuse, and what it made of them.

    None where it refuses something that is no row: there is nothing to go on with.
    """
    for _ in range(MOST):
        attempt = copy.copy(task)
        try:
            return attempt, found, _read(attempt, found)
        except UserError as error:
            refusals.errors.append(str(error))
            place = place_of(error, found.splits)
            if place is None:
                return task, found, None
            found = _without(found, *place)
            if not len(found.splits[place[0]]):
                return task, found, None
    refusals.complete = False
    return task, found, None


def _read(task: Task, found: Found) -> Found:
    """With the columns found."""
    return task.columns(found)


def _without(found: Found, split: str, index: int) -> Found:
    rows = found.splits[split]
    kept = rows.select(other for other in range(len(rows)) if other != index)
    return dataclasses.replace(found, splits={**found.splits, split: kept})


def values(task: Task, splits: Splits, refusals: Refusals) -> Splits:
    """The rows of each split whose values the task takes, in the form it works on."""
    taken = {}
    for name, rows in splits.items():
        refused = _refused(lambda part, name=name: task.check({name: task.readable(part)}), rows, refusals)  # type: ignore[misc]
        kept = rows if not refused else rows.select(i for i in range(len(rows)) if i not in refused)
        taken[name] = kept
    return taken


def _refused(ask: Callable[[Rows], None], rows: Rows, refusals: Refusals) -> set[int]:
    """The rows that are refused one by one: where all of them pass together, none is."""
    if _error(ask, rows) is None:
        return set()
    found = set()
    for start in range(0, len(rows), CHUNK):
        chunk = range(start, min(start + CHUNK, len(rows)))
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
        return str(error) if place_of(error, {"": rows}) is not None else None
    return None
