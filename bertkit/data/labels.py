"""Labels as users write them: what kind they are, their names, and their numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bertkit.data.json_text import holds_half_pair
from bertkit.data.rows import Rows
from bertkit.errors import UserError, listed, nearest, short

Problem = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", ",")
GAPS = {"n/a", "na", "#n/a", "none", "null", "-", "?"}  # beside what Python reads as no finite number
MANY_NUMBERS = 20  # more different whole numbers than this are a scale, not classes


def name_numbers(
    values: Sequence[Any], names: Sequence[str], spellings: Mapping[str, str] | None = None
) -> list[Any]:
    """Label numbers 0, 1, ... (also as text) and other spellings by their known names.

    -1, the Hub's "no label", is None.
    """
    table: dict[str, Any] = {str(number): name for number, name in enumerate(names)} | {"-1": None}
    table |= spellings or {}
    return [table.get(str(value), value) for value in values]


def name_tags(
    lists: Sequence[Any], names: Sequence[str], spellings: Mapping[str, str] | None = None
) -> list[Any]:
    """Lists of label numbers by their known names, each list a row's; what is no such number stays."""
    table = {str(number): name for number, name in enumerate(names)} | dict(spellings or {})
    try:
        there = set().union(*(row for row in lists if isinstance(row, list)))
    except TypeError:  # lists of lists are no tags; the task says so, and at which row
        return list(lists)
    named = {tag: table[str(tag)] for tag in there if str(tag) in table}
    if not named:
        return list(lists)
    return [list(map(named.get, row, row)) if isinstance(row, list) else row for row in lists]


def label_text(value: Any) -> str | None:
    """A label as text; 1.0 and 1 are the same; None and blank are no label."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def is_gap(text: str | None) -> bool:
    """Whether a label says that there is none, as programs write it; infinity is none either."""
    if text is None or text.casefold() in GAPS:
        return True
    try:
        return not np.isfinite(float(text))
    except ValueError:
        return False


def infer_problem(values: Sequence[Any]) -> Problem:
    """What kind of labels these are: lists or separated names are label sets, fractions are numbers.

    A gap among numbers (`nan`, `N/A`) makes no classes of them.
    """
    there = [value for value in values if label_text(value) is not None]
    if any(isinstance(value, (list, tuple)) for value in there):
        return "multi-label"
    distinct = {label_text(value) for value in there}
    numbers = [number_of(text) for text in distinct if not is_gap(text)]
    if numbers and all(number is not None for number in numbers):
        whole = all(float(number or 0).is_integer() for number in numbers)
        if not whole or len(numbers) > MANY_NUMBERS:
            return "regression"
    if separator_of(values, SEPARATORS[:2]):
        return "multi-label"
    return "binary" if len(distinct) == 2 else "multi-class"


def separator_of(values: Sequence[Any], marks: Sequence[str] = SEPARATORS) -> str | None:
    """The mark that parts several labels in one text, where cutting at it leaves fewer different names."""
    texts = {text for text in map(label_text, values) if text}
    for mark in marks:
        parts = {part.strip() for text in texts for part in text.split(mark)}
        if any(mark in text for text in texts) and len(parts) < len(texts):
            return mark
    return None


def label_set(value: Any, separator: str | None) -> list[str] | None:
    """The labels of one row of a multi-label data set; an empty list is a row with none of them."""
    if isinstance(value, (list, tuple)):
        return [text for text in map(label_text, value) if text]
    text = label_text(value)
    if text is None:
        return None
    return [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]


def sorted_names(names: Sequence[str]) -> list[str]:
    """By number where all are numbers, else by name."""
    numbers = {name: number_of(name) for name in set(names)}
    if all(number is not None for number in numbers.values()):
        return sorted(numbers, key=lambda name: numbers[name] or 0.0)
    return sorted(numbers)


def class_numbers(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """[n] int: each row's label by its place in `names`. Raises `UserError` at a row without a known one."""
    _require_plain(rows, column)
    table = {name: number for number, name in enumerate(names)}
    numbers = [table.get(label_text(value) or "") for value in rows[column]]
    if None in numbers:
        _refuse(rows, column, numbers.index(None), names)
    return np.array(numbers, dtype=np.int64)


def class_sets(rows: Rows, column: str, names: Sequence[str], separator: str | None) -> np.ndarray:
    """[n, classes] of 0 and 1. Raises `UserError` at a row with an unknown label or none given."""
    _require_plain(rows, column)
    table = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(rows), len(names)), np.int64)
    for index, value in enumerate(rows[column]):
        labels = label_set(value, separator)
        if labels is None or any(label not in table for label in labels):
            _refuse(rows, column, index, names)
            return matrix
        matrix[index, [table[label] for label in labels]] = 1
    return matrix


def _require_plain(rows: Rows, column: str) -> None:
    """Raise a `UserError` at a label that is an object, or a text that no file of predictions can hold."""
    for index, value in enumerate(rows[column]):
        for label in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(label, (Mapping, list, tuple, bytes)):
                raise UserError(f"{rows.where(index)}: column {column!r} holds {short(value)}, no label")
            if isinstance(label, str) and holds_half_pair(label):
                raise UserError(
                    f"{rows.where(index)}: label {label!a} holds half of a surrogate pair, which no file of "
                    "predictions can; give it another name"
                )


def numbers_of(rows: Rows, column: str) -> np.ndarray:
    """[n] float. Raises `UserError` at a row that holds no finite number."""
    found = [number_of(value) for value in rows[column]]
    if None in found:
        index = found.index(None)
        raise UserError(
            f"{rows.where(index)}: column {column!r} holds {rows[column][index]!r}, not a number, "
            "and regression needs numbers (another --problem of classify does not)"
        )
    return np.array(found, dtype=np.float64)


def has_labels(rows: Rows, column: str) -> bool:
    """Whether a split is labelled at all: test sets often are not."""
    return column in rows.columns and any(label_text(value) is not None for value in rows[column])


def number_of(value: Any) -> float | None:
    """The finite number that a label is; None where it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) and not isinstance(value, bool) else None


def _refuse(rows: Rows, column: str, index: int, names: Sequence[str]) -> None:
    value = rows[column][index]
    if label_text(value) is None:
        raise UserError(f"{rows.where(index)}: no label in column {column!r}")
    raise UserError(
        f"{rows.where(index)}: label {value!r} does not occur in the training rows "
        f"(they have {listed(names)}){nearest(value, names) or '; write it as one of these'}"
    )
