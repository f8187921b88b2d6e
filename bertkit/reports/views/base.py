"""What a view is: how the predictions of one form are shown."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.forms import held
from bertkit.metrics.intervals import Scorer
from bertkit.reports.charts import Chart, bars
from bertkit.reports.example import Example, Field, as_text
from bertkit.reports.recorded import Recorded

MOST_BARS = 24

Number = Annotated[float, Meta(ge=-1e300, le=1e300)]  # and not NaN
Share = Annotated[float, Meta(ge=0, le=1.001)]  # rounding may take it above 1
Place = Annotated[int, Meta(ge=0)]  # counted from 0


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

    form: ClassVar[type]
    decided: ClassVar[frozenset[str]]
    measure: ClassVar[str] = "confidence"
    named: ClassVar[tuple[str, str]] = ("gold", "predicted")

    def __init__(self, run: Recorded, records: Sequence[Mapping[str, Any]]) -> None:
        self.run, self.records = run, records
        told = run.told
        for number, record in enumerate(records):
            held(record, self.form, f"{told}:{number + 1}")
            if fault := self.fault(record):
                raise run.fault(number, fault)

    @classmethod
    @abstractmethod
    def fits(cls, record: Mapping[str, Any]) -> bool:
        """Whether a record has this form."""

    def fault(self, record: Mapping[str, Any]) -> str | None:  # noqa: B027 (a form may say all)
        """What a record has that no run would write, though it is of the form; None where all is well."""

    @abstractmethod
    def examples(self) -> list[Example]:
        """An example for each record, in order."""

    def charts(self) -> list[Chart]:
        """What all examples come to."""
        return []

    def scorer(self) -> Scorer | None:
        """The scores of any draw of the rows; None where they cannot be had from records."""
        return None

    def inputs(self, record: Mapping[str, Any]) -> list[Field]:
        """The input columns of a prediction."""
        return [Field(name, text) for name in self._columns if (text := as_text(record.get(name)))]

    @cached_property
    def _columns(self) -> list[str]:
        """The names of the rows' own columns, but for those that say the same in all rows."""
        own = self.decided | {"id", "gold"}
        names = [name for name in self.records[0] if name not in own]
        telling = [name for name in names if len({as_text(record.get(name)) for record in self.records}) > 1]
        return telling or names

    def column(self, name: str) -> np.ndarray:
        """[n] what all records have under a name."""
        return np.array([record[name] for record in self.records])


def f1_bars(
    names: Sequence[str], right: np.ndarray, guessed: np.ndarray, gold: np.ndarray, what: str
) -> Chart:
    """A bar of F1 for each name, the most frequent first.

    Args:
        right, guessed, gold: [names] how many there are of each.
    """
    total = guessed + gold
    f1 = np.divide(2.0 * right, total, out=np.zeros(len(names)), where=total > 0)
    order = np.argsort(-gold, kind="stable")[:MOST_BARS].tolist()
    note = "" if len(names) <= MOST_BARS else f"The {MOST_BARS} most frequent of {len(names)}."
    values = {names[at]: float(f1[at]) for at in order}
    return bars(f"F1 by {what}", values, [f"{int(gold[at]):,} gold" for at in order], note)
