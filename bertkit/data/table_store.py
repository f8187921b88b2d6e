"""Store rows in Arrow files that are memory-mapped as a `datasets.Dataset`.

A table is written part by part, so its size is not limited by memory. The types of its columns are inferred
from the first part. If a later part does not fit, the table is written again: a column with values of several
types is then stored as JSON, which keeps each value as it is.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.column_types import Column, as_column, hash_values
from bertkit.data.rows import Rows
from bertkit.utils.cache import cache_or_write, write_to_temporary
from bertkit.utils.text import has_lone_surrogate

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

STORE_VERSION = 2  # to be increased when the code stores other content for the same rows
CACHE_KIND = "rows"
TABLE_FILE, HASHES_FILE, NUMBERS_FILE, INFO_FILE = "rows.arrow", "hashes.npy", "row_numbers.npy", "info.json"
SCALAR_TYPES = {str: "string", bool: "bool", int: "int64", float: "double"}
JSON_TYPE = "json"  # type of a column whose values have no common Arrow type
GATHER_ROWS = 128  # selected rows that are read at a time
MAX_SPAN = 32  # they are read as one range if it has at most this many rows for each selected row
ColumnTypes = dict[str, Any]  # Arrow type of each column, or `JSON_TYPE`


class DatasetColumn(Column):
    """A column of a `datasets.Dataset`.

    Args:
        dataset: A dataset with this column alone.
        is_json: Whether the values are stored as JSON.
        hashes: [n] uint64 hash of each value; None to compute them when they are needed.
    """

    def __init__(self, dataset: "Dataset", is_json: bool = False, hashes: np.ndarray | None = None) -> None:
        self.dataset, self.is_json, self._hashes = dataset.with_format("arrow"), is_json, hashes

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each value."""
        if self._hashes is None:
            self._hashes = hash_values(self)
        return self._hashes

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        import pyarrow as pa

        return pa.types.is_integer(self.dataset.data.column(0).type)

    @cached_property
    def is_text(self) -> bool:  # type: ignore[override]
        """Whether all values are strings."""
        values = self.dataset.data.column(0)
        is_string = str(values.type) in ("string", "large_string")
        return not self.is_json and is_string and values.null_count == 0

    @property
    def is_on_disk(self) -> bool:
        """Whether the values are in a file."""
        return bool(self.dataset.cache_files)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return self._to_python(self.dataset[start:stop])

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        values: list[Any] = []
        for first in range(0, len(indices), GATHER_ROWS):
            part = indices[first : first + GATHER_ROWS]
            start, stop = int(part.min()), int(part.max()) + 1
            if stop - start <= MAX_SPAN * len(part):  # usual for selections, whose indices ascend
                values += self._to_python(self.dataset[start:stop].take(part - start))
            else:
                values += self._to_python(self.dataset[part.tolist()])
        return values

    def _to_python(self, table: "pa.Table") -> list[Any]:
        values = table.column(0).to_pylist()
        return [None if value is None else json.loads(value) for value in values] if self.is_json else values


# ---- storing and opening tables


@dataclass(frozen=True)
class TableContent:
    """What a stored table consists of, except for the values.

    Attributes:
        json_columns: Whether the values are stored as JSON, by column.
        hashes: [columns, n] uint64 hash of each value.
        row_numbers: [n] see `Rows`.
        is_line_numbered: Whether the row numbers are line numbers.
        class_names: See `Rows`.
    """

    json_columns: dict[str, bool]
    hashes: np.ndarray
    row_numbers: np.ndarray
    is_line_numbered: bool
    class_names: Mapping[str, list[str]]

    def save(self, folder: Path) -> None:
        """Write the content into the directory of the table."""
        info = {
            "json_columns": self.json_columns,
            "is_line_numbered": self.is_line_numbered,
            "class_names": self.class_names,
        }
        (folder / INFO_FILE).write_text(json.dumps(info), "utf-8")
        np.save(folder / HASHES_FILE, self.hashes)
        np.save(folder / NUMBERS_FILE, self.row_numbers)

    @classmethod
    def load(cls, folder: Path) -> "TableContent":
        """Read the content from the directory of a table."""
        info = json.loads((folder / INFO_FILE).read_text("utf-8"))
        hashes, numbers = (np.load(folder / name, mmap_mode="r") for name in (HASHES_FILE, NUMBERS_FILE))
        return cls(hashes=hashes, row_numbers=numbers, **info)

    def build_rows(self, dataset: "Dataset", file: str) -> Rows:
        """Return the rows of the table.

        Args:
            dataset: The values.
            file: Name of the file that the rows were read from.
        """
        stored = zip(_split_columns(dataset), self.json_columns.items(), self.hashes, strict=True)
        columns = {name: DatasetColumn(column, is_json, hashes) for column, (name, is_json), hashes in stored}
        line_numbered_files = frozenset([file] if self.is_line_numbered else [])
        file_index = np.zeros(len(self.row_numbers), np.int32)
        return Rows(columns, (file,), file_index, self.row_numbers, line_numbered_files, self.class_names)


def _split_columns(dataset: "Dataset") -> "Iterator[Dataset]":
    """Yield a dataset for each column; `Dataset.select_columns` copies the metadata of all columns."""
    from datasets import Dataset, DatasetInfo, Features
    from datasets.fingerprint import generate_random_fingerprint

    table = dataset.data.replace_schema_metadata(None)
    for name, feature in dataset.features.items():
        info = DatasetInfo(features=Features({name: feature}))
        yield Dataset(table.select([name]), info, fingerprint=generate_random_fingerprint())


def store_rows(iter_parts: Callable[[], Iterator[Rows]], file: str, key: str | None) -> Rows:
    """Store the rows of a file, and return them with columns that are read when they are needed.

    Args:
        iter_parts: Returns an iterator over the rows of the file, in parts. It may be called repeatedly.
        file: Name of the file, for errors.
        key: Digest of everything that the rows depend on; the table is cached on disk under this key. None
            keeps the table in memory.

    Raises:
        UserError: A part cannot be read, or the disk is full.
    """
    from datasets import Dataset

    if key is None:
        content, buffer = _write_table(iter_parts, None)
        return content.build_rows(Dataset.from_buffer(buffer), file)

    return _open_table(cache_or_write(CACHE_KIND, key, partial(_write_folder, iter_parts), "the rows"), file)


def store_temporarily(iter_parts: Callable[[], Iterator[Rows]], name: str) -> Rows:
    """Store rows of a stream in a temporary directory, which is deleted when the process ends.

    Args:
        iter_parts: See `store_rows`.
        name: Name of the stream, for errors.

    Raises:
        UserError: A part cannot be read, or the disk is full.
    """
    return _open_table(write_to_temporary(partial(_write_folder, iter_parts), "the rows"), name)


def _write_folder(iter_parts: Callable[[], Iterator[Rows]], folder: Path) -> None:
    content, _ = _write_table(iter_parts, folder / TABLE_FILE)
    content.save(folder)


def _open_table(folder: Path, file: str) -> Rows:
    from datasets import Dataset

    return TableContent.load(folder).build_rows(Dataset.from_file(str(folder / TABLE_FILE)), file)


def store_columns(
    sources: Sequence[Sequence[Any]], iter_parts: Callable[[], Iterator[dict[str, list[Any]]]], *settings: str
) -> dict[str, Sequence[Any]]:
    """Store columns that are computed from other columns, so that they are computed only once.

    The result is cached on disk if one of the sources is on disk. Otherwise it stays in memory: as lists if
    all sources are lists, else as an Arrow table.

    Args:
        sources: The columns that the result depends on.
        iter_parts: Returns an iterator over the computed columns, in one or more parts. It may be called
            repeatedly.
        settings: Everything else that the result depends on, beginning with the name of the computation.

    Raises:
        UserError: A part cannot be computed, or the disk is full.
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


# ---- writing


class _TypesChanged(Exception):
    """A part does not fit the column types, which have been changed; the table must be written again."""


def _write_table(iter_parts: Callable[[], Iterator[Rows]], path: Path | None) -> tuple[TableContent, Any]:
    """Write all parts to a file, or to memory if `path` is None.

    Returns:
        The content except for the values, and the buffer with the values in memory (None for a file).
    """
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


def _write_parts(parts: Iterator[Rows], sink: Any, types: ColumnTypes) -> TableContent:
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
    return TableContent(
        {name: kind == JSON_TYPE for name, kind in types.items()},
        np.array([np.concatenate(column_hashes) for column_hashes in hashes]),
        np.concatenate(row_numbers),
        bool(first.line_numbered_files),
        first.class_names,
    )


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
    return _find_stored_type(pa.array(values).type)  # such as a date of a Parquet file


def _find_stored_type(kind: "pa.DataType") -> Any:
    """Return an Arrow type, or `JSON_TYPE` if `datasets` cannot open a table with this type."""
    from datasets.features.features import generate_from_arrow_type

    try:
        generate_from_arrow_type(kind)
    except ValueError:
        return JSON_TYPE
    return kind


def _build_array(name: str, values: Sequence[Any], types: ColumnTypes) -> "pa.Array":
    """Return the values of a column as an Arrow array of the type in `types`.

    Raises:
        _TypesChanged: The values have another type; `types` now stores the column as JSON.
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
