"""Find the columns of questions, contexts and answers, and normalize rows to one row per question."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.column_types import (
    CHUNK_ROWS,
    CategoricalColumn,
    Column,
    as_column,
    iter_chunks,
    number_groups,
)
from bertkit.data.columns import find_column, guess_column, require_column
from bertkit.data.qa.answers import (
    ANSWER_START,
    IS_IMPOSSIBLE,
    describe_location,
    find_contradictions,
    parse_answer_column,
)
from bertkit.data.rows import Rows
from bertkit.data.table_store import store_columns
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.utils.text import has_lone_surrogate

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
    """Return the columns of questions, contexts and answers: those that the user named, or else guesses.

    The columns of articles have fixed names.

    Raises:
        UserError: A column is missing or has two roles, or the user named a column of articles.
    """
    require_questions(rows)
    named = {"question": question, "context": context, "answers": answers}
    if is_nested(rows):
        _refuse_named(rows, named)
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
        if names.count(column) > 1 or column == find_id_column(rows):
            raise UserError(f"--{role}-column {column}: already has another role; pass another column")
    return names


def _refuse_named(rows: Rows, named: dict[str, str | None]) -> None:
    for role, column in named.items():
        if column not in (None, role):  # the settings of a finished run contain the fixed names
            raise UserError(
                f"--{role}-column {column}: {rows.files[0]} contains articles, whose column names are fixed; "
                f"remove --{role}-column"
            )


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


def find_id_column(rows: Rows) -> str | None:
    """Return the column of the question ids, or None."""
    columns = (find_column(rows, name) for name in ID_COLUMNS)
    return next((column for column in columns if column), None)


# ---- articles, the nested format of SQuAD


def is_nested(rows: Rows) -> bool:
    """Return whether the rows are articles.

    They are if a row has a list of paragraphs, or if there are no columns but those of articles.
    """
    for paragraphs in _iter_one_by_one(rows.columns.get(PARAGRAPHS, [])):
        if isinstance(paragraphs, list) and paragraphs and isinstance(paragraphs[0], dict):
            return True
    return PARAGRAPHS in rows.columns and rows.columns.keys() <= {"title", PARAGRAPHS}


def require_questions(rows: Rows) -> None:
    """Check that a JSON file contains articles or rows.

    Raises:
        UserError: The file is an empty object, or an object whose `data` is not a list.
    """
    if not rows.columns:
        raise UserError(
            f"{rows.files[0]}: contains neither articles nor rows with a column 'question'; check --data"
        )
    if rows.columns.keys() <= {"version", "data"}:
        data = rows.columns.get("data", [None])[0]
        raise UserError(f"{rows.files[0]}: 'data': expected a list of articles, found {shorten_repr(data)}")


def flatten_articles(rows: Rows) -> Rows:
    """Return one row per question. Row numbers count the questions of a file.

    Raises:
        UserError: The paragraphs or questions of an article are not lists of objects, or no article has a
            question.
    """
    sources = [rows.file_index, rows.row_numbers]
    columns = store_columns(
        [rows.columns.get("title", [None] * len(rows)), rows[PARAGRAPHS]],
        lambda: _iter_question_columns(rows), "articles", *(source.tobytes().hex() for source in sources),
    )  # fmt: skip
    file_index, row_numbers = (np.fromiter(columns.pop(name), np.int64) for name in LOCATION_COLUMNS)
    if not len(row_numbers):
        raise UserError(f"{rows.files[0]}: the articles contain no questions; check --data")
    for name in ("title", IS_IMPOSSIBLE):
        if not any(value is not None for value in columns[name]):
            del columns[name]
    return Rows(columns, rows.files, file_index.astype(np.int32), row_numbers)


def _iter_question_columns(rows: Rows) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of the questions in parts; there is at least one part."""
    names = ("id", *FLAT_COLUMNS, *LOCATION_COLUMNS)
    part: dict[str, list[Any]] = {name: [] for name in names}
    is_first = True
    for record in _iter_question_records(rows):
        for name, value in zip(names, record, strict=True):
            part[name].append(value)
        if len(part["id"]) == CHUNK_ROWS:
            yield part
            part, is_first = {name: [] for name in names}, False
    if part["id"] or is_first:
        yield part


def _iter_question_records(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """Yield the values of `id`, `FLAT_COLUMNS` and `LOCATION_COLUMNS` of each question."""
    count_by_file: Counter[int] = Counter()
    for index, title, context, qa in _iter_questions(rows):
        file = int(rows.file_index[index])
        count_by_file[file] += 1
        question_id = next((qa[name] for name in ID_COLUMNS if qa.get(name) is not None), None)
        yield (
            question_id, title, qa.get("question"), context, qa.get("answers"), qa.get(IS_IMPOSSIBLE),
            file, count_by_file[file],
        )  # fmt: skip


def _iter_questions(rows: Rows) -> Iterator[tuple[int, Any, Any, dict[str, Any]]]:
    """Yield each question with the index of its article, the article's title and the paragraph's text."""
    titles = rows.columns.get("title", [None] * len(rows))
    articles = zip(titles, _iter_one_by_one(rows[PARAGRAPHS]), strict=True)
    for index, (title, paragraphs) in enumerate(articles):
        article = f"{rows.files[rows.file_index[index]]}: article {rows.row_numbers[index]}"
        for number, paragraph in enumerate(_require_objects(paragraphs, f"{article}: 'paragraphs'"), start=1):
            for qa in _require_objects(paragraph.get("qas"), f"{article}: paragraph {number}: 'qas'"):
                yield index, title, paragraph.get("context"), qa


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
    """Normalized rows.

    Their type shows that they are normalized; their column names cannot, since a file may use the same names.

    Attributes:
        notes: Notes for the user on contradictory rows.
    """

    notes: tuple[str, ...] = ()

    def describe_location(self, index: int) -> str:
        return describe_location(self, index)


def normalize_questions(rows: Rows, names: ColumnNames) -> QuestionRows:
    """Return one row per question with the columns `id`, `question` and `context`.

    The column `title` exists if the rows have titles. The column `answers` exists if the rows are labeled
    (see `parse_answer_column`). It holds lists of `{"text": str, "answer_start": int | None}`, which are
    empty for unanswerable questions. If any other column has one of these names, it is renamed to
    `input_NAME`.

    Args:
        rows: The rows as read.
        names: The columns of the training rows.

    Raises:
        UserError: A row has no question or context, its answers cannot be parsed, or its id is invalid or
            not unique.
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
    columns["context"] = _share_equal(_require_texts(rows_with_ids, context))
    answers = parse_answer_column(rows_with_ids, answer)
    if answers is not None:
        columns["answers"] = answers
    start = find_column(rows, ANSWER_START) if answer in rows.columns else None
    used = {question, context, answer, title, find_id_column(rows), start}
    columns |= {
        f"input_{name}" if name in RESERVED_COLUMNS else name: values
        for name, values in rows.columns.items()
        if name not in used
    }
    notes = _describe_contradictions(rows_with_ids, find_contradictions(rows_with_ids, answer))
    return QuestionRows(
        columns, rows.files, rows.file_index, rows.row_numbers, rows.line_numbered_files, notes=notes
    )


def _describe_contradictions(rows: Rows, contradictions: list[int]) -> tuple[str, ...]:
    if not contradictions:
        return ()
    ids = format_list(rows["id"][index] for index in contradictions)
    problem = format_count(
        len(contradictions),
        "question has answers and is marked as impossible; its answers are ignored",
        "questions have answers and are marked as impossible; their answers are ignored",
    )
    return (f"{rows.files[0]}: {problem} (ids {ids})",)


def _parse_ids(rows: Rows) -> Sequence[str]:
    """Return the id of each question. The default id is the index of the question among all rows, from 0."""
    column = find_id_column(rows)
    values = rows[column] if column else CategoricalColumn.repeat(None, len(rows))
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


def _share_equal(texts: Sequence[str]) -> Sequence[str]:
    """Return texts in memory so that equal texts are one string object, which many questions may share."""
    distinct: dict[str, str] = {}
    is_lazy = isinstance(texts, Column)
    return texts if is_lazy else [distinct.setdefault(text, text) for text in texts]


def find_unanswerable(rows: Rows) -> int | None:
    """Return the index of the first question that has no answer, or None."""
    return next((index for index, answers in enumerate(rows.columns.get("answers", [])) if not answers), None)


# ---- groups of questions that stay in one split


def choose_split_unit(rows: Rows) -> str:
    """Return the unit whose questions stay in one split: "article", or "paragraph" below three articles."""
    has_title, titles = _hash_titles(rows)
    return "article" if len(np.unique(titles[has_title])) > 2 else "paragraph"


def compute_group_keys(rows: Rows) -> np.ndarray:
    """Return [n] keys of the group of each question: the title of its article, or its paragraph.

    `choose_split_unit` decides between the two. A question without a title is grouped by its paragraph. A
    paragraph that occurs in several articles belongs to the first of them, so no paragraph is in two splits.
    """
    contexts = rows.hash_columns(["context"])
    if choose_split_unit(rows) == "paragraph":
        return contexts
    paragraph, first_questions = number_groups(contexts)
    keys = np.where(*_hash_titles(rows), contexts)
    return keys[first_questions][paragraph]


def _hash_titles(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return [n] bool, whether each question has a title, and [n] uint64, the hashes of the titles."""
    if "title" not in rows.columns:
        return np.zeros(len(rows), bool), np.zeros(len(rows), np.uint64)
    codes, titles = rows.factorize("title")
    has_title = np.array([isinstance(title, str) and bool(title.strip()) for title in titles], bool)
    return has_title[codes], rows.hash_columns(["title"])
