"""What is to be predicted: rows of a file or a known set, texts of flags, lines on standard input."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.data.readers.files import Dialect
from bertkit.data.readers.streaming import chunk_records, chunk_rows, stream_rows
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.infer.stdin import STANDARD_INPUT, read_stdin_rows
from bertkit.infer.text_lines import read_text_lines
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter


def iter_data_rows(task: Task, data: str, data_dir: str | None, reporter: Reporter) -> Iterator[Rows]:
    """The rows of a file, some at a time; of a folder or a named set those of one split, which is said."""
    from bertkit.data.loading import load_dataset

    dialect, path = Dialect(conll=True) if task.spec.reads_word_lines else None, Path(data).expanduser()
    if path.is_file():
        plain = None if task.spec.reads_word_lines else _texts(task, data, reporter)
        return plain or stream_rows(path, dialect)
    splits = load_dataset(data, task.spec.name, data_dir, dialect).splits
    split = next(name for name in ("test", "validation", *splits) if name in splits)
    if len(splits) > 1:
        reporter.info(f"--data {data}: its {split} split is predicted, of {format_list(splits)}")
    return chunk_rows(splits[split])


def _texts(task: Task, data: str, reporter: Reporter) -> Iterator[Rows] | None:
    """The rows of a file of texts, for a task that reads one text a row."""
    columns = list(task.inputs.flags.values())
    texts = read_text_lines(data, columns[0], reporter) if len(columns) == 1 else None
    return chunk_records(({columns[0]: text} for text in texts), data) if texts else None


def iter_flag_rows(task: Task, texts_by_flag: Mapping[str, list[str]]) -> Iterator[Rows]:
    """The rows that `--text` and its like make up.

    Raises:
        UserError: flags of another task, or one that is missing.
    """
    inputs = task.inputs
    wanted = [_flag(name) for name in inputs.flags]
    for name in texts_by_flag:
        if name not in inputs.flags:
            raise UserError(f"{_flag(name)}: this run is of {task.spec.name}, which takes {format_list(wanted)}")
    missing = [_flag(name) for name in inputs.flags if name not in texts_by_flag]
    if missing:
        raise UserError(f"{missing[0]}: is missing; a row of this run is {' and '.join(wanted)}")
    return chunk_rows(Rows.from_dicts(inputs.rows_from_flags(texts_by_flag), "the command line"))


def iter_stdin_rows(task: Task, stdin: BinaryIO | None) -> Iterator[Rows]:
    """The rows of standard input: JSON objects, or a text a line; several texts are parted by TABs."""
    ways = ", ".join(["--data FILE", *(_flag(name) for name in task.inputs.flags)])
    return chunk_records(read_stdin_rows(stdin, ways, partial(_row, task)), STANDARD_INPUT)


def _row(task: Task, number: int, line: str) -> dict[str, Any]:
    inputs = task.inputs
    *names, last = inputs.flags
    parts = line.split("\t") if names else [line]
    said = {name: [part] for name, part in zip(names, parts, strict=False)} | {last: parts[len(names) :]}
    rows = inputs.rows_from_flags(said) if len(parts) > len(names) else []
    if len(rows) != 1:
        wanted = f"{', a TAB, '.join(inputs.flags)}, or a JSON object"
        raise UserError(
            f"{STANDARD_INPUT}: line {number}: has {format_count(len(parts), 'part')}; a row is {wanted}"
        )
    return rows[0]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
