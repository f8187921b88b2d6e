"""Columns: find those of texts and labels by their usual names, and check those that the user names."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from bertkit.data.table import Rows, as_column
from bertkit.errors import UserError, format_list, shorten, shorten_repr, suggest_similar
from bertkit.settings.declaration import get_column_settings

SEEN_ROWS = 100  # rows whose values show what a column holds
PAIR_COLUMNS = [
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"),
    ("sentence_a", "sentence_b"), ("context", "hypothesis"), ("text", "hypothesis"), ("text", "text_b"),
    ("query", "document"), ("query", "passage"), ("question", "passage"), ("question", "context"),
    ("question", "answer"), ("claim", "evidence"), ("sentence_1", "sentence_2"), ("text_1", "text_2"),
]  # fmt: skip
TEXT_COLUMNS = [
    "text", "sentence", "review", "content", "document", "comment", "body", "message", "tweet", "post",
    "utterance", "title", "premise", "sentence1",
]  # fmt: skip
DOCUMENT_COLUMNS = [
    "text", "content", "document", "body", "article", "review", "passage", "paragraph", "story", "abstract",
    "sentence", "comment",
]  # fmt: skip
LABEL_COLUMNS = [
    "label", "labels", "target", "class", "category", "sentiment", "gold_label", "score", "rating", "stars",
    "topic", "intent", "emotion", "entailment_label", "entailment_judgment", "judgment", "judgement",
]  # fmt: skip


# Names by which the first line of a table is recognized as its header.
USUAL_NAMES = {"id", *TEXT_COLUMNS, *DOCUMENT_COLUMNS, *LABEL_COLUMNS, *chain.from_iterable(PAIR_COLUMNS)}


def guess_text_columns(rows: Rows, needs_label: bool = False) -> tuple[str, str | None]:
    """Return the text column, and the second text column (None if the rows are single texts).

    If `needs_label` is true, the error also says whether no column looks like the label.
    """
    if pair := guess_pair_columns(rows):
        return pair
    column = find_column(rows, *TEXT_COLUMNS)
    if column is None and (found := guess_columns_by_values(rows)):
        column = found[0]
    is_label_missing = needs_label and find_column(rows, *LABEL_COLUMNS) is None
    return column or guess_column(rows, TEXT_COLUMNS, "text", *["label"] * is_label_missing), None


def guess_pair_columns(rows: Rows) -> tuple[str, str] | None:
    """Return the two text columns of pairs; None if no two columns have usual names."""
    for names in PAIR_COLUMNS:
        first, second = (find_column(rows, name) for name in names)
        if first and second:
            return first, second
    return None


def guess_label_column(rows: Rows) -> str:
    """Return the first column with a usual name for labels; without one, see `guess_columns_by_values`."""
    column = find_column(rows, *LABEL_COLUMNS)
    if column is None and (found := guess_columns_by_values(rows)):
        column = found[1]
    return column or guess_column(rows, LABEL_COLUMNS, "label")


def require_column(rows: Rows, column: str, flag: str) -> None:
    """Raise a `UserError` that lists the existing columns if a column does not exist.

    `flag` is the flag that names the column, or the reason why the column is needed.
    """
    if column in rows.columns:
        return
    parts = [part.strip() for part in column.split(",")]
    if flag == "--text-column" and len(parts) > 1 and all(part in rows.columns for part in parts):
        raise UserError(
            f"{rows.files[0]}: {flag} {column!r} names several columns; pass one of them, and a second one "
            "with --text-pair-column"
        )
    rename = "rename one of these, or pass the flag of the column"
    fix = "pass one of these" if flag.startswith("-") else rename
    names = format_list(map(shorten, rows.columns))
    columns = f"it has {names}; {fix}" if rows.columns else "it has no other columns; add it"
    hint = suggest_similar(column, rows.columns) or ";"
    raise UserError(f"{rows.files[0]}: no column {column!r} ({flag}){hint} {columns}")


def require_named_columns(rows: Rows, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that the user named, by setting; lists may hold names that commas separate."""
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
    """Return the columns that the user named; a name that is not a column is split at commas."""
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


def find_column(rows: Rows, *names: str) -> str | None:
    """Return the column whose lower-cased name is the first that exists of `names`, or None."""
    return next((column for name in names for column in rows.columns if column.lower() == name), None)


def guess_column(rows: Rows, candidates: list[str], role: str, *more_roles: str) -> str:
    """Return the first column with one of the candidate names, which are lower-cased.

    The error names the flag `--ROLE-column` of the role, and of other roles that no column has.
    """
    if column := find_column(rows, *candidates):
        return column
    names = [shorten(name) for name in rows.columns]
    if rows.columns and all(map(str.isdecimal, rows.columns)) and len(rows):
        names = [f"{name} ({shorten_repr(values[0])})" for name, values in rows.columns.items()]
        problem = f"no header, and columns {format_list(names)}"
    else:
        looked_for = " or the ".join([role, *more_roles])
        problem = f"no column looks like the {looked_for} (it has {format_list(names) or 'none at all'})"
    flags = " and ".join(f"--{name}-column" for name in (role, *more_roles))
    raise UserError(f"{rows.files[0]}: {problem}; name {'them' if more_roles else 'it'} with {flags}")


def hold_texts(values: Sequence[Any]) -> bool:
    """Return whether most of some values of a column are texts of several words."""
    return 2 * sum(isinstance(value, str) and " " in value.strip() for value in values) > len(values)


def guess_columns_by_values(rows: Rows) -> tuple[str, str] | None:
    """Return the columns of texts and of labels of rows without usual names; None if they are not certain.

    The rows have two columns: one of them has white space in most cells, and the other has repeated values.
    """
    if len(rows.columns) != 2:
        return None
    samples = {name: values[:SEEN_ROWS] for name, values in rows.columns.items()}
    texts = [name for name, values in samples.items() if hold_texts(values)]
    labels = [name for name, values in samples.items() if 2 * len(set(map(str, values))) <= len(values)]
    return (texts[0], labels[0]) if len(texts) == len(labels) == 1 and texts != labels else None


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
