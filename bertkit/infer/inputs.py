"""Rows to predict or texts to embed: from `--data`, from flags such as `--text`, or from standard input."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.data.columns import guess_text_columns, require_column, require_texts
from bertkit.data.features import Features
from bertkit.data.loading import load_dataset, resolve_data_dir
from bertkit.data.readers.files import STANDARD_INPUT, Dialect, read_stdin_rows, read_text_lines, stream_rows
from bertkit.data.rows import Rows, chunk_records
from bertkit.errors import UserError, format_count, format_list
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter

TEXT_COLUMN_SETTINGS = ("text_column", "text_pair_column")
TEXT_SEPARATOR = " | "  # between the texts of a pair, on the console


@dataclass(frozen=True)
class TextInputs:
    """Rows with the names of their text column and, if they are pairs, of the second text column."""

    rows: Rows
    columns: list[str]

    @property
    def display_texts(self) -> list[str]:
        """[n] the text of each row for the console; the texts of a pair are joined."""
        return [TEXT_SEPARATOR.join(texts) for texts in self.rows.zip_columns(self.columns)]


@dataclass
class TruncationCounter:
    """Number of truncated texts, added up chunk by chunk."""

    total: int = 0
    truncated: int = 0
    longest: int = 0

    def add(self, features: Features) -> None:
        """Add the texts of one chunk."""
        self.total += len(features)
        self.truncated += features.num_truncated
        self.longest = max(self.longest, features.max_untruncated_length)

    def report(self, max_length: int, reporter: Reporter) -> None:
        """Report the number of truncated texts, if there are any."""
        if self.truncated:
            reporter.info(
                f"{self.truncated:,} of {format_count(self.total, 'text')} truncated to {max_length} tokens "
                f"(longest: {self.longest:,})"
            )


# ---- texts to embed


def load_texts(config: Any, stdin: BinaryIO | None, reporter: Reporter) -> TextInputs:
    """Load the texts of `--data`, of `--text`, or of standard input.

    Args:
        config: Settings with `data`, `data_dir`, `split`, `text` and the text columns.
        stdin: Standard input, unless it is a terminal; read only without `--data` and `--text`.
        reporter: Receives the notes on the data.

    Raises:
        UserError: There are no texts, a column does not exist, or a row has no text (its number).
    """
    if config.data and config.text:
        raise UserError("--text: cannot be combined with --data; pass one of them")
    dataset_columns: dict[str, Any] = {}
    if config.data:
        rows, dataset_columns = _load_split(config, reporter)
    elif config.text:
        rows = Rows.from_columns({"text": list(config.text)}, "--text")
    else:
        rows = read_stdin_texts(stdin, "--data, --text")
    requested = {key: getattr(config, key) for key in TEXT_COLUMN_SETTINGS}
    columns = _resolve_text_columns(rows, requested, dataset_columns)
    require_texts(rows, columns)
    return TextInputs(rows, columns)


def _load_split(config: Any, reporter: Reporter) -> tuple[Rows, dict[str, Any]]:
    """Load one split, with the column settings of a known dataset."""
    has_columns = config.text_column or config.text_pair_column
    if not has_columns and (texts := read_text_lines(config.data, None, reporter)):
        return Rows.from_columns({"text": list(texts)}, config.data), {}
    data_dir = resolve_data_dir(config.data_dir)
    dataset = load_dataset(config.data, "classify", str(data_dir) if data_dir else None)
    if config.split not in dataset.splits:
        raise UserError(
            f"--split {config.split}: does not exist in {config.data}; use {format_list(dataset.splits)}"
        )
    for note in dataset.notes:
        reporter.info(note)
    rows = dataset.splits[config.split]
    others = [name for name in dataset.splits if name != config.split]
    split = f", split {config.split} (other splits: {format_list(others)})" if others else ""
    reporter.info(f"data: {dataset.name} from {dataset.source}{split}; {format_count(len(rows), 'row')}")
    return rows, dataset.defaults


def read_stdin_texts(stdin: BinaryIO | None, alternatives: str) -> Rows:
    """Read all rows from standard input; a line that is not a JSON object is a text."""
    rows = read_stdin_rows(stdin, alternatives, lambda _, line: {"text": line})
    return Rows.from_dicts(list(rows), STANDARD_INPUT)


def _resolve_text_columns(
    rows: Rows, requested: dict[str, str | None], dataset_columns: dict[str, Any]
) -> list[str]:
    """Return the requested columns, else those of the known dataset, else columns with common names."""
    for key, column in requested.items():
        if column:
            require_column(rows, column, format_flag(key))
    if not requested["text_column"]:
        detected = {
            key: dataset_columns[key]
            for key in TEXT_COLUMN_SETTINGS
            if dataset_columns.get(key) in rows.columns
        }
        if "text_column" not in detected:
            detected = dict(zip(TEXT_COLUMN_SETTINGS, guess_text_columns(rows), strict=True))
        requested = {key: column or detected.get(key) for key, column in requested.items()}
    columns = [column for key in TEXT_COLUMN_SETTINGS if (column := requested[key])]
    if len(set(columns)) < len(columns):
        raise UserError(
            f"--text-pair-column {columns[1]}: is already the first text; pass the name of another column"
        )
    return columns


# ---- rows to predict


def iter_data_rows(task: Task, data: str, data_dir: str | None, reporter: Reporter) -> Iterator[Rows]:
    """Yield the rows of a file in chunks, or those of one split of a directory or dataset."""
    dialect = Dialect(conll=True) if task.spec.reads_word_lines else None
    path = Path(data).expanduser()
    if path.is_file():
        text_lines = None if task.spec.reads_word_lines else _iter_text_lines(task, data, reporter)
        return text_lines or stream_rows(path, dialect)
    splits = load_dataset(data, task.spec.name, data_dir, dialect).splits
    split = next(name for name in ("test", "validation", *splits) if name in splits)
    if len(splits) > 1:
        reporter.info(f"--data {data}: predicting the {split} split (splits: {format_list(splits)})")
    return splits[split].iter_chunks()


def _iter_text_lines(task: Task, data: str, reporter: Reporter) -> Iterator[Rows] | None:
    """Yield the lines of a text file as rows; None if rows of the task have several texts."""
    columns = list(task.inputs.flags.values())
    if len(columns) != 1:
        return None
    texts = read_text_lines(data, columns[0], reporter)
    return chunk_records(({columns[0]: text} for text in texts), data) if texts else None


def iter_flag_rows(task: Task, texts_by_flag: Mapping[str, list[str]]) -> Iterator[Rows]:
    """Yield the rows that `--text` and similar flags form.

    Raises:
        UserError: A flag belongs to another task, or a required flag is missing.
    """
    task_flags = [format_flag(name) for name in task.inputs.flags]
    for name in texts_by_flag:
        if name not in task.inputs.flags:
            raise UserError(
                f"{format_flag(name)}: does not apply to a run of {task.spec.name}; "
                f"use {format_list(task_flags)}"
            )
    missing = [format_flag(name) for name in task.inputs.flags if name not in texts_by_flag]
    if missing:
        raise UserError(f"{missing[0]}: is missing; a row of this run needs {' and '.join(task_flags)}")
    return Rows.from_dicts(task.inputs.rows_from_flags(texts_by_flag), "the command line").iter_chunks()


def iter_stdin_rows(task: Task, stdin: BinaryIO | None) -> Iterator[Rows]:
    """Yield the rows of standard input: JSON objects, or lines of texts separated by tabs."""
    alternatives = ", ".join(["--data FILE", *(format_flag(name) for name in task.inputs.flags)])
    return chunk_records(read_stdin_rows(stdin, alternatives, partial(_parse_line, task)), STANDARD_INPUT)


def _parse_line(task: Task, number: int, line: str) -> dict[str, Any]:
    *first_flags, last_flag = task.inputs.flags
    texts = line.split("\t") if first_flags else [line]
    texts_by_flag = {flag: [text] for flag, text in zip(first_flags, texts, strict=False)}
    texts_by_flag[last_flag] = texts[len(first_flags) :]
    rows = task.inputs.rows_from_flags(texts_by_flag) if len(texts) > len(first_flags) else []
    if len(rows) != 1:
        expected = f"{', a TAB, '.join(task.inputs.flags)}"
        raise UserError(
            f"{STANDARD_INPUT}: line {number}: found {format_count(len(texts), 'text')}; write {expected}, "
            "or a JSON object"
        )
    return rows[0]


def format_flag(name: str) -> str:
    """Return the flag of a setting: `text_column` becomes `--text-column`."""
    return "--" + name.replace("_", "-")
