"""What is found where data is looked at before training: one form for every kind of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bertkit.data.qa.answers import describe_location
from bertkit.data.qa.rows import QuestionRows
from bertkit.data.rows import Rows

Level = Literal["error", "warning", "note"]
MAX_LOCATIONS = 5  # rows that a finding names
MIN_PERCENT = 0.001  # share that is told in percent


@dataclass(frozen=True)
class Finding:
    """Something about the data that its owner should know.

    Attributes:
        level: "error": training refuses it; "warning": scores suffer; "note": it is good to know.
        name: of its kind, for programs.
        message: one line, for people.
        fix: what to do about it.
        count: of the rows (or what the message counts).
        rows: the first few of them, as `file: row n`.
    """

    level: Level
    name: str
    message: str
    fix: str = ""
    count: int = 0
    rows: list[str] = field(default_factory=list)


def locate_rows(rows: Rows, indices: Sequence[int] | np.ndarray) -> list[str]:
    """Where the first few of these rows stand; of questions also their ids."""
    name = describe_location if isinstance(rows, QuestionRows) else Rows.format_location
    return [name(rows, int(index)) for index in indices[:MAX_LOCATIONS]]


def format_fraction(part: int, whole: int) -> str:
    """`1,234 of 20,000 (6.2%)`, the form in which messages count."""
    percent = part / max(1, whole)
    return f"{part:,} of {whole:,}" + (f" ({percent:.1%})" if percent >= MIN_PERCENT else "")
