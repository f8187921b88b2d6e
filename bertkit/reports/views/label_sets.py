"""Any number of labels: multi-label `classify`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.classification import score_multi_label
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_reliability_diagram
from bertkit.reports.example import Example
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import Probability, Record, View, plot_f1_bars
from bertkit.reports.views.classification import find_label_error

NO_LABELS = ["(none)"]


class _Labelled(Record):
    gold: list[str]
    predicted: list[str]
    probabilities: Annotated[dict[str, Probability], Meta(min_length=1)]


class MultiLabelView(View):
    """Records with lists of labels, each of which has a probability by itself."""

    schema = _Labelled
    predicted_keys = frozenset({"predicted", "probabilities"})

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.labels = list(records[0]["probabilities"])
        self.gold, self.predicted = (
            np.array([[name in record[side] for name in self.labels] for record in records])
            for side in ("gold", "predicted")
        )

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """`probabilities` by label, and a list of them predicted."""
        return isinstance(record.get("predicted"), list) and isinstance(record.get("probabilities"), dict)

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Other labels than those of the first, or one that has no probability."""
        return find_label_error(record, self.records[0], [*record["gold"], *record["predicted"]])

    def build_examples(self) -> list[Example]:
        """The less likely the gold set was held, the sooner; as sure as the least sure decision."""
        return [self._example(record) for record in self.records]

    def _example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted = set(record["gold"]), set(record["predicted"])
        shares = record["probabilities"]
        sure = min(share if name in predicted else 1 - share for name, share in shares.items())
        held = [share if name in gold else 1 - share for name, share in shares.items()]
        return Example(
            record["id"], record["gold"] or NO_LABELS, record["predicted"] or NO_LABELS, gold == predicted, sure,
            -sum(math.log(max(share, 1e-12)) for share in held), self.build_input_fields(record),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """F1 by label, and the reliability of all decisions."""
        gold, predicted = self.gold, self.predicted
        shares = np.array([list(record["probabilities"].values()) for record in self.records])
        sure, right = np.where(predicted, shares, 1 - shares), gold == predicted
        return [
            plot_f1_bars(self.labels, (gold & predicted).sum(0), predicted.sum(0), gold.sum(0), "label"),
            plot_reliability_diagram(compute_calibration(sure.ravel(), right.ravel())),
        ]

    def scorer(self) -> Scorer:
        """F1 of all decisions, and accuracy of whole sets."""
        gold, predicted = self.gold.astype(int), self.predicted.astype(int)
        return Scorer(
            lambda rows: score_multi_label(gold[rows], predicted[rows]), len(gold), (gold == predicted).all(1)
        )
