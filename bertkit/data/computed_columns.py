"""Columns whose values are computed from other columns when they are read."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.data.column_types import Column, as_column, hash_values
from bertkit.utils.ragged import compute_offsets


class ComputedColumn(Column):
    """The results of a function of the values of other columns.

    Args:
        function: Returns the value of a row from the row's values in the other columns.
        columns: One or more other columns of `n` values.
    """

    def __init__(self, function: Callable[..., Any], columns: Sequence[Sequence[Any]]) -> None:
        self.function, self.columns = function, [as_column(column) for column in columns]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def is_on_disk(self) -> bool:
        """Whether the values of a column are in a file."""
        return any(column.is_on_disk for column in self.columns)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return list(map(self.function, *(column.read(start, stop) for column in self.columns)))

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return list(map(self.function, *(column.take(indices) for column in self.columns)))

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return hash_values(self)


class FlattenedColumn(Column):
    """The elements of the lists in another column, row by row.

    Args:
        lists: [rows] lists of any length.
    """

    def __init__(self, lists: Sequence[Sequence[Any]]) -> None:
        self.lists = as_column(lists)
        self.counts = np.fromiter(map(len, self.lists), np.int64, len(self.lists))
        self.offsets = compute_offsets(self.counts)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        if start >= stop:
            return []
        first, last = np.searchsorted(self.offsets, [start, stop - 1], side="right") - 1
        elements = [element for values in self.lists.read(int(first), int(last) + 1) for element in values]
        return elements[start - self.offsets[first] : stop - self.offsets[first]]

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        rows = np.searchsorted(self.offsets, indices, side="right") - 1
        positions = (indices - self.offsets[rows]).tolist()
        return [values[position] for values, position in zip(self.lists.take(rows), positions, strict=True)]

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return hash_values(self)
