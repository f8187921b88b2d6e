"""Arrow and Parquet files, directories that `datasets` has saved, and `datasets.Dataset` objects.

Columns of class ids become columns of class names, as the `datasets` library declares them in Arrow schemas.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from bertkit.data.hub import BLOCK_SIZE
from bertkit.data.labels import map_tag_ids
from bertkit.data.readers.text_files import (
    ARROW_MAGIC,
    ARROW_STREAM_MAGIC,
    CHUNK_BYTES,
    JSON_ERRORS,
    NO_ROWS,
    PARQUET_MAGIC,
    read_chunks,
)
from bertkit.data.table import ComputedColumn, DatasetColumn, ListColumn, Rows, iter_chunks
from bertkit.errors import UserError, format_list
from bertkit.settings.validation import DataObject
from bertkit.utils.reporting import report_position

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset


def read_class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names of each column, in the order of their ids.

    The `datasets` library writes them to the metadata of Parquet and Arrow files. Its own parser refuses the
    whole schema if one column has a feature that this version does not know, or other types than in the file.
    """
    try:
        features: Any = json.loads(metadata.get(b"huggingface", b"{}"))
    except JSON_ERRORS:  # metadata of another program
        return {}
    for key in ("info", "features"):
        features = features.get(key) if isinstance(features, dict) else None
    if not isinstance(features, dict):
        return {}
    class_names = {}
    for column, feature in features.items():
        if isinstance(feature, list):  # older versions of `datasets` wrote a list of one feature
            element = feature[0] if feature else None
        else:  # the feature of the elements if the feature is a list
            element = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(element, dict) and element.get("_type") == "ClassLabel":
            names = element.get("names")
            if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
                class_names[column] = names
    return class_names


def map_class_ids(
    place: object, first_row: int, column: str, class_ids: list[Any], names: Sequence[str]
) -> list[Any]:
    """Return the names of class ids. None and negative ids (on the Hub, -1 means "no label") become None.

    `place` (the file or object), the number of the first row and the column are for errors.
    """
    for row, class_id in enumerate(class_ids, start=first_row):
        if class_id is not None and class_id >= len(names):
            classes = f"there are names of {len(names)} classes ({format_list(names)})"
            raise UserError(
                f"{place}: row {row}: column {column!r} holds class {class_id}, and {classes}; "
                "correct the row or the names"
            )
    return [names[class_id] if class_id is not None and class_id >= 0 else None for class_id in class_ids]


# ---- Parquet

MAGIC_BYTES = 8
TEXT_BATCH_ROWS = 64  # rows read at a time by `iter_parquet_column`; the text of a row may be a whole book


def iter_parquet(path: Path, chunk_size: int) -> Iterator[Rows]:
    """Yield the rows of a Parquet file in chunks."""
    first_row = 1
    with _open_parquet(path) as file:
        for batch in file.iter_batches(chunk_size):
            yield convert_arrow_rows(path, batch, first_row)
            first_row += batch.num_rows
            report_position(path.stat().st_size * (first_row - 1) // file.metadata.num_rows)


def iter_parquet_column(path: Any, choose_column: Callable[[list[str]], str]) -> Iterator[tuple[int, Any]]:
    """Yield the row numbers and the values of one column, without reading the other columns.

    The file is on disk, on the Hub or at a URL. `choose_column` returns one of the column names.
    """
    number = 0
    with _open_parquet(path) as file:
        column = choose_column(file.schema_arrow.names)
        for batch in file.iter_batches(TEXT_BATCH_ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield number, value


@contextmanager
def _open_parquet(path: Any) -> Iterator[Any]:
    """Open a Parquet file, which may be compressed as a whole; convert errors of Arrow to a `UserError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with convert_arrow_errors(path, "Parquet"), ExitStack() as stack:
        source = path
        if not isinstance(path, Path):
            source = stack.enter_context(path.open(block_size=BLOCK_SIZE))
        elif not _read_magic(path).startswith(PARQUET_MAGIC):
            source = pa.BufferReader(b"".join(read_chunks(path)))
        # Pre-buffering would read all row groups of a column before the first row is returned.
        yield stack.enter_context(pq.ParquetFile(source, buffer_size=CHUNK_BYTES, pre_buffer=False))


def _read_magic(path: Path) -> bytes:
    """Return the first bytes of a file, which is not decompressed."""
    with path.open("rb") as file:
        return file.read(MAGIC_BYTES)


@contextmanager
def convert_arrow_errors(path: Any, file_format: str) -> Iterator[None]:
    """Convert the errors that Arrow raises for a damaged file to a `UserError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: broken {file_format} file ({reason}); write or download it again"
        ) from error


def convert_arrow_rows(path: Path, table: Any, first_row: int = 1) -> Rows:
    """Return the rows of an Arrow table or batch as Python values.

    If the metadata of the file contains class names, they replace the class ids.
    """
    require_distinct_names(path, table.schema.names)
    columns: dict[str, list[Any]] = {}
    for name in table.schema.names:
        try:
            columns[name] = table.column(name).to_pylist()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: column {name!r} is not UTF-8 ({error.reason}); write it as UTF-8"
            ) from error
    class_names = read_class_names(table.schema.metadata or {})
    rows = Rows.from_columns(columns, str(path), first_row)
    return replace(replace_class_ids(rows, str(path), class_names), class_names=class_names)


def require_distinct_names(place: object, names: list[str]) -> None:
    """Raise a `UserError` if two columns have the same name."""
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UserError(f"{place}: the header names {duplicates[0]!r} twice; rename one of the columns")


# ---- datasets

CHUNK_IDS = 1 << 16  # class ids that are read at a time


def rows_from_dataset(
    dataset: "Dataset", name: str, class_names: Mapping[str, list[str]] | None = None
) -> Rows:
    """Return the rows of a dataset, in which class names replace class ids.

    `class_names` by column are by default those that the dataset declares.
    """
    import pyarrow as pa

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
        elif pa.types.is_integer(dataset.data.schema.field(column).type):
            classes: list[str | None] = [*names, None]  # None for "no label"
            position = {class_name: code for code, class_name in enumerate(classes)}
            codes, first_row = [np.zeros(0, np.int32)], 1
            for chunk in iter_chunks(values, CHUNK_IDS):
                mapped = map_class_ids(name, first_row, column, chunk, names)
                codes.append(np.array([position[class_name] for class_name in mapped], np.int32))
                first_row += len(chunk)
            columns[column] = ListColumn(classes).select(np.concatenate(codes))
        else:
            columns[column] = ComputedColumn(partial(map_tag_ids, names=names), [values], batched=True)
    return replace(Rows.from_columns(columns, name), class_names=class_names)


def get_metadata(features: Any) -> dict[bytes, bytes]:
    """Return the metadata that `datasets` writes to files with these features."""
    return (features.arrow_schema.metadata or {}) if features else {}


def replace_class_ids(rows: Rows, name: str, class_names: Mapping[str, list[str]]) -> Rows:
    """Replace the class ids in a chunk of rows of the dataset `name` by class names."""
    for column in class_names.keys() & rows.columns.keys():
        values, names = list(rows[column]), class_names[column]
        if all(value is None or isinstance(value, int) for value in values):
            values = map_class_ids(name, int(rows.row_numbers[0]), column, values, names)
        else:
            values = map_tag_ids(values, names)
        rows = rows.with_column(column, values)
    return rows


SAVED_PATTERNS = ("dataset_dict.json", "state.json", "data-*-of-*.arrow", "*/state.json")
# What damaged JSON files of a saved dataset raise: missing keys, and values of other types.
DAMAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


# ---- Arrow files


def map_arrow(path: Path) -> Rows | None:
    """Return the rows of a memory-mapped Arrow or Feather file.

    The result is None for other files, and if the file or its buffers are compressed.
    """
    if not _read_magic(path).startswith(ARROW_MAGIC):
        return None
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    with convert_arrow_errors(path, "Arrow"):
        source = pa.memory_map(str(path))
        batches: list[pa.RecordBatch] = []
        for batch in _iter_batches(source):
            if not batches and not _is_mapped(batch, source):
                return None
            batch.validate(full=True)  # offsets out of bounds would otherwise crash the process
            batches.append(batch)
        if not sum(batch.num_rows for batch in batches):
            raise UserError(f"{path}: {NO_ROWS}")
        table = pa.Table.from_batches(batches)
    require_distinct_names(path, table.column_names)
    class_names = read_class_names(table.schema.metadata or {})
    try:
        dataset = Dataset(InMemoryTable(table.replace_schema_metadata()), fingerprint=uuid4().hex)
    except (ValueError, NotImplementedError):  # a type that `datasets` does not support
        return None
    return rows_from_dataset(dataset, str(path), class_names)


def iter_arrow(path: Path, chunk_size: int) -> Iterator[Rows]:
    """Yield the rows of an Arrow or Feather file in chunks."""
    import pyarrow as pa

    first_row = 1
    with convert_arrow_errors(path, "Arrow"):
        is_plain = _read_magic(path).startswith(ARROW_MAGIC)
        source = pa.memory_map(str(path)) if is_plain else pa.BufferReader(b"".join(read_chunks(path)))
        for batch in _iter_batches(source):
            batch.validate(full=True)
            for start in range(0, batch.num_rows, chunk_size):
                chunk = batch.slice(start, chunk_size)
                yield convert_arrow_rows(path, chunk, first_row)
                first_row += chunk.num_rows


def _iter_batches(source: Any) -> "Iterator[pa.RecordBatch]":
    """Yield the record batches of a file in either of Arrow's two formats."""
    import pyarrow as pa

    is_stream = source.read(MAGIC_BYTES).startswith(ARROW_STREAM_MAGIC)
    source.seek(0)
    if is_stream:
        yield from pa.ipc.open_stream(source)
        return
    reader = pa.ipc.open_file(source)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _is_mapped(batch: "pa.RecordBatch", source: Any) -> bool:
    """Return whether all buffers of a batch are in the mapped file; decompressed buffers are elsewhere."""
    position = source.tell()
    source.seek(0)
    whole = source.read_buffer()
    source.seek(position)
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
    return all(whole.address <= buffer.address <= whole.address + whole.size for buffer in buffers)


# ---- directories


def is_saved_dataset(folder: Path) -> bool:
    """Return whether a directory was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`.

    A directory in which a file is missing is included, so that it is not read as a directory of Arrow files.
    """
    return any(any(folder.glob(pattern)) for pattern in SAVED_PATTERNS)


def open_saved_dataset(folder: Path) -> DataObject:
    """Open a directory as a `Dataset` or `DatasetDict`."""
    import pyarrow as pa
    from datasets import Dataset, DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(folder))
        parts = dataset.values() if isinstance(dataset, DatasetDict) else [dataset]
        for part in parts:
            _validate(part)
    except (pa.ArrowException, *DAMAGE_ERRORS) as error:
        is_key = isinstance(error, KeyError)
        reason = f"the key {error} is missing" if is_key else " ".join(str(error).split())
        raise UserError(f"{folder}: broken saved dataset ({reason}); save or download it again") from error
    return DataObject("Dataset" if isinstance(dataset, Dataset) else "DatasetDict", dataset)


def _validate(dataset: "Dataset") -> None:
    """Check the values in the files of a dataset: offsets out of bounds would crash the process."""
    import pyarrow.compute as pc

    tables = [dataset.data, dataset._indices] if dataset._indices is not None else [dataset.data]
    for table in tables:
        for batch in table.table.to_batches():
            batch.validate(full=True)
    if dataset._indices is None or not len(dataset):
        return
    bounds = pc.min_max(dataset._indices.column(0)).as_py()
    if bounds["min"] is None or bounds["min"] < 0 or bounds["max"] >= dataset.data.num_rows:
        raise ValueError("row indices out of bounds")
