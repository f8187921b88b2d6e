"""Numbers: regression by `classify`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.metrics.classification import score_regression
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_scatter
from bertkit.reports.example import Example
from bertkit.reports.views.base import FiniteNumber, Record, View

NUM_RANGES = 5  # of gold numbers, by which examples are found
MAX_POINTS = 800


class _Numbered(Record):
    gold: FiniteNumber
    predicted: FiniteNumber


class RegressionView(View):
    """Records with a gold and a predicted number."""

    schema = _Numbered
    predicted_keys = frozenset({"predicted"})
    measure_name = "error"

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """A number is predicted, and nothing is said of probabilities."""
        return isinstance(record.get("predicted"), float) and "probabilities" not in record

    def build_examples(self) -> list[Example]:
        """The further off, the sooner."""
        ranges = _Ranges(self.get_column("gold"))
        return [
            Example(
                record["id"], [ranges.of(gold)], [ranges.of(predicted)], None, abs(gold - predicted),
                abs(gold - predicted), self.build_input_fields(record), (f"{gold:.3g}", f"{predicted:.3g}"),
            )
            for record in self.records
            for gold, predicted in [(record["gold"], record["predicted"])]
        ]  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """Predicted over gold."""
        step = -(-len(self.records) // MAX_POINTS)
        gold, predicted = self.get_column("gold")[::step], self.get_column("predicted")[::step]
        note = "" if step == 1 else f"{len(gold):,} of {len(self.records):,} examples."
        return [
            plot_scatter("Predicted and gold", gold, predicted, f"On the diagonal both are the same. {note}")
        ]

    def scorer(self) -> Scorer:
        """Correlations."""
        gold, predicted = self.get_column("gold"), self.get_column("predicted")
        return Scorer(lambda rows: score_regression(gold[rows], predicted[rows]), len(gold))


class _Ranges:
    """Numbers by ranges of equal width; those outside of the gold ones go with the nearest."""

    def __init__(self, gold: np.ndarray) -> None:
        self.bounds = np.linspace(gold.min(), gold.max(), NUM_RANGES + 1)

    def of(self, number: float) -> str:
        place = int(np.clip(np.searchsorted(self.bounds, number, side="right") - 1, 0, NUM_RANGES - 1))
        return f"{self.bounds[place]:.3g} to {self.bounds[place + 1]:.3g}"
