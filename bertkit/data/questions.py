"""Questions about paragraphs, with the answers that stand in them: from any form to one row a question."""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from bertkit.data import articles
from bertkit.data.answers import START, answers_in, contradicted, where
from bertkit.data.columns import find, guess, require
from bertkit.data.rows import Rows
from bertkit.errors import UserError, listed

Names = tuple[str, str, str]  # the columns of questions, contexts and answers

QUESTIONS = ["question", "query"]
CONTEXTS = ["context", "paragraph", "passage", "text", "document"]
ANSWERS = ["answers", "answer", "answer_text"]
OURS = ("id", "title", "question", "context", "answers")  # columns made here
SURROGATE = re.compile("[\ud800-\udfff]")
NESTED: Names = ("question", "context", "answers")


@dataclass(frozen=True)
class Questions(Rows):
    """Rows in the form of `in_questions`: a user's own columns may have the same names.

    Attributes:
        notes: what was not taken as it stood.
    """

    notes: tuple[str, ...] = ()


def column_names(rows: Rows, question: str | None, context: str | None, answers: str | None) -> Names:
    """The columns of questions, contexts and answers: as named, or guessed; rows of articles have their own.

    Raises:
        UserError: there is none, or one is two things, or one of articles is named.
    """
    articles.require_some(rows)
    told = {"question": question, "context": context, "answers": answers}
    if articles.are_nested(rows):
        _refuse_named(rows, told)
        return NESTED
    for role, column in told.items():
        if column is not None:
            require(rows, column, f"--{role}-column")
    names = (
        question or guess(rows, QUESTIONS, "question"),
        context or guess(rows, CONTEXTS, "context"),
        answers or guess(rows, ANSWERS, "answers"),
    )
    for role, column in zip(told, names, strict=True):
        if names.count(column) > 1 or column == _id_column(rows):
            raise UserError(f"--{role}-column {column}: is named for something else too; name another column")
    return names


def _refuse_named(rows: Rows, told: dict[str, str | None]) -> None:
    for role, column in told.items():
        if column not in (None, role):  # a finished run repeats the names that articles have
            raise UserError(
                f"--{role}-column {column}: {rows.files[0]} holds articles of paragraphs, which have names "
                f"of their own; leave out --{role}-column"
            )


def in_questions(rows: Rows, names: Names) -> Questions:
    """One row a question: `id`, `title` if there is one, `question`, `context`, and, if any, `answers`.

    Answers are lists of `{"text": str, "answer_start": int | None}`, empty where the question is
    unanswerable; where a split has not a single answer, and calls no question impossible, there is no such
    column. Columns of the same names that are something else are kept as `input_NAME`.

    Args:
        names: the training rows' columns.

    Raises:
        UserError: a row without a question or context, whose answers are none, or whose id is taken or unfit.
    """
    articles.require_some(rows)
    if articles.are_nested(rows):
        rows, names = articles.flattened(rows), NESTED
    question, context, answer = _own_names(rows, names)
    ids = _ids(rows)
    rows_by_id = rows.with_column("id", ids)
    columns: dict[str, list[Any]] = {"id": ids}
    if title := find(rows, "title"):
        columns["title"] = rows[title]
    columns["question"] = _texts(rows_by_id, question)
    seen: dict[str, str] = {}  # one string a paragraph, however many questions it has
    columns["context"] = [seen.setdefault(text, text) for text in _texts(rows_by_id, context)]
    answers = answers_in(rows_by_id, answer)
    columns |= {} if answers is None else {"answers": answers}
    start = find(rows, START) if answer in rows.columns else None
    taken = {question, context, answer, title, _id_column(rows), start}
    others = {name: values for name, values in rows.columns.items() if name not in taken}
    columns |= {f"input_{name}" if name in OURS else name: values for name, values in others.items()}
    notes = _notes(rows_by_id, contradicted(rows_by_id, answer))
    return Questions(columns, rows.files, rows.file_of, rows.number, rows.by_line, notes)


def _notes(rows: Rows, overruled: list[int]) -> tuple[str, ...]:
    if not overruled:
        return ()
    ids = listed(rows["id"][index] for index in overruled)
    return (
        f"{rows.files[0]}: {len(overruled):,} questions have answers and are marked as impossible; they "
        f"count as having none (ids {ids})",
    )


def _own_names(rows: Rows, names: Names) -> Names:
    """A split's columns, each as the training rows call it, or by a usual name; it may have no answers.

    Where questions are called otherwise the split has another form: there the usual names go first, since
    what is called as theirs may be something else.
    """
    theirs = [name if name in rows.columns else None for name in names]
    own: list[str | None] = list(theirs) if theirs[0] else [None] * len(names)
    for role, usual in enumerate((QUESTIONS, CONTEXTS, ANSWERS)):
        if own[role] is None:
            likely = [*(find(rows, name) for name in usual), theirs[role]]
            own[role] = next((column for column in likely if column and column not in own), None)
    question, context, answers = own
    if question is None or context is None:
        role = 0 if question is None else 1
        raise UserError(
            f"{rows.files[0]}: no column looks like the {NESTED[role]} (it has {listed(rows.columns)}); "
            f"call it {names[role]!r}, as in the training rows"
        )
    return question, context, answers or names[2]


def _id_column(rows: Rows) -> str | None:
    return next(filter(None, (find(rows, name) for name in articles.IDS)), None)


def _ids(rows: Rows) -> list[str]:
    """Each question's identifier; where it has none, its row."""
    column = _id_column(rows)
    given = rows[column] if column else [None] * len(rows)
    ids = [str(row) if value in (None, "") else str(value) for row, value in enumerate(given, start=1)]
    for row, name in enumerate(ids):
        if not name.isascii() and SURROGATE.search(name):
            raise UserError(
                f"{rows.where(row)}: id {name!a} holds half of a surrogate pair, which no file of "
                "predictions can; give the question another id"
            )
    if len(set(ids)) < len(ids):
        first: dict[str, int] = {}
        index = next(index for index, name in enumerate(ids) if first.setdefault(name, index) != index)
        raise UserError(
            f"{rows.where(index)}: id {ids[index]!r} is also that of {rows.where(first[ids[index]])}; "
            "each question needs one of its own"
        )
    return ids


def _texts(rows: Rows, column: str) -> list[str]:
    for index, value in enumerate(rows[column]):
        if not isinstance(value, str) or not value.strip():
            empty = value is None or isinstance(value, str)
            what = "has no text" if empty else f"holds {value!r}, not a text"
            raise UserError(f"{where(rows, index)}: column {column!r} {what}")
    return rows[column]


def unanswerable(rows: Rows) -> int | None:
    """The first row that is known to have no answer."""
    answers = rows.columns.get("answers", [])
    return next((index for index, some in enumerate(answers) if not some), None)


def unit(rows: Rows) -> str:
    """What must stay on one side of a split: the article, or the paragraph where there are not three."""
    return "article" if len({*_titles(rows)} - {None}) > 2 else "paragraph"


def together(rows: Rows) -> list[Hashable]:
    """Each question's `unit`: an article by its title, or else the paragraph.

    A blank title is none. A paragraph that stands in several articles is of the first, so that it is
    never on both sides.
    """
    if unit(rows) == "paragraph":
        return list(rows["context"])
    first: dict[str, Hashable] = {}
    return [
        first.setdefault(context, title or context)
        for context, title in zip(rows["context"], _titles(rows), strict=True)
    ]


def _titles(rows: Rows) -> list[str | None]:
    titles = rows.columns.get("title", [None] * len(rows))
    return [title if isinstance(title, str) and title.strip() else None for title in titles]
