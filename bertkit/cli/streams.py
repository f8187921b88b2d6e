"""Standard input, output and error, and the replacement of control characters in printed text."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import typer

from bertkit.errors import UserError
from bertkit.utils.system import EXIT_OUTPUT_CLOSED

# Each control character is replaced by its Unicode picture (U+241B for escape). The C1 controls of 8-bit
# terminals have no pictures and become U+FFFD. White space becomes a space.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
CONTROL_PICTURES |= dict.fromkeys(map(ord, "\t\n\v\f\r\x85\u2028\u2029"), ord(" "))


def replace_control_characters(text: str) -> str:
    """Return `text` with each control character replaced by one visible character.

    A terminal would execute control characters in the data. Only printed text is changed; JSON, CSV and
    other files keep the original text.
    """
    return text.translate(CONTROL_PICTURES)


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def get_piped_stdin() -> BinaryIO | None:
    """Return standard input if it is a file or a pipe, and None if it is a terminal or closed."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer


class OutputClosedError(UserError):
    """Error for a pipe whose reader is closed, as with `| head`; the program ends without a message."""

    exit_code = EXIT_OUTPUT_CLOSED


class GuardedStream:
    """A stream that raises `UserError` instead of `OSError` if writing fails.

    An `OSError` would be reported as a bug, and Typer and rich would exit with status 1 for a closed reader.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> Any:
        """Write `text`. Raises `UserError` if that fails."""
        with self._translate_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write the buffered text. Raises `UserError` if that fails."""
        with self._translate_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            raise UserError(f"{self._name}: cannot be written ({error.strerror})") from None


@contextmanager
def guard_streams() -> Iterator[None]:
    """Replace standard output and standard error with guarded streams; either may be missing."""
    out, err = sys.stdout, sys.stderr
    sys.stdout = GuardedStream(out, "standard output") if out else out  # type: ignore[assignment]
    sys.stderr = GuardedStream(err, "standard error") if err else err  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        for stream in filter(None, (out, err)):
            _discard_unwritable_text(stream)


def _discard_unwritable_text(stream: Any) -> None:
    """Redirect a stream to the null device if its buffered text cannot be written.

    Otherwise Python would try to write the text again at exit, and would print the error.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
