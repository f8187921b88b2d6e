"""Explanations on the console: the most important words in the table, and texts with shaded words."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from bertkit.cli.console import out_console
from bertkit.cli.streams import replace_control_characters
from bertkit.reports.attributions import compute_strengths

MAX_WORDS = 5  # in a cell of the table
POSITIVE_COLOR, NEGATIVE_COLOR = (0, 150, 60), (200, 40, 40)  # on a black background


def summarize_explanation(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the most important words, such as "bad +1.23", in place of the explanation."""
    if "explanation" not in record:
        return dict(record)
    words = sorted(record["explanation"], key=lambda word: -abs(word["attribution"]))[:MAX_WORDS]
    summary = ", ".join(f"{word['word']} {word['attribution']:+.2f}" for word in words)
    return dict(record) | {"explanation": summary}


def print_explanations(records: Sequence[Mapping[str, Any]]) -> None:
    """Print the words of each record: green for the predicted label, red against it."""
    for record in records:
        if "explanation" in record:
            out_console.print(_shade(record["id"], record["explanation"]), soft_wrap=True)


def _shade(row_id: Any, words: Sequence[Mapping[str, Any]]) -> Text:
    """Return the words of a record, shaded by their attributions relative to the highest one."""
    text = Text(f"{row_id}: ")
    strengths = compute_strengths([word["attribution"] for word in words])
    for number, (word, strength) in enumerate(zip(words, strengths, strict=True)):
        color = POSITIVE_COLOR if strength > 0 else NEGATIVE_COLOR
        red, green, blue = (round(abs(strength) * part) for part in color)
        style = f"white on rgb({red},{green},{blue})" if strength else ""
        text.append(" " if number else "").append(replace_control_characters(word["word"]), style)
    return text
