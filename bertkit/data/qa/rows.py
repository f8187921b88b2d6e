"""Questions about paragraphs, with the answers that stand in them: from any form to one row a question."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from bertkit.data.columns import find_column
from bertkit.data.qa import articles
from bertkit.data.qa.answers import ANSWER_START, describe_location, find_contradictions, parse_answer_column
from bertkit.data.qa.columns import NESTED_COLUMNS, ColumnNames, find_id_column, match_split_columns
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.text import has_lone_surrogate

RESERVED_COLUMNS = ("id", "title", "question", "context", "answers")  # columns made here


@dataclass(frozen=True)
class QuestionRows(Rows):
    """Rows in the form of `in_questions`: a user's own columns may have the same names.

    Attributes:
        notes: what was not taken as it stood.
    """

    notes: tuple[str, ...] = ()


def normalize_questions(rows: Rows, names: ColumnNames) -> QuestionRows:
    """One row a question: `id`, `title` if there is one, `question`, `context`, and, if any, `answers`.

    Answers are lists of `{"text": str, "answer_start": int | None}`, empty where the question is
    unanswerable; where a split has not a single answer, and calls no question impossible, there is no such
    column. Columns of the same names that are something else are kept as `input_NAME`.

    Args:
        names: the training rows' columns.

    Raises:
        UserError: a row without a question or context, whose answers are none, or whose id is taken or unfit.
    """
    articles.require_questions(rows)
    if articles.is_nested(rows):
        rows, names = articles.flatten_articles(rows), NESTED_COLUMNS
    question, context, answer = match_split_columns(rows, names)
    ids = _ids(rows)
    rows_by_id = rows.with_column("id", ids)
    columns: dict[str, list[Any]] = {"id": ids}
    if title := find_column(rows, "title"):
        columns["title"] = rows[title]
    columns["question"] = _texts(rows_by_id, question)
    seen: dict[str, str] = {}  # one string a paragraph, however many questions it has
    columns["context"] = [seen.setdefault(text, text) for text in _texts(rows_by_id, context)]
    answers = parse_answer_column(rows_by_id, answer)
    columns |= {} if answers is None else {"answers": answers}
    start = find_column(rows, ANSWER_START) if answer in rows.columns else None
    taken = {question, context, answer, title, find_id_column(rows), start}
    others = {name: values for name, values in rows.columns.items() if name not in taken}
    columns |= {
        f"input_{name}" if name in RESERVED_COLUMNS else name: values for name, values in others.items()
    }
    notes = _notes(rows_by_id, find_contradictions(rows_by_id, answer))
    return QuestionRows(
        columns, rows.files, rows.file_index, rows.row_numbers, rows.line_numbered_files, notes
    )


def _notes(rows: Rows, overruled: list[int]) -> tuple[str, ...]:
    if not overruled:
        return ()
    ids = format_list(rows["id"][index] for index in overruled)
    said = format_count(
        len(overruled),
        "question has answers and is marked as impossible; it counts",
        "questions have answers and are marked as impossible; they count",
    )
    return (f"{rows.files[0]}: {said} as having none (ids {ids})",)


def _ids(rows: Rows) -> list[str]:
    """Each question's identifier; where it has none its place among all rows, counted from 0."""
    column = find_id_column(rows)
    given = rows[column] if column else [None] * len(rows)
    first = int(rows.row_numbers[0]) - 1 if len(rows) else 0  # rows may be read a part at a time
    ids = [str(place) if value in (None, "") else str(value) for place, value in enumerate(given, first)]
    for row, name in enumerate(ids):
        if has_lone_surrogate(name):
            raise UserError(
                f"{rows.format_location(row)}: id {name!a} holds half of a surrogate pair, which no file of "
                "predictions can; give the question another id"
            )
    if len(set(ids)) < len(ids):
        taken: dict[str, int] = {}
        index = next(index for index, name in enumerate(ids) if taken.setdefault(name, index) != index)
        raise UserError(
            f"{rows.format_location(index)}: id {ids[index]!r} is also that of {rows.format_location(taken[ids[index]])}; "
            "each question needs one of its own"
        )
    return ids


def _texts(rows: Rows, column: str) -> list[str]:
    for index, value in enumerate(rows[column]):
        if not isinstance(value, str) or not value.strip():
            empty = value is None or isinstance(value, str)
            what = "has no text" if empty else f"holds {value!r}, not a text"
            raise UserError(f"{describe_location(rows, index)}: column {column!r} {what}")
    return rows[column]


def find_unanswerable(rows: Rows) -> int | None:
    """The first row that is known to have no answer."""
    answers = rows.columns.get("answers", [])
    return next((index for index, some in enumerate(answers) if not some), None)


def choose_split_unit(rows: Rows) -> str:
    """What must stay on one side of a split: the article, or the paragraph where there are not three."""
    return "article" if len({*_titles(rows)} - {None}) > 2 else "paragraph"


def compute_group_ids(rows: Rows) -> list[Hashable]:
    """Each question's `unit`: an article by its title, or else the paragraph.

    A blank title is none. A paragraph that stands in several articles is of the first, so that it is
    never on both sides.
    """
    if choose_split_unit(rows) == "paragraph":
        return list(rows["context"])
    first: dict[str, Hashable] = {}
    return [
        first.setdefault(context, title or context)
        for context, title in zip(rows["context"], _titles(rows), strict=True)
    ]


def _titles(rows: Rows) -> list[str | None]:
    titles = rows.columns.get("title", [None] * len(rows))
    return [title if isinstance(title, str) and title.strip() else None for title in titles]
