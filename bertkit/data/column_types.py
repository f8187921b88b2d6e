"""Columns of a table whose values are read when they are needed: a table may be larger than memory."""

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, overload

import numpy as np

CHUNK_ROWS = 2048  # number of values that are read at a time
HASH_BYTES = 8


class Column(Sequence[Any]):
    """A read-only sequence of `n` values that need not be in memory."""

    @abstractmethod
    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""

    @property
    @abstractmethod
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value; see `hash_values`."""

    def select(self, index: np.ndarray) -> "Column":
        """Return a column with the values at `index`, which are read later."""
        return SelectedColumn(self, index)

    @property
    def is_text(self) -> bool:
        """Whether all values are known to be strings, without reading them."""
        return False

    @property
    def is_on_disk(self) -> bool:
        """Whether the values are in a file, and memory may be too small for them."""
        return False

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return one value, or a list of values."""
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        position = range(len(self))[index]  # raises an IndexError
        return self.read(position, position + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), CHUNK_ROWS):
            yield from self.read(start, min(start + CHUNK_ROWS, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


class SelectedColumn(Column):
    """The values of another column at some indices.

    Args:
        base: The other column.
        base_index: [n] index of each value in `base`.
    """

    def __init__(self, base: Column, base_index: np.ndarray) -> None:
        self.base, self.base_index = base, base_index

    def __len__(self) -> int:
        return len(self.base_index)

    @property
    def is_text(self) -> bool:
        """Whether all values are known to be strings, without reading them."""
        return self.base.is_text

    @property
    def is_on_disk(self) -> bool:
        """Whether the values are in a file."""
        return self.base.is_on_disk

    def select(self, index: np.ndarray) -> "SelectedColumn":
        """Return a column with the values at `index`."""
        return SelectedColumn(self.base, self.base_index[index])

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return self.base.take(self.base_index[start:stop])

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return self.base.take(self.base_index[indices])

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return self.base.hashes[self.base_index]


class ConcatenatedColumn(Column):
    """The concatenation of several columns.

    Args:
        parts: The columns.
    """

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self.parts = [as_column(part) for part in parts]
        self.offsets = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def is_text(self) -> bool:
        """Whether all values are known to be strings, without reading them."""
        return all(part.is_text for part in self.parts)

    @property
    def is_on_disk(self) -> bool:
        """Whether the values of a part are in a file."""
        return any(part.is_on_disk for part in self.parts)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        values: list[Any] = []
        for part, offset in zip(self.parts, self.offsets.tolist(), strict=False):
            part_start, part_stop = max(0, start - offset), min(len(part), stop - offset)
            if part_start < part_stop:
                values += part.read(part_start, part_stop)
        return values

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        part_index = np.searchsorted(self.offsets, indices, side="right") - 1
        values: list[Any] = [None] * len(indices)
        for number in np.unique(part_index):
            positions = np.flatnonzero(part_index == number)
            part_values = self.parts[number].take(indices[positions] - self.offsets[number])
            for position, value in zip(positions.tolist(), part_values, strict=True):
                values[position] = value
        return values

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return np.concatenate([part.hashes for part in self.parts])


class CategoricalColumn(Column):
    """A column with few distinct values, each of which is stored once.

    Args:
        codes: [n] index of each value in `values`.
        values: The distinct values.
    """

    def __init__(self, codes: np.ndarray, values: Sequence[Any]) -> None:
        self.codes, self.values = codes, list(values)

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def repeat(cls, value: Any, size: int) -> "CategoricalColumn":
        """Create a column of `size` equal values."""
        return cls(np.zeros(size, np.int32), [value])

    def select(self, index: np.ndarray) -> "CategoricalColumn":
        """Return a column with the values at `index`."""
        return CategoricalColumn(self.codes[index], self.values)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return [self.values[code] for code in self.codes[start:stop].tolist()]

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return [self.values[code] for code in self.codes[indices].tolist()]

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return hash_values(self.values)[self.codes]


class ListColumn(Column):
    """A column in memory.

    Args:
        values: The values.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return list(self.values[start:stop])

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return [self.values[index] for index in indices.tolist()]

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        return hash_values(self.values)


def as_column(values: Sequence[Any]) -> Column:
    """Return a sequence as a column."""
    return values if isinstance(values, Column) else ListColumn(values)


def select_values(values: Sequence[Any], index: np.ndarray) -> Sequence[Any]:
    """Return the values at `index`: a list from a list, and a column that is read later from a column."""
    if isinstance(values, Column):
        return values.select(index)
    return [values[position] for position in index.tolist()]


def replace_values(values: Sequence[Any], replacements: Mapping[int, Any]) -> Sequence[Any]:
    """Return the values with those at some indices replaced; a column remains a column."""
    index = np.arange(len(values))
    index[list(replacements)] = len(values) + np.arange(len(replacements))
    if isinstance(values, Column):
        return ConcatenatedColumn([values, list(replacements.values())]).select(index)
    return select_values([*values, *replacements.values()], index)


def iter_chunks(values: Sequence[Any], size: int = CHUNK_ROWS) -> Iterator[list[Any]]:
    """Yield the values in lists of at most `size` values."""
    column = as_column(values)
    for start in range(0, len(column), size):
        yield column.read(start, min(start + size, len(column)))


# ---- hashes
#
# Rows are compared by 64-bit hashes. In a table of a million rows, the probability that any two different
# rows have the same hash is 3e-8.


def hash_values(values: Iterable[Any]) -> np.ndarray:
    """Return [n] uint64: a hash of each value, which depends on its type; 1 and "1" have different hashes."""
    digests = bytearray()  # `join` would keep one object for each value
    for value in values:
        digests += blake2b(_to_bytes(value), digest_size=HASH_BYTES).digest()
    return np.frombuffer(digests, np.uint64)


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return b"\0" + repr(value).encode("utf-8", "surrogatepass")


def combine_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return [n] uint64: one hash of the values of several columns, which depends on their order.

    Args:
        columns: [n] hashes of each column.
    """
    if len(columns) == 1:
        return columns[0]
    combined = np.zeros_like(columns[0])
    for hashes in columns:
        # The finalizer of SplitMix64 (Steele et al. 2014) spreads each bit over all bits; sums wrap around.
        combined = combined * np.uint64(0x9E3779B97F4A7C15) + hashes
        combined = (combined ^ (combined >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        combined = (combined ^ (combined >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        combined ^= combined >> np.uint64(31)
    return combined


def number_groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign a number to each distinct key, in the order of first occurrence.

    Args:
        keys: [n] keys of any dtype that can be sorted.

    Returns:
        [n] number of each key's group, from 0, and [groups] index of the first key of each group, ascending.
    """
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]


def factorize(values: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """Return [n] codes, and the distinct values by code, in the order of their first occurrence."""
    column = as_column(values)
    codes, first = number_groups(column.hashes)
    return codes, column.take(first)


def map_values(values: Sequence[Any], function: Callable[[list[Any]], list[Any]]) -> CategoricalColumn:
    """Return a column in which each value is replaced.

    Args:
        values: The values.
        function: Returns the replacements of the distinct values that it receives.
    """
    codes, distinct = factorize(values)
    return CategoricalColumn(codes, function(distinct))
