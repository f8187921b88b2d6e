"""Labels in a column: single labels, label sets or numbers, their notations, and their encoding."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from bertkit.data.table import ComputedColumn, Rows, Splits, factorize, repeat_value
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.utils.text import has_lone_surrogate, parse_list

MAX_CERTAIN_CLASSES = 20  # up to this number of different integers, they are classes, such as ratings
MIN_ROWS_PER_CLASS = 2
SCALE_MAXIMUM = 100  # integers that end here are usually percentages or scores
LabelTypeName = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", "#", ",")  # of the labels in a text; `#` is that of doccano
OBVIOUS_SEPARATORS = ("|", ";")
TAG_LIST = re.compile(r"(<[^<>]+>)+")  # `<python><pandas>`, as on Stack Overflow
# Cells of a column of its own for each label.
MEMBERSHIP = {"0": False, "1": True, "False": False, "True": True, "false": False, "true": True}
# Three digits after a comma may be thousands, unless a zero precedes it.
DECIMAL_COMMA = re.compile(r"-?(\d+,(\d{1,2}|\d{4,})|0,\d+)")
HALF_NUMBER = re.compile(r"\d+,[05]")
PERCENTAGE = re.compile(r"(-?\d+([.,]\d+)?)\s?%")
# Texts that mean "no label". None, blanks and numbers that are not finite have the same meaning.
MISSING_LABELS = {"n/a", "na", "#n/a", "none", "null", "-", "?"}


# ---- names and ids


def map_label_ids(
    values: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace label ids (integers or strings) and aliases by label names, and -1 ("no label") by None."""
    name_by_id = {str(label_id): name for label_id, name in enumerate(names)}
    name_by_value = {"-1": None, **name_by_id, **(aliases or {})}
    return [name_by_value.get(str(value), value) for value in values]


def map_tag_ids(
    lists: Sequence[Any], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> list[Any]:
    """Replace tag ids and aliases in the list of each row by tag names; keep all other values."""
    name_by_text = {str(tag_id): name for tag_id, name in enumerate(names)} | dict(aliases or {})
    try:
        tags = set().union(*(row for row in lists if isinstance(row, list)))
    except TypeError:  # the lists contain lists; the task reports the row
        return list(lists)
    name_by_tag = {tag: name_by_text[str(tag)] for tag in tags if str(tag) in name_by_text}
    if not name_by_tag:
        return list(lists)
    return [list(map(name_by_tag.get, row, row)) if isinstance(row, list) else row for row in lists]


def order_labels(names: Collection[str], class_names: Sequence[str]) -> list[str]:
    """Return the distinct names in the order of `class_names` if it has all of them, else sorted.

    They are sorted numerically if all of them are numbers, else alphabetically.
    """
    if set(names) <= set(class_names):
        return [name for name in class_names if name in names]
    numbers = {name: parse_number(name) for name in set(names)}
    if all(number is not None for number in numbers.values()):
        return sorted(numbers, key=lambda name: numbers[name] or 0.0)
    return sorted(numbers)


# ---- single labels


def normalize_label(value: Any) -> str | None:
    """Return a label as text; None if it is None, NaN or blank. 1.0 and 1 give the same text.

    A list of one label, such as `["a"]` or the text `['a']`, is that label.
    """
    items = value if isinstance(value, (list, tuple)) else parse_list(value)
    if items is not None and len(items) == 1 and not isinstance(items[0], (list, tuple, dict)):
        value = items[0]
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
    """Return the labels of one row of a multi-label dataset, which may be []; None if the value is missing.

    The value is a list of labels, a text with such a list, or another text, which is a single label if
    `separator` is None.
    """
    items = value if isinstance(value, (list, tuple)) else parse_list(value)
    if items is not None:
        return [text for text in map(normalize_label, items) if text]
    text = normalize_label(value)
    if text is None:
        return None
    if separator:
        return split_labels(text, separator)
    return text[1:-1].split("><") if TAG_LIST.fullmatch(text) else [text]


def parse_number(value: Any) -> float | None:
    """Return a label as a number; None if it is not a finite number. `0,5` is 0.5, and `10%` is 10."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        number = float(value if "_" not in text else "nan")  # Python reads 1_5 as 15
    except (TypeError, ValueError, OverflowError):
        if match := PERCENTAGE.fullmatch(text):
            text = match[1]
        elif not DECIMAL_COMMA.fullmatch(text):
            return None
        number = float(text.replace(",", "."))
    return number if np.isfinite(number) and not isinstance(value, bool) else None


# ---- label columns


def infer_label_type(values: Sequence[Any]) -> tuple[LabelTypeName, str]:
    """Return the type of the labels in a column, and a note on the reason if it is not obvious.

    Lists, and texts of several separated names, are label sets, unless each list has one label. Decimal
    numbers and percentages are regression targets. Integers are classes or regression targets, see
    `are_integers_classes`. Missing values (`nan`, `N/A`) are ignored in this decision. All other labels are
    classes.
    """
    codes, distinct = factorize(values)
    row_counts = zip(distinct, np.bincount(codes).tolist(), strict=True)
    labels = [(value, count) for value, count in row_counts if normalize_label(value) is not None]
    items = [value if isinstance(value, (list, tuple)) else parse_list(value) for value, _ in labels]
    lists = [item for item in items if item is not None]
    note = ""
    if lists and all(len(item) == 1 for item in lists) and len(lists) == len(labels):
        note = "each list has one label, which is read as a class; --problem multi-label reads label sets"
    elif (lists and len(lists) == len(labels)) or any(
        isinstance(value, (list, tuple)) for value, _ in labels
    ):
        return "multi-label", _describe_label_lists([value for value, _ in labels], items)
    elif any(len(item) > 1 for item in lists):
        other = shorten_repr(labels[items.index(None)][0])
        note = f"labels are read as classes: {other} is not a list; --problem multi-label reads label sets"
    counts: Counter[Any] = Counter()
    for value, count in labels:
        counts[normalize_label(value)] += count
    texts = list(counts)
    if all(map(TAG_LIST.fullmatch, texts)) and any(text.count("<") > 1 for text in texts):
        return "multi-label", ""
    if separator := find_separator(texts):
        is_obvious = separator in OBVIOUS_SEPARATORS
        example = shorten_repr(next(text for text in texts if separator in text.strip(separator)))
        reason = f"labels are read as sets, with {separator!r} between the labels of {example}"
        return "multi-label", "" if is_obvious else f"{reason}; --problem multi-class reads classes"
    if not note and (separator := find_separator(texts, is_requested=True)):
        note = f"labels with {separator!r} are read as classes; --problem multi-label reads label sets"
    numbers = {text: parse_number(text) for text in counts if not is_missing_label(text)}
    if numbers and all(number is not None for number in numbers.values()):
        integer_counts: Counter[int] = Counter()
        for text, number in numbers.items():
            if not float(number or 0).is_integer() or not _is_plain_number(text):
                return "regression", _describe_number_notation(counts)
            integer_counts[int(number or 0)] += counts[text]
        are_classes, reason = are_integers_classes(integer_counts)
        if not are_classes:
            hint = "--problem multi-class reads them as classes"
            return "regression", f"labels are read as numbers ({reason}); {hint}"
        if len(counts) > 2:
            note = f"labels are read as classes ({reason}); --problem regression reads them as numbers"
    return ("binary" if len(counts) == 2 else "multi-class"), note


def _describe_label_lists(values: Sequence[Any], items: Sequence[Sequence[Any] | None]) -> str:
    """Return a note on label sets whose notation is not obvious; `items` holds the list in each value."""
    if None in items:
        other = shorten_repr(values[items.index(None)])
        return f"labels are read as sets: {other} is a set of one label, because other labels are lists"
    lengths = {len(item) for item in items if item is not None}
    if lengths == {0, 1}:
        return "labels are read as sets: a list has no label, and the others have one, as classes have"
    text = next((value for value in values if isinstance(value, str)), None)
    return "" if text is None else f"labels are read as sets: {shorten_repr(text)} is a list"


def _is_plain_number(text: str) -> bool:
    return not (DECIMAL_COMMA.fullmatch(text) or PERCENTAGE.fullmatch(text))


def _describe_number_notation(texts: Iterable[str]) -> str:
    """Return a note if numbers have a decimal comma or a percent sign; an empty text if none has."""
    text = next((text for text in texts if not is_missing_label(text) and not _is_plain_number(text)), None)
    if text is None:
        return ""
    notation = "percentages" if "%" in text else "numbers with a decimal comma"
    example = f"{text!r} is {parse_number(text):g}"
    others = "--problem multi-class reads classes, and multi-label reads sets"
    return f"labels are read as {notation}: {example}; {others}"


def are_integers_classes(counts: Mapping[int, int]) -> tuple[bool, str]:
    """Return whether integer labels are classes, and the reason, given the number of rows by label.

    More than `MAX_CERTAIN_CLASSES` different integers are classes only if they look like class ids: they are
    consecutive, start at 0 or 1, do not end at `SCALE_MAXIMUM`, and each of them occurs in several rows.
    Years, ages and counts usually lack one of these properties: they start elsewhere, have gaps, or have rare
    large values.
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


def find_separator(texts: Sequence[str], is_requested: bool = False) -> str | None:
    """Return the separator of several labels in a text, or None if the texts are single labels.

    The texts are sets if splitting gives fewer names. For `#` and `,`, which names of classes also contain,
    half of the members of sets must also be texts of their own, or a set must have three numbers.

    Args:
        texts: The distinct labels.
        is_requested: Whether the user says that the labels are sets. Commas then always separate labels.
    """
    if all(map(TAG_LIST.fullmatch, texts)):  # such as `<c#><.net>`
        return None
    for separator in SEPARATORS:
        parts_by_text = {text: split_labels(text, separator) for text in texts}
        sets = [parts for parts in parts_by_text.values() if len(parts) > 1]
        if not sets or (separator == "," and all(map(HALF_NUMBER.fullmatch, filter(has_comma, texts)))):
            continue
        names = set(chain.from_iterable(parts_by_text.values()))
        single = {parts[0] for parts in parts_by_text.values() if len(parts) == 1}
        members = set(chain.from_iterable(sets))
        has_fewer, has_members = len(names) < len(texts), 2 * len(members & single) >= len(members)
        are_numbers = all(map(str.isdecimal, names)) and any(len(parts) > 2 for parts in sets)
        if separator in OBVIOUS_SEPARATORS:
            is_enclosed = all(text[0] == text[-1] == separator for text in texts)
            are_sets = has_fewer or (has_members and len(names) == len(texts)) or is_enclosed or is_requested
        else:
            are_sets = (has_fewer and has_members) or are_numbers or (is_requested and separator == ",")
        if are_sets:
            return separator
    return None


def split_labels(text: str, separator: str) -> list[str]:
    """Return the labels in a text, which may begin and end with the separator."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def has_comma(text: str) -> bool:
    """Return whether a text contains a comma."""
    return "," in text


def join_label_columns(rows: Rows, column: str) -> Rows:
    """Add the column `a,b,c` of label sets if there are columns `a`, `b` and `c` of 0 and 1.

    -1 in one of them, as in the test sets of Kaggle, means that the labels of the row are not known.
    """
    names = [name.strip() for name in column.split(",")]
    if column in rows.columns or len(names) < 2 or not set(names) <= set(rows.columns):
        return rows
    for name in names:
        codes, values = rows.factorize(name)
        for code, value in enumerate(values):
            if normalize_label(value) not in (*MEMBERSHIP, "-1"):
                raise UserError(
                    f"{rows.format_location(_find_first(codes, code))}: column {name!r} holds "
                    f"{shorten_repr(value)}, not 0 or 1; correct it, or name one column of label sets"
                )

    def join(*cells: Any) -> list[str] | None:
        texts = [normalize_label(cell) for cell in cells]
        if "-1" in texts:
            return None
        return [name for name, text in zip(names, texts, strict=True) if MEMBERSHIP[str(text)]]

    return rows.with_column(column, ComputedColumn(join, [rows[name] for name in names]))


def find_label_cells(values: Sequence[Any], labels: Collection[str]) -> np.ndarray:
    """Return [n] bool, whether each cell holds a label; `-` and -1 do so only if they are among `labels`."""
    marks = {"-", "-1"} - set(labels)
    texts = map(normalize_label, values)
    return np.array([not is_missing_label(text) and text not in marks for text in texts], bool)


def has_labels(rows: Rows, column: str) -> bool:
    """Return whether any row has a label; test sets often have no labels."""
    return column in rows.columns and any(map(normalize_label, rows.factorize(column)[1]))


def encode_labels(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """Return [n] the label id of each row."""
    codes, values = rows.factorize(column)
    _require_writable_labels(rows, column, codes, values)
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    encoded = [label_ids.get(normalize_label(value) or "") for value in values]
    if None in encoded:
        raise _make_label_error(rows, column, _find_first(codes, encoded.index(None)), names)
    return np.array(encoded, dtype=np.int64)[codes]


def binarize_labels(rows: Rows, column: str, names: Sequence[str], separator: str | None) -> np.ndarray:
    """Return the [n, classes] multi-hot matrix of the label sets."""
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
    """Return [n] float64: the target of each row."""
    codes, values = rows.factorize(column)
    targets = [parse_number(value) for value in values]
    if None in targets:
        index = _find_first(codes, targets.index(None))
        raise UserError(
            f"{rows.format_location(index)}: column {column!r} holds {rows[column][index]!r}, not a number, "
            "and regression needs numbers; correct the row, or pass another --problem to classify"
        )
    return np.array(targets, dtype=np.float64)[codes]


def drop_unlabeled_rows(
    splits: Splits, column: str, labels: Collection[str] | None = None
) -> tuple[Splits, list[str]]:
    """Return the splits without unlabeled rows, and a note for each split that has lost rows.

    A row is unlabeled if its label is null, `-` (in SNLI, annotators disagreed) or -1 (on the Hub, the label
    is not published). Rows with a blank label are kept: a blank is a gap in the file, which is reported as an
    error later. A split without any label is kept as a whole, with None in the label column.

    Args:
        labels: The labels of a trained model, which are no marks; None to infer whether -1 is one.
    """
    labeled_splits, notes = dict(splits), []
    found = {normalize_label(value) for value in splits["train"].factorize(column)[1]}
    if labels is None:  # the classes -1 and 1, or -1, 0 and 1
        labels = ["-1"] if found - {"-", "-1", None} <= {"0", "1"} else []
    no_label_marks = {"-", "-1"} - set(labels)
    for name, rows in splits.items():
        if column not in rows.columns:
            continue
        codes, values = rows.factorize(column)
        has_label = [value is not None and normalize_label(value) not in no_label_marks for value in values]
        labeled = np.flatnonzero(np.array(has_label, bool)[codes])
        if not len(labeled):
            labeled_splits[name] = rows.with_column(column, repeat_value(None, len(rows)))
        elif len(labeled) < len(rows):
            labeled_splits[name] = rows.select(labeled)
            notes.append(f"{format_count(len(rows) - len(labeled), f'{name} row')} left out: no gold label")
    return labeled_splits, notes


# ---- errors


def _find_first(codes: np.ndarray, code: int) -> int:
    """Return the index of the first row with a code."""
    return int(np.argmax(codes == code))


def _require_writable_labels(rows: Rows, column: str, codes: np.ndarray, values: Sequence[Any]) -> None:
    """Raise a `UserError` if a label is not a text or number, or cannot be written as UTF-8.

    `codes` [n] are those of the rows' labels, and `values` the distinct labels.
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
