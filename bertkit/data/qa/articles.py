"""Articles of paragraphs of questions, the nested form of SQuAD: to one row a question."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from bertkit.data.qa.answers import IS_IMPOSSIBLE
from bertkit.data.rows import Rows
from bertkit.errors import UserError, shorten_repr

PARAGRAPHS = "paragraphs"
ID_COLUMNS = ("id", "guid", "qid", "question_id")  # what a question's identifier is called
QUESTION_COLUMNS = ("title", "question", "context", "answers", IS_IMPOSSIBLE)


def is_nested(rows: Rows) -> bool:
    """Whether a row is an article: one has a list of objects, or there is nothing but paragraphs."""
    paragraphs = rows.columns.get(PARAGRAPHS, [])
    if any(isinstance(some, list) and some and isinstance(some[0], dict) for some in paragraphs):
        return True
    return PARAGRAPHS in rows.columns and rows.columns.keys() <= {"title", PARAGRAPHS}


def require_questions(rows: Rows) -> None:
    """Refuse JSON that holds nothing of articles or questions.

    Raises:
        UserError: an empty object, or one whose `data` is no list.
    """
    if not rows.columns:
        none = "it has no column 'question', nor any other"
        raise UserError(f"{rows.files[0]}: holds neither articles nor rows of questions; {none}")
    if rows.columns.keys() <= {"version", "data"}:
        held = rows.columns.get("data", [None])[0]
        raise UserError(
            f"{rows.files[0]}: the file holds no articles: 'data' is {shorten_repr(held)}, no list of them"
        )


def flatten_articles(rows: Rows) -> Rows:
    """One row a question, numbered by their order in the file; those of a paragraph share its string.

    Raises:
        UserError: an article whose paragraphs or questions are none.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("id", *QUESTION_COLUMNS)}
    file_of, numbers = [], []
    counts: Counter[int] = Counter()
    for index, title, context, qa in _questions(rows):
        file = int(rows.file_index[index])
        counts[file] += 1
        file_of.append(file)
        numbers.append(counts[file])
        columns["id"].append(next((qa[name] for name in ID_COLUMNS if qa.get(name) is not None), None))
        columns["title"].append(title)
        columns["question"].append(qa.get("question"))
        columns["context"].append(context)
        columns["answers"].append(qa.get("answers"))
        columns[IS_IMPOSSIBLE].append(qa.get(IS_IMPOSSIBLE))
    if not numbers:
        raise UserError(f"{rows.files[0]}: the articles have no questions")
    for name in ("title", IS_IMPOSSIBLE):
        if not any(value is not None for value in columns[name]):
            del columns[name]
    return Rows(columns, rows.files, np.array(file_of, np.int32), np.array(numbers, np.int64))


def _questions(rows: Rows) -> Iterator[tuple[int, Any, Any, dict[str, Any]]]:
    """Each question with the number of its article, the article's title, and its paragraph's text."""
    titles = rows.columns.get("title", [None] * len(rows))
    for index, (title, paragraphs) in enumerate(zip(titles, rows[PARAGRAPHS], strict=True)):
        article = f"{rows.files[rows.file_index[index]]}: article {rows.row_numbers[index]}"
        for number, paragraph in enumerate(_objects(paragraphs, f"{article}: 'paragraphs'"), start=1):
            for qa in _objects(paragraph.get("qas"), f"{article}: paragraph {number}: 'qas'"):
                yield index, title, paragraph.get("context"), qa


def _objects(value: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{what} is no list of objects")
    return value
