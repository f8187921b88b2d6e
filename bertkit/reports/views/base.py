"""What a view is: how the predictions of one form are shown."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_bars
from bertkit.reports.example import Example, Field, format_value
from bertkit.reports.finished_run import FinishedRun
from bertkit.utils.schema import validate

MAX_BARS = 24

FiniteNumber = Annotated[float, Meta(ge=-1e300, le=1e300)]  # and not NaN
Probability = Annotated[float, Meta(ge=0, le=1.001)]  # rounding may take it above 1
Index = Annotated[int, Meta(ge=0)]  # counted from 0


class Record(TypedDict):
    """What all records have."""

    id: Any


class View(ABC):
    """How records of one form are shown. The form is seen from the record itself.

    So a run can be reported whatever its task is called, and a new task whose records look like
    another's needs nothing here.

    Attributes:
        form: the keys of a record that the view reads; it may have others.
        decided: the keys that the model has decided; the others are the row's own.
        measure: what `Example.measure` is.
        named: what the labels are called by which examples are found.

    Raises:
        UserError: a record is not what a run writes (its line).
    """

    schema: ClassVar[type]
    predicted_keys: ClassVar[frozenset[str]]
    measure_name: ClassVar[str] = "confidence"
    filter_names: ClassVar[tuple[str, str]] = ("gold", "predicted")

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        self.run, self.records = run, records
        told = run.predictions_path
        for number, record in enumerate(records):
            validate(record, self.schema, f"{told}:{number + 1}")
            if fault := self.find_error(record):
                raise run.make_record_error(number, fault)

    @classmethod
    @abstractmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Whether a record has this form."""

    def find_error(self, record: Mapping[str, Any]) -> str | None:  # noqa: B027 (a form may say all)
        """What a record has that no run would write, though it is of the form; None where all is well."""

    @abstractmethod
    def build_examples(self) -> list[Example]:
        """An example for each record, in order."""

    def build_charts(self) -> list[Chart]:
        """What all examples come to."""
        return []

    def scorer(self) -> Scorer | None:
        """The scores of any draw of the rows; None where they cannot be had from records."""
        return None

    def build_input_fields(self, record: Mapping[str, Any]) -> list[Field]:
        """The input columns of a prediction."""
        return [Field(name, text) for name in self._columns if (text := format_value(record.get(name)))]

    @cached_property
    def _columns(self) -> list[str]:
        """The names of the rows' own columns, but for those that say the same in all rows."""
        own = self.predicted_keys | {"id", "gold"}
        names = [name for name in self.records[0] if name not in own]
        telling = [
            name for name in names if len({format_value(record.get(name)) for record in self.records}) > 1
        ]
        return telling or names

    def get_column(self, name: str) -> np.ndarray:
        """[n] what all records have under a name."""
        return np.array([record[name] for record in self.records])


def plot_f1_bars(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, gold: np.ndarray, unit: str
) -> Chart:
    """A bar of F1 for each name, the most frequent first.

    Args:
        right, guessed, gold: [names] how many there are of each.
    """
    total = predicted + gold
    f1 = np.divide(2.0 * correct, total, out=np.zeros(len(names)), where=total > 0)
    order = np.argsort(-gold, kind="stable")[:MAX_BARS].tolist()
    note = "" if len(names) <= MAX_BARS else f"The {MAX_BARS} most frequent of {len(names)}."
    values = {names[at]: float(f1[at]) for at in order}
    return plot_bars(f"F1 by {unit}", values, [f"{int(gold[at]):,} gold" for at in order], note)
