"""Which column is which: named by the user, else guessed among the usual names."""

from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list, suggest_similar

PAIR_COLUMNS = [
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"),
    ("sentence_a", "sentence_b"), ("context", "hypothesis"), ("text", "hypothesis"),
]  # fmt: skip
TEXT_COLUMNS = [
    "text",
    "sentence",
    "review",
    "content",
    "document",
    "comment",
    "body",
    "title",
    "premise",
    "sentence1",
]
LABEL_COLUMNS = [
    "label", "labels", "target", "class", "category", "sentiment", "gold_label", "score", "rating", "stars",
    "topic", "entailment_label", "entailment_judgment", "judgment", "judgement",
]  # fmt: skip


def guess_text_columns(rows: Rows) -> tuple[str, str | None]:
    """The text column, and the second one where the rows are pairs. Raises `UserError` if there is none."""
    return guess_pair_columns(rows) or (guess_column(rows, TEXT_COLUMNS, "text"), None)


def guess_pair_columns(rows: Rows) -> tuple[str, str] | None:
    """Two columns that are usually the texts of a pair."""
    for names in PAIR_COLUMNS:
        first, second = (find_column(rows, name) for name in names)
        if first and second:
            return first, second
    return None


def guess_label_column(rows: Rows) -> str:
    """The label column. Raises `UserError` if there is none of the usual names."""
    return guess_column(rows, LABEL_COLUMNS, "label")


def require_column(rows: Rows, column: str, flag: str) -> None:
    """Raise a `UserError` where a named column is not there, listing what is."""
    if column not in rows.columns:
        way = "name one of these" if flag.startswith("-") else "rename the one that it is"
        there = f"it has {format_list(rows.columns)}; {way}" if rows.columns else "it has none at all"
        raise UserError(
            f"{rows.files[0]}: no column {column!r} ({flag}){suggest_similar(column, rows.columns) or ';'} {there}"
        )


def require_texts(rows: Rows, columns: list[str]) -> None:
    """Raise a `UserError` at the first row whose text is missing or no text."""
    for column in columns:
        for index, value in enumerate(rows[column]):
            if not isinstance(value, str):
                what = "has no text" if value is None else f"holds {value!r}, not a text"
                ways = "give it one, or leave the row out"
                raise UserError(f"{rows.format_location(index)}: column {column!r} {what}; {ways}")


def find_column(rows: Rows, name: str) -> str | None:
    """The column of that name, without regard to case."""
    return next((column for column in rows.columns if column.lower() == name), None)


def guess_column(rows: Rows, candidates: list[str], role: str) -> str:
    """The first column of the usual names. Raises `UserError` if there is none, naming `--ROLE-column`."""
    found = next(filter(None, (find_column(rows, name) for name in candidates)), None)
    if found is None:
        raise UserError(
            f"{rows.files[0]}: no column looks like the {role} "
            f"(it has {format_list(rows.columns) or 'none at all'}); name it with --{role}-column"
        )
    return found
