"""Parse the answers of questions, in all formats that datasets use, into texts and character offsets."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertkit.data.column_types import CategoricalColumn
from bertkit.data.columns import find_column
from bertkit.data.readers.json import JSON_ERRORS
from bertkit.data.rows import Rows
from bertkit.data.table_store import store_columns
from bertkit.errors import UserError, shorten_repr

Answer = dict[str, Any]  # {"text": str, "answer_start": int | None}; None if the offset is unknown
ANSWER_START = "answer_start"
IS_IMPOSSIBLE = "is_impossible"
# Values of the column is_impossible, including those that a CSV reader returns.
TRUE_VALUES = (True, "1", "1.0", "true")
FALSE_VALUES = (False, None, "0", "0.0", "false", "")

ANSWER_FORMATS = (
    'write {"text": [...], "answer_start": [...]}, a list of {"text": ..., "answer_start": ...}, or the text '
    "itself and a column 'answer_start'"
)
WHOLE_NUMBER = re.compile(r"\s*(-?\d{1,18})(\.0*)?\s*")  # CSV readers turn columns with gaps into floats
ANSWER_OBJECT = re.compile(r"""\s*(\[\s*)?\{.*?["'](text|answer_start)["']\s*:""", re.DOTALL)


def describe_location(rows: Rows, index: int) -> str:
    """Return `dev.json: row 12 (id 56be...)`, for error messages."""
    return f"{rows.format_location(index)} (id {rows['id'][index]})"


def parse_answer_column(rows: Rows, column: str) -> Sequence[list[Answer]] | None:
    """Parse the answers of each question. A question marked as impossible has no answers.

    Returns:
        One list of answers for each question, or None if the rows are unlabeled. Rows are unlabeled if no
        row has an answer or is marked as impossible, or if the column is missing and some are not marked.

    Raises:
        UserError: An answer cannot be parsed (see `parse_answers`), or a value of the column `is_impossible`
            is neither true nor false.
    """
    is_impossible = _parse_impossible(rows)
    if column not in rows.columns:  # without answers, rows that are not marked as impossible are unlabeled
        return CategoricalColumn.repeat([], len(rows)) if all(is_impossible) else None
    roles = {
        "answers": column,
        ANSWER_START: find_column(rows, ANSWER_START),
        IS_IMPOSSIBLE: find_column(rows, IS_IMPOSSIBLE),
    }
    names = dict.fromkeys(name for name in roles.values() if name)

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        for chunk in rows.iter_chunks(names=["id", *names]) if len(rows) else [rows]:
            yield {"answers": _parse_chunk(chunk, column)}

    settings = [role for role, name in roles.items() if name]
    answers = store_columns([rows[name] for name in names], iter_parts, *settings)["answers"]
    return answers if any(answers) or any(is_impossible) else None


def _parse_chunk(rows: Rows, column: str) -> list[list[Answer]]:
    """Return the answers of each question, which has none if it is marked as impossible."""
    start_column = find_column(rows, ANSWER_START)
    starts = rows[start_column] if start_column else [None] * len(rows)
    values = zip(rows[column], starts, _parse_impossible(rows), strict=True)
    return [
        [] if impossible else parse_answers(rows, index, column, value, start)
        for index, (value, start, impossible) in enumerate(values)
    ]


def _parse_impossible(rows: Rows) -> list[bool]:
    """Return whether each question is marked as impossible."""
    column = find_column(rows, IS_IMPOSSIBLE)
    if not column:
        return [False] * len(rows)
    return [_parse_mark(rows, index, column, mark) for index, mark in enumerate(rows[column])]


def _parse_mark(rows: Rows, index: int, column: str, value: Any) -> bool:
    mark = value.strip().casefold() if isinstance(value, str) else value
    is_nan = mark != mark
    if not (mark in TRUE_VALUES or mark in FALSE_VALUES or is_nan):
        raise UserError(
            f"{describe_location(rows, index)}: column {column!r}: {shorten_repr(mark)} is neither true "
            "nor false; write true or false"
        )
    return mark in TRUE_VALUES


def find_contradictions(rows: Rows, column: str) -> list[int]:
    """Return the indices of the rows that have answers although they are marked as impossible."""
    values = rows.columns.get(column, [None] * len(rows))
    contradictions = []
    for index, (value, is_impossible) in enumerate(zip(values, _parse_impossible(rows), strict=True)):
        texts_and_offsets = _parse_texts_and_offsets(value, None) if is_impossible else None
        if any(text for text, _ in texts_and_offsets or []):
            contradictions.append(index)
    return contradictions


def parse_answers(rows: Rows, index: int, column: str, value: Any, start: Any = None) -> list[Answer]:
    """Parse the answers of one question. The values None, "" and [] mean that it is unanswerable.

    Args:
        rows: The rows, for error messages.
        index: Index of the row, for error messages.
        column: Name of the answer column.
        value: The answers in any format.
        start: The offset if the value is a plain text, or the offsets if it is a list of texts.

    Raises:
        UserError: The format of the value is unknown, or a text contains an object that is not valid JSON.
            An answer is blank, or its offset is not a whole number.
    """
    location = f"{describe_location(rows, index)}: column {column!r}"
    texts_and_offsets = _parse_texts_and_offsets(value, start)
    if texts_and_offsets is None:
        raise UserError(f"{location}: cannot parse answers {shorten_repr(value)}; {ANSWER_FORMATS}")
    is_plain_text = isinstance(value, str) and texts_and_offsets == [(value, start)]
    if is_plain_text and ANSWER_OBJECT.match(value):
        raise UserError(
            f"{location}: {shorten_repr(value)} is an object that is not JSON; "
            "save the file as JSONL or Parquet"
        )
    answers = []
    for text, answer_start in texts_and_offsets:
        if not isinstance(text, str) or not text.strip():
            problem = "is empty" if isinstance(text, str) else f"is {shorten_repr(text)}, not a text"
            raise UserError(
                f"{location}: an answer {problem}; for a question without an answer write an empty list"
            )
        answers.append({"text": text, ANSWER_START: _parse_offset(location, answer_start)})
    return answers


def _parse_texts_and_offsets(value: Any, start: Any) -> list[tuple[Any, Any]] | None:
    """Return the text and the offset of each answer, or None if the format of the value is unknown."""
    if isinstance(value, str):
        value = _parse_json_text(value)
    if value is None or isinstance(value, str):
        return [(value, start)] if value else []
    if isinstance(value, Mapping):
        return _parse_object(value)
    if not isinstance(value, (list, tuple)):
        return None
    if all(isinstance(answer, str) for answer in value):
        starts = start if isinstance(start, (list, tuple)) else [None] * len(value)
        return list(zip(value, starts, strict=True)) if len(starts) == len(value) else None
    if not all(isinstance(answer, Mapping) and "text" in answer for answer in value):
        return None
    return [(answer["text"], _get_start(answer)) for answer in value]


def _parse_json_text(value: str) -> Any:
    """Parse a text that is a JSON object or a JSON list of objects, and return any other text unchanged."""
    if value.strip() == "[]":
        return []
    try:
        return json.loads(value) if ANSWER_OBJECT.match(value) else value
    except JSON_ERRORS:
        return value


def _parse_object(value: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Parse `{"text": ..., "answer_start": ...}`, whose values are two single values or two lists."""
    texts, starts = value.get("text"), _get_start(value)
    if isinstance(texts, str):
        return [(texts, starts)]
    if not isinstance(texts, (list, tuple)):
        return None
    starts = [None] * len(texts) if starts is None else starts
    if not isinstance(starts, (list, tuple)) or len(starts) != len(texts):
        return None
    return list(zip(texts, starts, strict=True))


def _get_start(answer: Mapping[str, Any]) -> Any:
    return answer[ANSWER_START] if ANSWER_START in answer else answer.get("start")


def _parse_offset(location: str, value: Any) -> int | None:
    if isinstance(value, float) and (value.is_integer() or math.isnan(value)):
        value = None if math.isnan(value) else int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value is None or value == "":
        return None
    if isinstance(value, str) and (match := WHOLE_NUMBER.fullmatch(value)):
        return int(match[1])
    raise UserError(
        f"{location}: offset {shorten_repr(value)} of an answer is not a whole number; write the index of "
        "the answer's first character in the context"
    )
