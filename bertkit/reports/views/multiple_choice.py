"""One of several endings: `swag`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.errors import format_count
from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_confusion_matrix, plot_reliability_diagram
from bertkit.reports.example import Example, Field, Mark
from bertkit.reports.views.base import Index, Probability, Record, View


class _Chosen(Record):
    gold: Index
    predicted: Index
    probabilities: list[Probability]


class MultipleChoiceView(View):
    """Records with the number of the right ending, that of the predicted one, and a probability of each."""

    schema = _Chosen
    predicted_keys = frozenset({"predicted", "probabilities", "scores"})

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Probabilities in a list, one for each ending."""
        return isinstance(record.get("probabilities"), list)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """The number of an ending that has no probability."""
        count = len(record["probabilities"])
        wrong = next((side for side in ("gold", "predicted") if record[side] >= count), None)
        return wrong and f"{wrong}: {record[wrong]} is none of {format_count(count, 'ending')}"

    def build_examples(self) -> list[Example]:
        """The less likely the right ending was held, the sooner."""
        return [self._example(record) for record in self.records]

    def _example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted, shares = record["gold"], record["predicted"], record["probabilities"]
        columns = self.run.settings.get("ending_columns", [])
        fields = [field for field in self.build_input_fields(record) if field.name not in columns]
        for number, (text, share) in enumerate(zip(_endings(record, columns), shares, strict=False)):
            kind = {(True, True): "both", (True, False): "gold", (False, True): "predicted"}
            chosen = kind.get((number == gold, number == predicted))
            marks = [Mark(0, len(text), chosen)] if chosen else []
            fields.append(Field(f"{_name(number)}, {share:.2f}", text, marks))
        return Example(
            record["id"], [_name(gold)], [_name(predicted)], gold == predicted, shares[predicted],
            -math.log(max(shares[gold], 1e-12)), fields,
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """Which endings are taken for which, by their place; reliability."""
        size = max(len(record["probabilities"]) for record in self.records)
        gold, predicted = self.get_column("gold"), self.get_column("predicted")
        counts = np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)
        sure = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        note = "By the place of the ending in its row, which should tell nothing. A cell leads to them."
        names = [_name(number) for number in range(size)]
        return [
            plot_confusion_matrix("Endings", counts, names, note),
            plot_reliability_diagram(compute_calibration(sure, gold == predicted)),
        ]

    def scorer(self) -> Scorer:
        """Accuracy."""
        right = self.get_column("gold") == self.get_column("predicted")
        return Scorer(lambda rows: {"accuracy": float(right[rows].mean())}, len(right), right)


def _name(number: int) -> str:
    return f"ending {number + 1}"


def _endings(record: Mapping[str, Any], columns: list[str]) -> list[str]:
    """The texts of the endings that are there, from a column each or from one that holds lists."""
    values = [record.get(column) for column in columns]
    listed = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    return [str(text) for text in listed if text not in (None, "")]
