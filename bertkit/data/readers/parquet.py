"""Read Parquet files, and convert Arrow tables to columns of Python values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit.data.labels import map_tag_ids
from bertkit.data.readers.class_names import map_class_ids, read_class_names
from bertkit.data.readers.contents import CHUNK_BYTES, NO_ROWS, PARQUET_MAGIC, read_chunks
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.hub.files import BLOCK_SIZE
from bertkit.utils.reporting import report_position

TEXT_BATCH_ROWS = 64  # rows read at a time by `iter_parquet_column`; the text of a row may be a whole book


def read_parquet(path: Path) -> Rows:
    """Return all rows of a Parquet file.

    Raises:
        UserError: The file is damaged, or has no rows.
    """
    with _open_parquet(path) as file:
        table = file.read()
    if table.num_rows == 0:
        raise UserError(f"{path}: {NO_ROWS}")
    return convert_arrow_rows(path, table)


def iter_parquet(path: Path, chunk_size: int) -> Iterator[Rows]:
    """Yield the rows of a Parquet file in chunks.

    Raises:
        UserError: The file is damaged.
    """
    first_row = 1
    with _open_parquet(path) as file:
        for batch in file.iter_batches(chunk_size):
            yield convert_arrow_rows(path, batch, first_row)
            first_row += batch.num_rows
            report_position(path.stat().st_size * (first_row - 1) // file.metadata.num_rows)


def iter_parquet_column(path: Any, choose_column: Callable[[list[str]], str]) -> Iterator[tuple[int, Any]]:
    """Yield the row numbers and the values of one column, without reading the other columns.

    Args:
        path: A file on disk, on the Hub or at a URL.
        choose_column: Returns one of the column names.

    Raises:
        UserError: The file is damaged.
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
    import pyarrow.parquet as pq

    # Pre-buffering would read all row groups of a column before the first row is returned.
    with (
        convert_arrow_errors(path, "Parquet"),
        _open_source(path) as source,
        pq.ParquetFile(source, buffer_size=CHUNK_BYTES, pre_buffer=False) as file,
    ):
        yield file


@contextmanager
def convert_arrow_errors(path: Any, file_format: str) -> Iterator[None]:
    """Convert the errors that Arrow raises for a damaged file to a `UserError`.

    Args:
        path: The file.
        file_format: Name of the format, for the message.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: broken {file_format} file ({reason}); write or download it again"
        ) from error


@contextmanager
def _open_source(path: Any) -> Iterator[Any]:
    if not isinstance(path, Path):
        with path.open(block_size=BLOCK_SIZE) as file:
            yield file
        return
    with path.open("rb") as file:
        is_uncompressed = file.read(4) == PARQUET_MAGIC
    if is_uncompressed:
        yield path
        return
    import pyarrow as pa

    yield pa.BufferReader(b"".join(read_chunks(path)))


def convert_arrow_rows(path: Path, table: Any, first_row: int = 1) -> Rows:
    """Return the rows of an Arrow table or batch as Python values.

    If the metadata of the file contains class names, they replace the class ids.

    Args:
        path: The file, for errors.
        table: Arrow table or record batch.
        first_row: Number of the first row, for errors.

    Raises:
        UserError: Two columns have the same name, a text is not UTF-8, or a class id has no name.
    """
    import pyarrow as pa

    require_distinct_names(path, table.schema.names)
    columns = {name: _convert_column(path, name, table.column(name)) for name in table.schema.names}
    class_names = read_class_names(table.schema.metadata or {})
    for column in class_names.keys() & columns.keys():
        if pa.types.is_integer(table.schema.field(column).type):
            columns[column] = map_class_ids(path, first_row, column, columns[column], class_names[column])
        else:
            columns[column] = map_tag_ids(columns[column], class_names[column])
    return Rows.from_columns(columns, str(path), first_row).with_class_names(class_names)


def require_distinct_names(place: object, names: list[str]) -> None:
    """Raise a `UserError` if two columns have the same name."""
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UserError(f"{place}: the header names {duplicates[0]!r} twice; rename one of the columns")


def _convert_column(path: Path, name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: column {name!r} is not UTF-8 ({error.reason}); write it as UTF-8"
        ) from error
