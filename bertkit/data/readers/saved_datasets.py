"""Read Arrow and Feather files, and directories that `save_to_disk` of the `datasets` library has written.

Files without compression are memory-mapped. Their values are not copied.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bertkit.data.readers.class_names import read_class_names
from bertkit.data.readers.contents import ARROW_MAGIC, ARROW_STREAM_MAGIC, NO_ROWS, read_chunks
from bertkit.data.readers.dataset_rows import rows_from_dataset
from bertkit.data.readers.parquet import convert_arrow_errors, convert_arrow_rows, require_distinct_names
from bertkit.data.rows import Rows
from bertkit.data_objects import DataObject
from bertkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

MAGIC_BYTES = 8
SAVED_PATTERNS = ("dataset_dict.json", "state.json", "data-*-of-*.arrow", "*/state.json")
# What damaged JSON files of a saved dataset raise: missing keys, and values of other types.
DAMAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


# ---- files


def is_arrow(path: Path) -> bool:
    """Return whether a file, which may be compressed as a whole, is an Arrow or a Feather file."""
    return next(read_chunks(path), b"").startswith(ARROW_MAGIC)


def map_arrow(path: Path) -> Rows | None:
    """Return the rows of a memory-mapped file; None if the file or its buffers are compressed.

    Raises:
        UserError: The file is damaged, or has no rows.
    """
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    with path.open("rb") as file:
        if not file.read(MAGIC_BYTES).startswith(ARROW_MAGIC):
            return None
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
    """Yield the rows of an Arrow or Feather file in chunks.

    Raises:
        UserError: The file is damaged.
    """
    import pyarrow as pa

    first_row = 1
    with convert_arrow_errors(path, "Arrow"):
        with path.open("rb") as file:
            is_plain = file.read(MAGIC_BYTES).startswith(ARROW_MAGIC)
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
    """Open a directory as a `Dataset` or `DatasetDict`.

    Raises:
        UserError: A file is missing or damaged.
    """
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
    """Check the values in the files of a dataset: offsets out of bounds would crash the process.

    Raises:
        ArrowException: A value is invalid.
        ValueError: A row index is out of bounds.
    """
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
