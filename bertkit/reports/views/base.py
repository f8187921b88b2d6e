"""The base class of views, and the charts and statistics that several views share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_bars, plot_reliability_diagram
from bertkit.reports.examples import Example, Field, format_value
from bertkit.reports.finished_run import FinishedRun
from bertkit.utils.serialization import validate

MAX_BARS = 24  # in a bar chart
COMMON_KEYS = {"id", "gold", "abstained"}  # of all records; not input columns

FiniteNumber = Annotated[float, Meta(ge=-1e300, le=1e300)]  # excludes NaN too
Probability = Annotated[float, Meta(ge=0, le=1.001)]  # rounding may exceed 1
Index = Annotated[int, Meta(ge=0)]


class Record(TypedDict):
    """Keys that all records have."""

    id: Any


class View(ABC):
    """Examples and charts for one kind of prediction record.

    The view is chosen by the keys of a record, not by the name of the task. A new task therefore needs no new
    view if its records have the keys that an existing view expects.

    Attributes:
        schema: The keys of a record that the view reads; records may have more keys.
        predicted_keys: Keys that depend on the model. All other keys are inputs.
        measure_name: Name of `Example.measure` on the page.
        filter_names: Names of the two filters for gold and predicted labels.

    Raises:
        UserError: A record is invalid; the message has its line number.
    """

    schema: ClassVar[type]
    predicted_keys: ClassVar[frozenset[str]]
    measure_name: ClassVar[str] = "confidence"
    filter_names: ClassVar[tuple[str, str]] = ("gold", "predicted")

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        self.run, self.records = run, records
        for index, record in enumerate(records):
            validate(record, self.schema, f"{run.predictions_path}:{index + 1}")
            if problem := self.find_error(record):
                raise run.make_record_error(index, problem)

    @classmethod
    @abstractmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether the view can show this record."""

    def find_error(self, record: Mapping[str, Any]) -> str | None:  # noqa: B027 (optional)
        """Return a description of an error that the schema cannot express; None if the record is valid."""

    @abstractmethod
    def build_examples(self) -> list[Example]:
        """Return one example for each record, in the same order."""

    def build_charts(self) -> list[Chart]:
        """Return charts that summarize all records."""
        return []

    def plot_reliability(
        self, confidence: np.ndarray, is_correct: np.ndarray, unit: str = "decisions"
    ) -> list[Chart]:
        """Return a reliability diagram; none if a chart of the calibration shows the same rows.

        Args:
            confidence: Confidence of each prediction, `[n]`.
            is_correct: Whether each prediction is correct, `[n]` bool.
            unit: What is predicted, in the plural.
        """
        if self.run.is_calibrated_on_validation:
            return []
        return [plot_reliability_diagram(compute_calibration(confidence, is_correct), unit)]

    def scorer(self) -> Scorer | None:
        """Return a scorer of resampled rows; None if scores cannot be computed from the records."""
        return None

    def build_input_fields(self, record: Mapping[str, Any]) -> list[Field]:
        """Return the input columns of a record as fields; empty values are left out."""
        return [Field(name, text) for name in self._columns if (text := format_value(record.get(name)))]

    @cached_property
    def _columns(self) -> list[str]:
        """Names of the input columns that differ between rows, or of all input columns if none differs."""
        excluded = self.predicted_keys | COMMON_KEYS
        names = [name for name in self.records[0] if name not in excluded]
        varying = [
            name for name in names if len({format_value(record.get(name)) for record in self.records}) > 1
        ]
        return varying or names

    def get_column(self, name: str) -> np.ndarray:
        """Return the `[n]` values that the records have under a key."""
        return np.array([record[name] for record in self.records])


def negative_log_likelihood(probability: float) -> float:
    """Return the negative logarithm of a probability; it is finite even for probability 0."""
    return -math.log(max(probability, 1e-12))


def count_confusions(gold: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confusion matrix `[num_classes, num_classes]`, with gold classes as rows."""
    counts = np.bincount(gold * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def plot_f1_bars(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, gold: np.ndarray, unit: str
) -> Chart:
    """Plot the F1 of each label or entity type; the most frequent gold labels come first.

    Args:
        names: Labels or entity types.
        correct: Number of correct predictions for each name, `[n]`.
        predicted: Number of predictions for each name, `[n]`.
        gold: Number of gold labels for each name, `[n]`.
        unit: Noun for a name in the title, such as "label".
    """
    total = predicted + gold
    f1 = np.divide(2.0 * correct, total, out=np.zeros(len(names)), where=total > 0)
    order = np.argsort(-gold, kind="stable")[:MAX_BARS].tolist()
    note = "" if len(names) <= MAX_BARS else f"The {MAX_BARS} most frequent of {len(names)}."
    values = {names[index]: float(f1[index]) for index in order}
    return plot_bars(f"F1 by {unit}", values, [f"{int(gold[index]):,} gold" for index in order], note)
