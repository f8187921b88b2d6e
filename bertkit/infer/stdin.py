"""Rows that come in on standard input: a JSON object a line, or what a task or command makes of a line."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

from bertkit.data.readers.contents import CONVERT_HINT
from bertkit.data.readers.streaming import parse_json_lines
from bertkit.errors import UserError

STANDARD_INPUT = "standard input"


def read_stdin_rows(
    stdin: BinaryIO | None, alternatives: str, parse_line: Callable[[int, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows, read as they are asked for; empty lines are rows too.

    Args:
        piped: standard input, unless a person sits at it.
        ways: what else texts may be given by.
        of_line: the row of a line that is no JSON, from its number and text.

    Raises:
        UserError: nothing comes in; or, while rows are read, a line that cannot be.
    """
    lines = _lines(stdin) if stdin else iter(())
    first = next(lines, None)
    if first is None:
        raise UserError(f"no texts: give {alternatives}, or lines on standard input")
    some = chain([first], lines)
    if first.lstrip().startswith("{"):
        return parse_json_lines(STANDARD_INPUT, some)
    return (parse_line(number, line) for number, line in enumerate(some, start=1))


def _lines(piped: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(piped, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte 0x{line[error.start]:02x}"
            raise UserError(f"{STANDARD_INPUT}: line {number}: not UTF-8 ({bad}); {CONVERT_HINT}") from error
        if "\0" in text:
            raise UserError(f"{STANDARD_INPUT}: line {number}: not text (a zero byte)")
        yield text.rstrip("\r\n")
