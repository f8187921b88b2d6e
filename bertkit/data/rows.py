"""Tables of rows, with the file and the row number of each row."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from bertkit.data.column_types import (
    CHUNK_ROWS,
    CategoricalColumn,
    Column,
    ConcatenatedColumn,
    as_column,
    combine_hashes,
    factorize,
    map_values,
    select_values,
)
from bertkit.errors import format_count
from bertkit.utils.batches import iter_batches

MAX_CHUNK_CHARS = 1 << 22  # a chunk of records ends at this number of characters


@dataclass(frozen=True)
class Rows:
    """A table of `n` rows.

    Attributes:
        columns: The `n` values of each column, by name: a list in memory, or a `Column` that reads its values
            when they are needed. Values from text formats are strings.
        files: The files that the rows were read from.
        file_index: [n] index of each row's file in `files`.
        row_numbers: [n] number of each row in its file, from 1; the header does not count. In a CoNLL file it
            is the line of the first word of the sentence.
        line_numbered_files: The files whose row numbers are line numbers.
        class_names: Names of the classes 0, 1, ... of those columns whose file or object declares them.
    """

    columns: Mapping[str, Sequence[Any]]
    files: tuple[str, ...]
    file_index: np.ndarray
    row_numbers: np.ndarray
    line_numbered_files: frozenset[str] = frozenset()
    class_names: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], file: str, first_row: int = 1) -> "Rows":
        """Create consecutive rows of one file from columns; the number of the first row is `first_row`."""
        return cls._number_rows(columns, file, len(next(iter(columns.values()), [])), first_row)

    @classmethod
    def _number_rows(
        cls, columns: Mapping[str, Sequence[Any]], file: str, size: int, first_row: int
    ) -> "Rows":
        return cls(columns, (file,), np.zeros(size, np.int32), np.arange(first_row, first_row + size))

    @classmethod
    def from_dicts(
        cls, rows: Sequence[dict[str, Any]], file: str, first_row: int = 1, column_names: Iterable[str] = ()
    ) -> "Rows":
        """Create consecutive rows of one file from records.

        Args:
            rows: Records. If a record lacks a key, its value is None.
            file: Name of the file.
            first_row: Number of the first row.
            column_names: Columns to include even if no record has them.
        """
        column_names = list(dict.fromkeys([*column_names, *(key for row in rows for key in row)]))
        columns = {name: [row.get(name) for row in rows] for name in column_names}
        # `from_columns` cannot count the rows if there are no columns.
        return cls._number_rows(columns, file, len(rows), first_row)

    @classmethod
    def concatenate(cls, parts: Sequence["Rows"]) -> "Rows":
        """Concatenate tables; if a table lacks a column, its values are None."""
        if len(parts) == 1:
            return parts[0]
        names = list(dict.fromkeys(name for part in parts for name in part.columns))
        columns = {name: _concatenate_column(parts, name) for name in names}
        first_files = np.cumsum([0] + [len(part.files) for part in parts[:-1]])
        file_indices = [part.file_index + first for part, first in zip(parts, first_files, strict=True)]
        return cls(
            columns,
            tuple(file for part in parts for file in part.files),
            np.concatenate(file_indices),
            np.concatenate([part.row_numbers for part in parts]),
            frozenset().union(*(part.line_numbered_files for part in parts)),
            {column: names for part in parts for column, names in part.class_names.items()},
        )

    def __len__(self) -> int:
        return len(self.row_numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (
            dict(zip(self.columns, values, strict=True))
            for values in zip(*self.columns.values(), strict=True)
        )

    def __getitem__(self, column: str) -> Sequence[Any]:
        return self.columns[column]

    def select(self, indices: Iterable[int]) -> "Rows":
        """Return the rows at `indices`, in that order."""
        index = indices if isinstance(indices, np.ndarray) else np.array(list(indices), dtype=np.int64)
        columns = {name: select_values(values, index) for name, values in self.columns.items()}
        return replace(
            self, columns=columns, file_index=self.file_index[index], row_numbers=self.row_numbers[index]
        )

    def iter_chunks(
        self, chunk_size: int = CHUNK_ROWS, names: Iterable[str] | None = None
    ) -> Iterator["Rows"]:
        """Yield the rows in chunks that are in memory, with the named columns (by default, all columns)."""
        selected = list(self.columns) if names is None else list(names)
        for start in range(0, len(self), chunk_size):
            stop = min(start + chunk_size, len(self))
            columns = {name: as_column(self.columns[name]).read(start, stop) for name in selected}
            yield replace(
                self,
                columns=columns,
                file_index=self.file_index[start:stop],
                row_numbers=self.row_numbers[start:stop],
            )

    def with_column(self, name: str, values: Sequence[Any]) -> "Rows":
        """Return the rows with one column added or replaced."""
        return replace(self, columns={**self.columns, name: values})

    def map_column(self, name: str, function: Callable[[list[Any]], list[Any]]) -> "Rows":
        """Return the rows with the values of a column replaced; see `map_values` of `column_types`."""
        return self.with_column(name, map_values(self.columns[name], function))

    def replace_columns(self, columns: Mapping[str, Sequence[Any]]) -> "Rows":
        """Return the rows with all columns replaced."""
        return replace(self, columns=columns)

    def with_class_names(self, class_names: Mapping[str, list[str]]) -> "Rows":
        """Return the rows with `class_names` replaced."""
        return replace(self, class_names=class_names)

    def factorize(self, column: str) -> tuple[np.ndarray, list[Any]]:
        """Return [n] codes, and the distinct values of a column by code, in order of first occurrence."""
        return factorize(self.columns[column])

    def hash_columns(self, names: Iterable[str]) -> np.ndarray:
        """Return [n] uint64: one hash of each row's values in the named columns, in this order."""
        return combine_hashes([as_column(self.columns[name]).hashes for name in names])

    def format_location(self, index: int, line_offset: int = 0) -> str:
        """Return the file and the number of a row for errors, such as `train.csv: row 12`.

        Args:
            index: Index of the row.
            line_offset: Index of a word in the sentence. In a CoNLL file, the line of this word is returned.
        """
        file = self.files[self.file_index[index]]
        if file in self.line_numbered_files:
            return f"{file}: line {self.row_numbers[index] + line_offset}"
        return f"{file}: row {self.row_numbers[index]}"

    def describe_location(self, index: int) -> str:
        """Return the location of an example for findings; a subclass may add its id."""
        return self.format_location(index)


Splits = dict[str, Rows]  # rows by split: "train", "validation", "test"
UNLABELED_ROWS = "unlabeled"  # key of their fingerprint, beside those of the splits


def chunk_records(
    records: Iterable[dict[str, Any]], file: str, chunk_size: int = CHUNK_ROWS
) -> Iterator[Rows]:
    """Yield records as rows in chunks; every chunk has the columns of the first one.

    A chunk also ends at `MAX_CHUNK_CHARS` characters, since a text may be a whole book.
    """
    first_row, columns = 1, list[str]()
    for chunk in iter_batches(records, MAX_CHUNK_CHARS, chunk_size, _count_chars):
        rows = Rows.from_dicts(chunk, file, first_row, columns)
        columns = columns or list(rows.columns)
        yield rows
        first_row += len(chunk)


def _count_chars(record: dict[str, Any]) -> int:
    return sum(len(value) for value in record.values() if isinstance(value, str))


def _concatenate_column(parts: Sequence[Rows], name: str) -> Sequence[Any]:
    """Return the values of all parts; None for the rows of a part that lacks the column."""
    if any(isinstance(part.columns.get(name), Column) for part in parts):
        missing = [CategoricalColumn.repeat(None, len(part)) for part in parts]
        return ConcatenatedColumn(
            [part.columns.get(name, nulls) for part, nulls in zip(parts, missing, strict=True)]
        )
    return [value for part in parts for value in part.columns.get(name, [None] * len(part))]


def fingerprint_splits(splits: Splits) -> dict[str, str]:
    """Return the row count and a digest of all values of each split."""
    return {
        name: f"{format_count(len(rows), 'row')}, {fingerprint_rows(rows)}" for name, rows in splits.items()
    }


def combine_fingerprints(fingerprints: Mapping[str, str]) -> str:
    """Return one digest (16 hex digits) of the fingerprints of all splits."""
    return blake2b(repr(sorted(fingerprints.items())).encode(), digest_size=8).hexdigest()


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return which splits have changed fingerprints, and both of them; an empty text if there are none."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(
        f"{name} was {before.get(name, 'nothing')}, is {now.get(name, 'nothing')}" for name in names
    )


def fingerprint_rows(rows: Rows) -> str:
    """Return a digest of the names and the values of all columns."""
    digest = blake2b(digest_size=8)
    for column, values in rows.columns.items():
        digest.update(f"{column}/{len(values)}".encode())
        digest.update(np.ascontiguousarray(as_column(values).hashes).data)
    return digest.hexdigest()
