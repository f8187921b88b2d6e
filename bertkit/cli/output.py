"""Standard output and standard error, where they are full or their reader went away."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.errors import UserError


class OutputClosedError(UserError):
    """Nobody reads on, as behind `| head`: there is nothing to say, and nobody to say it to."""

    exit_code = 128 + signal.SIGPIPE  # as of a program that the signal ends


class GuardedStream:
    """A stream that says in one line why it cannot be written to.

    An `OSError` would count as a bug, and where the reader is gone Typer and rich would leave with status 1.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> Any:
        """Write a text. Raises `UserError` where that fails."""
        with self._told():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is held back. Raises `UserError` where that fails."""
        with self._told():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            raise UserError(f"{self._name} cannot be written ({error.strerror})") from None


@contextmanager
def guard_streams() -> Iterator[None]:
    """Within this, both streams are such; a program may have been started without them."""
    before = out, err = sys.stdout, sys.stderr
    sys.stdout = GuardedStream(out, "standard output") if out else out  # type: ignore[assignment]
    sys.stderr = GuardedStream(err, "standard error") if err else err  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in filter(None, before):
            _give_up(stream)


def _give_up(stream: Any) -> None:
    """What still cannot be written goes nowhere, or Python would try once more as it ends, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
