"""Labels as users write them: their type, names and ids, and rows without a gold label."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.utils.text import has_lone_surrogate

LabelTypeName = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", ",")
# Spellings of a missing label, besides None, blanks and numbers that are not finite.
MISSING_LABELS = {"n/a", "na", "#n/a", "none", "null", "-", "?"}
MAX_NUMERIC_CLASSES = 20  # more distinct integers are a regression target


# ---- names and ids


def map_label_ids(
    values: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace label ids (also as strings) and aliases by label names.

    Args:
        values: Labels of the rows; -1, the Hub's "no label", becomes None.
        names: Names of the ids 0, 1, ...
        aliases: Other spelling -> name.
    """
    table = {"-1": None, **_make_name_table(names, aliases)}
    return [table.get(str(value), value) for value in values]


def map_tag_ids(
    lists: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace tag ids in the list of each row by tag names; other values stay.

    Args:
        lists: Tags of each row.
        names: Names of the ids 0, 1, ...
        aliases: Other spelling -> name.
    """
    table = _make_name_table(names, aliases)
    try:
        tags = set().union(*(row for row in lists if isinstance(row, list)))
    except TypeError:  # lists of lists are not tags; the task reports the row
        return list(lists)
    name_by_tag = {tag: table[str(tag)] for tag in tags if str(tag) in table}
    if not name_by_tag:
        return list(lists)
    return [list(map(name_by_tag.get, row, row)) if isinstance(row, list) else row for row in lists]


def _make_name_table(names: Sequence[str], aliases: Mapping[str, str] | None) -> dict[str, str]:
    return {str(label_id): name for label_id, name in enumerate(names)} | dict(aliases or {})


def sort_labels(names: Sequence[str]) -> list[str]:
    """Return the distinct names, sorted numerically if all are numbers, else alphabetically."""
    numbers = {name: parse_number(name) for name in set(names)}
    if all(number is not None for number in numbers.values()):
        return sorted(numbers, key=lambda name: numbers[name] or 0.0)
    return sorted(numbers)


# ---- one value


def normalize_label(value: Any) -> str | None:
    """Return a label as text; 1.0 equals 1, and None, NaN and blanks are no label."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def is_missing_label(text: str | None) -> bool:
    """Return whether a label means "no label": None, `N/A` and the like, NaN or infinity."""
    if text is None or text.casefold() in MISSING_LABELS:
        return True
    try:
        return not np.isfinite(float(text))
    except ValueError:
        return False


def parse_label_set(value: Any, separator: str | None) -> list[str] | None:
    """Return the labels of one row of a multi-label dataset; an empty list is a row without labels.

    Args:
        value: A list of labels, or one text.
        separator: Separator of the labels in a text; None if a text is one label.

    Returns:
        The labels; None if the value is missing.
    """
    if isinstance(value, (list, tuple)):
        return [text for text in map(normalize_label, value) if text]
    text = normalize_label(value)
    if text is None:
        return None
    return [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]


def parse_number(value: Any) -> float | None:
    """Return a label as a finite number; None if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) and not isinstance(value, bool) else None


# ---- a column


def infer_label_type(values: Sequence[Any]) -> LabelTypeName:
    """Return the type of the labels in a column.

    Lists and separated names are label sets. Fractions, and many distinct integers, are regression targets;
    missing values among them (`nan`, `N/A`) do not make them classes.
    """
    present = [value for value in values if normalize_label(value) is not None]
    if any(isinstance(value, (list, tuple)) for value in present):
        return "multi-label"
    distinct = {normalize_label(value) for value in present}
    numbers = [parse_number(text) for text in distinct if not is_missing_label(text)]
    if numbers and all(number is not None for number in numbers):
        are_integers = all(float(number or 0).is_integer() for number in numbers)
        if not are_integers or len(numbers) > MAX_NUMERIC_CLASSES:
            return "regression"
    if detect_separator(values, SEPARATORS[:2]):
        return "multi-label"
    return "binary" if len(distinct) == 2 else "multi-class"


def detect_separator(values: Sequence[Any], separators: Sequence[str] = SEPARATORS) -> str | None:
    """Return the separator of several labels in one text: splitting at it must give fewer distinct names."""
    texts = {text for text in map(normalize_label, values) if text}
    for separator in separators:
        parts = {part.strip() for text in texts for part in text.split(separator)}
        if any(separator in text for text in texts) and len(parts) < len(texts):
            return separator
    return None


def has_labels(rows: Rows, column: str) -> bool:
    """Return whether any row has a label: test sets often have none."""
    return column in rows.columns and any(normalize_label(value) is not None for value in rows[column])


def encode_labels(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """Return the label id of each row [n].

    Raises:
        UserError: A row has no label, or one that is not in `names`.
    """
    _require_writable_labels(rows, column)
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    encoded = [label_ids.get(normalize_label(value) or "") for value in rows[column]]
    if None in encoded:
        raise _make_label_error(rows, column, encoded.index(None), names)
    return np.array(encoded, dtype=np.int64)


def binarize_labels(rows: Rows, column: str, names: Sequence[str], separator: str | None) -> np.ndarray:
    """Return a multi-hot matrix [n, classes] of label sets.

    Raises:
        UserError: A row has no labels, or one that is not in `names`.
    """
    _require_writable_labels(rows, column)
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    matrix = np.zeros((len(rows), len(names)), np.int64)
    for index, value in enumerate(rows[column]):
        labels = parse_label_set(value, separator)
        if labels is None or any(label not in label_ids for label in labels):
            raise _make_label_error(rows, column, index, names)
        matrix[index, [label_ids[label] for label in labels]] = 1
    return matrix


def parse_regression_labels(rows: Rows, column: str) -> np.ndarray:
    """Return the target of each row [n], as float64.

    Raises:
        UserError: A row does not hold a finite number.
    """
    targets = [parse_number(value) for value in rows[column]]
    if None in targets:
        index = targets.index(None)
        raise UserError(
            f"{rows.format_location(index)}: column {column!r} holds {rows[column][index]!r}, not a number, "
            "and regression needs numbers; correct the row, or pass another --problem to classify"
        )
    return np.array(targets, dtype=np.float64)


def drop_unlabeled_rows(splits: Splits, column: str) -> tuple[Splits, list[str]]:
    """Return the splits without unlabeled rows, and a note for each split that lost rows.

    Annotators may have disagreed (SNLI's `-`), or the label may not be published (-1); null is no label
    either. A blank is kept: it is a gap in the file, which is reported as an error later. A split in which no
    row has a label is kept too, with None in the column.
    """
    labeled_splits, notes = dict(splits), []
    no_label_marks = _find_no_label_marks(splits["train"][column])
    for name, rows in splits.items():
        if column not in rows.columns:
            continue
        labeled = [
            index
            for index, value in enumerate(rows[column])
            if value is not None and normalize_label(value) not in no_label_marks
        ]
        if not labeled:
            labeled_splits[name] = rows.with_column(column, [None] * len(rows))
        elif len(labeled) < len(rows):
            labeled_splits[name] = rows.select(labeled)
            notes.append(f"{len(rows) - len(labeled):,} {name} rows left out: no gold label")
    return labeled_splits, notes


def _find_no_label_marks(values: list[Any]) -> set[str]:
    """Return the marks of "no label": `-`, and -1 unless the labels are -1, 0 and 1."""
    others = {normalize_label(value) for value in values} - {"-", "-1", None}
    return {"-"} if others <= {"0", "1"} else {"-", "-1"}


# ---- errors


def _require_writable_labels(rows: Rows, column: str) -> None:
    """Raise a `UserError` for a label that is an object, or a text that cannot be written as UTF-8."""
    for index, value in enumerate(rows[column]):
        for label in value if isinstance(value, (list, tuple)) else [value]:
            location = rows.format_location
            if isinstance(label, (Mapping, list, tuple, bytes)):
                raise UserError(
                    f"{location(index)}: column {column!r} holds {shorten_repr(value)}, not a label; "
                    "write a text or a number"
                )
            if isinstance(label, str) and has_lone_surrogate(label):
                raise UserError(
                    f"{location(index)}: label {label!a} contains half of a surrogate pair, which cannot be "
                    "written to the predictions; rename it"
                )


def _make_label_error(rows: Rows, column: str, index: int, names: Sequence[str]) -> UserError:
    value, location = rows[column][index], rows.format_location(index)
    if normalize_label(value) is None:
        return UserError(f"{location}: no label in column {column!r}; fill in the label, or remove the row")
    hint = suggest_similar(value, names) or "; use one of these"
    known = f"they have {format_list(names)}"
    return UserError(f"{location}: label {value!r} does not occur in the training rows ({known}){hint}")
