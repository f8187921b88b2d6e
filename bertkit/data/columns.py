"""Columns of texts and of labels: find them by name, and read labels as classes, label sets or numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bertkit.data.table import Rows, Splits, as_column, factorize, repeat_value
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.settings.declaration import get_column_settings
from bertkit.utils.text import has_lone_surrogate

MAX_CERTAIN_CLASSES = 20  # up to this number of different integers, they are classes, such as ratings
MIN_ROWS_PER_CLASS = 2
SCALE_MAXIMUM = 100  # integers that end here are usually percentages or scores
LabelTypeName = Literal["binary", "multi-class", "multi-label", "regression"]
SEPARATORS = ("|", ";", ",")
# Texts that mean "no label". None, blanks and numbers that are not finite have the same meaning.
MISSING_LABELS = {"n/a", "na", "#n/a", "none", "null", "-", "?"}
PAIR_COLUMNS = [
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"),
    ("sentence_a", "sentence_b"), ("context", "hypothesis"), ("text", "hypothesis"),
]  # fmt: skip
TEXT_COLUMNS = [
    "text", "sentence", "review", "content", "document", "comment", "body", "title", "premise", "sentence1",
]  # fmt: skip
DOCUMENT_COLUMNS = [
    "text", "content", "document", "body", "article", "review", "passage", "paragraph", "story", "abstract",
    "sentence", "comment",
]  # fmt: skip
LABEL_COLUMNS = [
    "label", "labels", "target", "class", "category", "sentiment", "gold_label", "score", "rating", "stars",
    "topic", "entailment_label", "entailment_judgment", "judgment", "judgement",
]  # fmt: skip


def guess_text_columns(rows: Rows) -> tuple[str, str | None]:
    """Return the text column, and the second text column (None if the rows are single texts)."""
    return guess_pair_columns(rows) or (guess_column(rows, TEXT_COLUMNS, "text"), None)


def guess_pair_columns(rows: Rows) -> tuple[str, str] | None:
    """Return the two text columns of pairs; None if no two columns have usual names."""
    for names in PAIR_COLUMNS:
        first, second = (find_column(rows, name) for name in names)
        if first and second:
            return first, second
    return None


def guess_label_column(rows: Rows) -> str:
    """Return the first column with a usual name for labels."""
    return guess_column(rows, LABEL_COLUMNS, "label")


def require_column(rows: Rows, column: str, flag: str) -> None:
    """Raise a `UserError` that lists the existing columns if a column does not exist.

    `flag` is the flag that names the column, or the reason why the column is needed.
    """
    if column in rows.columns:
        return
    rename = "rename one of these, or pass the flag of the column"
    fix = "pass one of these" if flag.startswith("-") else rename
    columns = (
        f"it has {format_list(rows.columns)}; {fix}" if rows.columns else "it has no other columns; add it"
    )
    hint = suggest_similar(column, rows.columns) or ";"
    raise UserError(f"{rows.files[0]}: no column {column!r} ({flag}){hint} {columns}")


def require_named_columns(rows: Rows, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that the user named, by setting; lists may hold names that commas separate."""
    found: dict[str, Any] = {}
    for setting, column in columns.items():
        flag = "--" + setting.replace("_", "-")
        if isinstance(column, list):
            found[setting] = parse_column_names(rows, column, flag)
        else:
            require_column(rows, column, flag)
            found[setting] = column
    return found


def parse_column_names(rows: Rows, names: Sequence[str], flag: str) -> list[str]:
    """Return the columns that the user named; a name that is not a column is split at commas."""
    columns: list[str] = []
    for name in names:
        parts = [name] if name in rows.columns else name.split(",")
        columns.extend(part.strip() for part in parts)
    for column in columns:
        require_column(rows, column, flag)
    duplicates = [column for column in columns if columns.count(column) > 1]
    if duplicates:
        raise UserError(f"{flag}: {duplicates[0]!r} is named twice; pass each column once")
    return columns


def require_texts(rows: Rows, columns: list[str]) -> None:
    """Raise a `UserError` if a value in one of the columns is not a string."""
    for column in columns:
        if as_column(rows[column]).is_text:
            continue
        for index, value in enumerate(rows[column]):
            if not isinstance(value, str):
                problem = "has no text" if value is None else f"holds {value!r}, not a text"
                fix = "fill in a text, or remove the row"
                raise UserError(f"{rows.format_location(index)}: column {column!r} {problem}; {fix}")


def find_column(rows: Rows, *names: str) -> str | None:
    """Return the column whose lower-cased name is the first that exists of `names`, or None."""
    return next((column for name in names for column in rows.columns if column.lower() == name), None)


def guess_column(rows: Rows, candidates: list[str], role: str) -> str:
    """Return the first column with one of the candidate names, which are lower-cased.

    The error names the flag `--ROLE-column`.
    """
    if column := find_column(rows, *candidates):
        return column
    raise UserError(
        f"{rows.files[0]}: no column looks like the {role} "
        f"(it has {format_list(rows.columns) or 'none at all'}); name it with --{role}-column"
    )


def add_renamed_columns(rows: Rows, old_config: Any, new_config: Any) -> Rows:
    """Add copies of the columns that `old_config` names, under the names in `new_config`."""
    columns = dict(rows.columns)
    new_settings = get_column_settings(new_config)
    for setting_name, old_value in get_column_settings(old_config).items():
        new_value = new_settings[setting_name]
        if isinstance(old_value, list):  # a setting such as `ending_columns`
            name_pairs = list(zip(old_value, new_value or [], strict=False))
        else:
            name_pairs = [(old_value, new_value)]
        for old_name, new_name in name_pairs:
            if old_name in rows.columns and new_name:
                columns[new_name] = rows[old_name]
    return rows.replace_columns(columns)


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
    """Return the labels of one row of a multi-label dataset, which may be []; None if the value is missing.

    The value is a list of labels, or a text, which is a single label if `separator` is None.
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
            hint = "--problem multi-class reads them as classes"
            return "regression", f"labels are read as numbers ({reason}); {hint}"
        if len(counts) > 2:
            note = f"labels are read as classes ({reason}); --problem regression reads them as numbers"
    if detect_separator(distinct, SEPARATORS[:2]):
        return "multi-label", ""
    return ("binary" if len(counts) == 2 else "multi-class"), note


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


def drop_unlabeled_rows(splits: Splits, column: str) -> tuple[Splits, list[str]]:
    """Return the splits without unlabeled rows, and a note for each split that has lost rows.

    A row is unlabeled if its label is null, `-` (in SNLI, annotators disagreed) or -1 (on the Hub, the label
    is not published). Rows with a blank label are kept: a blank is a gap in the file, which is reported as an
    error later. A split without any label is kept as a whole, with None in the label column.
    """
    labeled_splits, notes = dict(splits), []
    labels = {normalize_label(value) for value in splits["train"].factorize(column)[1]}
    minus_one_is_class = labels - {"-", "-1", None} <= {"0", "1"}  # the classes -1 and 1, or -1, 0 and 1
    no_label_marks = {"-"} if minus_one_is_class else {"-", "-1"}
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
