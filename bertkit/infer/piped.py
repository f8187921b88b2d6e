"""Rows that come in on standard input: a JSON object a line, or what a task or command makes of a line."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

from bertkit.data.contents import CONVERT
from bertkit.data.row_chunks import json_lines
from bertkit.errors import UserError

STANDARD_INPUT = "standard input"


def piped_rows(
    piped: BinaryIO | None, ways: str, of_line: Callable[[int, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows, read as they are asked for; empty lines are rows too.

    Args:
        piped: standard input, unless a person sits at it.
        ways: what else texts may be given by.
        of_line: the row of a line that is no JSON, from its number and text.

    Raises:
        UserError: nothing comes in; or, while rows are read, a line that cannot be.
    """
    lines = _lines(piped) if piped else iter(())
    first = next(lines, None)
    if first is None:
        raise UserError(f"no texts: give {ways}, or lines on standard input")
    some = chain([first], lines)
    if first.lstrip().startswith("{"):
        return json_lines(STANDARD_INPUT, some)
    return (of_line(number, line) for number, line in enumerate(some, start=1))


def _lines(piped: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(piped, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte 0x{line[error.start]:02x}"
            raise UserError(f"{STANDARD_INPUT}: line {number}: not UTF-8 ({bad}); {CONVERT}") from error
        if "\0" in text:
            raise UserError(f"{STANDARD_INPUT}: line {number}: not text (a zero byte)")
        yield text.rstrip("\r\n")
