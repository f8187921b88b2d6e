"""Decide whether integer labels are classes or numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bertkit.data.table import CategoricalColumn, Rows, Splits, factorize
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.utils.text import has_lone_surrogate

MAX_CERTAIN_CLASSES = 20  # up to this number of different integers, they are classes, such as ratings
MIN_ROWS_PER_CLASS = 2
SCALE_MAXIMUM = 100  # integers that end here are usually percentages or scores


def are_integers_classes(counts: Mapping[int, int]) -> tuple[bool, str]:
    """Return whether integer labels are classes, and the reason.

    More than `MAX_CERTAIN_CLASSES` different integers are classes only if they look like class ids: they are
    consecutive, start at 0 or 1, do not end at `SCALE_MAXIMUM`, and each of them occurs in several rows.
    Years, ages and counts usually lack one of these properties: they start elsewhere, have gaps, or have rare
    large values.

    Args:
        counts: Number of rows by label.
    """
    low, high, count = min(counts), max(counts), len(counts)
    if count <= MAX_CERTAIN_CLASSES:
        return True, f"{count} different integers"
    if low not in (0, 1):
        return False, f"{count} different integers that start at {low}, not at 0 or 1"
    if count < high - low + 1:
        return False, f"{count} different integers with gaps between {low} and {high}"
    if min(counts.values()) < MIN_ROWS_PER_CLASS:
        return False, f"integers from {low} to {high}, some of which occur in a single row"
    if high == SCALE_MAXIMUM:
        return False, f"integers from {low} to {high}, the end of a usual scale"
    return True, f"consecutive integers from {low} to {high}, each in several rows"


LabelTypeName = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", ",")
# Texts that mean "no label". None, blanks and numbers that are not finite have the same meaning.
MISSING_LABELS = {"n/a", "na", "#n/a", "none", "null", "-", "?"}


# ---- names and ids


def map_label_ids(
    values: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace label ids (integers or strings) and aliases by label names.

    Args:
        values: Labels of the rows. The value -1, the Hub's "no label", becomes None.
        names: Names of the ids 0, 1, ...
        aliases: Name by alternative spelling.
    """
    name_by_value = {"-1": None, **_make_name_table(names, aliases)}
    return [name_by_value.get(str(value), value) for value in values]


def map_tag_ids(
    lists: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace tag ids and aliases in the list of each row by tag names; keep all other values.

    Args:
        lists: Tags of each row.
        names: Names of the ids 0, 1, ...
        aliases: Name by alternative spelling.
    """
    name_by_text = _make_name_table(names, aliases)
    try:
        tags = set().union(*(row for row in lists if isinstance(row, list)))
    except TypeError:  # the lists contain lists; the task reports the row
        return list(lists)
    name_by_tag = {tag: name_by_text[str(tag)] for tag in tags if str(tag) in name_by_text}
    if not name_by_tag:
        return list(lists)
    return [list(map(name_by_tag.get, row, row)) if isinstance(row, list) else row for row in lists]


def _make_name_table(names: Sequence[str], aliases: Mapping[str, str] | None) -> dict[str, str]:
    return {str(label_id): name for label_id, name in enumerate(names)} | dict(aliases or {})


def sort_labels(names: Sequence[str]) -> list[str]:
    """Return the distinct names, sorted numerically if all of them are numbers, else alphabetically."""
    numbers = {name: parse_number(name) for name in set(names)}
    if all(number is not None for number in numbers.values()):
        return sorted(numbers, key=lambda name: numbers[name] or 0.0)
    return sorted(numbers)


def order_labels(names: Collection[str], class_names: Sequence[str]) -> list[str]:
    """Return the distinct names in the order of `class_names` if it has all of them, else sorted."""
    if set(names) <= set(class_names):
        return [name for name in class_names if name in names]
    return sort_labels(list(names))


# ---- single labels


def normalize_label(value: Any) -> str | None:
    """Return a label as text; None if it is None, NaN or blank. 1.0 and 1 give the same text."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def is_missing_label(text: str | None) -> bool:
    """Return whether a normalized label means "no label", such as None, `N/A` or NaN."""
    if text is None or text.casefold() in MISSING_LABELS:
        return True
    try:
        return not np.isfinite(float(text))
    except ValueError:
        return False


def parse_label_set(value: Any, separator: str | None) -> list[str] | None:
    """Return the labels of one row of a multi-label dataset.

    Args:
        value: A list of labels, or a text.
        separator: Separator of the labels in a text; None if a text is a single label.

    Returns:
        The labels, which may be an empty list; None if the value is missing.
    """
    if isinstance(value, (list, tuple)):
        return [text for text in map(normalize_label, value) if text]
    text = normalize_label(value)
    if text is None:
        return None
    return [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]


def parse_number(value: Any) -> float | None:
    """Return a label as a number; None if it is not a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) and not isinstance(value, bool) else None


# ---- label columns


def infer_label_type(values: Sequence[Any]) -> tuple[LabelTypeName, str]:
    """Return the type of the labels in a column, and a note on the reason if it is not obvious.

    Lists, and texts of several separated names, are label sets. Decimal numbers are regression targets.
    Integers are classes or regression targets, see `are_integers_classes`. Missing values (`nan`, `N/A`)
    are ignored in this decision. All other labels are classes.
    """
    codes, distinct = factorize(values)
    row_counts = zip(distinct, np.bincount(codes).tolist(), strict=True)
    labels = [(value, count) for value, count in row_counts if normalize_label(value) is not None]
    if any(isinstance(value, (list, tuple)) for value, _ in labels):
        return "multi-label", ""
    counts: Counter[Any] = Counter()
    for value, count in labels:
        counts[normalize_label(value)] += count
    numbers = {text: parse_number(text) for text in counts if not is_missing_label(text)}
    note = ""
    if numbers and all(number is not None for number in numbers.values()):
        integer_counts: Counter[int] = Counter()
        for text, number in numbers.items():
            if not float(number or 0).is_integer():
                return "regression", ""
            integer_counts[int(number or 0)] += counts[text]
        are_classes, reason = are_integers_classes(integer_counts)
        if not are_classes:
            return "regression", _describe_integer_labels("numbers", reason, "multi-class", "classes")
        if len(counts) > 2:
            note = _describe_integer_labels("classes", reason, "regression", "numbers")
    if detect_separator(distinct, SEPARATORS[:2]):
        return "multi-label", ""
    return ("binary" if len(counts) == 2 else "multi-class"), note


def _describe_integer_labels(kind: str, reason: str, other_problem: str, other_kind: str) -> str:
    return f"labels are read as {kind} ({reason}); --problem {other_problem} reads them as {other_kind}"


def detect_separator(values: Sequence[Any], separators: Sequence[str] = SEPARATORS) -> str | None:
    """Return the separator of several labels in a text, or None.

    If texts are split at a separator, the number of distinct names must decrease.
    """
    texts = {text for text in map(normalize_label, values) if text}
    for separator in separators:
        parts = {part.strip() for text in texts for part in text.split(separator)}
        if any(separator in text for text in texts) and len(parts) < len(texts):
            return separator
    return None


def has_labels(rows: Rows, column: str) -> bool:
    """Return whether any row has a label; test sets often have no labels."""
    return column in rows.columns and any(map(normalize_label, rows.factorize(column)[1]))


def encode_labels(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """Return [n] the label id of each row.

    Raises:
        UserError: A row has no label, or its label is not in `names`.
    """
    codes, values = rows.factorize(column)
    _require_writable_labels(rows, column, codes, values)
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    encoded = [label_ids.get(normalize_label(value) or "") for value in values]
    if None in encoded:
        raise _make_label_error(rows, column, _find_first(codes, encoded.index(None)), names)
    return np.array(encoded, dtype=np.int64)[codes]


def binarize_labels(rows: Rows, column: str, names: Sequence[str], separator: str | None) -> np.ndarray:
    """Return the [n, classes] multi-hot matrix of the label sets.

    Raises:
        UserError: The labels of a row are missing, or one of them is not in `names`.
    """
    codes, values = rows.factorize(column)
    _require_writable_labels(rows, column, codes, values)
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    matrix = np.zeros((len(values), len(names)), np.int64)
    for code, value in enumerate(values):
        labels = parse_label_set(value, separator)
        if labels is None or any(label not in label_ids for label in labels):
            raise _make_label_error(rows, column, _find_first(codes, code), names)
        matrix[code, [label_ids[label] for label in labels]] = 1
    return matrix[codes]


def parse_regression_labels(rows: Rows, column: str) -> np.ndarray:
    """Return [n] float64: the target of each row.

    Raises:
        UserError: The label of a row is not a finite number.
    """
    codes, values = rows.factorize(column)
    targets = [parse_number(value) for value in values]
    if None in targets:
        index = _find_first(codes, targets.index(None))
        raise UserError(
            f"{rows.format_location(index)}: column {column!r} holds {rows[column][index]!r}, not a number, "
            "and regression needs numbers; correct the row, or pass another --problem to classify"
        )
    return np.array(targets, dtype=np.float64)[codes]


def drop_unlabeled_rows(splits: Splits, column: str) -> tuple[Splits, list[str]]:
    """Return the splits without unlabeled rows, and a note for each split that has lost rows.

    A row is unlabeled if its label is null, `-` (in SNLI, annotators disagreed) or -1 (on the Hub, the label
    is not published). Rows with a blank label are kept: a blank is a gap in the file, which is reported as an
    error later. A split without any label is kept as a whole, with None in the label column.
    """
    labeled_splits, notes = dict(splits), []
    no_label_marks = _find_no_label_marks(splits["train"].factorize(column)[1])
    for name, rows in splits.items():
        if column not in rows.columns:
            continue
        codes, values = rows.factorize(column)
        has_label = [value is not None and normalize_label(value) not in no_label_marks for value in values]
        labeled = np.flatnonzero(np.array(has_label, bool)[codes])
        if not len(labeled):
            labeled_splits[name] = rows.with_column(column, CategoricalColumn.repeat(None, len(rows)))
        elif len(labeled) < len(rows):
            labeled_splits[name] = rows.select(labeled)
            notes.append(f"{format_count(len(rows) - len(labeled), f'{name} row')} left out: no gold label")
    return labeled_splits, notes


def _find_no_label_marks(values: Sequence[Any]) -> set[str]:
    """Return the marks of "no label": `-` and -1, or only `-` if -1 can be a class."""
    labels = {normalize_label(value) for value in values} - {"-", "-1", None}
    minus_one_is_class = labels <= {"0", "1"}  # the classes -1 and 1, or -1, 0 and 1
    return {"-"} if minus_one_is_class else {"-", "-1"}


# ---- errors


def _find_first(codes: np.ndarray, code: int) -> int:
    """Return the index of the first row with a code."""
    return int(np.argmax(codes == code))


def _require_writable_labels(rows: Rows, column: str, codes: np.ndarray, values: Sequence[Any]) -> None:
    """Raise a `UserError` if a label is not a text or number, or cannot be written as UTF-8.

    Args:
        rows: The rows.
        column: Column of the labels.
        codes: [n] code of each row's label.
        values: The distinct labels.
    """
    for code, value in enumerate(values):
        for label in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(label, (Mapping, list, tuple, bytes)):
                location = rows.format_location(_find_first(codes, code))
                raise UserError(
                    f"{location}: column {column!r} holds {shorten_repr(value)}, "
                    "not a label; write a text or a number"
                )
            if isinstance(label, str) and has_lone_surrogate(label):
                location = rows.format_location(_find_first(codes, code))
                raise UserError(
                    f"{location}: label {label!a} contains half of a surrogate pair, "
                    "which cannot be written to the predictions; rename the label"
                )


def _make_label_error(rows: Rows, column: str, index: int, names: Sequence[str]) -> UserError:
    value, location = rows[column][index], rows.format_location(index)
    if normalize_label(value) is None:
        return UserError(f"{location}: no label in column {column!r}; fill in the label, or remove the row")
    hint = suggest_similar(value, names) or "; use one of these"
    training_labels = f"they have {format_list(names)}"
    return UserError(
        f"{location}: label {value!r} does not occur in the training rows ({training_labels}){hint}"
    )
