"""Rows of questions: their columns, answers in all formats that datasets use, articles, ids and offsets."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np

from bertkit.data.columns import find_column, guess_column, require_column
from bertkit.data.readers.text_files import JSON_ERRORS
from bertkit.data.table import (
    CHUNK_ROWS,
    Column,
    ComputedColumn,
    Rows,
    as_column,
    iter_chunks,
    number_groups,
    repeat_value,
    store_columns,
)
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.utils.text import has_lone_surrogate

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
    """
    is_impossible = _parse_impossible(rows)
    if column not in rows.columns:  # without answers, rows that are not marked as impossible are unlabeled
        return repeat_value([], len(rows)) if all(is_impossible) else None
    roles = {
        "answers": column,
        ANSWER_START: find_column(rows, ANSWER_START),
        IS_IMPOSSIBLE: find_column(rows, IS_IMPOSSIBLE),
    }
    names = dict.fromkeys(name for name in roles.values() if name)

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        start_column = roles[ANSWER_START]
        for chunk in rows.iter_chunks(names=["id", *names]) if len(rows) else [rows]:
            starts = chunk[start_column] if start_column else [None] * len(chunk)
            values = zip(chunk[column], starts, _parse_impossible(chunk), strict=True)
            answers = [
                [] if impossible else parse_answers(chunk, index, column, value, start)
                for index, (value, start, impossible) in enumerate(values)
            ]
            yield {"answers": answers}

    settings = [role for role, name in roles.items() if name]
    answers = store_columns([rows[name] for name in names], iter_parts, *settings)["answers"]
    return answers if any(answers) or any(is_impossible) else None


def _parse_impossible(rows: Rows) -> list[bool]:
    """Return whether each question is marked as impossible."""
    column = find_column(rows, IS_IMPOSSIBLE)
    if not column:
        return [False] * len(rows)
    marks = [mark.strip().casefold() if isinstance(mark, str) else mark for mark in rows[column]]
    for index, mark in enumerate(marks):
        is_nan = mark != mark
        if not (mark in TRUE_VALUES or mark in FALSE_VALUES or is_nan):
            raise UserError(
                f"{describe_location(rows, index)}: column {column!r}: {shorten_repr(mark)} is neither true "
                "nor false; write true or false"
            )
    return [mark in TRUE_VALUES for mark in marks]


def parse_answers(rows: Rows, index: int, column: str, value: Any, start: Any = None) -> list[Answer]:
    """Parse the answers of one question, in any format; None, "" and [] mean that it is unanswerable."""
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
    if isinstance(value, str):  # possibly a JSON object or a JSON list of objects
        with suppress(*JSON_ERRORS):
            value = (
                [] if value.strip() == "[]" else json.loads(value) if ANSWER_OBJECT.match(value) else value
            )
    if value is None or isinstance(value, str):
        return [(value, start)] if value else []
    if isinstance(value, Mapping):  # the values of both keys are two single values or two lists
        texts, starts = value.get("text"), value.get(ANSWER_START, value.get("start"))
        if isinstance(texts, str):
            return [(texts, starts)]
        if not isinstance(texts, (list, tuple)):
            return None
        starts = [None] * len(texts) if starts is None else starts
        if not isinstance(starts, (list, tuple)) or len(starts) != len(texts):
            return None
        return list(zip(texts, starts, strict=True))
    if not isinstance(value, (list, tuple)):
        return None
    if all(isinstance(answer, str) for answer in value):
        starts = start if isinstance(start, (list, tuple)) else [None] * len(value)
        return list(zip(value, starts, strict=True)) if len(starts) == len(value) else None
    if not all(isinstance(answer, Mapping) and "text" in answer for answer in value):
        return None
    return [(answer["text"], answer.get(ANSWER_START, answer.get("start"))) for answer in value]


def _parse_offset(location: str, value: Any) -> int | None:
    if isinstance(value, float) and (value.is_integer() or math.isnan(value)):
        value = None if math.isnan(value) else int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return None if value == -1 else value  # -1 means that the offset is not known
    if value is None or value == "":
        return None
    if isinstance(value, str) and (match := WHOLE_NUMBER.fullmatch(value)):
        return None if int(match[1]) == -1 else int(match[1])
    raise UserError(
        f"{location}: offset {shorten_repr(value)} of an answer is not a whole number; write the index of "
        "the answer's first character in the context"
    )


ColumnNames = tuple[str, str, str]  # the columns of questions, contexts and answers

QUESTION_COLUMNS = ["question", "query"]
CONTEXT_COLUMNS = ["context", "paragraph", "passage", "text", "document"]
ANSWER_COLUMNS = ["answers", "answer", "answer_text"]
ID_COLUMNS = ("id", "guid", "qid", "question_id")
NESTED_COLUMNS: ColumnNames = ("question", "context", "answers")
# Columns of flattened articles, in addition to the id.
FLAT_COLUMNS = ("title", "question", "context", "answers", IS_IMPOSSIBLE)
LOCATION_COLUMNS = ("file_index", "row_number")  # of flattened articles, while they are stored
RESERVED_COLUMNS = ("id", "title", "question", "context", "answers")  # columns that normalization creates
PARAGRAPHS = "paragraphs"

# ---- columns


def resolve_columns(
    rows: Rows, question: str | None, context: str | None, answers: str | None
) -> ColumnNames:
    """Return the columns of questions, contexts and answers: those that the user named, or else guesses."""
    require_questions(rows)
    named = {"question": question, "context": context, "answers": answers}
    if is_nested(rows):
        for role, column in named.items():
            if column not in (None, role):  # the settings of a finished run contain the fixed names
                raise UserError(
                    f"--{role}-column {column}: {rows.files[0]} contains articles, whose column names are "
                    f"fixed; remove --{role}-column"
                )
        return NESTED_COLUMNS
    for role, column in named.items():
        if column is not None:
            require_column(rows, column, f"--{role}-column")
    names = (
        question or guess_column(rows, QUESTION_COLUMNS, "question"),
        context or guess_column(rows, CONTEXT_COLUMNS, "context"),
        answers or guess_column(rows, ANSWER_COLUMNS, "answers"),
    )
    for role, column in zip(named, names, strict=True):
        if names.count(column) > 1 or column == find_column(rows, *ID_COLUMNS):
            raise UserError(f"--{role}-column {column}: already has another role; pass another column")
    return names


def match_split_columns(rows: Rows, names: ColumnNames) -> ColumnNames:
    """Return the columns of a split: the columns of the training rows, or else columns with usual names.

    The column of answers may be missing. If the split lacks the training rows' column of questions, its
    format differs. Usual names then take precedence over the names in the training rows.
    """
    shared = [name if name in rows.columns else None for name in names]
    has_question_column = shared[0] is not None
    columns: list[str | None] = list(shared) if has_question_column else [None] * len(names)
    for role, usual_names in enumerate((QUESTION_COLUMNS, CONTEXT_COLUMNS, ANSWER_COLUMNS)):
        if columns[role] is None:
            candidates = [*(find_column(rows, name) for name in usual_names), shared[role]]
            unused = (column for column in candidates if column and column not in columns)
            columns[role] = next(unused, None)
    question, context, answers = columns
    if question is None or context is None:
        role = 0 if question is None else 1
        raise UserError(
            f"{rows.files[0]}: no column looks like the {NESTED_COLUMNS[role]} (columns: "
            f"{format_list(rows.columns)}); name the column {names[role]!r}, as in the training rows"
        )
    return question, context, answers or names[2]


# ---- articles, the nested format of SQuAD


def is_nested(rows: Rows) -> bool:
    """Return whether a row has a list of paragraphs, or there are no columns but those of articles."""
    for paragraphs in _iter_one_by_one(rows.columns.get(PARAGRAPHS, [])):
        if isinstance(paragraphs, list) and paragraphs and isinstance(paragraphs[0], dict):
            return True
    return PARAGRAPHS in rows.columns and rows.columns.keys() <= {"title", PARAGRAPHS}


def require_questions(rows: Rows) -> None:
    """Check that a JSON file contains articles or rows."""
    if not rows.columns:
        raise UserError(
            f"{rows.files[0]}: contains neither articles nor rows with a column 'question'; check --data"
        )
    if rows.columns.keys() <= {"version", "data"}:
        data = rows.columns.get("data", [None])[0]
        raise UserError(f"{rows.files[0]}: 'data': expected a list of articles, found {shorten_repr(data)}")


def flatten_articles(rows: Rows) -> Rows:
    """Return one row per question. Row numbers count the questions of a file."""

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        names = ("id", *FLAT_COLUMNS, *LOCATION_COLUMNS)
        records = _iter_question_records(rows)
        parts = iter(lambda: list(islice(records, CHUNK_ROWS)), [])
        for part in chain([next(parts, [])], parts):  # there is at least one part
            yield {name: [record[column] for record in part] for column, name in enumerate(names)}

    columns = store_columns(
        [rows.columns.get("title", [None] * len(rows)), rows[PARAGRAPHS]], iter_parts,
        "articles", *(source.tobytes().hex() for source in (rows.file_index, rows.row_numbers)),
    )  # fmt: skip
    file_index, row_numbers = (np.fromiter(columns.pop(name), np.int64) for name in LOCATION_COLUMNS)
    if not len(row_numbers):
        raise UserError(f"{rows.files[0]}: the articles contain no questions; check --data")
    for name in ("title", IS_IMPOSSIBLE):
        if not any(value is not None for value in columns[name]):
            del columns[name]
    return Rows(columns, rows.files, file_index.astype(np.int32), row_numbers)


def _iter_question_records(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """Yield the values of `id`, `FLAT_COLUMNS` and `LOCATION_COLUMNS` of each question."""
    count_by_file: Counter[int] = Counter()
    titles = rows.columns.get("title", [None] * len(rows))
    for index, (title, paragraphs) in enumerate(zip(titles, _iter_one_by_one(rows[PARAGRAPHS]), strict=True)):
        file = int(rows.file_index[index])
        article = f"{rows.files[file]}: article {rows.row_numbers[index]}"
        for number, paragraph in enumerate(_require_objects(paragraphs, f"{article}: 'paragraphs'"), start=1):
            for qa in _require_objects(paragraph.get("qas"), f"{article}: paragraph {number}: 'qas'"):
                count_by_file[file] += 1
                question_id = next((qa[name] for name in ID_COLUMNS if qa.get(name) is not None), None)
                yield (
                    question_id, title, qa.get("question"), paragraph.get("context"), qa.get("answers"),
                    qa.get(IS_IMPOSSIBLE), file, count_by_file[file],
                )  # fmt: skip


def _iter_one_by_one(values: Sequence[Any]) -> Iterator[Any]:
    """Yield values that are read one at a time, since an article may be as large as a book."""
    return map(values.__getitem__, range(len(values)))


def _require_objects(value: Any, location: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{location}: expected a list of objects, found {shorten_repr(value)}")
    return value


# ---- normalization


@dataclass(frozen=True)
class QuestionRows(Rows):
    """Rows whose type shows that they are normalized; a file may use the same column names."""

    notes: tuple[str, ...] = ()  # on contradictory rows

    def describe_location(self, index: int) -> str:
        return describe_location(self, index)


def normalize_questions(rows: Rows, names: ColumnNames) -> QuestionRows:
    """Return one row per question with the columns `id`, `question` and `context`.

    The column `title` exists if the rows have titles. The column `answers` exists if the rows are labeled
    (see `parse_answer_column`). It holds lists of `{"text": str, "answer_start": int | None}`, which are
    empty for unanswerable questions. If any other column has one of these names, it is renamed to
    `input_NAME`.
    """
    require_questions(rows)
    if is_nested(rows):
        rows, names = flatten_articles(rows), NESTED_COLUMNS
    question, context, answer = match_split_columns(rows, names)
    ids = _parse_ids(rows)
    rows_with_ids = rows.with_column("id", ids)
    columns: dict[str, Sequence[Any]] = {"id": ids}
    if title := find_column(rows, "title"):
        columns["title"] = rows[title]
    columns["question"] = _require_texts(rows_with_ids, question)
    contexts = _require_texts(rows_with_ids, context)
    if not isinstance(contexts, Column):  # in memory: many questions share one string object
        distinct: dict[str, str] = {}
        contexts = [distinct.setdefault(text, text) for text in contexts]
    columns["context"] = contexts
    answers = parse_answer_column(rows_with_ids, answer)
    if answers is not None:
        columns["answers"] = answers
    start = find_column(rows, ANSWER_START) if answer in rows.columns else None
    used = {question, context, answer, title, find_column(rows, *ID_COLUMNS), start}
    columns |= {
        f"input_{name}" if name in RESERVED_COLUMNS else name: values
        for name, values in rows.columns.items()
        if name not in used
    }
    notes: tuple[str, ...] = ()
    values = zip(rows.columns.get(answer, [None] * len(rows)), _parse_impossible(rows_with_ids), strict=True)
    contradictions = [
        index
        for index, (value, is_impossible) in enumerate(values)
        if is_impossible and any(text for text, _ in _parse_texts_and_offsets(value, None) or [])
    ]
    if contradictions:
        problem = format_count(
            len(contradictions),
            "question has answers and is marked as impossible; its answers are ignored",
            "questions have answers and are marked as impossible; their answers are ignored",
        )
        notes = (f"{rows.files[0]}: {problem} ({_format_ids(rows_with_ids, contradictions)})",)
    return QuestionRows(
        columns, rows.files, rows.file_index, rows.row_numbers, rows.line_numbered_files, notes=notes
    )


def _parse_ids(rows: Rows) -> Sequence[str]:
    """Return the id of each question. The default id is the index of the question among all rows, from 0."""
    column = find_column(rows, *ID_COLUMNS)
    values = rows[column] if column else repeat_value(None, len(rows))
    # Row numbers count from 1, and these rows may be a later part of a file.
    first_index = int(rows.row_numbers[0]) - 1 if len(rows) else 0

    def iter_parts() -> Iterator[dict[str, list[str]]]:
        index = first_index
        for part in iter_chunks(values) if len(rows) else [[]]:
            yield {
                "id": [
                    str(index) if value in (None, "") else str(value)
                    for index, value in enumerate(part, index)
                ]
            }
            index += len(part)

    ids = store_columns([values], iter_parts, "ids", str(first_index))["id"]
    for row, question_id in enumerate(ids):
        if has_lone_surrogate(question_id):
            raise UserError(
                f"{rows.format_location(row)}: id {question_id!a} contains half of a surrogate pair, which "
                "UTF-8 cannot encode; change the id"
            )
    group, first_rows = number_groups(as_column(ids).hashes)
    repeated = np.flatnonzero(first_rows[group] != np.arange(len(ids)))
    if len(repeated):
        row = int(repeated[0])
        other = rows.format_location(int(first_rows[group[row]]))
        raise UserError(
            f"{rows.format_location(row)}: id {ids[row]!r} is also the id of {other}; make ids unique"
        )
    return ids


def _require_texts(rows: Rows, column: str) -> Sequence[str]:
    for index, value in enumerate(rows[column]):
        if not isinstance(value, str) or not value.strip():
            is_empty = value is None or isinstance(value, str)
            problem = "is empty" if is_empty else f"{value!r} is not a text"
            location = describe_location(rows, index)
            raise UserError(f"{location}: column {column!r}: {problem}; write a text or remove the row")
    return rows[column]


def find_unanswerable(rows: Rows) -> int | None:
    """Return the index of the first question that has no answer, or None."""
    return next((index for index, answers in enumerate(rows.columns.get("answers", [])) if not answers), None)


# ---- groups of questions that stay in one split


def group_questions(rows: Rows) -> tuple[np.ndarray, str]:
    """Return [n] keys of the groups whose questions stay in one split, and the unit of the groups.

    A group is an "article", or a "paragraph" below three articles. A question without a title is grouped by
    its paragraph. A paragraph that occurs in several articles belongs to the first of them, so none is in two
    splits.
    """
    contexts = rows.hash_columns(["context"])
    if "title" not in rows.columns:
        return contexts, "paragraph"
    codes, values = rows.factorize("title")
    has_title = np.array([isinstance(title, str) and bool(title.strip()) for title in values], bool)[codes]
    titles = rows.hash_columns(["title"])
    if len(np.unique(titles[has_title])) <= 2:
        return contexts, "paragraph"
    paragraph, first_questions = number_groups(contexts)
    return np.where(has_title, titles, contexts)[first_questions][paragraph], "article"


def fix_offsets(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """Return the rows with correct answer offsets, and notes on the corrections.

    The offset of an answer is wrong or missing if the text at the offset is not the answer. The offset is
    corrected if the answer occurs exactly once in its context. Otherwise, the training split drops the
    answer, and also drops the question if it has no other answer. The other splits keep the answer with the
    offset None, because scores depend only on the texts of answers.
    """
    if "answers" not in rows.columns:
        return rows, []
    resolved = resolve_offsets(rows)
    problems = [
        (resolved.filled_rows, "has no offset", "have no offset", "the offset of the text is used"),
        (resolved.moved_rows, "is not at its offset but elsewhere in its context",
         "are not at their offset but elsewhere in their context", "fixed"),
        (resolved.unresolved_rows,
         "is not at its offset, and its text occurs nowhere or several times in its context",
         "are not at their offset, and their text occurs nowhere or several times in their context",
         "removed" if split == "train" else "kept for scoring, which needs no offset"),
    ]  # fmt: skip
    notes = []
    for affected, singular, plural, action in problems:
        if affected:
            subjects = (f"answer of the {split} split {singular}", f"answers of the {split} split {plural}")
            ids = "" if affected is resolved.filled_rows else f" ({_format_ids(rows, affected)})"
            notes.append(f"{format_count(len(affected), *subjects)}: {action}{ids}")
    unresolved = sorted(set(resolved.unresolved_rows))
    rows = rows.with_column("answers", resolved.answers)
    if split != "train" or not unresolved:
        return rows, notes

    def keep_located(answers: Sequence[Answer]) -> list[Answer]:
        return [answer for answer in answers if answer[ANSWER_START] is not None]

    answers = ComputedColumn(keep_located, [rows["answers"]])
    if not any(answers):
        text = rows["answers"][unresolved[0]][0]["text"]
        raise UserError(
            f"{describe_location(rows, unresolved[0])}: {shorten_repr(text)} is not at its offset "
            "in the context, and no other training question has an answer that is; copy answers from their "
            f"context letter for letter ({_format_ids(rows, unresolved)})"
        )
    indices = np.array(unresolved)
    is_dropped = np.array([not remaining for remaining in answers.select(indices)])
    kept = np.setdiff1d(np.arange(len(rows)), indices[is_dropped])
    return rows.with_column("answers", answers).select(kept), notes


@dataclass
class ResolvedOffsets:
    """Answers with correct offsets, and the row index of each answer with a wrong or a missing offset."""

    answers: Sequence[list[Answer]]  # of each question; the offset of unresolved answers is None
    moved_rows: list[int] = field(default_factory=list)  # a wrong offset was corrected
    filled_rows: list[int] = field(default_factory=list)  # a missing offset was filled in
    unresolved_rows: list[int] = field(default_factory=list)  # the text occurs never or several times


def resolve_offsets(rows: Rows) -> ResolvedOffsets:
    """Find the correct offset of each answer."""

    def relocate(context: str, answers: Sequence[Answer]) -> list[Answer]:
        return [_relocate(context, answer) for answer in answers]

    resolved = ResolvedOffsets(rows["answers"])
    for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True)):
        if all(_is_at_offset(context, answer) for answer in answers):
            continue
        for before in answers:
            _require_inside(rows, index, context, before)
            after = _relocate(context, before)
            if after[ANSWER_START] is None:
                resolved.unresolved_rows.append(index)
            elif before[ANSWER_START] is None:
                resolved.filled_rows.append(index)
            elif before[ANSWER_START] != after[ANSWER_START]:
                resolved.moved_rows.append(index)
    if resolved.unresolved_rows or resolved.filled_rows or resolved.moved_rows:
        resolved.answers = ComputedColumn(relocate, [rows["context"], rows["answers"]])
    return resolved


def _is_at_offset(context: str, answer: Answer) -> bool:
    start = answer[ANSWER_START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _relocate(context: str, answer: Answer) -> Answer:
    """Return the answer with its correct offset; None if the text does not occur exactly once."""
    if _is_at_offset(context, answer):
        return answer
    text = answer["text"]
    return {"text": text, ANSWER_START: context.find(text) if _occurs_once(context, text) else None}


def _occurs_once(context: str, text: str) -> bool:
    first = context.find(text)
    return first >= 0 and context.find(text, first + 1) < 0


def _require_inside(rows: Rows, index: int, context: str, answer: Answer) -> None:
    """Raise a `UserError` if the answer exceeds its context.

    If the text occurs once, any offset inside the context can be corrected. Otherwise, the whole answer must
    fit after its offset.
    """
    text, start = answer["text"], answer[ANSWER_START]
    if start is None or _is_at_offset(context, answer):
        return
    max_offset = len(context) - (1 if _occurs_once(context, text) else len(text))
    if not 0 <= start <= max_offset:
        raise UserError(
            f"{describe_location(rows, index)}: the answer at offset {start} with {len(text)} characters "
            f"exceeds its context of {len(context)} characters; count offsets in characters from 0, "
            "not in bytes or words"
        )


def _format_ids(rows: Rows, indices: Iterable[int]) -> str:
    return f"ids {format_list(dict.fromkeys(rows['id'][index] for index in indices))}"
