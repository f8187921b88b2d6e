"""Views of sequence classification: single-label, multi-label, and regression."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta

from bertkit.charts import Chart, plot_confusion_matrix, plot_scatter
from bertkit.errors import UserError, shorten_repr
from bertkit.stats.scores import score_multi_label, score_regression, score_single_label
from bertkit.stats.significance import Scorer
from bertkit.tasks.view import (
    Example,
    FiniteNumber,
    Probability,
    Record,
    View,
    count_confusions,
    negative_log_likelihood,
    plot_f1_bars,
)

if TYPE_CHECKING:
    from bertkit.reports.finished_run import FinishedRun


MAX_CLASSES = 14  # in a confusion matrix
OTHER_LABELS = "others"  # name of the merged class
NO_LABELS = ["(none)"]
NUM_RANGES = 5  # ranges of values that examples of a regression are filtered by
MAX_POINTS = 800  # in a scatter plot


# ---- single-label


class _SingleLabelRecord(Record):
    gold: str
    predicted: str
    probabilities: dict[str, Probability]


class ClassificationView(View):
    """Records with one gold label, one predicted label, and the probability of each label."""

    schema = _SingleLabelRecord
    predicted_keys = frozenset({"predicted", "probabilities"})

    def __init__(self, run: "FinishedRun", records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        label_ids = {label: index for index, label in enumerate(self.labels)}
        self.gold = np.array([label_ids[record["gold"]] for record in records])
        self.predicted = np.array([label_ids[record["predicted"]] for record in records])

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("predicted"), str) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        return find_label_error(record, self.records[0], [record["gold"], record["predicted"]])

    def build_examples(self) -> list[Example]:
        return [self._build_example(record) for record in self.records]

    def _build_example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted, probabilities = record["gold"], record["predicted"], record["probabilities"]
        return Example(
            record["id"], [gold], [predicted], gold == predicted, probabilities[predicted],
            negative_log_likelihood(probabilities.get(gold, 0.0)), self.build_input_fields(record),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        labels, gold, predicted = self.labels, self.gold, self.predicted
        counts = count_confusions(gold, predicted, len(labels))
        confidence = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        charts = [plot_class_confusion(counts, labels)]
        if len(labels) > 2:
            charts.append(plot_f1_bars(labels, np.diag(counts), counts.sum(0), counts.sum(1), "class"))
        return [*charts, *self.plot_reliability(confidence, gold == predicted)]

    def scorer(self) -> Scorer:
        positive = self.run.settings.get("positive_label")
        if positive not in (None, *self.labels):
            raise UserError(
                f"{self.run.settings_file}: positive_label: {shorten_repr(positive)} is not a label of the "
                "run; run the training again"
            )
        positive_id = None if positive is None else self.labels.index(positive)

        def score(rows: np.ndarray) -> dict[str, float]:
            return score_single_label(self.gold[rows], self.predicted[rows], len(self.labels), positive_id)

        return Scorer(score, len(self.gold), self.gold == self.predicted)


def find_label_error(
    record: Mapping[str, Any], first_record: Mapping[str, Any], labels: Iterable[str]
) -> str | None:
    """Return a description of the error in the probabilities of a record; None if they are valid.

    Args:
        labels: Gold and predicted labels of the record; each needs a probability.
    """
    probabilities = record["probabilities"]
    if list(probabilities) != list(first_record["probabilities"]):
        return "its probabilities and those of line 1 have different labels"
    for label in labels:
        if label not in probabilities:
            return f"{shorten_repr(label)} has no probability"
    return None


def plot_class_confusion(counts: np.ndarray, labels: list[str]) -> Chart:
    """Plot the confusion matrix. If there are many classes, those with the fewest errors are merged."""
    note = (
        "Rows are gold labels and columns are predicted labels. Cells are shaded by their fraction of the "
        "row. Click a cell to see its examples."
    )
    if len(labels) > MAX_CLASSES:
        errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
        shown = np.sort(np.argsort(-errors, kind="stable")[: MAX_CLASSES - 1])
        merged_ids = np.full(len(labels), len(shown))
        merged_ids[shown] = np.arange(len(shown))
        merged_counts = np.zeros((MAX_CLASSES, MAX_CLASSES), counts.dtype)
        np.add.at(merged_counts, (merged_ids[:, None], merged_ids), counts)
        note = f"The {len(shown)} of {len(labels)} classes with the most errors. {note}"
        counts = merged_counts
        labels = [*(labels[index] for index in shown), OTHER_LABELS]
    return plot_confusion_matrix("Confusion matrix", counts, labels, note)


# ---- multi-label


class _MultiLabelRecord(Record):
    gold: list[str]
    predicted: list[str]
    probabilities: Annotated[dict[str, Probability], Meta(min_length=1)]


class MultiLabelView(View):
    """Records with a list of gold labels, a list of predicted labels, and the probability of each label."""

    schema = _MultiLabelRecord
    predicted_keys = frozenset({"predicted", "probabilities"})

    def __init__(self, run: "FinishedRun", records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        self.gold = self._build_indicators("gold")
        self.predicted = self._build_indicators("predicted")

    def _build_indicators(self, key: str) -> np.ndarray:
        """Return whether each record has each label, `[n, num_labels]`."""
        return np.array([[label in record[key] for label in self.labels] for record in self.records])

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("predicted"), list) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        return find_label_error(record, self.records[0], [*record["gold"], *record["predicted"]])

    def build_examples(self) -> list[Example]:
        return [self._build_example(record) for record in self.records]

    def _build_example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted = set(record["gold"]), set(record["predicted"])
        probabilities = record["probabilities"].items()
        confidence = min(p if label in predicted else 1 - p for label, p in probabilities)
        gold_probabilities = [p if label in gold else 1 - p for label, p in probabilities]
        return Example(
            record["id"], record["gold"] or NO_LABELS, record["predicted"] or NO_LABELS, gold == predicted,
            confidence, sum(map(negative_log_likelihood, gold_probabilities)),
            self.build_input_fields(record),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        gold, predicted = self.gold, self.predicted
        probabilities = np.array([list(record["probabilities"].values()) for record in self.records])
        confidence = np.where(predicted, probabilities, 1 - probabilities)
        is_correct = gold == predicted
        return [
            plot_f1_bars(self.labels, (gold & predicted).sum(0), predicted.sum(0), gold.sum(0), "label"),
            *self.plot_reliability(confidence.ravel(), is_correct.ravel()),
        ]

    def scorer(self) -> Scorer:
        gold, predicted = self.gold.astype(int), self.predicted.astype(int)
        return Scorer(
            lambda rows: score_multi_label(gold[rows], predicted[rows]), len(gold), (gold == predicted).all(1)
        )


# ---- regression


class _RegressionRecord(Record):
    gold: FiniteNumber
    predicted: FiniteNumber


class RegressionView(View):
    """Records with a gold and a predicted number."""

    schema = _RegressionRecord
    predicted_keys = frozenset({"predicted"})
    measure_name = "error"

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether the prediction is a number, without probabilities."""
        return isinstance(record.get("predicted"), float) and "probabilities" not in record

    def build_examples(self) -> list[Example]:
        gold = self.get_column("gold")
        bounds = np.linspace(gold.min(), gold.max(), NUM_RANGES + 1)
        return [self._build_example(record, bounds) for record in self.records]

    def _build_example(self, record: Mapping[str, Any], bounds: np.ndarray) -> Example:
        gold, predicted = record["gold"], record["predicted"]
        error = abs(gold - predicted)
        return Example(
            record["id"], [_format_range(gold, bounds)], [_format_range(predicted, bounds)], None, error,
            error, self.build_input_fields(record), (f"{gold:.3g}", f"{predicted:.3g}"),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        step = math.ceil(len(self.records) / MAX_POINTS)
        gold, predicted = self.get_column("gold")[::step], self.get_column("predicted")[::step]
        note = "Both values are equal on the diagonal."
        if step > 1:
            note += f" The chart shows {len(gold):,} of {len(self.records):,} examples."
        return [plot_scatter("Predicted and gold", gold, predicted, note)]

    def scorer(self) -> Scorer:
        gold, predicted = self.get_column("gold"), self.get_column("predicted")
        return Scorer(lambda rows: score_regression(gold[rows], predicted[rows]), len(gold))


def _format_range(number: float, bounds: np.ndarray) -> str:
    """Return the range that contains a number; a number outside of all ranges belongs to the nearest one."""
    index = int(np.clip(np.searchsorted(bounds, number, side="right") - 1, 0, NUM_RANGES - 1))
    return f"{bounds[index]:.3g} to {bounds[index + 1]:.3g}"
