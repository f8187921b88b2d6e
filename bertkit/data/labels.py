"""Labels as users write them: what kind they are, their names, and their numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.utils.text import has_lone_surrogate

LabelTypeName = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", ",")
MISSING_LABELS = {
    "n/a",
    "na",
    "#n/a",
    "none",
    "null",
    "-",
    "?",
}  # beside what Python reads as no finite number
MAX_NUMERIC_CLASSES = 20  # more different whole numbers than this are a scale, not classes


def map_label_ids(
    values: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Label numbers 0, 1, ... (also as text) and other spellings by their known names.

    -1, the Hub's "no label", is None.
    """
    table: dict[str, Any] = {str(number): name for number, name in enumerate(names)} | {"-1": None}
    table |= aliases or {}
    return [table.get(str(value), value) for value in values]


def map_tag_ids(
    lists: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Lists of label numbers by their known names, each list a row's; what is no such number stays."""
    table = {str(number): name for number, name in enumerate(names)} | dict(aliases or {})
    try:
        there = set().union(*(row for row in lists if isinstance(row, list)))
    except TypeError:  # lists of lists are no tags; the task says so, and at which row
        return list(lists)
    named = {tag: table[str(tag)] for tag in there if str(tag) in table}
    if not named:
        return list(lists)
    return [list(map(named.get, row, row)) if isinstance(row, list) else row for row in lists]


def normalize_label(value: Any) -> str | None:
    """A label as text; 1.0 and 1 are the same; None and blank are no label."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def is_missing_label(text: str | None) -> bool:
    """Whether a label says that there is none, as programs write it; infinity is none either."""
    if text is None or text.casefold() in MISSING_LABELS:
        return True
    try:
        return not np.isfinite(float(text))
    except ValueError:
        return False


def infer_label_type(values: Sequence[Any]) -> LabelTypeName:
    """What kind of labels these are: lists or separated names are label sets, fractions are numbers.

    A gap among numbers (`nan`, `N/A`) makes no classes of them.
    """
    there = [value for value in values if normalize_label(value) is not None]
    if any(isinstance(value, (list, tuple)) for value in there):
        return "multi-label"
    distinct = {normalize_label(value) for value in there}
    numbers = [parse_number(text) for text in distinct if not is_missing_label(text)]
    if numbers and all(number is not None for number in numbers):
        whole = all(float(number or 0).is_integer() for number in numbers)
        if not whole or len(numbers) > MAX_NUMERIC_CLASSES:
            return "regression"
    if detect_separator(values, SEPARATORS[:2]):
        return "multi-label"
    return "binary" if len(distinct) == 2 else "multi-class"


def detect_separator(values: Sequence[Any], separators: Sequence[str] = SEPARATORS) -> str | None:
    """The mark that parts several labels in one text, where cutting at it leaves fewer different names."""
    texts = {text for text in map(normalize_label, values) if text}
    for mark in separators:
        parts = {part.strip() for text in texts for part in text.split(mark)}
        if any(mark in text for text in texts) and len(parts) < len(texts):
            return mark
    return None


def parse_label_set(value: Any, separator: str | None) -> list[str] | None:
    """The labels of one row of a multi-label data set; an empty list is a row with none of them."""
    if isinstance(value, (list, tuple)):
        return [text for text in map(normalize_label, value) if text]
    text = normalize_label(value)
    if text is None:
        return None
    return [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]


def sort_labels(names: Sequence[str]) -> list[str]:
    """By number where all are numbers, else by name."""
    numbers = {name: parse_number(name) for name in set(names)}
    if all(number is not None for number in numbers.values()):
        return sorted(numbers, key=lambda name: numbers[name] or 0.0)
    return sorted(numbers)


def encode_labels(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """[n] int: each row's label by its place in `names`. Raises `UserError` at a row without a known one."""
    _require_plain(rows, column)
    table = {name: number for number, name in enumerate(names)}
    numbers = [table.get(normalize_label(value) or "") for value in rows[column]]
    if None in numbers:
        _refuse(rows, column, numbers.index(None), names)
    return np.array(numbers, dtype=np.int64)


def binarize_labels(rows: Rows, column: str, names: Sequence[str], separator: str | None) -> np.ndarray:
    """[n, classes] of 0 and 1. Raises `UserError` at a row with an unknown label or none given."""
    _require_plain(rows, column)
    table = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(rows), len(names)), np.int64)
    for index, value in enumerate(rows[column]):
        labels = parse_label_set(value, separator)
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
                raise UserError(
                    f"{rows.format_location(index)}: column {column!r} holds {shorten_repr(value)}, no label"
                )
            if isinstance(label, str) and has_lone_surrogate(label):
                raise UserError(
                    f"{rows.format_location(index)}: label {label!a} holds half of a surrogate pair, which no file of "
                    "predictions can; give it another name"
                )


def parse_regression_labels(rows: Rows, column: str) -> np.ndarray:
    """[n] float. Raises `UserError` at a row that holds no finite number."""
    found = [parse_number(value) for value in rows[column]]
    if None in found:
        index = found.index(None)
        raise UserError(
            f"{rows.format_location(index)}: column {column!r} holds {rows[column][index]!r}, not a number, "
            "and regression needs numbers (another --problem of classify does not)"
        )
    return np.array(found, dtype=np.float64)


def has_labels(rows: Rows, column: str) -> bool:
    """Whether a split is labelled at all: test sets often are not."""
    return column in rows.columns and any(normalize_label(value) is not None for value in rows[column])


def parse_number(value: Any) -> float | None:
    """The finite number that a label is; None where it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) and not isinstance(value, bool) else None


def _refuse(rows: Rows, column: str, index: int, names: Sequence[str]) -> None:
    value = rows[column][index]
    if normalize_label(value) is None:
        raise UserError(f"{rows.format_location(index)}: no label in column {column!r}")
    raise UserError(
        f"{rows.format_location(index)}: label {value!r} does not occur in the training rows "
        f"(they have {format_list(names)}){suggest_similar(value, names) or '; write it as one of these'}"
    )
