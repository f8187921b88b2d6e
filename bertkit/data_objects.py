"""Objects with rows that Python code passes as data, such as a `datasets.Dataset` or a `pandas.DataFrame`.

This module only recognizes the objects, without importing their libraries; `bertkit.data.objects` reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

ObjectKind = Literal[
    "Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict", "DataFrame", "list of dictionaries"
]
DATASET_CLASSES: tuple[ObjectKind, ...] = (
    "Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict",
)  # fmt: skip
ACCEPTED_DATA = (
    "a name or path, a datasets.Dataset or DatasetDict, a pandas.DataFrame, or a list of dictionaries"
)


@dataclass(frozen=True, eq=False, repr=False)
class DataObject:
    """The value of a setting such as `data` that is not a name.

    Attributes:
        kind: Class of the object, for messages.
        value: The object. None for the settings of a finished run, which do not contain the object.
    """

    kind: ObjectKind
    value: Any = None

    def __repr__(self) -> str:
        return f"{self.kind} passed from Python"

    @property
    def is_missing(self) -> bool:
        """Whether the object has to be passed again."""
        return self.value is None

    @classmethod
    def recognize(cls, value: object) -> "DataObject | None":
        """Return a value as a data object, or None if its type is not supported."""
        if isinstance(value, cls):
            return value
        for kind in DATASET_CLASSES:
            if _is_instance(value, "datasets", kind):
                return cls(kind, value)
        if _is_instance(value, "pandas", "DataFrame"):
            return cls("DataFrame", value)
        if isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
            return cls("list of dictionaries", value)
        return None


def _is_instance(value: object, package: str, class_name: str) -> bool:
    """Return whether a value is an instance of a class of a package, without importing the package."""
    return any(
        base.__name__ == class_name and base.__module__.partition(".")[0] == package
        for base in type(value).__mro__
    )


def describe_unsupported(value: object) -> str:
    """Return why a value cannot be data, and what can."""
    found = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, (list, tuple)):
        position, row = next(
            (position, row) for position, row in enumerate(value, start=1) if not isinstance(row, Mapping)
        )
        return f"row {position} is of type {type(row).__qualname__}, not a dictionary; pass {ACCEPTED_DATA}"
    return f"cannot read rows from an object of type {found}; pass {ACCEPTED_DATA}"


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
    from pandas import DataFrame

    DataSource: TypeAlias = (
        str
        | Dataset
        | DatasetDict
        | IterableDataset
        | IterableDatasetDict
        | DataFrame
        | Sequence[Mapping[str, Any]]
        | DataObject
    )
else:  # settings are converted to one of these types
    DataSource = str | DataObject
