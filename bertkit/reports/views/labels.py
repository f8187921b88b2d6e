"""One label of several: `classify` and `nli`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit import rundir
from bertkit.errors import UserError, short
from bertkit.metrics.calibration import calibration
from bertkit.metrics.classification import single_label
from bertkit.metrics.intervals import Scorer
from bertkit.reports.charts import Chart, matrix, reliability
from bertkit.reports.example import Example
from bertkit.reports.recorded import Recorded
from bertkit.reports.views.base import Record, Share, View, f1_bars

LARGEST = 14  # classes in a confusion matrix
OTHERS = "others"


class _Labelled(Record):
    gold: str
    predicted: str
    probabilities: dict[str, Share]


class Labels(View):
    """Records with one gold label, one predicted, and the probability of each."""

    form = _Labelled
    decided = frozenset({"predicted", "probabilities"})

    def __init__(self, run: Recorded, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.names = list(records[0]["probabilities"])
        number = {name: place for place, name in enumerate(self.names)}
        self.gold, self.predicted = (
            np.array([number[record[side]] for record in records]) for side in ("gold", "predicted")
        )

    @classmethod
    def fits(cls, record: Mapping[str, Any]) -> bool:
        """`probabilities` by label, and one of them predicted."""
        return isinstance(record.get("predicted"), str) and isinstance(record.get("probabilities"), dict)

    def fault(self, record: Mapping[str, Any]) -> str | None:
        """Other labels than those of the first, or one that has no probability."""
        return unlike(record, self.records[0], [record["gold"], record["predicted"]])

    def examples(self) -> list[Example]:
        """The less likely the gold label was held, the sooner."""
        return [
            Example(
                record["id"], [record["gold"]], [record["predicted"]], record["gold"] == record["predicted"],
                record["probabilities"][record["predicted"]],
                -math.log(max(record["probabilities"].get(record["gold"], 0.0), 1e-12)), self.inputs(record),
            )
            for record in self.records
        ]  # fmt: skip

    def charts(self) -> list[Chart]:
        """Confusion matrix, F1 by class where there are more than two, reliability."""
        names, gold, predicted = self.names, self.gold, self.predicted
        counts = np.bincount(gold * len(names) + predicted, minlength=len(names) ** 2)
        counts = counts.reshape(len(names), len(names))
        sure = np.array([record["probabilities"][record["predicted"]] for record in self.records])
        found = [confusion(counts, names)]
        if len(names) > 2:
            found.append(f1_bars(names, np.diag(counts), counts.sum(0), counts.sum(1), "class"))
        return [*found, reliability(calibration(sure, gold == predicted))]

    def scorer(self) -> Scorer:
        """Accuracy and what goes with it."""
        positive = self.run.settings.get("positive_label")
        if positive not in (None, *self.names):
            raise UserError(
                f"{self.run.folder / rundir.SETTINGS}: positive_label: {short(positive)} is no label of the "
                "run; the run must be made again"
            )
        number = None if positive is None else self.names.index(positive)

        def score(rows: np.ndarray) -> dict[str, float]:
            return single_label(self.gold[rows], self.predicted[rows], len(self.names), number)

        return Scorer(score, len(self.gold), self.gold == self.predicted)


def unlike(record: Mapping[str, Any], first: Mapping[str, Any], labels: Iterable[str]) -> str | None:
    """Whether its probabilities are of other labels than the first record's, or not of all these `labels`."""
    shares = record["probabilities"]
    if list(shares) != list(first["probabilities"]):
        return "its probabilities are of other labels than those of line 1"
    return next((f"{short(label)} has no probability" for label in labels if label not in shares), None)


def confusion(counts: np.ndarray, names: list[str]) -> Chart:
    """Gold by predicted; of many classes those with the most errors, and all others as one."""
    note = "Rows are gold, columns predicted; shaded by the share of the row. A cell leads to its examples."
    if len(names) > LARGEST:
        errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
        kept = np.sort(np.argsort(-errors, kind="stable")[: LARGEST - 1])
        group = np.full(len(names), len(kept))
        group[kept] = np.arange(len(kept))
        merged = np.zeros((LARGEST, LARGEST), counts.dtype)
        np.add.at(merged, (group[:, None], group), counts)
        note = f"The {len(kept)} of {len(names)} classes with the most errors. " + note
        counts, names = merged, [*(names[place] for place in kept), OTHERS]
    return matrix("Confusion matrix", counts, names, note)
