"""Views of sequence classification: single-label, multi-label, and regression."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from bertkit.charts import Chart, plot_confusion_matrix, plot_scatter
from bertkit.errors import UserError, shorten_repr
from bertkit.stats.scores import score_multi_label, score_regression, score_single_label
from bertkit.stats.significance import Scorer
from bertkit.tasks.view import (
    Example,
    Field,
    FiniteNumber,
    Probability,
    Record,
    View,
    count_confusions,
    negative_log_likelihood,
    plot_f1_bars,
)
from bertkit.utils.compat import NotRequired

MAX_CLASSES = 14  # in a confusion matrix
NO_LABELS = ["(none)"]
GOLD_PROBABILITIES = "gold_probabilities"  # key of a record whose gold labels are uncertain
NUM_RANGES = 5  # ranges of values that examples of a regression are filtered by
MAX_POINTS = 800  # in a scatter plot


# ---- single-label


class _SingleLabelRecord(Record):
    gold: str
    predicted: str
    probabilities: dict[str, Probability]
    gold_probabilities: NotRequired[dict[str, Probability]]


class ClassificationView(View):
    """Records with one gold label, one predicted label, and the probability of each label."""

    schema = _SingleLabelRecord
    predicted_keys = frozenset({"predicted", "probabilities", GOLD_PROBABILITIES})

    def prepare(self) -> None:
        self.labels = list(self.records[0]["probabilities"])
        label_ids = {label: index for index, label in enumerate(self.labels)}
        self.gold, self.predicted = (
            np.array([label_ids[record[key]] for record in self.records]) for key in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("predicted"), str) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        return find_label_error(record, self.records[0], [record["gold"], record["predicted"]])

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, predicted, probabilities = record["gold"], record["predicted"], record["probabilities"]
        return Example(
            record["id"], [gold], [predicted], gold == predicted, probabilities[predicted],
            sum(
                weight * negative_log_likelihood(probabilities[label])
                for label, weight in record.get(GOLD_PROBABILITIES, {gold: 1.0}).items()
            ),
            [*self.build_input_fields(record), *list_soft_labels(record)],
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        labels, gold, predicted = self.labels, self.gold, self.predicted
        counts = count_confusions(gold, predicted, len(labels))
        confidence = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        charts = [plot_class_confusion(counts, labels)]
        if len(labels) > 2:
            charts.append(plot_f1_bars(labels, np.diag(counts), counts.sum(0), counts.sum(1), "class"))
        is_correct = np.array([
            record.get(GOLD_PROBABILITIES, {}).get(record["predicted"], record["predicted"] == record["gold"])
            for record in self.records
        ])  # fmt: skip
        return [*charts, *self.plot_reliability(confidence, is_correct)]

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


def list_soft_labels(record: Mapping[str, Any]) -> list[Field]:
    """Return a field with the probabilities of the gold labels, the highest first; [] without soft labels."""
    probabilities = record.get(GOLD_PROBABILITIES, {})
    positive = sorted((-number, label) for label, number in probabilities.items() if number > 0)
    text = ", ".join(f"{label} {-number:.2g}" for number, label in positive)
    return [Field("soft label", text)] if text else []


def find_label_error(
    record: Mapping[str, Any], first_record: Mapping[str, Any], labels: Iterable[str]
) -> str | None:
    """Return the error in the probabilities of a record, where each of `labels` needs one; or None."""
    probabilities = record["probabilities"]
    if list(record.get(GOLD_PROBABILITIES, probabilities)) != list(probabilities):
        return f"{GOLD_PROBABILITIES} and probabilities have different labels"
    if (GOLD_PROBABILITIES in record) != (GOLD_PROBABILITIES in first_record):
        return f"either all records have {GOLD_PROBABILITIES}, or none"
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
        labels = [*(labels[index] for index in shown), "others"]
    return plot_confusion_matrix("Confusion matrix", counts, labels, note)


# ---- multi-label


class _MultiLabelRecord(Record):
    gold: list[str]
    predicted: list[str]
    probabilities: Annotated[dict[str, Probability], Meta(min_length=1)]
    gold_probabilities: NotRequired[dict[str, Probability]]


class MultiLabelView(View):
    """Records with a list of gold labels, a list of predicted labels, and the probability of each label."""

    schema = _MultiLabelRecord
    predicted_keys = frozenset({"predicted", "probabilities", GOLD_PROBABILITIES})

    def prepare(self) -> None:
        """Store whether each record has each label, `[n, num_labels]`."""
        self.labels = list(self.records[0]["probabilities"])
        self.gold, self.predicted = (
            np.array([[label in record[key] for label in self.labels] for record in self.records])
            for key in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return isinstance(record.get("predicted"), list) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        return find_label_error(record, self.records[0], [*record["gold"], *record["predicted"]])

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, predicted = set(record["gold"]), set(record["predicted"])
        probabilities = record["probabilities"].items()
        confidence = min(p if label in predicted else 1 - p for label, p in probabilities)
        targets = record.get(GOLD_PROBABILITIES, dict.fromkeys(gold, 1.0))
        return Example(
            record["id"], record["gold"] or NO_LABELS, record["predicted"] or NO_LABELS, gold == predicted,
            confidence,
            sum(
                target * negative_log_likelihood(p) + (1 - target) * negative_log_likelihood(1 - p)
                for label, p in probabilities
                for target in [targets.get(label, 0.0)]
            ),
            [*self.build_input_fields(record), *list_soft_labels(record)],
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        gold, predicted = self.gold, self.predicted
        probabilities = np.array([list(record["probabilities"].values()) for record in self.records])
        confidence = np.where(predicted, probabilities, 1 - probabilities)
        present = np.array([list(record.get(GOLD_PROBABILITIES, {}).values()) for record in self.records])
        gold_probabilities = present if present.size else gold.astype(float)
        is_correct = np.where(predicted, gold_probabilities, 1 - gold_probabilities)
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
        return isinstance(record.get("predicted"), float) and "probabilities" not in record

    def prepare(self) -> None:
        self.gold, self.predicted = self.get_column("gold"), self.get_column("predicted")
        self.bounds = np.linspace(self.gold.min(), self.gold.max(), NUM_RANGES + 1)

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, predicted = record["gold"], record["predicted"]
        error = abs(gold - predicted)
        return Example(
            record["id"], [self._format_range(gold)], [self._format_range(predicted)], None, error, error,
            self.build_input_fields(record), (f"{gold:.3g}", f"{predicted:.3g}"),
        )  # fmt: skip

    def _format_range(self, number: float) -> str:
        """Return the range that contains a number; one outside of all ranges belongs to the nearest."""
        index = int(np.clip(np.searchsorted(self.bounds, number, side="right") - 1, 0, NUM_RANGES - 1))
        return f"{self.bounds[index]:.3g} to {self.bounds[index + 1]:.3g}"

    def build_charts(self) -> list[Chart]:
        step = math.ceil(len(self.records) / MAX_POINTS)
        gold, predicted = self.gold[::step], self.predicted[::step]
        note = "Both values are equal on the diagonal."
        if step > 1:
            note += f" The chart shows {len(gold):,} of {len(self.records):,} examples."
        return [plot_scatter("Predicted and gold", gold, predicted, note)]

    def scorer(self) -> Scorer:
        return Scorer(lambda rows: score_regression(self.gold[rows], self.predicted[rows]), len(self.records))
