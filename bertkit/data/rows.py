"""Rows as columns of plain Python values, each remembering the file and row it was read from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from bertkit.errors import format_count


@dataclass(frozen=True)
class Rows:
    """A table of `n` rows.

    Attributes:
        columns: name -> list of `n` values, as the file held them (text formats give strings).
        files: the files the rows came from.
        file_of: int array [n], index into `files`.
        number: int array [n], the row's number in its file, counted from 1 without the header; of a
            sentence in a column file the line of its first token.
        by_line: the files whose numbers are lines.
    """

    columns: dict[str, list[Any]]
    files: tuple[str, ...]
    file_index: np.ndarray
    row_numbers: np.ndarray
    line_numbered_files: frozenset[str] = frozenset()

    @classmethod
    def from_columns(cls, columns: dict[str, list[Any]], file: str, first_row: int = 1) -> "Rows":
        """Rows of one file, in order, from its row number `first` on."""
        return cls._numbered(columns, file, len(next(iter(columns.values()), [])), first_row)

    @classmethod
    def _numbered(cls, columns: dict[str, list[Any]], file: str, size: int, first: int) -> "Rows":
        return cls(columns, (file,), np.zeros(size, np.int32), np.arange(first, first + size))

    @classmethod
    def from_dicts(
        cls, rows: Sequence[dict[str, Any]], file: str, first_row: int = 1, column_names: Iterable[str] = ()
    ) -> "Rows":
        """Rows given one by one; what a row lacks, of its fellows' keys and of `names`, is None there."""
        column_names = list(dict.fromkeys([*column_names, *(key for row in rows for key in row)]))
        columns = {name: [row.get(name) for row in rows] for name in column_names}
        return cls._numbered(columns, file, len(rows), first_row)  # rows may have no column at all

    @classmethod
    def concatenate(cls, parts: Sequence["Rows"]) -> "Rows":
        """One part after the other; a column that a part lacks is None there."""
        names = list(dict.fromkeys(name for part in parts for name in part.columns))
        columns = {
            name: [value for part in parts for value in part.columns.get(name, [None] * len(part))]
            for name in names
        }
        first_file = np.cumsum([0] + [len(part.files) for part in parts[:-1]])
        return cls(
            columns,
            tuple(file for part in parts for file in part.files),
            np.concatenate([part.file_index + first for part, first in zip(parts, first_file, strict=True)]),
            np.concatenate([part.row_numbers for part in parts]),
            frozenset().union(*(part.line_numbered_files for part in parts)),
        )

    def __len__(self) -> int:
        return len(self.row_numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (
            dict(zip(self.columns, values, strict=True))
            for values in zip(*self.columns.values(), strict=True)
        )

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def select(self, indices: Iterable[int]) -> "Rows":
        """The rows at `indices`, in that order."""
        index = np.asarray(list(indices), dtype=np.int64)
        columns = {name: [values[i] for i in index] for name, values in self.columns.items()}
        return replace(
            self, columns=columns, file_index=self.file_index[index], row_numbers=self.row_numbers[index]
        )

    def with_column(self, name: str, values: list[Any]) -> "Rows":
        """The same rows with one column added or replaced."""
        return replace(self, columns={**self.columns, name: values})

    def replace_columns(self, columns: dict[str, list[Any]]) -> "Rows":
        """The same rows with other columns in place of all."""
        return replace(self, columns=columns)

    def format_location(self, index: int, line_offset: int = 0) -> str:
        """`train.csv: row 12`, for error messages; of a token at `place` its own line in a column file."""
        file = self.files[self.file_index[index]]
        by_line = file in self.line_numbered_files
        return f"{file}: {'line' if by_line else 'row'} {self.row_numbers[index] + (line_offset if by_line else 0)}"

    def zip_columns(self, names: Iterable[str | None]) -> list[tuple[str, ...]]:
        """The named text columns side by side: what tells one example from another."""
        return list(zip(*(self.columns[name] for name in names if name), strict=True))


Splits = dict[str, Rows]


def fingerprint_splits(splits: Splits) -> dict[str, str]:
    """Of each split `200 rows, ` and 16 hex digits that change when any value of any row does."""
    return {name: f"{format_count(len(rows), 'row')}, {_fingerprint(rows)}" for name, rows in splits.items()}


def combine_fingerprints(prints: Mapping[str, str]) -> str:
    """16 hex digits of the fingerprints of all splits."""
    return blake2b(repr(sorted(prints.items())).encode(), digest_size=8).hexdigest()


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which splits have other fingerprints, and what they were; empty where none has."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(
        f"{name} was {before.get(name, 'nothing')}, is {now.get(name, 'nothing')}" for name in names
    )


def _fingerprint(rows: Rows) -> str:
    digest = blake2b(digest_size=8)
    for column, values in rows.columns.items():
        digest.update(f"{column}/{len(values)}".encode())
        digest.update("\x1f".join(map(repr, values)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
