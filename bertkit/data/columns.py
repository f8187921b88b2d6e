"""Find the text and label columns of a table: those that the user names, or the first with usual names."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.data.table import Rows, as_column
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.settings.setting import get_column_settings

PAIR_COLUMNS = [
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"),
    ("sentence_a", "sentence_b"), ("context", "hypothesis"), ("text", "hypothesis"),
]  # fmt: skip
TEXT_COLUMNS = [
    "text", "sentence", "review", "content", "document", "comment", "body", "title", "premise", "sentence1",
]  # fmt: skip
DOCUMENT_COLUMNS = [
    "text", "content", "document", "body", "article", "review", "passage", "paragraph", "story", "abstract",
    "sentence", "comment",
]  # fmt: skip
LABEL_COLUMNS = [
    "label", "labels", "target", "class", "category", "sentiment", "gold_label", "score", "rating", "stars",
    "topic", "entailment_label", "entailment_judgment", "judgment", "judgement",
]  # fmt: skip


def guess_text_columns(rows: Rows) -> tuple[str, str | None]:
    """Return the text column, and the second text column (None if the rows are single texts).

    Raises:
        UserError: No column has a usual name.
    """
    return guess_pair_columns(rows) or (guess_column(rows, TEXT_COLUMNS, "text"), None)


def guess_pair_columns(rows: Rows) -> tuple[str, str] | None:
    """Return the two text columns of pairs; None if no two columns have usual names."""
    for names in PAIR_COLUMNS:
        first, second = (find_column(rows, name) for name in names)
        if first and second:
            return first, second
    return None


def guess_label_column(rows: Rows) -> str:
    """Return the first column with a usual name for labels.

    Raises:
        UserError: No column has a usual name.
    """
    return guess_column(rows, LABEL_COLUMNS, "label")


def require_column(rows: Rows, column: str, flag: str) -> None:
    """Raise a `UserError` that lists the existing columns if a column does not exist.

    Args:
        rows: The table.
        column: Name of the required column.
        flag: The flag that names the column, or the reason why the column is needed.
    """
    if column in rows.columns:
        return
    rename = "rename one of these, or pass the flag of the column"
    fix = "pass one of these" if flag.startswith("-") else rename
    columns = (
        f"it has {format_list(rows.columns)}; {fix}" if rows.columns else "it has no other columns; add it"
    )
    hint = suggest_similar(column, rows.columns) or ";"
    raise UserError(f"{rows.files[0]}: no column {column!r} ({flag}){hint} {columns}")


def require_named_columns(rows: Rows, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that the user named, by setting; lists may hold names that commas separate.

    Raises:
        UserError: A column does not exist, or a list names it twice.
    """
    found: dict[str, Any] = {}
    for setting, column in columns.items():
        flag = "--" + setting.replace("_", "-")
        if isinstance(column, list):
            found[setting] = parse_column_names(rows, column, flag)
        else:
            require_column(rows, column, flag)
            found[setting] = column
    return found


def parse_column_names(rows: Rows, names: Sequence[str], flag: str) -> list[str]:
    """Return the columns that the user named; a name that is not a column is split at commas.

    Raises:
        UserError: A column does not exist, or is named twice.
    """
    columns: list[str] = []
    for name in names:
        parts = [name] if name in rows.columns else name.split(",")
        columns.extend(part.strip() for part in parts)
    for column in columns:
        require_column(rows, column, flag)
    duplicates = [column for column in columns if columns.count(column) > 1]
    if duplicates:
        raise UserError(f"{flag}: {duplicates[0]!r} is named twice; pass each column once")
    return columns


def require_texts(rows: Rows, columns: list[str]) -> None:
    """Raise a `UserError` if a value in one of the columns is not a string."""
    for column in columns:
        if as_column(rows[column]).is_text:
            continue
        for index, value in enumerate(rows[column]):
            if not isinstance(value, str):
                problem = "has no text" if value is None else f"holds {value!r}, not a text"
                fix = "fill in a text, or remove the row"
                raise UserError(f"{rows.format_location(index)}: column {column!r} {problem}; {fix}")


def find_column(rows: Rows, name: str) -> str | None:
    """Return the column whose lower-cased name is `name`; None if there is no such column."""
    return next((column for column in rows.columns if column.lower() == name), None)


def guess_column(rows: Rows, candidates: list[str], role: str) -> str:
    """Return the first column with one of the candidate names.

    Args:
        rows: The table.
        candidates: Lower-cased names in order of preference.
        role: Role of the column; the error names the flag `--ROLE-column`.

    Raises:
        UserError: No column has one of these names.
    """
    for name in candidates:
        if column := find_column(rows, name):
            return column
    raise UserError(
        f"{rows.files[0]}: no column looks like the {role} "
        f"(it has {format_list(rows.columns) or 'none at all'}); name it with --{role}-column"
    )


def add_renamed_columns(rows: Rows, old_config: Any, new_config: Any) -> Rows:
    """Add copies of the columns that `old_config` names, under the names in `new_config`."""
    columns = dict(rows.columns)
    new_settings = get_column_settings(new_config)
    for setting_name, old_value in get_column_settings(old_config).items():
        new_value = new_settings[setting_name]
        if isinstance(old_value, list):  # a setting such as `ending_columns`
            name_pairs = list(zip(old_value, new_value or [], strict=False))
        else:
            name_pairs = [(old_value, new_value)]
        for old_name, new_name in name_pairs:
            if old_name in rows.columns and new_name:
                columns[new_name] = rows[old_name]
    return rows.replace_columns(columns)
