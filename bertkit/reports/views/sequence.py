"""Views of sequence classification: single-label, multi-label, and regression."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from bertkit import run_directory
from bertkit.errors import UserError, shorten_repr
from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.classification import score_multi_label, score_regression, score_single_label
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_confusion_matrix, plot_reliability_diagram, plot_scatter
from bertkit.reports.examples import Example
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import (
    FiniteNumber,
    Probability,
    Record,
    View,
    count_confusions,
    negative_log_likelihood,
    plot_f1_bars,
)

MAX_CLASSES = 14  # in a confusion matrix
OTHER_LABELS = "others"
NO_LABELS = ["(none)"]
NUM_RANGES = 5  # of gold values, to filter examples by
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

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        label_ids = {label: number for number, label in enumerate(self.labels)}
        self.gold, self.predicted = (
            np.array([label_ids[record[key]] for record in records]) for key in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether one label is predicted, with probabilities by label."""
        return isinstance(record.get("predicted"), str) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Return a problem with the labels of the probabilities."""
        return find_label_error(record, self.records[0], [record["gold"], record["predicted"]])

    def build_examples(self) -> list[Example]:
        """Return examples; those with an improbable gold label have priority."""
        return [self._build_example(record) for record in self.records]

    def _build_example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted, probabilities = record["gold"], record["predicted"], record["probabilities"]
        return Example(
            record["id"], [gold], [predicted], gold == predicted, probabilities[predicted],
            negative_log_likelihood(probabilities.get(gold, 0.0)), self.build_input_fields(record),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """Return confusion matrix, F1 by class if there are more than two, and reliability."""
        labels, gold, predicted = self.labels, self.gold, self.predicted
        counts = count_confusions(gold, predicted, len(labels))
        confidence = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        charts = [plot_class_confusion(counts, labels)]
        if len(labels) > 2:
            charts.append(plot_f1_bars(labels, np.diag(counts), counts.sum(0), counts.sum(1), "class"))
        return [*charts, plot_reliability_diagram(compute_calibration(confidence, gold == predicted))]

    def scorer(self) -> Scorer:
        """Return a scorer of accuracy, F1 and the other single-label scores."""
        positive = self.run.settings.get("positive_label")
        if positive not in (None, *self.labels):
            path = self.run.folder / run_directory.SETTINGS_FILE
            raise UserError(
                f"{path}: positive_label: {shorten_repr(positive)} is not a label of the run; "
                "run the training again"
            )
        positive_id = None if positive is None else self.labels.index(positive)

        def score(rows: np.ndarray) -> dict[str, float]:
            return score_single_label(self.gold[rows], self.predicted[rows], len(self.labels), positive_id)

        return Scorer(score, len(self.gold), self.gold == self.predicted)


def find_label_error(
    record: Mapping[str, Any], first: Mapping[str, Any], labels: Iterable[str]
) -> str | None:
    """Return a problem if probabilities lack some `labels`, or differ in labels from the first record."""
    probabilities = record["probabilities"]
    if list(probabilities) != list(first["probabilities"]):
        return "its probabilities have other labels than those of line 1"
    missing = (label for label in labels if label not in probabilities)
    return next((f"{shorten_repr(label)} has no probability" for label in missing), None)


def plot_class_confusion(counts: np.ndarray, labels: list[str]) -> Chart:
    """Plot the confusion matrix; of many classes, those with the most errors, and the others as one."""
    note = (
        "Rows are gold labels, columns predicted labels, shaded by the fraction of the row. "
        "Click a cell to see its examples."
    )
    if len(labels) > MAX_CLASSES:
        errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
        shown = np.sort(np.argsort(-errors, kind="stable")[: MAX_CLASSES - 1])
        group = np.full(len(labels), len(shown))
        group[shown] = np.arange(len(shown))
        merged = np.zeros((MAX_CLASSES, MAX_CLASSES), counts.dtype)
        np.add.at(merged, (group[:, None], group), counts)
        note = f"The {len(shown)} of {len(labels)} classes with the most errors. {note}"
        counts, labels = merged, [*(labels[index] for index in shown), OTHER_LABELS]
    return plot_confusion_matrix("Confusion matrix", counts, labels, note)


# ---- multi-label


class _MultiLabelRecord(Record):
    gold: list[str]
    predicted: list[str]
    probabilities: Annotated[dict[str, Probability], Meta(min_length=1)]


class MultiLabelView(View):
    """Records with lists of labels, each label with its own probability."""

    schema = _MultiLabelRecord
    predicted_keys = frozenset({"predicted", "probabilities"})

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        self.gold, self.predicted = (
            np.array([[label in record[key] for label in self.labels] for record in records])
            for key in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether a list of labels is predicted, with probabilities by label."""
        return isinstance(record.get("predicted"), list) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Return a problem with the labels of the probabilities."""
        return find_label_error(record, self.records[0], [*record["gold"], *record["predicted"]])

    def build_examples(self) -> list[Example]:
        """Return examples; the confidence is that of the least confident decision."""
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
        """Return F1 by label, and the reliability of all decisions."""
        gold, predicted = self.gold, self.predicted
        probabilities = np.array([list(record["probabilities"].values()) for record in self.records])
        confidence, correct = np.where(predicted, probabilities, 1 - probabilities), gold == predicted
        return [
            plot_f1_bars(self.labels, (gold & predicted).sum(0), predicted.sum(0), gold.sum(0), "label"),
            plot_reliability_diagram(compute_calibration(confidence.ravel(), correct.ravel())),
        ]

    def scorer(self) -> Scorer:
        """Return a scorer of F1 over all decisions, and of the accuracy of whole label sets."""
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
        """Return whether a number is predicted, without probabilities."""
        return isinstance(record.get("predicted"), float) and "probabilities" not in record

    def build_examples(self) -> list[Example]:
        """Return examples; those with a large error have priority."""
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
        """Return a scatter plot of predicted over gold values."""
        step = -(-len(self.records) // MAX_POINTS)
        gold, predicted = self.get_column("gold")[::step], self.get_column("predicted")[::step]
        note = "On the diagonal, both values are equal."
        if step > 1:
            note += f" {len(gold):,} of {len(self.records):,} examples."
        return [plot_scatter("Predicted and gold", gold, predicted, note)]

    def scorer(self) -> Scorer:
        """Return a scorer of correlations."""
        gold, predicted = self.get_column("gold"), self.get_column("predicted")
        return Scorer(lambda rows: score_regression(gold[rows], predicted[rows]), len(gold))


def _format_range(number: float, bounds: np.ndarray) -> str:
    """Return the range that contains a number; numbers outside of all ranges belong to the nearest."""
    index = int(np.clip(np.searchsorted(bounds, number, side="right") - 1, 0, NUM_RANGES - 1))
    return f"{bounds[index]:.3g} to {bounds[index + 1]:.3g}"
