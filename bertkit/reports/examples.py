"""Examples of the error browser, and their JSON, whose size is limited."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

MAX_EXAMPLES = 10_000
MAX_BYTES = 4_500_000  # size of the JSON; the whole page stays below 5 MB
# Maximum lengths of a text in characters, tried in this order until the JSON fits; None keeps whole texts.
TEXT_LENGTHS = [None, 3000, 2000, 1400, 1000, 700, 500, 350, 250, 150, 80]
CHARACTERS_BEFORE_MARK = 60  # context that a shortened text keeps before its first mark
ELLIPSIS = "… "
dump_compact_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class Mark(NamedTuple):
    """A highlighted span of a text.

    Attributes:
        start: First character.
        end: End of the characters, exclusive.
        kind: CSS class: "gold", "predicted", "both", "masked", or "type0" to "type7".
        label: Text shown after the span.
    """

    start: int
    end: int
    kind: str
    label: str = ""


class Attribution(NamedTuple):
    """The attribution of one word.

    Attributes:
        start: First character of the word.
        end: End of its characters, exclusive.
        value: Attribution; negative if the word lowers the score.
        strength: Attribution as a fraction of the highest absolute one of the example.
    """

    start: int
    end: int
    value: float
    strength: float


SpanT = TypeVar("SpanT", Mark, Attribution)


@dataclass(frozen=True)
class Field:
    """One text of an example, with its name, its marks and the attributions of its words.

    Marks are sorted and do not overlap; so are attributions. A field has only one of them.
    """

    name: str
    text: str
    marks: list[Mark] = field(default_factory=list)
    attributions: list[Attribution] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """One row of the error browser.

    Attributes:
        gold: Gold labels to filter by.
        predicted: Predicted labels to filter by.
        is_correct: Whether the prediction is correct; None without gold labels.
        measure: Confidence of the model, or the other measure of the view.
        priority: Examples with a higher priority come first.
        display_labels: Gold and predicted label to display, if they differ from the labels to filter by.
        explained: What the attributions explain, and their completeness error; None without attributions.
    """

    id: Any
    gold: list[str]
    predicted: list[str]
    is_correct: bool | None
    measure: float | None
    priority: float
    fields: list[Field]
    display_labels: tuple[str, str] | None = None
    explained: tuple[str, float] | None = None


def format_value(value: Any) -> str:
    """Format the value of a column as text; None becomes an empty string."""
    if isinstance(value, (list, tuple)):
        return " · ".join(map(format_value, value))
    return "" if value is None else str(value)


def get_mark_kind(is_gold: bool, is_predicted: bool) -> str | None:
    """Return the kind of mark for a span; None if the span is neither gold nor predicted."""
    if is_gold and is_predicted:
        return "both"
    if is_gold:
        return "gold"
    return "predicted" if is_predicted else None


def overlay_spans(gold: list[tuple[int, int]], predicted: list[tuple[int, int]]) -> list[Mark]:
    """Return the marks of gold and predicted spans, split wherever a span begins or ends."""
    marks: list[Mark] = []
    boundaries = sorted({position for span in (*gold, *predicted) for position in span})
    for start, end in pairwise(boundaries):
        is_gold, is_predicted = (
            any(span[0] <= start and end <= span[1] for span in spans) for spans in (gold, predicted)
        )
        kind = get_mark_kind(is_gold, is_predicted)
        if kind and marks and marks[-1].end == start and marks[-1].kind == kind:
            marks[-1] = Mark(marks[-1].start, end, kind)
        elif kind:
            marks.append(Mark(start, end, kind))
    return marks


def sort_worst_first(examples: Sequence[Example]) -> list[int]:
    """Return the indices of the examples; errors come first, then those with a high priority."""
    return sorted(
        range(len(examples)), key=lambda row: (examples[row].is_correct is True, -examples[row].priority)
    )


# ---- JSON of the browser


@dataclass(frozen=True)
class ErrorBrowser:
    """Examples for the script of a page.

    Attributes:
        data: JSON that is escaped for a script element.
        notes: Clauses that say which examples or parts of texts are missing.
    """

    data: Markup
    notes: list[str]


def build_error_browser(
    examples: Sequence[Example], measure_name: str, filter_names: tuple[str, str]
) -> ErrorBrowser:
    """Serialize the worst examples; long texts are shortened until the JSON is within the size limit.

    Args:
        examples: One example for each row, in the order of the rows.
        measure_name: Name of `Example.measure`.
        filter_names: Names of the gold and predicted labels to filter by.
    """
    worst = [(row, examples[row]) for row in sort_worst_first(examples)[:MAX_EXAMPLES]]
    notes = []
    if len(worst) < len(examples):
        notes.append(f"only the {MAX_EXAMPLES:,} worst of {len(examples):,} examples are shown")
    names = {"measure": measure_name, "filter_names": filter_names}
    for length in TEXT_LENGTHS[_estimate_length_index(worst) :]:
        content, num_shortened = _pack(worst, length)
        data = htmlsafe_json_dumps(content | names, dump_compact_json)
        if len(data.encode(errors="replace")) <= MAX_BYTES:
            break
    if num_shortened:
        notes.append(f"{num_shortened:,} texts are shortened to {length:,} characters")
    return ErrorBrowser(data, notes)


def _estimate_length_index(examples: Sequence[tuple[int, Example]]) -> int:
    """Return the index of the first length in `TEXT_LENGTHS` at which the texts alone probably fit."""
    texts = {field.text for _, example in examples for field in example.fields}
    sizes = [(len(text), len(text.encode(errors="replace"))) for text in texts]  # characters, bytes

    def estimate_size(length: int | None) -> float:
        return sum(
            num_bytes if length is None or num_characters <= length else num_bytes * length / num_characters
            for num_characters, num_bytes in sizes
        )

    fitting_indices = (
        index for index, length in enumerate(TEXT_LENGTHS) if estimate_size(length) <= MAX_BYTES
    )
    return next(fitting_indices, len(TEXT_LENGTHS) - 1)


def _pack(examples: Sequence[tuple[int, Example]], length: int | None) -> tuple[dict[str, object], int]:
    """Return the content of the JSON, and the number of shortened texts.

    Each distinct text is stored once, and fields refer to it by its index.
    """
    texts: dict[str, int] = {}
    rows, num_shortened = [], 0
    for row, example in examples:
        fields = []
        for original in example.fields:
            short = _shorten(original, length)
            num_shortened += short is not original
            text_indices = [texts.setdefault(text, len(texts)) for text in (short.name, short.text)]
            spans = [short.marks, short.attributions] if short.attributions else [short.marks]
            fields.append([*text_indices, *(spans if any(spans) else [])])
        rows.append({
            "id": str(example.id), "row": row, "gold": example.gold, "predicted": example.predicted,
            "correct": example.is_correct,
            "measure": None if example.measure is None else round(example.measure, 4),
            "fields": fields, **({"labels": example.display_labels} if example.display_labels else {}),
            **({"explained": example.explained} if example.explained else {}),
        })  # fmt: skip
    return {"rows": rows, "texts": list(texts)}, num_shortened


def _shorten(field: Field, length: int | None) -> Field:
    """Shorten a text to `length` characters; if marks would be lost, begin shortly before the first mark."""
    if length is None or len(field.text) <= length:
        return field
    start = 0
    if field.marks and field.marks[-1].end > length:
        start = max(0, field.marks[0].start - CHARACTERS_BEFORE_MARK)
    stop = start + length
    shift = (len(ELLIPSIS) if start else 0) - start

    def move(spans: list[SpanT]) -> list[SpanT]:
        return [
            span._replace(start=span.start + shift, end=min(span.end, stop) + shift)
            for span in spans
            if span.start < stop
        ]

    before = ELLIPSIS if start else ""
    after = ELLIPSIS.rstrip() if stop < len(field.text) else ""
    text = before + field.text[start:stop] + after
    return Field(field.name, text, move(field.marks), move(field.attributions))
