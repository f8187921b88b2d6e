"""Answers as data sets write them: texts and where each begins in its paragraph, in one form."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from bertkit.data.columns import find_column
from bertkit.data.readers.json import JSON_ERRORS
from bertkit.data.rows import Rows
from bertkit.errors import UserError, shorten_repr

Answer = dict[str, Any]  # {"text": str, "answer_start": int, or None where it is not known}
ANSWER_START = "answer_start"
IS_IMPOSSIBLE = "is_impossible"
TRUE_VALUES = (True, "1", "1.0", "true")  # of that column, also as CSV has it
FALSE_VALUES = (False, None, "0", "0.0", "false", "")

ANSWER_FORMATS = (
    'write {"text": [...], "answer_start": [...]}, a list of {"text": ..., "answer_start": ...}, or the text '
    "itself with a column 'answer_start' beside it"
)
WHOLE_NUMBER = re.compile(r"\s*(-?\d{1,18})(\.0*)?\s*")  # a float where a column of numbers has gaps
ANSWER_OBJECT = re.compile(r"""\s*(\[\s*)?\{.*?["'](text|answer_start)["']\s*:""", re.DOTALL)


def describe_location(rows: Rows, index: int) -> str:
    """`dev.json: row 12 (id 56be...)`, for error messages."""
    return f"{rows.format_location(index)} (id {rows['id'][index]})"


def parse_answer_column(rows: Rows, column: str) -> list[list[Answer]] | None:
    """Each question's answers, none if it is marked as impossible; None where no row says anything of them.

    Raises:
        UserError: what `answers_of` refuses, or a mark that says neither.
    """
    impossible = _impossible(rows)
    if column not in rows.columns:  # some marks alone say nothing of the questions without one
        return [[] for _ in impossible] if all(impossible) else None
    start = find_column(rows, ANSWER_START)
    starts = rows[start] if start else [None] * len(rows)
    answers = [
        [] if no_answer else parse_answers(rows, index, column, value, begin)
        for index, (value, begin, no_answer) in enumerate(zip(rows[column], starts, impossible, strict=True))
    ]
    return answers if any(answers) or any(impossible) else None


def _impossible(rows: Rows) -> list[bool]:
    """Whether each question is marked as impossible."""
    column = find_column(rows, IS_IMPOSSIBLE)
    marks = [
        mark.strip().casefold() if isinstance(mark, str) else mark
        for mark in (rows[column] if column else [False] * len(rows))
    ]
    for index, mark in enumerate(marks):
        if (
            mark not in TRUE_VALUES and mark not in FALSE_VALUES and mark == mark
        ):  # what is not itself is a gap: NaN
            held = f"column {column!r} holds {shorten_repr(mark)}"
            raise UserError(f"{describe_location(rows, index)}: {held}, neither true nor false")
    return [mark in TRUE_VALUES for mark in marks]


def find_contradictions(rows: Rows, column: str) -> list[int]:
    """The rows that have answers and are marked as impossible."""
    values = rows.columns.get(column, [None] * len(rows))
    marked = [index for index, mark in enumerate(_impossible(rows)) if mark]
    return [index for index in marked if any(text for text, _ in _pairs(values[index], None) or [])]


def parse_answers(rows: Rows, index: int, column: str, value: Any, start: Any = None) -> list[Answer]:
    """One question's answers, none if it is unanswerable (None, an empty text, an empty list).

    Args:
        rows, index: whose they are, for the error.
        column: what the user calls the answers.
        value: the answers in any form.
        start: where an answer that is a bare text begins.

    Raises:
        UserError: no answers, a blank one, one that begins at no whole number, or an object written otherwise
            than as JSON.
    """
    found = _pairs(value, start)
    if found is None:
        raise UserError(
            f"{describe_location(rows, index)}: column {column!r} holds {shorten_repr(value)}, no answers; {ANSWER_FORMATS}"
        )
    if isinstance(value, str) and found == [(value, start)] and ANSWER_OBJECT.match(value):
        held = f"column {column!r} holds {shorten_repr(value)}"
        raise UserError(
            f"{describe_location(rows, index)}: {held}, an object that is no JSON; save the file as JSONL or Parquet"
        )
    answers = []
    for text, begin in found:
        if not isinstance(text, str) or not text.strip():
            what = "is empty" if isinstance(text, str) else f"is {shorten_repr(text)}, not a text"
            raise UserError(
                f"{describe_location(rows, index)}: an answer in column {column!r} {what}; "
                "a question without an answer has an empty list of them"
            )
        answers.append({"text": text, ANSWER_START: _offset(rows, index, column, begin)})
    return answers


def _pairs(value: Any, start: Any) -> list[tuple[Any, Any]] | None:
    """Texts and where they begin; None where the value has another form."""
    if isinstance(value, str):
        value = _in_a_cell(value)
    if value is None or isinstance(value, str):
        return [(value, start)] if value else []
    if isinstance(value, Mapping):
        return _of_object(value)
    if not isinstance(value, (list, tuple)):
        return None
    if all(isinstance(answer, str) for answer in value):
        starts = start if isinstance(start, (list, tuple)) else [None] * len(value)
        return list(zip(value, starts, strict=True)) if len(starts) == len(value) else None
    if not all(isinstance(answer, Mapping) and "text" in answer for answer in value):
        return None
    return [(answer["text"], _start(answer)) for answer in value]


def _in_a_cell(value: str) -> Any:
    """The object or the list of objects that a text holds as JSON; another text as it is."""
    if value.strip() == "[]":
        return []
    try:
        return json.loads(value) if ANSWER_OBJECT.match(value) else value
    except JSON_ERRORS:
        return value


def _of_object(value: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Of `{"text": ..., "answer_start": ...}`, which are one each, or lists."""
    texts, starts = value.get("text"), _start(value)
    if isinstance(texts, str):
        return [(texts, starts)]
    if not isinstance(texts, (list, tuple)):
        return None
    starts = [None] * len(texts) if starts is None else starts
    alike = isinstance(starts, (list, tuple)) and len(starts) == len(texts)
    return list(zip(texts, starts, strict=True)) if alike else None


def _start(answer: Mapping[str, Any]) -> Any:
    return answer[ANSWER_START] if ANSWER_START in answer else answer.get("start")


def _offset(rows: Rows, index: int, column: str, value: Any) -> int | None:
    if isinstance(value, float) and (value.is_integer() or math.isnan(value)):
        value = None if math.isnan(value) else int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value is None or value == "":
        return None
    if isinstance(value, str) and (whole := WHOLE_NUMBER.fullmatch(value)):
        return int(whole[1])
    raise UserError(
        f"{describe_location(rows, index)}: an answer in column {column!r} begins at {shorten_repr(value)}, not a whole number"
    )
