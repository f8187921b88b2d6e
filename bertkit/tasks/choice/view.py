"""View of multiple choice (`swag`): one of several endings is correct."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.charts import Chart, plot_confusion_matrix
from bertkit.errors import format_count
from bertkit.stats.significance import Scorer
from bertkit.tasks.view import (
    Example,
    Field,
    Index,
    Mark,
    Probability,
    Record,
    View,
    count_confusions,
    get_mark_kind,
    negative_log_likelihood,
)


class _ChoiceRecord(Record):
    gold: Index
    predicted: Index
    probabilities: list[Probability]


class MultipleChoiceView(View):
    """Records with the index of the gold ending, that of the predicted ending, and all probabilities."""

    schema = _ChoiceRecord
    predicted_keys = frozenset({"predicted", "probabilities", "scores"})

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("probabilities"), list)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        num_endings = len(record["probabilities"])
        for key in ("gold", "predicted"):
            if record[key] >= num_endings:
                return f"{key}: {record[key]} is outside of {format_count(num_endings, 'ending')}"
        return None

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, predicted, probabilities = record["gold"], record["predicted"], record["probabilities"]
        columns = self.run.settings.get("ending_columns", [])
        fields = [field for field in self.build_input_fields(record) if field.name not in columns]
        values = [record.get(column) for column in columns]
        if len(values) == 1 and isinstance(values[0], list):  # one column of lists
            values = values[0]
        endings = zip((str(text) for text in values if text not in (None, "")), probabilities, strict=False)
        for ending, (text, probability) in enumerate(endings):
            kind = get_mark_kind(ending == gold, ending == predicted)
            marks = [Mark(0, len(text), kind)] if kind else []
            fields.append(Field(f"{_format_ending(ending)}, {probability:.2f}", text, marks))
        return Example(
            record["id"], [_format_ending(gold)], [_format_ending(predicted)], gold == predicted,
            probabilities[predicted], negative_log_likelihood(probabilities[gold]), fields,
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        num_endings = max(len(record["probabilities"]) for record in self.records)
        gold, predicted = self.get_column("gold"), self.get_column("predicted")
        counts = count_confusions(gold, predicted, num_endings)
        confidence = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        note = (
            "Endings by their position in the row. The position should not affect the accuracy. "
            "Click a cell to see its examples."
        )
        names = [_format_ending(index) for index in range(num_endings)]
        return [
            plot_confusion_matrix("Endings", counts, names, note),
            *self.plot_reliability(confidence, gold == predicted),
        ]

    def scorer(self) -> Scorer:
        correct = self.get_column("gold") == self.get_column("predicted")
        return Scorer(lambda rows: {"accuracy": float(correct[rows].mean())}, len(correct), correct)


def _format_ending(index: int) -> str:
    return f"ending {index + 1}"
