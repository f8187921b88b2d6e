"""What is to be predicted: rows of a file or a known set, texts of flags, lines on standard input."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.data.readers import Dialect
from bertkit.data.row_chunks import cut, in_chunks, row_chunks
from bertkit.data.rows import Rows
from bertkit.errors import UserError, counted, listed
from bertkit.infer.piped import STANDARD_INPUT, piped_rows
from bertkit.infer.plain_text import plain_lines
from bertkit.reporter import Reporter
from bertkit.tasks.base import Task


def rows_of_data(task: Task, data: str, data_dir: str | None, reporter: Reporter) -> Iterator[Rows]:
    """The rows of a file, some at a time; of a folder or a named set those of one split, which is said."""
    from bertkit.data.sources import find

    dialect, path = Dialect(words=True) if task.words else None, Path(data).expanduser()
    if path.is_file():
        plain = None if task.words else _texts(task, data, reporter)
        return plain or row_chunks(path, dialect)
    splits = find(data, task.name, data_dir, dialect).splits
    split = next(name for name in ("test", "validation", *splits) if name in splits)
    if len(splits) > 1:
        reporter.say(f"--data {data}: its {split} split is predicted, of {listed(splits)}")
    return cut(splits[split])


def _texts(task: Task, data: str, reporter: Reporter) -> Iterator[Rows] | None:
    """The rows of a file of texts, for a task that reads one text a row."""
    columns = list(task.asked.values())
    texts = plain_lines(data, columns[0], reporter) if len(columns) == 1 else None
    return in_chunks(({columns[0]: text} for text in texts), data) if texts else None


def rows_of_flags(task: Task, said: Mapping[str, list[str]]) -> Iterator[Rows]:
    """The rows that `--text` and its like make up.

    Raises:
        UserError: flags of another task, or one that is missing.
    """
    wanted = [_flag(name) for name in task.asked]
    for name in said:
        if name not in task.asked:
            raise UserError(f"{_flag(name)}: this run is of {task.name}, which takes {listed(wanted)}")
    missing = [_flag(name) for name in task.asked if name not in said]
    if missing:
        raise UserError(f"{missing[0]}: is missing; a row of this run is {' and '.join(wanted)}")
    return cut(Rows.from_dicts(task.asked_rows(said), "the command line"))


def rows_of_lines(task: Task, piped: BinaryIO | None) -> Iterator[Rows]:
    """The rows of standard input: JSON objects, or a text a line; several texts are parted by TABs."""
    ways = ", ".join(["--data FILE", *(_flag(name) for name in task.asked)])
    return in_chunks(piped_rows(piped, ways, partial(_row, task)), STANDARD_INPUT)


def _row(task: Task, number: int, line: str) -> dict[str, Any]:
    *names, last = task.asked
    parts = line.split("\t") if names else [line]
    said = {name: [part] for name, part in zip(names, parts, strict=False)} | {last: parts[len(names) :]}
    rows = task.asked_rows(said) if len(parts) > len(names) else []
    if len(rows) != 1:
        wanted = f"{', a TAB, '.join(task.asked)}, or a JSON object"
        raise UserError(
            f"{STANDARD_INPUT}: line {number}: has {counted(len(parts), 'part')}; a row is {wanted}"
        )
    return rows[0]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
