"""A scored row as a person looks at it, whatever its task."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A stretch of a text that stands out: characters `start` to `end`.

    Attributes:
        kind: how it looks: "gold", "predicted", "both", "masked", or "type0" to "type7".
        label: what is written behind it.
    """

    start: int
    end: int
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Field:
    """One text of an example, with its marks in order, none over another."""

    name: str
    text: str
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """One row of the error browser.

    Attributes:
        gold, predicted: the labels by which it is found.
        said: gold and predicted as they are shown, where that is not by their labels.
        right: None where there is no gold.
        measure: how sure the model was, or what else the view measures.
        badness: the higher, the sooner a person should see it.
    """

    id: Any
    gold: list[str]
    predicted: list[str]
    is_correct: bool | None
    measure: float | None
    priority: float
    fields: list[Field]
    display_labels: tuple[str, str] | None = None


def format_value(value: Any) -> str:
    """A value of a column in words; nothing of None."""
    if isinstance(value, (list, tuple)):
        return " · ".join(map(format_value, value))
    return "" if value is None else str(value)


def overlay_spans(gold: list[tuple[int, int]], predicted: list[tuple[int, int]]) -> list[Mark]:
    """Marks of both kinds, cut where one begins or ends in the other."""
    marks: list[Mark] = []
    for start, end in pairwise(sorted({place for span in (*gold, *predicted) for place in span})):
        inside = [any(span[0] <= start and end <= span[1] for span in spans) for spans in (gold, predicted)]
        kind = {(True, True): "both", (True, False): "gold", (False, True): "predicted"}.get(
            (inside[0], inside[1])
        )
        if kind and marks and marks[-1].end == start and marks[-1].kind == kind:
            marks[-1] = Mark(marks[-1].start, end, kind)
        elif kind:
            marks.append(Mark(start, end, kind))
    return marks
