"""Standard output and error that cannot be written: a full device, or a reader that has closed the pipe."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.errors import UserError
from bertkit.utils.system import EXIT_OUTPUT_CLOSED


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
        with self._translate_errors():
            return self._stream.write(text)

    def flush(self) -> None:
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
            try:
                stream.flush()
            except OSError:
                # Otherwise Python would write the buffered text again at exit, and print the error.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
