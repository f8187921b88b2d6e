"""Spans of characters in a text: from them to tags of its words, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.data.ner.words import WordSpans
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count

TYPE_KEYS = ("label", "type", "entity_group", "entity", "tag")  # what a span's type is called


def convert_spans_to_tags(rows: Rows, index: int, value: Any, text: str, tokens: Sequence[str]) -> list[str]:
    """IOB2 tags of the words of a text: a word is inside that shares a character with a span.

    Args:
        rows, index: whose they are, for the error.
        value: `[start, end, type]` each, or objects with `start`, `end` and `label` (or `type`, ...).

    Raises:
        UserError: no spans, or one that lies outside of the text, holds no word, or overlaps another.
    """
    tags = ["O"] * len(tokens)
    sentence = WordSpans.from_words([tokens], [text])
    for start, stop, kind in _spans(rows, index, value, text):
        inside = [
            number
            for number in range(len(tokens))
            if sentence.start[number] < stop and sentence.stop[number] > start
        ]
        if not inside:
            raise UserError(f"{rows.format_location(index)}: there is no word in the span {start} to {stop}")
        if any(tags[number] != "O" for number in inside):
            raise UserError(
                f"{rows.format_location(index)}: the span {start} to {stop} shares the word {tokens[inside[0]]!r} with "
                "another; a token has one tag, so leave one of the two out"
            )
        tags[inside[0]] = f"B-{kind}"
        for number in inside[1:]:
            tags[number] = f"I-{kind}"
    return tags


def _spans(rows: Rows, index: int, value: Any, text: str) -> list[tuple[int, int, str]]:
    if not isinstance(value, (list, tuple)):
        raise UserError(
            f"{rows.format_location(index)}: spans are {value!r}, not a list of [start, end, type]"
        )
    spans = [parse_span(span) for span in value]
    for given, span in zip(value, spans, strict=True):
        if span is None:
            raise UserError(
                f"{rows.format_location(index)}: {given!r} is no span; beside a text stand [start, end, type] or "
                "objects with start, end and label, beside a list of tokens their tags"
            )
        if not 0 <= span[0] < span[1] <= len(text):
            raise UserError(
                f"{rows.format_location(index)}: the span {span[0]} to {span[1]} does not lie in the text, which has "
                f"{format_count(len(text), 'character')}"
            )
    return sorted(span for span in spans if span)


def parse_span(value: Any) -> tuple[int, int, str] | None:
    """Start, end and type of a span in any of its forms; None where it is none."""
    if isinstance(value, Mapping):
        kind = next((value[key] for key in TYPE_KEYS if key in value), None)
        value = (value.get("start"), value.get("end"), kind)
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return None
    start, stop, kind = value
    whole = all(isinstance(place, int) and not isinstance(place, bool) for place in (start, stop))
    return (start, stop, kind) if whole and isinstance(kind, str) and kind else None


def strip_span(text: str, span: tuple[int, int, str]) -> tuple[int, int]:
    """Start and end of a span without the white space at its ends."""
    start, stop, _ = span
    inside = text[start:stop]
    return stop - len(inside.lstrip()), start + len(inside.rstrip())


def extract_entities(
    tags: Sequence[str], tokens: Sequence[str], text: str, scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """The entities of a sentence, by characters of its text.

    Args:
        tags: legal IOB2 tags.
        scores: their probabilities, of which an entity has the mean.
    """
    bounds: list[tuple[int, int]] = []
    for number, tag in enumerate(tags):
        if tag[0] == "B":
            bounds.append((number, number))
        elif tag[0] == "I":
            bounds[-1] = (bounds[-1][0], number)
    if not bounds:
        return []
    sentence = WordSpans.from_words([tokens], [text])
    found = []
    for first, last in bounds:
        start, end = int(sentence.start[first]), int(sentence.stop[last])
        about = {"start": start, "end": end, "label": tags[first][2:], "text": text[start:end]}
        mean = sum(scores[first : last + 1]) / (last + 1 - first) if scores else None
        found.append(about if mean is None else {**about, "score": round(mean, 4)})
    return found
