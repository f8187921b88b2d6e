"""What can go wrong in ways a user can mend, as opposed to bugs.

The command line prints these as one line and exits with `exit_code`; anything else is a bug and
shows its traceback.
"""

import difflib
from collections.abc import Iterable
from typing import Any

NAN_HINT = "try a lower --learning-rate, a longer --warmup, or --no-bf16"


class UserError(Exception):
    """Something the user can mend: one line that names the file, row, column or flag and the way out.

    Attributes:
        said_here: of several processes, whether this one says it; None: the first on each machine does.
    """

    exit_code = 2
    should_report: bool | None = None


class RunInterrupted(UserError):
    """The user or a signal stopped the work; the line says how to go on."""

    exit_code = 130


def suggest_similar(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'imdb'?` where a known word is close to `word`, else the empty string."""
    close = difflib.get_close_matches(str(word).lower(), {name.lower(): name for name in known}, n=1)
    originals = {name.lower(): name for name in known}
    return f"; did you mean {originals[close[0]]!r}?" if close else ""


def format_list(names: Iterable[object]) -> str:
    """`a, b, c`, cut after twelve so that the error stays one line."""
    words = [str(name) for name in names]
    return ", ".join(words[:12]) + (f", ... ({len(words)} in all)" if len(words) > 12 else "")


def format_count(number: int, one: str, several: str | None = None) -> str:
    """`1 row`, `1,500 rows`: a number with its noun, which in the plural ends in s or is `several`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def shorten_repr(value: Any) -> str:
    """`repr`, cut for error messages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
