"""Which columns hold tokens and tags: named by the user, else guessed; in column files by their place."""

from bertkit.data.columns import guess_column, require_column
from bertkit.data.rows import Rows
from bertkit.errors import UserError

TOKEN_COLUMNS = ["tokens", "words", "token", "word", "text", "sentence"]
TAG_COLUMNS = [
    "ner_tags", "tags", "ner", "tag", "labels", "label", "entities", "spans", "ner_labels", "entity_labels",
]  # fmt: skip


def resolve_columns(rows: Rows, token_column: str | None, tag_column: str | None) -> tuple[str, str]:
    """The columns of tokens and tags: as named, by a name or a number counted from 0, or guessed.

    Raises:
        UserError: there is none, or one is both.
    """
    token = _named(rows, token_column, "--token-column") if token_column else _token_column(rows)
    tag = _named(rows, tag_column, "--tag-column") if tag_column else _tag_column(rows, token)
    if token == tag:
        raise UserError(f"--tag-column {tag}: is the tokens already; name another column")
    return token, tag


def _token_column(rows: Rows) -> str:
    """In a column file the first one that does not count the tokens."""
    numbered = [name for name in rows.columns if name.isdecimal()]
    if not numbered:
        return guess_column(rows, TOKEN_COLUMNS, "token")
    counts = len(numbered) > 1 and all(tokens[0] == "1" for tokens in rows[numbered[0]])
    return numbered[1] if counts else numbered[0]


def _tag_column(rows: Rows, token_column: str) -> str:
    """In a column file the last one."""
    if not token_column.isdecimal():
        return guess_column(rows, TAG_COLUMNS, "tag")
    numbered = [name for name in rows.columns if name.isdecimal() and name != token_column]
    if not numbered:
        raise UserError(f"{rows.files[0]}: has one column, the tokens, and no tags beside them")
    return numbered[-1]


def _named(rows: Rows, column: str, flag: str) -> str:
    names = list(rows.columns)
    in_columns = any(name.isdecimal() for name in names)  # a column file, whose numbers are its names
    if column.isdecimal() and not in_columns and int(column) < len(names):
        return names[int(column)]
    require_column(rows, column, flag)
    return column


def match_split_columns(rows: Rows, columns: tuple[str, str]) -> tuple[str, str | None]:
    """A split's columns where it comes in another form than the training rows; the tags may be missing."""
    if columns[0] in rows.columns:
        return columns
    token = _token_column(rows)
    try:
        return token, _tag_column(rows, token)
    except UserError:
        return token, None
