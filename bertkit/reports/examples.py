"""Examples of the error browser, and their JSON within the size limit of a page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

MAX_EXAMPLES = 10_000
MAX_BYTES = 4_500_000  # of the examples, so that a page stays below 5 MB
TEXT_LENGTHS = [None, 3000, 2000, 1400, 1000, 700, 500, 350, 250, 150, 80]  # characters
CHARACTERS_BEFORE_MARK = 60  # shown before the first mark of a shortened text
ELLIPSIS = "… "
dump_compact_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class Mark(NamedTuple):
    """A highlighted span of a text: characters `start` to `end`.

    Attributes:
        kind: CSS class: "gold", "predicted", "both", "masked", or "type0" to "type7".
        label: text shown after the span.
    """

    start: int
    end: int
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Field:
    """One text of an example, with its marks in order; marks do not overlap."""

    name: str
    text: str
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """One row of the error browser.

    Attributes:
        gold: gold labels to filter by.
        predicted: predicted labels to filter by.
        is_correct: whether the prediction is correct; None without gold labels.
        measure: confidence of the model, or the other measure of the view.
        priority: examples with a higher priority come first.
        display_labels: gold and predicted label as shown, if they differ from the labels to filter by.
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
    """Format the value of a column as text; None is empty."""
    if isinstance(value, (list, tuple)):
        return " · ".join(map(format_value, value))
    return "" if value is None else str(value)


def get_mark_kind(is_gold: bool, is_predicted: bool) -> str | None:
    """Return the kind of mark of a span that is gold, predicted, or both; None if it is neither."""
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


# ---- JSON of the browser


@dataclass(frozen=True)
class ExampleBrowser:
    """Data of the page's script.

    Attributes:
        data: JSON in which no text can end the script element.
        notes: what was left out.
    """

    data: Markup
    notes: list[str]


def build_browser(
    examples: Sequence[Example], measure_name: str, filter_names: tuple[str, str]
) -> ExampleBrowser:
    """Serialize the worst examples for the script, with texts shortened to fit into the size limit."""
    order = sorted(
        range(len(examples)), key=lambda row: (examples[row].is_correct is True, -examples[row].priority)
    )
    worst = [(row, examples[row]) for row in order[:MAX_EXAMPLES]]
    notes = []
    if len(worst) < len(examples):
        notes.append(f"the {MAX_EXAMPLES:,} worst of {len(examples):,} examples")
    names = {"measure": measure_name, "filter_names": filter_names}
    for length in TEXT_LENGTHS[_estimate_length_index(worst) :]:
        content, num_shortened = _pack(worst, length)
        data = htmlsafe_json_dumps(content | names, dump_compact_json)
        if len(data.encode(errors="replace")) <= MAX_BYTES:
            break
    if num_shortened:
        notes.append(f"{num_shortened:,} texts are shortened to {length:,} characters")
    return ExampleBrowser(data, notes)


def _estimate_length_index(examples: Sequence[tuple[int, Example]]) -> int:
    """Return the index of the first of `TEXT_LENGTHS` at which the texts alone fit, approximately."""
    texts = {field.text for _, example in examples for field in example.fields}
    sizes = [(len(text), len(text.encode(errors="replace"))) for text in texts]

    def estimate_size(length: int | None) -> float:
        return sum(
            size if length is None or characters <= length else size * length / characters
            for characters, size in sizes
        )

    fitting = (index for index, length in enumerate(TEXT_LENGTHS) if estimate_size(length) <= MAX_BYTES)
    return next(fitting, len(TEXT_LENGTHS) - 1)


def _pack(examples: Sequence[tuple[int, Example]], length: int | None) -> tuple[dict[str, object], int]:
    """Return the content of the JSON, where each distinct text is stored once, and the number shortened."""
    texts: dict[str, int] = {}
    rows, num_shortened = [], 0
    for row, example in examples:
        fields = []
        for original in example.fields:
            short = _shorten(original, length)
            num_shortened += short is not original
            numbers = [texts.setdefault(text, len(texts)) for text in (short.name, short.text)]
            fields.append([*numbers, *([short.marks] if short.marks else [])])
        rows.append({
            "id": str(example.id), "row": row, "gold": example.gold, "predicted": example.predicted,
            "correct": example.is_correct,
            "measure": None if example.measure is None else round(example.measure, 4),
            "fields": fields, **({"labels": example.display_labels} if example.display_labels else {}),
        })  # fmt: skip
    return {"rows": rows, "texts": list(texts)}, num_shortened


def _shorten(field: Field, length: int | None) -> Field:
    """Shorten a text to `length` characters; start before its first mark if marks would be lost."""
    if length is None or len(field.text) <= length:
        return field
    start = 0
    if field.marks and field.marks[-1].end > length:
        start = max(0, field.marks[0].start - CHARACTERS_BEFORE_MARK)
    stop = start + length
    shift = (len(ELLIPSIS) if start else 0) - start
    marks = [
        Mark(mark.start + shift, min(mark.end, stop) + shift, mark.kind, mark.label)
        for mark in field.marks
        if mark.start < stop
    ]
    before = ELLIPSIS if start else ""
    after = ELLIPSIS.rstrip() if stop < len(field.text) else ""
    return Field(field.name, before + field.text[start:stop] + after, marks)
