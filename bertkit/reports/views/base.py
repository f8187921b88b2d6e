"""Base class of views, with the charts and statistics that several views share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_bars
from bertkit.reports.examples import Example, Field, format_value
from bertkit.reports.finished_run import FinishedRun
from bertkit.utils.serialization import validate

MAX_BARS = 24

FiniteNumber = Annotated[float, Meta(ge=-1e300, le=1e300)]  # excludes NaN too
Probability = Annotated[float, Meta(ge=0, le=1.001)]  # rounding may exceed 1
Index = Annotated[int, Meta(ge=0)]


class Record(TypedDict):
    """Keys that all records have."""

    id: Any


class View(ABC):
    """How records of one kind are shown.

    The kind is detected from a record, not from the name of the task. So a new task needs no view if its
    records have the keys of an existing one.

    Attributes:
        schema: the keys of a record that the view reads; records may have others.
        predicted_keys: keys that depend on the model; the others are inputs.
        measure_name: name of `Example.measure`.
        filter_names: names of the gold and predicted labels by which examples are filtered.

    Raises:
        UserError: a record is invalid (its line).
    """

    schema: ClassVar[type]
    predicted_keys: ClassVar[frozenset[str]]
    measure_name: ClassVar[str] = "confidence"
    filter_names: ClassVar[tuple[str, str]] = ("gold", "predicted")

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        self.run, self.records = run, records
        path = run.predictions_path
        for number, record in enumerate(records):
            validate(record, self.schema, f"{path}:{number + 1}")
            if problem := self.find_error(record):
                raise run.make_record_error(number, problem)

    @classmethod
    @abstractmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether the view can show this record."""

    def find_error(self, record: Mapping[str, Any]) -> str | None:  # noqa: B027 (optional)
        """Return a problem that the schema cannot express, such as unequal lengths; None if there is none."""

    @abstractmethod
    def build_examples(self) -> list[Example]:
        """Return an example for each record, in order."""

    def build_charts(self) -> list[Chart]:
        """Return charts that summarize all records."""
        return []

    def scorer(self) -> Scorer | None:
        """Return a scorer of any sample of the rows; None if records do not suffice to compute scores."""
        return None

    def build_input_fields(self, record: Mapping[str, Any]) -> list[Field]:
        """Return the input columns of a record."""
        return [Field(name, text) for name in self._columns if (text := format_value(record.get(name)))]

    @cached_property
    def _columns(self) -> list[str]:
        """Names of the input columns, without columns that are equal in all rows."""
        excluded = self.predicted_keys | {"id", "gold"}
        names = [name for name in self.records[0] if name not in excluded]
        varying = [
            name for name in names if len({format_value(record.get(name)) for record in self.records}) > 1
        ]
        return varying or names

    def get_column(self, name: str) -> np.ndarray:
        """Return the `[n]` values of all records under a key."""
        return np.array([record[name] for record in self.records])


def negative_log_likelihood(probability: float) -> float:
    """Return the negative log of a probability, finite also for 0."""
    return -math.log(max(probability, 1e-12))


def count_confusions(gold: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the `[num_classes, num_classes]` counts of gold by predicted class."""
    counts = np.bincount(gold * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def plot_f1_bars(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, gold: np.ndarray, unit: str
) -> Chart:
    """Plot F1 for each name, the most frequent first.

    Args:
        names: labels or entity types.
        correct: `[names]` number of correct predictions.
        predicted: `[names]` number of predictions.
        gold: `[names]` number of gold labels.
        unit: what a name is, for the title.
    """
    total = predicted + gold
    f1 = np.divide(2.0 * correct, total, out=np.zeros(len(names)), where=total > 0)
    order = np.argsort(-gold, kind="stable")[:MAX_BARS].tolist()
    note = "" if len(names) <= MAX_BARS else f"The {MAX_BARS} most frequent of {len(names)}."
    values = {names[index]: float(f1[index]) for index in order}
    return plot_bars(f"F1 by {unit}", values, [f"{int(gold[index]):,} gold" for index in order], note)
