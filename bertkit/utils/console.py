"""The console: progress and messages on standard error, results on standard output, and piped input."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bertkit.utils.reporting import Reporter
from bertkit.utils.text import replace_control_characters

T = TypeVar("T")


class SafeConsole(Console):
    """A console that replaces control characters in strings; for table cells, see `to_plain_text`."""

    def print(self, *objects: Any, **options: Any) -> None:
        safe_objects = (
            replace_control_characters(item) if isinstance(item, str) else item for item in objects
        )
        super().print(*safe_objects, **options)


err_console = SafeConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
out_console = SafeConsole(highlight=False, markup=False)


def to_plain_text(text: str, single_line: bool = False) -> Text:
    """Convert a string to a cell or title that shows markup literally and control characters as symbols.

    With `single_line`, a text that is too long ends in an ellipsis instead of being wrapped.
    """
    text = replace_control_characters(text)
    return Text(text, no_wrap=True, overflow="ellipsis") if single_line else Text(text)


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def get_piped_stdin() -> BinaryIO | None:
    """Return standard input if it is a file or a pipe, and None if it is a terminal or closed."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer


# ---- progress and messages


class ConsoleReporter(Reporter):
    """A reporter that prints messages as lines and progress as live bars."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task_id: Any = None

    def info(self, message: str) -> None:
        err_console.print(message, markup=False)  # square brackets in it are not markup

    def warn(self, message: str) -> None:
        err_console.print(f"warning: {message}", style="yellow", markup=False)

    def on_train_begin(self, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[speed]} steps/s"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=err_console,
        )  # fmt: skip
        self._progress.start()
        self._task_id = self._progress.add_task("training", total=total, completed=done, loss="-", speed="-")

    def on_step_end(self, step: int, **metrics: Any) -> None:
        if self._progress is None:
            return
        task = self._progress.tasks[self._task_id]
        fields: dict[str, Any] = {}
        if "loss" in metrics:  # with its components, such as `6.931 (mlm 6.238, nsp 0.693)`
            loss, parts = f"{metrics['loss']:.3f}", metrics["parts"]
            components = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
            fields["loss"] = f"{loss} ({components})" if len(parts) > 1 else loss
        if task.speed:
            fields["speed"] = f"{task.speed:.2f}"
        self._progress.update(self._task_id, completed=step, **fields)

    def on_train_end(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # it remains on the screen
            self._progress = None

    def track(
        self,
        batches: Iterable[T],
        total: int | None,
        description: str,
        get_size: Callable[[T], int] = lambda _: 1,
    ) -> Iterator[T]:
        # no bar during training, or if standard error is neither a terminal nor a notebook
        if self._progress is not None or not _can_show_bars():
            yield from batches
            return
        with _create_bar(description, MofNCompleteColumn()) as progress:
            bar = progress.add_task(description, total=total)
            for batch in batches:
                yield batch
                progress.advance(bar, get_size(batch))

    @contextmanager
    def track_position(self, size: int, description: str) -> Iterator[Callable[[int], None]]:
        with _create_bar(description, DownloadColumn()) as progress:
            bar = progress.add_task(description, total=size)
            yield lambda position: progress.update(bar, completed=position)


def _can_show_bars() -> bool:
    return err_console.is_terminal or err_console.is_jupyter


def _create_bar(description: str, counter: ProgressColumn) -> Progress:
    """Return a bar that vanishes at its end."""
    return Progress(
        TextColumn(description), BarColumn(), counter, TextColumn("left"), TimeRemainingColumn(),
        console=err_console, transient=True, disable=not _can_show_bars(),
    )  # fmt: skip


# ---- tables


def print_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records, such as predictions, as a table; texts that do not fit end in an ellipsis."""
    names = list(dict.fromkeys(name for record in records for name in record))
    table = Table()
    for name in names:
        table.add_column(to_plain_text(name, single_line=True))

    def format_cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3f}"
        return "" if value is None else " ".join(str(value).split())

    # With `no_wrap` on cells instead of columns, rich shrinks the widest column first.
    for record in records:
        table.add_row(*(to_plain_text(format_cell(record.get(name)), single_line=True) for name in names))
    out_console.print(table)
