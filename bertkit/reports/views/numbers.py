"""Numbers: regression by `classify`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.metrics.classification import regression
from bertkit.metrics.intervals import Scorer
from bertkit.reports.charts import Chart, scatter
from bertkit.reports.example import Example
from bertkit.reports.views.base import Number, Record, View

RANGES = 5  # of gold numbers, by which examples are found
POINTS = 800


class _Numbered(Record):
    gold: Number
    predicted: Number


class Numbers(View):
    """Records with a gold and a predicted number."""

    form = _Numbered
    decided = frozenset({"predicted"})
    measure = "error"

    @classmethod
    def fits(cls, record: Mapping[str, Any]) -> bool:
        """A number is predicted, and nothing is said of probabilities."""
        return isinstance(record.get("predicted"), float) and "probabilities" not in record

    def examples(self) -> list[Example]:
        """The further off, the sooner."""
        ranges = _Ranges(self.column("gold"))
        return [
            Example(
                record["id"], [ranges.of(gold)], [ranges.of(predicted)], None, abs(gold - predicted),
                abs(gold - predicted), self.inputs(record), (f"{gold:.3g}", f"{predicted:.3g}"),
            )
            for record in self.records
            for gold, predicted in [(record["gold"], record["predicted"])]
        ]  # fmt: skip

    def charts(self) -> list[Chart]:
        """Predicted over gold."""
        step = -(-len(self.records) // POINTS)
        gold, predicted = self.column("gold")[::step], self.column("predicted")[::step]
        note = "" if step == 1 else f"{len(gold):,} of {len(self.records):,} examples."
        return [scatter("Predicted and gold", gold, predicted, f"On the diagonal both are the same. {note}")]

    def scorer(self) -> Scorer:
        """Correlations."""
        gold, predicted = self.column("gold"), self.column("predicted")
        return Scorer(lambda rows: regression(gold[rows], predicted[rows]), len(gold))


class _Ranges:
    """Numbers by ranges of equal width; those outside of the gold ones go with the nearest."""

    def __init__(self, gold: np.ndarray) -> None:
        self.bounds = np.linspace(gold.min(), gold.max(), RANGES + 1)

    def of(self, number: float) -> str:
        place = int(np.clip(np.searchsorted(self.bounds, number, side="right") - 1, 0, RANGES - 1))
        return f"{self.bounds[place]:.3g} to {self.bounds[place + 1]:.3g}"
