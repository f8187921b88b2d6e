"""The examples of a page as data, within its budget: the worst first, long texts shortened."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from bertkit.reports.example import Example, Field, Mark

MAX_EXAMPLES = 10_000  # examples
MAX_BYTES = 4_500_000  # bytes, of a page of 5 MB
TEXT_LENGTHS = [None, 3000, 2000, 1400, 1000, 700, 500, 350, 250, 150, 80]  # characters of a text
CHARACTERS_BEFORE_MARK = 60  # characters left before the first mark of a text that begins later
ELLIPSIS = "… "
dump_compact_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class ExampleBrowser:
    """What the page's script shows, as JSON in which no text can end the script, and what was left out."""

    data: Markup
    notes: list[str]


def build_browser(
    examples: Sequence[Example], measure_name: str, filter_names: tuple[str, str]
) -> ExampleBrowser:
    """The examples as the script reads them; a text that several share is there once."""
    order = sorted(
        range(len(examples)), key=lambda at: (examples[at].is_correct is True, -examples[at].priority)
    )[:MAX_EXAMPLES]
    worst = [(at, examples[at]) for at in order]
    notes = (
        [] if len(worst) == len(examples) else [f"the {MAX_EXAMPLES:,} worst of {len(examples):,} examples"]
    )
    for length in TEXT_LENGTHS[_first_length(worst) :]:
        rows, cut = _packed(worst, length)
        data = htmlsafe_json_dumps(rows | {"measure": measure_name, "named": filter_names}, dump_compact_json)
        if len(data.encode(errors="replace")) <= MAX_BYTES:
            break
    if cut:
        notes.append(f"texts over {length:,} characters are shortened ({cut:,} of them)")
    return ExampleBrowser(data, notes)


def _first_length(examples: Sequence[tuple[int, Example]]) -> int:
    """The place in `LENGTHS` of the first with which the texts alone are within the budget, about."""
    texts = {field.text for _, example in examples for field in example.fields}
    sizes = [(len(text), len(text.encode(errors="replace"))) for text in texts]

    def size(length: int | None) -> float:
        return sum(n if length is None or m <= length else n * length / m for m, n in sizes)

    return next(
        (at for at, length in enumerate(TEXT_LENGTHS) if size(length) <= MAX_BYTES), len(TEXT_LENGTHS) - 1
    )


def _packed(examples: Sequence[tuple[int, Example]], length: int | None) -> tuple[dict[str, object], int]:
    """Rows whose texts and names are numbers, and how many texts were shortened."""
    texts: dict[str, int] = {}
    rows, cut = [], 0
    for place, example in examples:
        fields = []
        for field in example.fields:
            short = _shortened(field, length)
            cut += short is not field
            numbers = [texts.setdefault(text, len(texts)) for text in (short.name, short.text)]
            fields.append([*numbers, *([short.marks] if short.marks else [])])
        rows.append({
            "id": str(example.id), "row": place, "gold": example.gold, "predicted": example.predicted,
            "right": example.is_correct, "measure": None if example.measure is None else round(example.measure, 4),
            "fields": fields, **({"said": example.display_labels} if example.display_labels else {}),
        })  # fmt: skip
    return {"rows": rows, "texts": list(texts)}, cut


def _shortened(field: Field, length: int | None) -> Field:
    """A text of at most `length` characters, from just before its first mark on where that stands later."""
    if length is None or len(field.text) <= length:
        return field
    start = (
        max(0, field.marks[0].start - CHARACTERS_BEFORE_MARK)
        if field.marks and field.marks[-1].end > length
        else 0
    )
    stop, shift = start + length, (len(ELLIPSIS) if start else 0) - start
    marks = [
        Mark(mark.start + shift, min(mark.end, stop) + shift, mark.kind, mark.label)
        for mark in field.marks
        if mark.start < stop
    ]
    end = ELLIPSIS.rstrip() if stop < len(field.text) else ""
    return Field(field.name, (ELLIPSIS if start else "") + field.text[start:stop] + end, marks)
