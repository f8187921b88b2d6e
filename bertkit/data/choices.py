"""Multiple choice as users write it: the endings of each row, and which of them is right."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.data.columns import guess_column, require_column
from bertkit.data.labels import normalize_label
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list, shorten_repr

ENDING_LIST_COLUMNS = ["endings", "choices", "options", "answers", "candidates"]
NUMBERED_ENDING = re.compile(
    r"(ending|choice|option|answer|candidate|alternative|sol)[ _-]?(\d+|[a-z])", re.IGNORECASE
)
CONTEXT_COLUMNS = [
    "context",
    "ctx",
    "prompt",
    "premise",
    "question",
    "question_stem",
    "startphrase",
    "text",
    "sentence",
]
CONTEXT_START_COLUMNS = [
    ("sent1", "sent2"),
    ("ctx_a", "ctx_b"),
]  # the context, and what its endings begin with
ENDING_COLUMNS_FLAG = "--ending-columns"


def guess_context_columns(rows: Rows) -> dict[str, str]:
    """`context_column`, and `start_column` where the endings are known to have one.

    Raises:
        UserError: no column of the usual names.
    """
    for context, start in CONTEXT_START_COLUMNS:
        if context in rows.columns and start in rows.columns:
            return {"context_column": context, "start_column": start}
    return {"context_column": guess_column(rows, CONTEXT_COLUMNS, "context")}


def guess_ending_columns(rows: Rows) -> list[str]:
    """Columns of the usual names: one that holds lists, or `ending0`, `ending1`, ... in their order.

    Raises:
        UserError: there are none.
    """
    for name in ENDING_LIST_COLUMNS:
        column = next((column for column in rows.columns if column.lower() == name), None)
        if column and any(isinstance(value, (list, tuple)) for value in rows[column]):
            return [column]
    numbered: dict[str, list[tuple[int, str, str]]] = {}
    for column in rows.columns:
        if match := NUMBERED_ENDING.fullmatch(column):
            word, mark = match[1].lower(), match[2].lower()
            numbered.setdefault(word, []).append((int(mark) if mark.isdigit() else -1, mark, column))
    family = max(numbered.values(), key=len, default=[])
    if len(family) < 2:
        raise UserError(
            f"{rows.files[0]}: no columns look like the endings (it has {format_list(rows.columns)}); "
            f"name them with {ENDING_COLUMNS_FLAG}"
        )
    return [column for _, _, column in sorted(family)]


def parse_column_names(rows: Rows, names: Sequence[str]) -> list[str]:
    """Column names as given, several in one parted by commas where there is no column of that name."""
    columns = [
        part.strip() for name in names for part in ([name] if name in rows.columns else name.split(","))
    ]
    for column in columns:
        require_column(rows, column, ENDING_COLUMNS_FLAG)
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise UserError(f"{ENDING_COLUMNS_FLAG}: {twice[0]!r} is named twice")
    return columns


def parse_endings(rows: Rows, columns: Sequence[str]) -> list[list[str]]:
    """[n] the endings of each row, two at least; blank columns behind the last one are not there.

    Raises:
        UserError: a row with fewer than two endings, a gap between them, or one that is no text.
    """
    if len(columns) == 1:
        found = [list(value) if isinstance(value, (list, tuple)) else value for value in rows[columns[0]]]
    else:
        found = [_filled(values) for values in zip(*(rows[column] for column in columns), strict=True)]
    for index, endings in enumerate(found):
        _check(rows, index, endings, columns)
    return found


def _filled(values: Sequence[Any]) -> list[Any]:
    """Without the blanks at the end."""
    count = max((place + 1 for place, value in enumerate(values) if value not in (None, "")), default=0)
    return list(values[:count])


def _check(rows: Rows, index: int, endings: Any, columns: Sequence[str]) -> None:
    if not isinstance(endings, list):
        raise UserError(
            f"{rows.format_location(index)}: column {columns[0]!r} holds {endings!r}, not a list of endings"
        )
    for place, ending in enumerate(endings):
        if not isinstance(ending, str) or not ending:
            where = f"column {columns[place]!r}" if len(columns) > 1 else f"ending {place} of {columns[0]!r}"
            what = f"holds {ending!r}, not a text" if ending else "is blank, and later ones are not"
            raise UserError(f"{rows.format_location(index)}: {where} {what}")
    if len(endings) < 2:
        only = "one ending" if endings else "no ending"
        raise UserError(f"{rows.format_location(index)}: has {only}; a choice needs two")


def encode_ending_labels(
    rows: Rows, column: str, endings: Sequence[Sequence[str]], first_label: int
) -> np.ndarray:
    """[n] int: the number of each row's right ending, counted from 0.

    A label is a number counted from `first`, a letter (A is the first ending), or the ending itself.

    Raises:
        UserError: a label that names none of the row's endings.
    """
    numbers = [_number(value, some, first_label) for value, some in zip(rows[column], endings, strict=True)]
    if None in numbers:
        index = numbers.index(None)
        raise UserError(_refusal(rows, index, column, len(endings[index]), first_label))
    return np.array(numbers, dtype=np.int64)


def _number(value: Any, endings: Sequence[str], first: int) -> int | None:
    text = normalize_label(value) or ""
    if text in endings and not _is_number(text):
        return list(endings).index(text)
    if re.fullmatch("[A-Za-z]", text):
        number = ord(text.upper()) - ord("A")
    else:
        number = int(text) - first if _is_number(text) else -1
    return number if 0 <= number < len(endings) else None


def _is_number(text: str) -> bool:
    """Whether it can be that of an ending: no row has a billion."""
    return text.isdecimal() and len(text) < 10


def _refusal(rows: Rows, index: int, column: str, size: int, first: int) -> str:
    value = rows[column][index]
    if normalize_label(value) is None:
        return f"{rows.format_location(index)}: no label in column {column!r}"
    return (
        f"{rows.format_location(index)}: label {shorten_repr(value)} is none of its {size} endings "
        f"(a number from {first} to {size - 1 + first}, a letter, or the ending itself)"
    )


def infer_first_label(values: Sequence[Any], endings: Sequence[Sequence[str]]) -> int:
    """Where label numbers begin: at 1 if none is 0 and one is as high as its row has endings, else at 0."""
    numbered = [
        (int(text), len(some))
        for value, some in zip(values, endings, strict=True)
        if _is_number(text := normalize_label(value) or "")
    ]
    none_is_zero = all(number > 0 for number, _ in numbered)
    return int(none_is_zero and any(number == size for number, size in numbered))
