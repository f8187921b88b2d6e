"""Load rows to predict or texts to embed from `--data`, from flags such as `--text`, or from stdin."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from bertkit.data.columns import guess_text_columns, require_column, require_texts
from bertkit.data.features import Features
from bertkit.data.readers.formats import (
    STANDARD_INPUT,
    Dialect,
    read_stdin_rows,
    read_text_lines,
    store_file,
    stream_rows,
)
from bertkit.data.sources import iter_stream, load_dataset, resolve_data_dir
from bertkit.data.table import Rows, chunk_records
from bertkit.errors import UserError, format_count, format_list
from bertkit.settings.declaration import (
    Settings,
    get_column_settings,
    get_flag,
    get_settings,
    is_column_setting,
)
from bertkit.settings.validation import DataObject
from bertkit.tasks.base import Task
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info

TEXT_COLUMN_SETTINGS = ("text_column", "text_pair_column")
TEXT_SEPARATOR = " | "  # between the texts of a pair, on the console


@dataclass(frozen=True)
class TextInputs:
    """Rows, and the names of one text column or, for text pairs, of two."""

    rows: Rows
    columns: list[str]

    def get_display_text(self, row: int) -> str:
        """Return the text of a row for the console; the two texts of a pair are joined."""
        return TEXT_SEPARATOR.join(self.rows[column][row] for column in self.columns)


@dataclass
class TruncationCounter:
    """Statistics on truncated texts, added up over chunks."""

    total: int = 0  # texts
    truncated: int = 0  # texts
    longest: int = 0  # length in tokens of the longest text before truncation

    def add(self, features: Features) -> None:
        """Count the texts of one chunk."""
        self.total += len(features)
        self.truncated += features.num_truncated
        self.longest = max(self.longest, features.max_untruncated_length)

    def merge(self, other: "TruncationCounter") -> None:
        """Add the texts that another process has counted."""
        self.total += other.total
        self.truncated += other.truncated
        self.longest = max(self.longest, other.longest)

    def report(self, max_length: int) -> None:
        """Report the number of truncated texts, if there are any."""
        if self.truncated:
            report_info(
                f"{self.truncated:,} of {format_count(self.total, 'text')} truncated to {max_length} tokens "
                f"(longest: {self.longest:,})"
            )


# ---- texts to embed


def load_texts(config: Any, stdin: BinaryIO | None) -> TextInputs:
    """Load the texts of `--data`, of `--text`, or of standard input, which is None if it is a terminal.

    The text columns are those in the settings, of the known dataset, or with a common name.
    """
    if config.data and config.text:
        raise UserError("--text: cannot be combined with --data; pass one of them")
    dataset_columns: dict[str, Any] = {}
    if config.data:
        rows, dataset_columns = _load_split(config)
    elif config.text:
        rows = Rows.from_columns({"text": list(config.text)}, "--text")
    else:
        rows = read_stdin_texts(stdin, "--data, --text", config.encoding)
    named = {name: column for name in TEXT_COLUMN_SETTINGS if (column := getattr(config, name))}
    for name, column in named.items():
        require_column(rows, column, format_flag(name))
    if "text_column" not in named:
        detected = {
            name: column
            for name in TEXT_COLUMN_SETTINGS
            if (column := dataset_columns.get(name)) in rows.columns
        }
        if "text_column" not in detected:
            detected = dict(zip(TEXT_COLUMN_SETTINGS, guess_text_columns(rows), strict=True))
        named = detected | named
    columns = [column for name in TEXT_COLUMN_SETTINGS if (column := named.get(name))]
    if len(set(columns)) < len(columns):
        raise UserError(
            f"--text-pair-column {columns[1]}: is already the first text; pass the name of another column"
        )
    require_texts(rows, columns)
    return TextInputs(rows, columns)


def _load_split(config: Any) -> tuple[Rows, dict[str, Any]]:
    """Load one split, and the column settings of the dataset if it is a known one."""
    has_columns = config.text_column or config.text_pair_column
    is_name = isinstance(config.data, str)
    if is_name and not has_columns and (texts := read_text_lines(config.data, None, config.encoding)):
        parts = chunk_records(enumerate(({"text": text} for text in texts), start=1), config.data)
        return store_file(expand_home(config.data), lambda: parts, "lines", config.encoding), {}
    data_dir = resolve_data_dir(config.data_dir)
    dialect = Dialect.from_settings(config)
    dataset = load_dataset(config.data, "classify", str(data_dir) if data_dir else None, dialect)
    if config.split not in dataset.splits:
        raise UserError(
            f"--split {config.split}: does not exist in {config.data}; use {format_list(dataset.splits)}"
        )
    for note in dataset.notes:
        report_info(note)
    rows = dataset.splits[config.split]
    other_splits = [name for name in dataset.splits if name != config.split]
    split = f", split {config.split} (other splits: {format_list(other_splits)})" if other_splits else ""
    report_info(f"data: {dataset.name} from {dataset.source}{split}; {format_count(len(rows), 'row')}")
    return rows, dataset.defaults


def read_stdin_texts(stdin: BinaryIO | None, alternatives: str, encoding: str | None = None) -> Rows:
    """Read all rows from standard input; a line that is not a JSON object is a text."""
    rows = read_stdin_rows(stdin, alternatives, lambda _, line: {"text": line}, encoding)
    return Rows.from_dicts(list(rows), STANDARD_INPUT)


# ---- rows to predict


def require_data_for_format_flags(config: Any) -> None:
    """Raise a `UserError` for flags on the format of text files without `--data` or another file."""
    has_file = config.data or getattr(config, "out_of_scope", None)
    for name in ("encoding", "delimiter", "header"):
        if getattr(config, name) is not None and not has_file:
            raise UserError(f"{format_flag(name)}: applies only to --data; pass both or neither")


def iter_data_rows(task: Task, config: Any) -> Iterator[Rows]:
    """Yield the rows of a file, or of one split of a directory, a dataset or an object, in chunks.

    `config` has the settings `data`, `data_dir` and those of the format of text files.
    """
    data, dialect = config.data, task.definition.make_dialect(config)
    if isinstance(data, DataObject) and (chunks := iter_stream(data, "data")) is not None:
        return chunks
    path = None if isinstance(data, DataObject) else expand_home(str(data))
    if path and path.is_file():
        columns = list(task.input_schema.columns_by_flag.values())
        has_text_lines = len(columns) == 1 and not task.definition.reads_conll
        if has_text_lines and (texts := read_text_lines(str(data), columns[0], config.encoding)):
            return chunk_records(enumerate(({columns[0]: text} for text in texts), start=1), str(data))
        return stream_rows(path, dialect)
    splits = load_dataset(data, task.definition.name, config.data_dir, dialect).splits
    split = next(name for name in ("test", "validation", *splits) if name in splits)
    if len(splits) > 1:
        report_info(f"--data {data}: predicting the {split} split (splits: {format_list(splits)})")
    return splits[split].iter_chunks()


def iter_flag_rows(task: Task, texts_by_flag: Mapping[str, list[str]]) -> Iterator[Rows]:
    """Yield rows with the texts of `--text` and similar flags."""
    task_flags = [format_flag(name) for name in task.input_schema.columns_by_flag]
    for name in texts_by_flag:
        if name not in task.input_schema.columns_by_flag:
            raise UserError(
                f"{format_flag(name)}: does not apply to a run of {task.definition.name}; "
                f"use {format_list(task_flags)}"
            )
    missing = [format_flag(name) for name in task.input_schema.columns_by_flag if name not in texts_by_flag]
    if missing:
        raise UserError(f"{missing[0]}: is missing; a row of this run requires {' and '.join(task_flags)}")
    return Rows.from_dicts(
        task.input_schema.build_rows_from_flags(texts_by_flag), "the command line"
    ).iter_chunks()


def iter_stdin_rows(task: Task, stdin: BinaryIO | None, encoding: str | None = None) -> Iterator[Rows]:
    """Yield the rows of standard input; a line is a JSON object, or texts that tabs separate."""
    alternatives = ", ".join(
        ["--data FILE", *(format_flag(name) for name in task.input_schema.columns_by_flag)]
    )
    records = read_stdin_rows(stdin, alternatives, partial(_parse_line, task), encoding)
    return chunk_records(enumerate(records, start=1), STANDARD_INPUT)


def _parse_line(task: Task, line_number: int, line: str) -> dict[str, Any]:
    """Parse a line with one text for each flag; the last flag may have several texts."""
    *first_flags, last_flag = task.input_schema.columns_by_flag
    texts = line.split("\t") if first_flags else [line]
    texts_by_flag = {flag: [text] for flag, text in zip(first_flags, texts, strict=False)}
    texts_by_flag[last_flag] = texts[len(first_flags) :]
    rows = task.input_schema.build_rows_from_flags(texts_by_flag) if len(texts) > len(first_flags) else []
    if len(rows) != 1:
        expected = ", a TAB, ".join(task.input_schema.columns_by_flag)
        raise UserError(
            f"{STANDARD_INPUT}: line {line_number}: found {format_count(len(texts), 'text')}; "
            f"write {expected}, or a JSON object"
        )
    return rows[0]


def format_flag(name: str) -> str:
    """Return the flag of a setting: `text_column` becomes `--text-column`."""
    return "--" + name.replace("_", "-")


def collect_passed_columns(config: Settings, task: Task, run: str) -> dict[str, Any]:
    """Return the columns of the rows that the user named, by setting, for the task of a run."""
    settings = get_settings(type(config))
    # The settings of a finished run name all columns that it reads.
    column_settings = get_column_settings(task.config) if task.definition.predicts_rows else {}
    names = [name for name, column in column_settings.items() if column]
    columns = {}
    for name, declared in settings.items():
        if not is_column_setting(name) or (column := getattr(config, name)) is None:
            continue
        if name not in names:
            flags = format_list(get_flag(known, settings[known].metadata) for known in names)
            fix = f"use {flags}" if names else "name the column as in training"
            flag = get_flag(name, declared.metadata)
            raise UserError(f"{flag}: does not apply to {run}, a run of {task.definition.name}; {fix}")
        columns[name] = column
    return columns
