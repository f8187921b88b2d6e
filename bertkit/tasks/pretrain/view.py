"""View of masked language modeling: masked samples from pre-training."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from bertkit.errors import format_count
from bertkit.tasks.view import Example, Field, FiniteNumber, Index, Mark, Record, View
from bertkit.utils.compat import NotRequired


class _MlmRecord(Record):
    masked: str
    positions: list[Index]
    tokens: list[str]
    mlm_loss: NotRequired[FiniteNumber]
    lm_loss: NotRequired[FiniteNumber]  # with `--objective ltr`, instead of `mlm_loss`
    pair: NotRequired[str]


class MlmView(View):
    """Records with a masked text, and the original token at each masked position."""

    schema = _MlmRecord
    predicted_keys = frozenset({"masked", "positions", "tokens", "mlm_loss", "lm_loss"})
    measure_name = "loss"
    filter_names = ("pair", "predicted")

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return "masked" in record and "positions" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        if "mlm_loss" not in record and "lm_loss" not in record:
            return "has neither 'mlm_loss' nor 'lm_loss'"
        positions = record["positions"]
        num_originals = len(record["tokens"])
        if len(positions) != num_originals:
            return (
                f"expected a masked position for each original token, found "
                f"{format_count(len(positions), 'position')} and {format_count(num_originals, 'token')}"
            )
        num_tokens = record["masked"].count(" ") + 1
        last_position = max(positions, default=0)
        if last_position >= num_tokens:
            return f"position {last_position} is outside of {format_count(num_tokens, 'token')}"
        return None

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        tokens = record["masked"].split(" ")
        starts = [0, *accumulate(len(token) + 1 for token in tokens)]
        marks = [
            Mark(starts[position], starts[position] + len(tokens[position]), "masked", original)
            for position, original in zip(record["positions"], record["tokens"], strict=True)
        ]
        loss = record["mlm_loss"] if "mlm_loss" in record else record["lm_loss"]
        return Example(
            record["id"], [record["pair"]] if "pair" in record else [], [], None, loss, loss,
            [Field("text", record["masked"], marks)],
        )  # fmt: skip
