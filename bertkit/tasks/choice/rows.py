"""Multiple-choice data: find the ending columns, and parse the endings and the label of each row."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.data.columns import find_column, guess_column, normalize_label
from bertkit.data.table import Column, ComputedColumn, Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr

ENDING_LIST_COLUMNS = ["endings", "choices", "options", "answers", "candidates"]
NUMBERED_ENDING = re.compile(
    r"(ending|choice|option|answer|candidate|alternative|sol)[ _-]?(\d+|[a-z])", re.IGNORECASE
)
CONTEXT_COLUMNS = [
    "context", "ctx", "prompt", "premise", "question", "question_stem", "startphrase", "text", "sentence",
]  # fmt: skip
CONTEXT_START_COLUMNS = [("sent1", "sent2"), ("ctx_a", "ctx_b")]  # context, common start of the endings
ENDING_COLUMNS_FLAG = "--ending-columns"
AMBIGUOUS_LABEL = (
    "the label is the text of one ending and the number or letter of another; numbers are read as numbers, "
    "letters as texts"
)
AMBIGUOUS_LABEL_FIX = (
    "if the labels are texts, replace them with letters (A is the first ending); if they are letters, "
    "replace them with numbers"
)


def guess_context_columns(rows: Rows) -> dict[str, str]:
    """Return the setting `context_column`, and `start_column` if a column holds the start of all endings."""
    for context, start in CONTEXT_START_COLUMNS:
        if context in rows.columns and start in rows.columns:
            return {"context_column": context, "start_column": start}
    return {"context_column": guess_column(rows, CONTEXT_COLUMNS, "context")}


def guess_ending_columns(rows: Rows) -> list[str]:
    """Return the columns of the endings: one column of lists, or `ending0`, `ending1`, ... in order."""
    for name in ENDING_LIST_COLUMNS:
        list_column = find_column(rows, name)
        if list_column and any(isinstance(value, (list, tuple)) for value in rows[list_column]):
            return [list_column]
    columns_by_word: dict[str, list[tuple[int, str, str]]] = {}
    for column in rows.columns:
        if match := NUMBERED_ENDING.fullmatch(column):
            word, suffix = match[1].lower(), match[2].lower()
            sort_key = (int(suffix) if suffix.isdigit() else -1, suffix)
            columns_by_word.setdefault(word, []).append((*sort_key, column))
    ending_columns = max(columns_by_word.values(), key=len, default=[])
    if len(ending_columns) < 2:
        raise UserError(
            f"{rows.files[0]}: no columns look like the endings (it has {format_list(rows.columns)}); "
            f"name them with {ENDING_COLUMNS_FLAG}"
        )
    return [column for _, _, column in sorted(ending_columns)]


def parse_endings(rows: Rows, columns: Sequence[str]) -> Column:
    """Return a column with the list of endings of each row; blank columns after the last ending are ignored.

    The lists are computed when they are read. An ending must be a text, and a row must have two of them.
    """
    is_list = len(columns) == 1

    def join(*values: Any) -> Any:
        if is_list:
            return list(values[0]) if isinstance(values[0], (list, tuple)) else values[0]
        non_blank = [index for index, value in enumerate(values) if value not in (None, "")]
        return list(values[: non_blank[-1] + 1]) if non_blank else []

    all_endings = ComputedColumn(join, [rows[column] for column in columns])
    for index, endings in enumerate(all_endings):
        location = rows.format_location(index)
        if not isinstance(endings, list):
            raise UserError(f"{location}: column {columns[0]!r} holds {endings!r}, not a list of endings")
        for number, ending in enumerate(endings):
            if not isinstance(ending, str) or not ending:
                name = f"ending {number} of {columns[0]!r}" if is_list else f"column {columns[number]!r}"
                problem = f"holds {ending!r}, not a text" if ending else "is blank, but a later one is not"
                raise UserError(f"{location}: {name} {problem}; fill in a text, or remove the row")
        if len(endings) < 2:
            count = "one ending" if endings else "no ending"
            raise UserError(
                f"{location}: has {count}, but a choice needs two; add endings, or remove the row"
            )
    return all_endings


def add_common_beginning(endings: Column, beginnings: Sequence[str]) -> Column:
    """Return the endings of each row with the beginning that all endings of the row share."""

    def join(row_endings: list[str], beginning: str) -> list[str]:
        return [f"{beginning} {ending}".strip() for ending in row_endings]

    return ComputedColumn(join, [endings, beginnings])


def encode_ending_labels(
    rows: Rows, column: str, endings: Sequence[Sequence[str]], first_label: int
) -> np.ndarray:
    """Return [n] the index of the correct ending of each row.

    A label is the number of the ending (counted from `first_label`), a letter (A is the first ending), or the
    text of the ending.
    """
    indices = []
    for row, (value, row_endings) in enumerate(zip(rows[column], endings, strict=True)):
        text = normalize_label(value) or ""
        if text in row_endings and not _is_ending_number(text):
            index: int | None = list(row_endings).index(text)
        else:
            index = _parse_position(text, len(row_endings), first_label)
        if index is None:
            raise UserError(_describe_label_error(rows, row, column, row_endings, first_label))
        indices.append(index)
    return np.array(indices, dtype=np.int64)


def format_ending_labels(
    rows: Rows, column: str, endings: Sequence[Sequence[str]], first_label: int, indices: Sequence[int]
) -> list[Any]:
    """Return labels of other endings: a number, a letter or a text, like the present label of the row.

    Args:
        first_label: Number of the first ending.
    """
    cells: list[Any] = []
    for row, (value, row_endings, index) in enumerate(zip(rows[column], endings, indices, strict=True)):
        if not isinstance(index, int) or not 0 <= index < len(row_endings):
            raise UserError(
                f"{rows.format_location(row)}: has no ending {shorten_repr(index)}; use a number from 0 to "
                f"{len(row_endings) - 1}"
            )
        text = normalize_label(value) or ""
        if _is_ending_number(text):
            cells.append(type(value)(index + first_label))
        elif text in row_endings:
            cells.append(row_endings[index])
        else:
            cells.append(chr(ord("A") + index))
    return cells


def _parse_position(text: str, num_endings: int, first_label: int) -> int | None:
    """Return the index of the ending that a number or a letter names; None for other texts."""
    if re.fullmatch("[A-Za-z]", text):
        index = ord(text.upper()) - ord("A")
    else:
        index = int(text) - first_label if _is_ending_number(text) else -1
    return index if 0 <= index < num_endings else None


def find_ambiguous_labels(
    values: Sequence[Any], endings: Sequence[Sequence[str]], first_label: int
) -> list[int]:
    """Return the indices of rows whose label is the text of one ending and the position of another.

    Such a label is the number or the letter of an ending, and equals the text of another ending.
    """
    ambiguous = []
    for index, (value, row_endings) in enumerate(zip(values, endings, strict=True)):
        text = normalize_label(value) or ""
        position = _parse_position(text, len(row_endings), first_label)
        if position is not None and text in row_endings and row_endings[position] != text:
            ambiguous.append(index)
    return ambiguous


def describe_labels(values: Sequence[Any], endings: Sequence[Sequence[str]], first_label: int) -> list[str]:
    """Return notes on how the labels of the training rows are read."""
    notes = ["labels are counted from 1"] if first_label else []
    if count := len(find_ambiguous_labels(values, endings, first_label)):
        notes.append(
            f"{format_count(count, 'training row')} with an ambiguous label: {AMBIGUOUS_LABEL}; "
            f"{AMBIGUOUS_LABEL_FIX}"
        )
    return notes


def _is_ending_number(text: str) -> bool:
    """Return whether a text can be the number of an ending."""
    return text.isdecimal() and len(text) < 10  # a longer text cannot be an index


def _describe_label_error(
    rows: Rows, index: int, column: str, endings: Sequence[str], first_label: int
) -> str:
    value, location = rows[column][index], rows.format_location(index)
    if (text := normalize_label(value)) is None:
        return f"{location}: no label in column {column!r}; fill in the label, or remove the row"
    # Endings that are numbers cannot be labels, so such a label is probably meant as a text.
    hint = "; it is read as a number, so write the letter of the ending instead" if text in endings else ""
    return (
        f"{location}: label {shorten_repr(value)} is none of the {len(endings)} endings "
        f"(a number from {first_label} to {len(endings) - 1 + first_label}, a letter, or the ending itself)"
        f"{hint}"
    )


def infer_first_label(values: Sequence[Any], endings: Sequence[Sequence[str]]) -> int:
    """Return the number of the first ending: 0 or 1.

    It is 1 if no label is 0 and some label equals the number of endings of its row.
    """
    has_last = False
    for value, row_endings in zip(values, endings, strict=True):
        text = normalize_label(value) or ""
        if _is_ending_number(text):
            if int(text) == 0:
                return 0
            has_last |= int(text) == len(row_endings)
    return int(has_last)
