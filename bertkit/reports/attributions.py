"""Attributions of words, as they are shown in the error browser and on the console."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertkit.reports.examples import Attribution, Example

MIN_STRENGTH = 0.1  # weaker words are not shaded


@dataclass(frozen=True)
class ExampleExplanation:
    """The attributions of one example.

    Attributes:
        target: What is explained, such as the predicted label.
        error: Completeness error, as a fraction.
        attributions: The attributions of the words that are shaded, by the name of the field.
    """

    target: str
    error: float
    attributions: Mapping[str, list[Attribution]]


def compute_strengths(attributions: Sequence[float]) -> list[float]:
    """Return attributions as fractions of the highest absolute one; 0 for words that are not shaded."""
    highest = max(map(abs, attributions), default=0.0) or 1.0
    strengths = [attribution / highest for attribution in attributions]
    return [strength if abs(strength) >= MIN_STRENGTH else 0.0 for strength in strengths]


def add_explanation(example: Example, explanation: ExampleExplanation) -> Example:
    """Return the example with the attributions of its words."""
    fields = [
        dataclasses.replace(field, attributions=explanation.attributions.get(field.name, []))
        for field in example.fields
    ]
    return dataclasses.replace(example, fields=fields, explained=(explanation.target, explanation.error))
