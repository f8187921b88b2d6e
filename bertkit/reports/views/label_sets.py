"""Any number of labels: multi-label `classify`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from bertkit.metrics.calibration import calibration
from bertkit.metrics.classification import multi_label
from bertkit.metrics.intervals import Scorer
from bertkit.reports.charts import Chart, reliability
from bertkit.reports.example import Example
from bertkit.reports.recorded import Recorded
from bertkit.reports.views.base import Record, Share, View, f1_bars
from bertkit.reports.views.labels import unlike

NONE = ["(none)"]


class _Labelled(Record):
    gold: list[str]
    predicted: list[str]
    probabilities: Annotated[dict[str, Share], Meta(min_length=1)]


class LabelSets(View):
    """Records with lists of labels, each of which has a probability by itself."""

    form = _Labelled
    decided = frozenset({"predicted", "probabilities"})

    def __init__(self, run: Recorded, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.names = list(records[0]["probabilities"])
        self.gold, self.predicted = (
            np.array([[name in record[side] for name in self.names] for record in records])
            for side in ("gold", "predicted")
        )

    @classmethod
    def fits(cls, record: Mapping[str, Any]) -> bool:
        """`probabilities` by label, and a list of them predicted."""
        return isinstance(record.get("predicted"), list) and isinstance(record.get("probabilities"), dict)

    def fault(self, record: Mapping[str, Any]) -> str | None:
        """Other labels than those of the first, or one that has no probability."""
        return unlike(record, self.records[0], [*record["gold"], *record["predicted"]])

    def examples(self) -> list[Example]:
        """The less likely the gold set was held, the sooner; as sure as the least sure decision."""
        return [self._example(record) for record in self.records]

    def _example(self, record: Mapping[str, Any]) -> Example:
        gold, predicted = set(record["gold"]), set(record["predicted"])
        shares = record["probabilities"]
        sure = min(share if name in predicted else 1 - share for name, share in shares.items())
        held = [share if name in gold else 1 - share for name, share in shares.items()]
        return Example(
            record["id"], record["gold"] or NONE, record["predicted"] or NONE, gold == predicted, sure,
            -sum(math.log(max(share, 1e-12)) for share in held), self.inputs(record),
        )  # fmt: skip

    def charts(self) -> list[Chart]:
        """F1 by label, and the reliability of all decisions."""
        gold, predicted = self.gold, self.predicted
        shares = np.array([list(record["probabilities"].values()) for record in self.records])
        sure, right = np.where(predicted, shares, 1 - shares), gold == predicted
        return [
            f1_bars(self.names, (gold & predicted).sum(0), predicted.sum(0), gold.sum(0), "label"),
            reliability(calibration(sure.ravel(), right.ravel())),
        ]

    def scorer(self) -> Scorer:
        """F1 of all decisions, and accuracy of whole sets."""
        gold, predicted = self.gold.astype(int), self.predicted.astype(int)
        return Scorer(
            lambda rows: multi_label(gold[rows], predicted[rows]), len(gold), (gold == predicted).all(1)
        )
