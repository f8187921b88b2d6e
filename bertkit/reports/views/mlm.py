"""Masked texts: samples of pre-training."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NotRequired

from bertkit.errors import format_count
from bertkit.reports.example import Example, Field, Mark
from bertkit.reports.views.base import FiniteNumber, Index, Record, View


class _Sample(Record):
    masked: str
    positions: list[Index]
    tokens: list[str]
    mlm_loss: FiniteNumber
    pair: NotRequired[str]


class MlmView(View):
    """Records with a text as it was masked, and what belongs at each place that is predicted."""

    schema = _Sample
    predicted_keys = frozenset({"masked", "positions", "tokens", "mlm_loss"})
    measure_name = "loss"
    filter_names = ("pair", "predicted")

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """A masked text."""
        return "masked" in record and "positions" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Places outside of the text, or not as many as pieces that belong there."""
        count, positions, tokens = record["masked"].count(" ") + 1, record["positions"], len(record["tokens"])
        if len(positions) != tokens:
            return f"expected {format_count(len(positions), 'token')} (one per position), found {tokens}"
        last = max(positions, default=0)
        return f"position {last} lies outside of {format_count(count, 'token')}" if last >= count else None

    def build_examples(self) -> list[Example]:
        """The higher the mean loss of its masked pieces, the sooner."""
        return [
            Example(
                record["id"], [record["pair"]] if "pair" in record else [], [], None, record["mlm_loss"],
                record["mlm_loss"], [Field("text", record["masked"], _marks(record))],
            )
            for record in self.records
        ]  # fmt: skip


def _marks(record: Mapping[str, Any]) -> list[Mark]:
    pieces = record["masked"].split(" ")
    starts = [0, *accumulate(len(piece) + 1 for piece in pieces)]
    return [
        Mark(starts[place], starts[place] + len(pieces[place]), "masked", piece)
        for place, piece in zip(record["positions"], record["tokens"], strict=True)
    ]
