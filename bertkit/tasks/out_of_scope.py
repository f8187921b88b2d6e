"""Texts that belong to no class: they are read, and kept apart from the rows of the classes."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bertkit.data.labels import normalize_label
from bertkit.data.sources import load_texts_out_of_scope
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count
from bertkit.settings.validation import DataSource
from bertkit.tasks.base import Task
from bertkit.utils.reporting import report_warning

MIN_ROWS_OUT_OF_SCOPE = 10  # different texts, to fit a score on


def require_classes_of_texts(task: Task) -> None:
    """Refuse `--out-of-scope` unless each text, or pair of texts, has a class or a set of labels."""
    has_labels = task.state.label_type is not None and bool(task.state.label_type.labels)
    if not has_labels or task.input_schema.span_columns:
        reason = "relations cannot be out of scope" if has_labels else "texts of this task have no classes"
        raise UserError(f"--out-of-scope: {reason}; omit it")


def load_out_of_scope(
    task: Task, source: DataSource, config: Any, columns: Mapping[str, Any] | None = None
) -> Rows:
    """Return parsed texts that belong to no class, without labels.

    `config` has the settings `data_dir` and those of the format of text files. `columns` are those that the
    user named for other rows, by setting; they take precedence if the texts have them.
    """
    require_classes_of_texts(task)
    schema = task.input_schema
    dialect = task.definition.make_dialect(config)
    name = task.definition.name
    rows = load_texts_out_of_scope(source, name, schema.text_columns, config.data_dir, dialect)
    reader = type(task)(task.config)  # whose columns become those of these rows
    reader.state = task.state
    named = {name: column for name, column in (columns or {}).items() if column in rows.columns}
    reader.map_columns(rows, named)
    rows, _ = reader.parse_rows(rows)
    pairs = zip(schema.text_columns, reader.input_schema.text_columns, strict=True)
    return select_texts(task, rows.replace_columns({own: rows[column] for own, column in pairs}))


def select_texts(task: Task, rows: Rows) -> Rows:
    """Return the texts of rows alone, each once."""
    texts = rows.replace_columns({column: rows[column] for column in task.input_schema.text_columns})
    _, first = np.unique(task.make_split_keys(texts).identity, return_index=True)
    return texts.select(np.sort(first))


def separate_out_of_scope(task: Task, rows: Rows) -> tuple[Rows, Rows | None]:
    """Return the rows in scope, and those whose label says that they are not, if there are any."""
    label, columns = task.input_schema.out_of_scope_label, task.input_schema.gold_columns
    column = next((column for column in columns if column in rows.columns), None)
    if label is None or column is None:
        return rows, None
    codes, values = rows.factorize(column)
    is_outside = np.array([normalize_label(value) == label for value in values], bool)[codes]
    if not is_outside.any():
        return rows, None
    return rows.select(np.flatnonzero(~is_outside)), rows.select(np.flatnonzero(is_outside))


def exclude_equal_texts(task: Task, texts: Rows, others: Iterable[Rows]) -> Rows:
    """Return the texts that no other row has."""
    identity = task.make_split_keys(texts).identity
    is_known = np.zeros(len(texts), bool)
    for rows in others:
        is_known |= np.isin(identity, task.make_split_keys(rows).identity)
    return texts.select(np.flatnonzero(~is_known))


def remove_texts_in_scope(task: Task, outside: Rows, inside: Iterable[Rows], source: str) -> Rows:
    """Return the texts out of scope that no row in scope has; some must be left to fit a score on."""
    kept = exclude_equal_texts(task, outside, inside)
    num_known = len(outside) - len(kept)
    problem = f"{num_known:,} of {format_count(len(outside), 'text')} are also rows of a class"
    if len(kept) < MIN_ROWS_OUT_OF_SCOPE:
        found = f"{problem}, so " if num_known else ""
        raise UserError(
            f"--out-of-scope {source}: {found}{format_count(len(kept), 'different text')} to fit on, and "
            f"at least {MIN_ROWS_OUT_OF_SCOPE} are needed; pass more texts that belong to no class"
        )
    if num_known:
        report_warning(f"--out-of-scope {source}: {problem} and are left out")
    return kept


def load_shipped_texts(task: Task, *known: Rows) -> Rows:
    """Return the shipped texts that none of these rows have."""
    return exclude_equal_texts(task, load_out_of_scope(task, "sample", task.config), known)
