"""The columns of `--group-column` and `--time-column`: which rows belong together, and their times."""

import math
import re
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from bertkit.data.table import Rows, Splits, combine_hashes, hash_values
from bertkit.errors import UserError, format_count, shorten_repr

GROUP_FLAG, TIME_FLAG = "--group-column", "--time-column"


def is_empty(value: Any) -> bool:
    """Return whether a cell of one of the columns has no value."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


# ---- groups

# Usual names of columns of groups, in lower case, without separators of words and without `id` at the end.
GROUP_NAMES = frozenset({
    "account", "article", "author", "case", "chat", "client", "conversation", "customer", "dialog",
    "dialogue", "doc", "document", "household", "interview", "member", "participant", "patient", "person",
    "respondent", "reviewer", "session", "speaker", "student", "thread", "user", "username", "writer",
})  # fmt: skip


MIN_GROUPS = 5  # a column with fewer values is more likely a property, such as the label that an author chose


def hash_groups(rows: Rows, column: str) -> np.ndarray:
    """Return [n] uint64 key of each row's group; a row with an empty cell is a group of its own.

    The numbers 1 and 1.0 and the text "1" name the same group.
    """
    codes, values = rows.factorize(column)

    def to_text(value: Any) -> str:
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if is_whole else value).strip()

    keys = hash_values(map(to_text, values))[codes]
    empty = np.array([is_empty(value) for value in values], bool)[codes]
    own = combine_hashes([hash_values(rows.files)[rows.file_index], rows.row_numbers.astype(np.uint64)])
    return np.where(empty, own, keys)


def find_obvious_groups(rows: Rows, read: Container[str]) -> str | None:
    """Return a column with a usual name and some repeated values that the task does not read, or None."""
    for column in rows.columns:
        name = re.sub(r"[\W_]", "", column.lower())
        if column not in read and GROUP_NAMES & {name, name.removesuffix("id")}:
            codes, values = rows.factorize(column)
            filled = np.array([not is_empty(value) for value in values], bool)
            if MIN_GROUPS <= filled.sum() < filled[codes].sum():
                return column
    return None


def check_groups(train: Rows, column: str) -> list[str]:
    """Refuse a column of groups that cannot group the training rows; return notes on its values."""
    location = f"{train.files[0]}: column {column!r} ({GROUP_FLAG})"
    codes, values = train.factorize(column)
    is_value_empty = np.array([is_empty(value) for value in values], bool)
    empty = np.flatnonzero(is_value_empty[codes])
    num_groups = len(np.unique(hash_groups(train, column)[~is_value_empty[codes]]))
    if 2 * len(empty) >= len(train):
        raise UserError(
            f"{location}: {len(empty):,} of {format_count(len(train), 'row')} are empty, the first in row "
            f"{train.row_numbers[empty[0]]}; fill them in, or omit the flag"
        )
    if num_groups == 1 and len(train) > 1:
        value = shorten_repr(values[int(np.argmin(is_value_empty))])
        raise UserError(
            f"{location}: all rows have the same value, {value}; name a column with several values"
        )
    notes = []
    if num_groups == len(train) - len(empty):
        notes.append(
            f"{GROUP_FLAG} {column}: each training row has another value, so no rows belong together"
        )
    if len(empty):
        notes.append(
            f"{format_count(len(empty), 'training row has', 'training rows have')} no value in {column!r}; "
            "each is a group of its own"
        )
    return notes


# ---- times

EPOCH_SECONDS = 1e8  # a number from here on (March 1973) counts the seconds since 1970
MILLISECONDS = 1e11  # from here on (the year 5138 in seconds) milliseconds, then microseconds, nanoseconds
# Formats that pandas does not guess from a value.
MORE_FORMATS = (
    "%m/%d/%Y %I:%M %p", "%d/%m/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M:%S %p",
    "%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %Z", "%Y년 %m월 %d일",
)  # fmt: skip
TWO_DIGIT_YEAR = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2}(?!\d)")
YEAR_FIRST = re.compile(r"%Y\W+%d")  # pandas also guesses this order, which nobody writes
TIME_ZONE = re.compile(r"\d(Z|[+-]\d{2}:?\d{2})$")
WRITE_ISO = "write all of them as 2024-12-31 or 2024-12-31T23:59:59Z"


@dataclass(frozen=True)
class TimeColumn:
    """A column of times, and how its values are written.

    Attributes:
        kind: "number", such as epoch seconds or a year; "object", such as the dates of a Parquet file; or the
            format of the texts, "ISO8601" or one of `strptime`.
    """

    name: str
    kind: str

    def read(self, rows: Rows) -> np.ndarray:
        """Return [n] a number for each row that is larger for later rows; the column must have no empty cell.

        Times are in microseconds since 1970, in UTC. A text without a time zone is read as UTC.
        """
        codes, values = rows.factorize(self.name)
        times, is_valid = parse_times(values, self.kind)
        if not is_valid.all():
            wrong = int(is_valid.argmin())
            location = rows.format_location(int(np.flatnonzero(codes == wrong)[0]))
            raise UserError(
                f"{location}: column {self.name!r} ({TIME_FLAG}): {shorten_repr(values[wrong])} is not "
                f"written as in the other rows; {WRITE_ISO}"
            )
        return times[codes]

    def format(self, time: Any) -> str:
        """Return a number of `read` as a date, with the time of the day unless it is midnight."""
        if self.kind == "number":
            if time < EPOCH_SECONDS:
                return f"{time:.15g}"
            time *= 1_000_000 / _get_units_per_second(time)
        text = np.datetime64(int(time), "us").item().isoformat(" ", "seconds")
        return str(text).removesuffix(" 00:00:00")


def _get_units_per_second(number: float) -> float:
    return 1000.0 ** max(0, math.floor((math.log10(abs(number)) - math.log10(MILLISECONDS)) / 3 + 1))


def parse_times(values: Sequence[Any], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return [n] numbers that order the values, and [n] whether a value is of this kind."""
    import pandas as pd

    if kind == "number":
        numbers = np.array([_to_number(value) for value in values])
        return numbers, np.isfinite(numbers)
    value_type = date if kind == "object" else str
    cells: list[Any] = [value if isinstance(value, value_type) else None for value in values]
    if kind == "object":
        times = pd.to_datetime(pd.Series(cells, dtype=object), utc=True, errors="coerce")
    else:
        texts = pd.Series([cell and cell.strip() for cell in cells], dtype=object)
        times = pd.to_datetime(texts, format=kind, utc=True, errors="coerce")
    index = pd.DatetimeIndex(times)
    return index.as_unit("us").asi8, ~np.asarray(index.isna())


def _to_number(value: Any) -> float:
    """Return the number that a cell holds or spells, or NaN."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def find_time_column(splits: Splits, column: str) -> TimeColumn:
    """Return how the times of all splits are written; a `UserError` names a row for which this is unclear."""
    flag = f"column {column!r} ({TIME_FLAG})"
    places: dict[Any, tuple[Rows, int]] = {}  # first row of each value
    for rows in splits.values():
        codes, distinct = rows.factorize(column)
        _, first_rows = np.unique(codes, return_index=True)
        for value, row in zip(distinct, first_rows.tolist(), strict=True):
            if is_empty(value):
                raise UserError(
                    f"{rows.format_location(row)}: {flag} is empty; fill in the time, or remove the row"
                )
            places.setdefault(value if isinstance(value, (str, date)) else str(value), (rows, row))
    values = list(places)

    def describe(value: Any) -> str:
        rows, row = places[value]
        return f"{rows.format_location(row)}: {flag}: {shorten_repr(str(value))}"

    numbers, are_numbers = parse_times(values, "number")
    if all(isinstance(value, date) for value in values):
        return TimeColumn(column, "object")
    if are_numbers.all():
        units = [_get_units_per_second(number) for number in numbers.tolist() if number >= EPOCH_SECONDS]
        if len(units) == len(numbers) and len(set(units)) > 1:
            other = next(index for index, unit in enumerate(units) if unit != units[0])
            raise UserError(
                f"{describe(values[other])} counts other units than {shorten_repr(str(values[0]))}; write "
                "all of them in seconds"
            )
        return TimeColumn(column, "number")
    texts = [str(value) for value in values]
    short = next((value for value in values if TWO_DIGIT_YEAR.match(str(value).strip())), None)
    if short is not None:
        raise UserError(f"{describe(short)} has a year of two digits, which is ambiguous; {WRITE_ISO}")
    parsed = {"ISO8601": parse_times(values, "ISO8601")}
    if parsed["ISO8601"][1].all():
        zoned = [":" in text and bool(TIME_ZONE.search(text.strip())) for text in texts]
        if any(zoned) and not all(zoned):
            raise UserError(
                f"{describe(values[zoned.index(False)])} has no time zone, but "
                f"{shorten_repr(texts[zoned.index(True)])} has one; {WRITE_ISO}"
            )
        return TimeColumn(column, "ISO8601")
    parsed |= {kind: parse_times(values, kind) for kind in _list_formats(texts[0].strip())}
    complete = [kind for kind, (_, is_valid) in parsed.items() if is_valid.all()]
    if not complete:
        is_valid = max([are_numbers, *(is_valid for _, is_valid in parsed.values())], key=np.sum)
        problem = "is not a date in a format that bertkit reads"
        if is_valid.any():
            problem = f"is not a date like {shorten_repr(texts[int(is_valid.argmax())])}"
        raise UserError(f"{describe(values[int(is_valid.argmin())])} {problem}; {WRITE_ISO}")
    first = parsed[complete[0]][0]
    for kind in complete[1:]:
        different = np.flatnonzero(parsed[kind][0] != first)
        if len(different):
            raise UserError(
                f"{describe(values[different[0]])} can begin with the day or with the month, and so can all "
                f"others; {WRITE_ISO}"
            )
    return TimeColumn(column, complete[0])


def _list_formats(text: str) -> list[str]:
    """Return the formats that a text may have."""
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the order of day and month, which is checked with all values
        guessed = [guess_datetime_format(text, dayfirst=dayfirst) for dayfirst in (False, True)]
    formats = [kind for kind in dict.fromkeys(guessed) if kind and not YEAR_FIRST.match(kind)]
    return [*formats, *MORE_FORMATS]


# ---- both


def count_groups(splits: Splits, column: str) -> dict[str, Any]:
    """Return the section "groups" of the data in `metrics.json`: how many groups each split has."""
    sizes = {
        name: len(np.unique(hash_groups(rows, column)))
        for name, rows in splits.items()
        if column in rows.columns
    }
    return {"column": column, **sizes}


def find_time_ranges(splits: Splits, column: TimeColumn) -> dict[str, Any]:
    """Return the section "time" of the data in `metrics.json`: the first and the last time of each split."""
    ranges = {}
    for name, rows in splits.items():
        if column.name in rows.columns and len(rows):
            times = column.read(rows)
            ranges[name] = [column.format(times.min()), column.format(times.max())]
    return {"column": column.name, **ranges}


def describe_sides(section: Mapping[str, Any]) -> str:
    """Return a section of `count_groups` or `find_time_ranges` for the console and the page."""
    sides = [
        f"{name} {' to '.join(value) if isinstance(value, list) else format(value, ',')}"
        for name, value in section.items()
        if name != "column"
    ]
    return f"{section['column']}: {', '.join(sides)}"
