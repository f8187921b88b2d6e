"""Rows of a `datasets.Dataset`, whose columns are not copied."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.column_types import CategoricalColumn, Column, hash_values, iter_chunks
from bertkit.data.labels import map_tag_ids
from bertkit.data.readers.class_names import map_class_ids, read_class_names
from bertkit.data.rows import Rows
from bertkit.data.table_store import DatasetColumn
from bertkit.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK_IDS = 1 << 16  # class ids that are read at a time


def rows_from_dataset(
    dataset: "Dataset", name: str, class_names: Mapping[str, list[str]] | None = None
) -> Rows:
    """Return the rows of a dataset, in which class names replace class ids.

    Args:
        dataset: The dataset.
        name: Name of the dataset, for errors.
        class_names: Class names by column; None for those that the dataset declares.

    Raises:
        UserError: A class id has no name, or the dataset has a transform.
    """
    if dataset.format["type"] == "custom":  # the stored rows are not those that the user sees
        raise UserError(
            f"{name}: the Dataset has a transform (set_transform), which does not change the stored rows; "
            "store its result with Dataset.map, or remove it with reset_format()"
        )
    if class_names is None:
        class_names = read_class_names(get_metadata(dataset.features))
    columns: dict[str, Sequence[Any]] = {}
    for column in dataset.column_names:
        values = DatasetColumn(dataset.select_columns([column]))
        names = class_names.get(column)
        if not names:
            columns[column] = values
        elif values.is_integer:
            columns[column] = _build_class_column(name, column, values, names)
        else:
            columns[column] = TagColumn(values, names)
    rows = Rows.from_columns(columns, name) if columns else Rows.from_dicts([], name)
    return rows.with_class_names(class_names)


def get_metadata(features: Any) -> dict[bytes, bytes]:
    """Return the metadata that `datasets` writes to files with these features."""
    return (features.arrow_schema.metadata or {}) if features else {}


def _build_class_column(name: str, column: str, ids: DatasetColumn, names: list[str]) -> CategoricalColumn:
    """Return a column of class names for a column of class ids."""
    values: list[str | None] = [*names, None]
    position = {value: code for code, value in enumerate(values)}
    codes, first_row = [np.zeros(0, np.int32)], 1
    for chunk in iter_chunks(ids, CHUNK_IDS):
        mapped = map_class_ids(name, first_row, column, chunk, names)
        codes.append(np.array([position[value] for value in mapped], np.int32))
        first_row += len(chunk)
    return CategoricalColumn(np.concatenate(codes), values)


class TagColumn(Column):
    """A column of lists of tag ids, which become tag names when they are read.

    Args:
        base: The ids.
        names: Names of the ids 0, 1, ...
    """

    def __init__(self, base: Column, names: Sequence[str]) -> None:
        self.base, self.to_names = base, partial(map_tag_ids, names=names)

    def __len__(self) -> int:
        return len(self.base)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return self.to_names(self.base.read(start, stop))

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return self.to_names(self.base.take(indices))

    @cached_property
    def hashes(self) -> np.ndarray:  # type: ignore[override]
        """[n] uint64 hash of each value."""
        return hash_values(self)


def replace_class_ids(rows: Rows, name: str, class_names: Mapping[str, list[str]]) -> Rows:
    """Replace the class ids in a chunk of rows by class names.

    Args:
        rows: The chunk.
        name: Name of the dataset, for errors.
        class_names: Class names by column.

    Raises:
        UserError: A class id has no name.
    """
    for column in class_names.keys() & rows.columns.keys():
        values, names = list(rows[column]), class_names[column]
        if any(isinstance(value, list) for value in values):
            rows = rows.with_column(column, map_tag_ids(values, names))
        else:
            rows = rows.with_column(
                column, map_class_ids(name, int(rows.row_numbers[0]), column, values, names)
            )
    return rows
