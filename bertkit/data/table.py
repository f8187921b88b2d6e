"""Tables of rows, which may be larger than memory.

A table consists of named columns, and of the file and the row number of each row. A column of a file is
memory-mapped and read in parts. Rows are selected by index, compared by 64-bit hashes of their values, and
stored in Arrow files.
"""

import json
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bertkit.errors import format_count
from bertkit.utils.arrays import iter_batches
from bertkit.utils.cache import cache_or_write, write_to_temporary
from bertkit.utils.text import has_lone_surrogate

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import Table


GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, made odd: its multiples are far apart
CHUNK_ROWS = 2048  # number of values that are read at a time
GATHER_ROWS = 128  # selected values that are read at a time
MAX_SPAN = 32  # they are read as one range if it has at most this many values for each selected value


class Column(Sequence[Any]):
    """A read-only sequence of `n` values that need not be in memory.

    Attributes:
        sources: The columns that the values are taken from.
    """

    sources: Sequence["Column"] = ()

    @abstractmethod
    def take(self, index: slice | np.ndarray) -> list[Any]:
        """Return the values of a range (a slice with start and stop) or at indices, in that order."""

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value; see `hash_values`."""
        return hash_values(self)

    @property
    def is_text(self) -> bool:
        """Whether all values are known to be strings, without reading them."""
        return False

    @property
    def is_on_disk(self) -> bool:
        """Whether the values are in a file, and memory may be too small for them."""
        return any(source.is_on_disk for source in self.sources)

    def select(self, index: np.ndarray) -> "Column":
        """Return a column with the values at `index`, which are read later."""
        return SelectedColumn(self, index)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        position = range(len(self))[index]  # raises an IndexError
        return self.take(slice(position, position + 1))[0]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(iter_chunks(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


class ListColumn(Column):
    """A column in memory."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: slice | np.ndarray) -> list[Any]:
        if isinstance(index, slice):
            return list(self.values[index])
        return [self.values[position] for position in index.tolist()]


class DatasetColumn(Column):
    """A column of a `datasets.Dataset`.

    Args:
        dataset: A dataset with this column alone: `datasets` reads and gathers all columns of a table.
        is_json: Whether the values are stored as JSON.
        hashes: [n] uint64 hash of each value; None to compute them when they are needed.
    """

    def __init__(self, dataset: "Dataset", is_json: bool = False, hashes: np.ndarray | None = None) -> None:
        self.dataset, self.is_json = dataset.with_format("arrow"), is_json
        if hashes is not None:
            self.hashes = hashes

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def is_text(self) -> bool:  # type: ignore[override]
        values = self.dataset.data.column(0)
        is_string = str(values.type) in ("string", "large_string")
        return not self.is_json and is_string and values.null_count == 0

    @property
    def is_on_disk(self) -> bool:
        return bool(self.dataset.cache_files)

    def take(self, index: slice | np.ndarray) -> list[Any]:
        if isinstance(index, slice):
            return self._to_python(self.dataset[index])
        values: list[Any] = []
        for first in range(0, len(index), GATHER_ROWS):
            part = index[first : first + GATHER_ROWS]
            start, stop = int(part.min()), int(part.max()) + 1
            if stop - start <= MAX_SPAN * len(part):  # usual for selections, whose indices ascend
                values += self._to_python(self.dataset[start:stop].take(part - start))
            else:
                values += self._to_python(self.dataset[part.tolist()])
        return values

    def _to_python(self, table: "pa.Table") -> list[Any]:
        values = table.column(0).to_pylist()
        return [None if value is None else json.loads(value) for value in values] if self.is_json else values


class SelectedColumn(Column):
    """The values of another column at the indices `base_index` [n], which may repeat.

    A selection from a short `ListColumn` is a column with few distinct values.
    """

    def __init__(self, base: Column, base_index: np.ndarray) -> None:
        self.base, self.base_index = base, base_index
        self.sources = [base]

    def __len__(self) -> int:
        return len(self.base_index)

    @property
    def is_text(self) -> bool:
        return self.base.is_text

    def select(self, index: np.ndarray) -> "SelectedColumn":
        return SelectedColumn(self.base, self.base_index[index])

    def take(self, index: slice | np.ndarray) -> list[Any]:
        return self.base.take(self.base_index[index])

    @cached_property
    def hashes(self) -> np.ndarray:
        return self.base.hashes[self.base_index]


class ConcatenatedColumn(Column):
    """The concatenation of several columns."""

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self.sources = [as_column(part) for part in parts]
        self.offsets = np.cumsum([0, *map(len, self.sources)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def is_text(self) -> bool:
        return all(part.is_text for part in self.sources)

    def take(self, index: slice | np.ndarray) -> list[Any]:
        if isinstance(index, slice):
            values: list[Any] = []
            for part, offset in zip(self.sources, self.offsets.tolist(), strict=False):
                start, stop = max(0, index.start - offset), min(len(part), index.stop - offset)
                if start < stop:
                    values += part.take(slice(start, stop))
            return values
        part_index = np.searchsorted(self.offsets, index, side="right") - 1
        values = [None] * len(index)
        for number in np.unique(part_index):
            positions = np.flatnonzero(part_index == number)
            part_values = self.sources[number].take(index[positions] - self.offsets[number])
            for position, value in zip(positions.tolist(), part_values, strict=True):
                values[position] = value
        return values

    @cached_property
    def hashes(self) -> np.ndarray:
        return np.concatenate([part.hashes for part in self.sources])


class ComputedColumn(Column):
    """The results of a function of a row's values in other columns, computed at each reading.

    If `batched`, the function receives and returns lists with the values of several rows instead.
    """

    def __init__(
        self, function: Callable[..., Any], columns: Sequence[Sequence[Any]], batched: bool = False
    ) -> None:
        self.sources = [as_column(column) for column in columns]
        self.function = function if batched else partial(map, function)

    def __len__(self) -> int:
        return len(self.sources[0])

    def take(self, index: slice | np.ndarray) -> list[Any]:
        return list(self.function(*(column.take(index) for column in self.sources)))


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
        yield column.take(slice(start, min(start + size, len(column))))


# ---- hashes
#
# Rows are compared by 64-bit hashes. In a table of a million rows, the probability that any two different
# rows have the same hash is 3e-8.


def hash_values(values: Iterable[Any]) -> np.ndarray:
    """Return [n] uint64: a hash of each value, which depends on its type; 1 and "1" have different hashes."""
    digests = bytearray()  # `join` would keep one object for each value
    for value in values:
        text = value if isinstance(value, str) else f"\0{value!r}"
        digests += blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.frombuffer(digests, np.uint64)


def combine_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return [n] uint64: one hash of the values of several columns, which depends on their order."""
    if len(columns) == 1:
        return columns[0]
    combined = np.zeros_like(columns[0])
    for hashes in columns:
        combined = mix_bits(combined * np.uint64(GOLDEN_GAMMA) + hashes)  # sums wrap around
    return combined


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014) to [n] uint64.

    It is a bijection in which each input bit affects all output bits.
    """
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)  # in place, which is several times as fast
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def number_groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign a number to each distinct key, in the order of first occurrence.

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


def map_values(values: Sequence[Any], function: Callable[[list[Any]], list[Any]]) -> Column:
    """Return a column in which each value is replaced; `function` maps the list of the distinct values."""
    codes, distinct = factorize(values)
    return ListColumn(function(distinct)).select(codes)


def repeat_value(value: Any, size: int) -> Column:
    """Return a column of `size` equal values."""
    return ListColumn([value]).select(np.zeros(size, np.int32))


# ---- rows


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
        notes: Remarks on how a file was read, such as rows that were left out. The chunks of a file share the
            list, which is complete when all chunks are read.
    """

    columns: Mapping[str, Sequence[Any]]
    files: tuple[str, ...]
    file_index: np.ndarray
    row_numbers: np.ndarray
    line_numbered_files: frozenset[str] = frozenset()
    class_names: Mapping[str, list[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], file: str, first_row: int = 1) -> "Rows":
        """Create consecutive rows of one file from columns; the number of the first row is `first_row`."""
        size = len(next(iter(columns.values()), []))
        return cls(columns, (file,), np.zeros(size, np.int32), np.arange(first_row, first_row + size))

    @classmethod
    def from_dicts(
        cls, rows: Sequence[dict[str, Any]], file: str, first_row: int = 1, column_names: Iterable[str] = ()
    ) -> "Rows":
        """Create consecutive rows of one file from records; a key that a record lacks has the value None.

        `column_names` are columns to include even if no record has them.
        """
        column_names = list(dict.fromkeys([*column_names, *(key for row in rows for key in row)]))
        columns = {name: [row.get(name) for row in rows] for name in column_names}
        # `from_columns` cannot count the rows if there are no columns.
        numbers = np.arange(first_row, first_row + len(rows))
        return cls(columns, (file,), np.zeros(len(rows), np.int32), numbers)

    @classmethod
    def concatenate(cls, parts: Sequence["Rows"]) -> "Rows":
        """Concatenate tables; if a table lacks a column, its values are None."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Sequence[Any]] = {}
        for name in dict.fromkeys(name for part in parts for name in part.columns):
            values = [part.columns.get(name, repeat_value(None, len(part))) for part in parts]
            is_in_memory = not any(isinstance(part.columns.get(name), Column) for part in parts)
            columns[name] = list(chain.from_iterable(values)) if is_in_memory else ConcatenatedColumn(values)
        numbers = {file: index for index, file in enumerate(dict.fromkeys(chain(*(p.files for p in parts))))}
        new_indices = [np.array([numbers[file] for file in part.files], np.int32) for part in parts]
        file_indices = [new[part.file_index] for part, new in zip(parts, new_indices, strict=True)]
        return cls(
            columns,
            tuple(numbers),
            np.concatenate(file_indices),
            np.concatenate([part.row_numbers for part in parts]),
            frozenset().union(*(part.line_numbered_files for part in parts)),
            {column: names for part in parts for column, names in part.class_names.items()},
            [note for part in parts for note in part.notes],
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
            part = slice(start, min(start + chunk_size, len(self)))
            columns = {name: as_column(self.columns[name]).take(part) for name in selected}
            yield replace(
                self, columns=columns, file_index=self.file_index[part], row_numbers=self.row_numbers[part]
            )

    def with_column(self, name: str, values: Sequence[Any]) -> "Rows":
        """Return the rows with one column added or replaced."""
        return replace(self, columns={**self.columns, name: values})

    def map_column(self, name: str, function: Callable[[list[Any]], list[Any]]) -> "Rows":
        """Return the rows with the values of a column replaced; see `map_values`."""
        return self.with_column(name, map_values(self.columns[name], function))

    def replace_columns(self, columns: Mapping[str, Sequence[Any]]) -> "Rows":
        """Return the rows with all columns replaced."""
        return replace(self, columns=columns)

    def factorize(self, column: str) -> tuple[np.ndarray, list[Any]]:
        """Return [n] codes, and the distinct values of a column by code, in order of first occurrence."""
        return factorize(self.columns[column])

    def hash_columns(self, names: Iterable[str]) -> np.ndarray:
        """Return [n] uint64: one hash of each row's values in the named columns, in this order."""
        return combine_hashes([as_column(self.columns[name]).hashes for name in names])

    def format_location(self, index: int, line_offset: int = 0) -> str:
        """Return the file and the number of a row for errors, such as `train.csv: row 12`.

        In a CoNLL file, it is the line of the word with the index `line_offset` in the sentence.
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
    records: Iterable[tuple[int, dict[str, Any]]], file: str, chunk_size: int = CHUNK_ROWS
) -> Iterator[Rows]:
    """Yield numbered records as rows in chunks; every chunk has the columns of the first one.

    A chunk also ends at `MAX_CHUNK_CHARS` characters, since a text may be a whole book.
    """

    def count_chars(record: tuple[int, dict[str, Any]]) -> int:
        return sum(len(value) for value in record[1].values() if isinstance(value, str))

    columns: list[str] = []
    for chunk in iter_batches(records, MAX_CHUNK_CHARS, chunk_size, count_chars):
        rows = Rows.from_dicts([record for _, record in chunk], file, column_names=columns)
        columns = columns or list(rows.columns)
        yield replace(rows, row_numbers=np.array([number for number, _ in chunk]))


# ---- fingerprints


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


STORE_VERSION = 3  # to be increased when the code stores other content for the same rows
TABLE_FILE, HASHES_FILE, NUMBERS_FILE, INFO_FILE = "rows.arrow", "hashes.npy", "row_numbers.npy", "info.json"
SCALAR_TYPES = {str: "string", bool: "bool", int: "int64", float: "double"}
JSON_TYPE = "json"  # type of a column whose values have no common Arrow type
ColumnTypes = dict[str, Any]  # Arrow type of each column, or `JSON_TYPE`


# ---- storing and opening tables


def store_rows(iter_parts: Callable[[], Iterator[Rows]], file: str, key: str | None) -> Rows:
    """Store the rows of a file, and return them with columns that are read when they are needed.

    Args:
        iter_parts: Returns an iterator over the rows of the file, in parts. It may be called repeatedly.
        key: Digest of everything that the rows depend on; the table is cached on disk under this key. None
            keeps the table in memory.
    """
    from datasets.table import InMemoryTable

    if key is None:
        content, buffer = _write_table(iter_parts, None)
        return _build_rows(InMemoryTable.from_buffer(buffer), file, *content)
    return _open_table(cache_or_write("rows", key, partial(_write_folder, iter_parts), "the rows"), file)


def store_temporarily(iter_parts: Callable[[], Iterator[Rows]], name: str) -> Rows:
    """Store rows of a stream in a temporary directory, which is deleted when the process ends."""
    return _open_table(write_to_temporary(partial(_write_folder, iter_parts), "the rows"), name)


def store_columns(
    sources: Sequence[Sequence[Any]], iter_parts: Callable[[], Iterator[dict[str, list[Any]]]], *settings: str
) -> dict[str, Sequence[Any]]:
    """Store columns that are computed from other columns, so that they are computed only once.

    The result is cached on disk if one of the sources is on disk. Otherwise it stays in memory: as lists if
    all sources are lists, else as an Arrow table.

    Args:
        iter_parts: Returns an iterator over the computed columns, in one or more parts. It may be called
            repeatedly.
        settings: Everything else that the result depends on, beginning with the name of the computation.
    """
    columns = [column for column in sources if isinstance(column, Column)]
    if not columns:
        parts = list(iter_parts())
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}
    key = None
    if any(column.is_on_disk for column in columns):
        digest = blake2b(repr((STORE_VERSION, settings)).encode(), digest_size=16)
        for source in sources:
            digest.update(np.ascontiguousarray(as_column(source).hashes).data)
        key = digest.hexdigest()
    return dict(store_rows(lambda: (Rows.from_columns(part, "") for part in iter_parts()), "", key).columns)


def flatten_lists(lists: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Return the elements of the lists of all rows, row by row."""

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        for part in iter_chunks(lists) if len(lists) else [[]]:
            yield {"elements": [element for values in part for element in values]}

    return store_columns([lists], iter_parts, "elements")["elements"]


# Everything but the values: info, [columns, n] hashes and [n] row numbers.
_Content = tuple[dict[str, Any], np.ndarray, np.ndarray]


def _write_folder(iter_parts: Callable[[], Iterator[Rows]], folder: Path) -> None:
    (info, hashes, row_numbers), _ = _write_table(iter_parts, folder / TABLE_FILE)
    (folder / INFO_FILE).write_text(json.dumps(info), "utf-8")
    np.save(folder / HASHES_FILE, hashes)
    np.save(folder / NUMBERS_FILE, row_numbers)


def _open_table(folder: Path, file: str) -> Rows:
    from datasets.table import MemoryMappedTable

    info = json.loads((folder / INFO_FILE).read_text("utf-8"))
    hashes, row_numbers = (np.load(folder / name, mmap_mode="r") for name in (HASHES_FILE, NUMBERS_FILE))
    table = MemoryMappedTable.from_file(str(folder / TABLE_FILE))
    return _build_rows(table, file, info, hashes, row_numbers)


def _build_rows(
    table: "Table", file: str, info: dict[str, Any], hashes: np.ndarray, row_numbers: np.ndarray
) -> Rows:
    """Return the rows of a stored table; `file` is the name of the file that they were read from.

    `Dataset.from_file` and `Dataset.from_buffer` would hash the table. `Dataset.select_columns` would copy
    the metadata of all columns for each column.
    """
    from datasets import Dataset, DatasetInfo, Features
    from datasets.fingerprint import generate_random_fingerprint

    features = Features.from_arrow_schema(table.schema)
    stored = zip(features.items(), info["json_columns"].items(), hashes, strict=True)
    columns = {}
    for (stored_name, feature), (name, is_json), column_hashes in stored:
        column_info = DatasetInfo(features=Features({stored_name: feature}))
        column = Dataset(table.select([stored_name]), column_info, fingerprint=generate_random_fingerprint())
        columns[name] = DatasetColumn(column, is_json, column_hashes)
    line_numbered_files = frozenset([file] if info["is_line_numbered"] else [])
    file_index = np.zeros(len(row_numbers), np.int32)
    return Rows(
        columns, (file,), file_index, row_numbers, line_numbered_files, info["class_names"], info["notes"]
    )


# ---- writing


class _TypesChanged(Exception):
    """A part does not fit the column types, which have been changed; the table must be written again."""


def _write_table(iter_parts: Callable[[], Iterator[Rows]], path: Path | None) -> tuple[_Content, Any]:
    """Write all parts to a file, or to a buffer in memory if `path` is None; return content and buffer."""
    import pyarrow as pa

    types: ColumnTypes = {}
    while True:
        sink = pa.BufferOutputStream() if path is None else pa.OSFile(str(path), "wb")
        try:
            with sink:
                content = _write_parts(iter_parts(), sink, types)
                return content, sink.getvalue() if path is None else None
        except _TypesChanged:
            continue


def _write_parts(parts: Iterator[Rows], sink: Any, types: ColumnTypes) -> _Content:
    """Write the parts in the Arrow streaming format, and add the types of new columns to `types`."""
    import pyarrow as pa

    first = next(parts)
    _add_types(first, types)
    hashes: list[list[np.ndarray]] = [[] for _ in types]
    row_numbers = []
    # Arrow cannot write a lone surrogate, so a column with such a name gets a number.
    names = [f"column {index}" if has_lone_surrogate(name) else name for index, name in enumerate(types)]
    arrow_types = [pa.string() if kind == JSON_TYPE else kind for kind in types.values()]
    schema = pa.schema(list(zip(names, arrow_types, strict=True)))
    with pa.ipc.new_stream(sink, schema) as writer:
        for part in chain([first], parts):
            if not part.columns.keys() <= types.keys():
                _add_types(part, types)
                raise _TypesChanged
            columns = {name: part.columns.get(name, [None] * len(part)) for name in types}
            arrays = [_build_array(name, values, types) for name, values in columns.items()]
            writer.write_batch(pa.record_batch(arrays, schema))
            row_numbers.append(part.row_numbers)
            for column_hashes, values in zip(hashes, columns.values(), strict=True):
                column_hashes.append(hash_values(values))
    info = {
        "json_columns": {name: kind == JSON_TYPE for name, kind in types.items()},
        "is_line_numbered": bool(first.line_numbered_files),
        "class_names": first.class_names,
        "notes": list(first.notes),
    }
    all_hashes = np.array([np.concatenate(column_hashes) for column_hashes in hashes])
    return info, all_hashes, np.concatenate(row_numbers)


def _add_types(part: Rows, types: ColumnTypes) -> None:
    """Infer the types of those columns of a part that `types` lacks."""
    for name, values in part.columns.items():
        if name not in types:
            types[name] = _infer_type(values)


def _infer_type(values: Sequence[Any]) -> Any:
    """Return the Arrow type of the values, or `JSON_TYPE` if Arrow would change a value.

    Without any value, it is the type of strings.
    """
    import pyarrow as pa
    from datasets.features.features import generate_from_arrow_type

    value_types = set(map(type, values)) - {type(None)}
    if not value_types:
        return pa.string()
    if len(value_types) > 1:
        return JSON_TYPE
    (value_type,) = value_types
    if value_type in SCALAR_TYPES:
        return pa.type_for_alias(SCALAR_TYPES[value_type])
    if value_type is list:
        element_types = set(map(type, chain.from_iterable(filter(None, values)))) - {type(None)}
        (element_type,) = element_types if len(element_types) == 1 else (None,)
        alias = SCALAR_TYPES.get(element_type) if element_type else None
        return pa.list_(pa.type_for_alias(alias)) if alias else JSON_TYPE
    if value_type is dict:
        return JSON_TYPE
    kind = pa.array(values).type  # such as that of the dates of a Parquet file
    try:
        generate_from_arrow_type(kind)
    except ValueError:  # `datasets` cannot open a table with this type
        return JSON_TYPE
    return kind


def _build_array(name: str, values: Sequence[Any], types: ColumnTypes) -> "pa.Array":
    """Return the values of a column as an Arrow array of the type in `types`.

    If they have another type, the column becomes JSON in `types`, and a `_TypesChanged` is raised.
    """
    import pyarrow as pa

    kind = types[name]
    if kind == JSON_TYPE:
        # Values that JSON does not have, such as dates in a list, are stored as text.
        texts = [None if value is None else json.dumps(value, default=str) for value in values]
        return pa.array(texts, pa.string())
    if _infer_type(values) == kind or all(value is None for value in values):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError):
            pass  # such as a lone surrogate in a text, or an integer of more than 64 bits
    types[name] = JSON_TYPE
    raise _TypesChanged
