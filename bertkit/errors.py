"""Errors that the user can fix, and helpers that format messages.

The command line prints a `UserError` as one line and exits with its `exit_code`. Any other exception is a bug
and shows its traceback.
"""

import difflib
from collections.abc import Iterable
from typing import Any

NAN_HINT = "try a lower --learning-rate, a longer --warmup, or --no-bf16"
MAX_LISTED_NAMES = 12
MAX_REPR_LENGTH = 40  # characters of a cell or a name in a message


class UserError(Exception):
    """Error that the user can fix, with a message of one line: `<object>: <problem>; <fix>`.

    Attributes:
        exit_code: Exit status of the command.
        should_report: In a distributed run, whether this process prints the message. If it is None, the first
            process of each machine prints the message.
    """

    exit_code = 2
    should_report: bool | None = None


class TrainingFailed(UserError):
    """Training cannot continue with these settings on this machine, because of NaN or a lack of memory."""


class RunInterrupted(UserError):
    """Interruption of a run by the user or a signal. The message says how to resume, if that is possible."""

    exit_code = 130


def suggest_similar(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'imdb'?` if a known name is similar to `word`, else the empty string."""
    name_by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(word).lower(), name_by_lower, n=1)
    return f"; did you mean {name_by_lower[matches[0]]!r}?" if matches else ""


def format_list(names: Iterable[object]) -> str:
    """Return `a, b, c`; a list of more than twelve names is shortened, because an error is one line."""
    words = [str(name) for name in names]
    listed = ", ".join(words[:MAX_LISTED_NAMES])
    return listed + (f", ... ({len(words)} in total)" if len(words) > MAX_LISTED_NAMES else "")


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `1 row` or `1,500 rows`. The plural has an s by default."""
    noun = singular if number == 1 else plural or singular + "s"
    return f"{number:,} {noun}"


def shorten(text: str) -> str:
    """Return a text, shortened to 40 characters for messages."""
    return text if len(text) <= MAX_REPR_LENGTH else f"{text[: MAX_REPR_LENGTH - 3]}..."


def shorten_repr(value: Any) -> str:
    """Return `repr(value)`, shortened to 40 characters for messages."""
    return shorten(repr(value))
