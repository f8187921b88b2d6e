"""One label of several: `classify` and `nli`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit import run_directory
from bertkit.errors import UserError, shorten_repr
from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.classification import score_single_label
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_confusion_matrix, plot_reliability_diagram
from bertkit.reports.example import Example
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import Probability, Record, View, plot_f1_bars

MAX_CLASSES = 14  # classes in a confusion matrix
OTHER_LABELS = "others"


class _Labelled(Record):
    gold: str
    predicted: str
    probabilities: dict[str, Probability]


class ClassificationView(View):
    """Records with one gold label, one predicted, and the probability of each."""

    schema = _Labelled
    predicted_keys = frozenset({"predicted", "probabilities"})

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        number = {name: place for place, name in enumerate(self.labels)}
        self.gold, self.predicted = (
            np.array([number[record[side]] for record in records]) for side in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """`probabilities` by label, and one of them predicted."""
        return isinstance(record.get("predicted"), str) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Other labels than those of the first, or one that has no probability."""
        return find_label_error(record, self.records[0], [record["gold"], record["predicted"]])

    def build_examples(self) -> list[Example]:
        """The less likely the gold label was held, the sooner."""
        return [
            Example(
                record["id"], [record["gold"]], [record["predicted"]], record["gold"] == record["predicted"],
                record["probabilities"][record["predicted"]],
                -math.log(max(record["probabilities"].get(record["gold"], 0.0), 1e-12)), self.build_input_fields(record),
            )
            for record in self.records
        ]  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """Confusion matrix, F1 by class where there are more than two, reliability."""
        names, gold, predicted = self.labels, self.gold, self.predicted
        counts = np.bincount(gold * len(names) + predicted, minlength=len(names) ** 2)
        counts = counts.reshape(len(names), len(names))
        sure = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        found = [plot_class_confusion(counts, names)]
        if len(names) > 2:
            found.append(plot_f1_bars(names, np.diag(counts), counts.sum(0), counts.sum(1), "class"))
        return [*found, plot_reliability_diagram(compute_calibration(sure, gold == predicted))]

    def scorer(self) -> Scorer:
        """Accuracy and what goes with it."""
        positive = self.run.settings.get("positive_label")
        if positive not in (None, *self.labels):
            raise UserError(
                f"{self.run.folder / run_directory.SETTINGS_FILE}: positive_label: {shorten_repr(positive)} is no label of the "
                "run; the run must be made again"
            )
        number = None if positive is None else self.labels.index(positive)

        def score(rows: np.ndarray) -> dict[str, float]:
            return score_single_label(self.gold[rows], self.predicted[rows], len(self.labels), number)

        return Scorer(score, len(self.gold), self.gold == self.predicted)


def find_label_error(
    record: Mapping[str, Any], first: Mapping[str, Any], labels: Iterable[str]
) -> str | None:
    """Whether its probabilities are of other labels than the first record's, or not of all these `labels`."""
    shares = record["probabilities"]
    if list(shares) != list(first["probabilities"]):
        return "its probabilities are of other labels than those of line 1"
    return next(
        (f"{shorten_repr(label)} has no probability" for label in labels if label not in shares), None
    )


def plot_class_confusion(counts: np.ndarray, names: list[str]) -> Chart:
    """Gold by predicted; of many classes those with the most errors, and all others as one."""
    note = "Rows are gold, columns predicted; shaded by the share of the row. A cell leads to its examples."
    if len(names) > MAX_CLASSES:
        errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
        kept = np.sort(np.argsort(-errors, kind="stable")[: MAX_CLASSES - 1])
        group = np.full(len(names), len(kept))
        group[kept] = np.arange(len(kept))
        merged = np.zeros((MAX_CLASSES, MAX_CLASSES), counts.dtype)
        np.add.at(merged, (group[:, None], group), counts)
        note = f"The {len(kept)} of {len(names)} classes with the most errors. " + note
        counts, names = merged, [*(names[place] for place in kept), OTHER_LABELS]
    return plot_confusion_matrix("Confusion matrix", counts, names, note)
