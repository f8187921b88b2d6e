"""Collect prediction records as a `datasets.Dataset` in Arrow files, with one chunk in memory at a time."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.utils.cache import write_to_temporary

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

TABLE_FILE = "predictions.arrow"


def build_dataset(chunks: Iterable[list[dict[str, Any]]]) -> "Dataset":
    """Return the records of all chunks as a memory-mapped dataset.

    The types of the columns are known only after the last chunk. Each chunk is therefore written to a file of
    its own first. All files are deleted when the process ends.

    Raises:
        UserError: There are no records, the disk is full, or a column has values of different types.
    """
    from datasets import Dataset

    folder = write_to_temporary(lambda folder: _write_chunks(chunks, folder), "the predictions")
    return Dataset.from_file(str(folder / TABLE_FILE))


def _write_chunks(chunks: Iterable[list[dict[str, Any]]], folder: Path) -> None:
    """Write all records to `TABLE_FILE` in a directory."""
    import pyarrow as pa

    schemas: list[pa.Schema] = []
    try:
        for number, records in enumerate(chunk for chunk in chunks if chunk):
            table = _make_table(records)
            schemas.append(table.schema)
            _write_table(folder / f"{number}.arrow", table)
        if not schemas:
            raise UserError("predictions: there are no rows; pass data with rows")
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"predictions: a column has values of different types ({reason}); iterate over the records"
        ) from error
    _join_tables([folder / f"{number}.arrow" for number in range(len(schemas))], folder / TABLE_FILE, schema)


def _join_tables(parts: Iterable[Path], path: Path, schema: "pa.Schema") -> None:
    """Write the rows of several files to one file with this schema, and delete the parts."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            with pa.memory_map(str(part)) as source:
                writer.write_table(_fill_schema(pa.ipc.open_stream(source).read_all(), schema))
            part.unlink()


def _make_table(records: list[dict[str, Any]]) -> "pa.Table":
    """Return records as a table; a key that a record lacks is null."""
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        try:
            columns[name] = pa.array([record.get(name) for record in records])
        except (pa.ArrowException, OverflowError) as error:  # the latter for integers of more than 64 bits
            raise UserError(
                f"predictions: column {name!r} cannot be stored in one Arrow column "
                f"({str(error).splitlines()[0]}); leave out the column, or iterate over the records"
            ) from error
    return pa.table(columns)


def _write_table(path: Path, table: "pa.Table") -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _fill_schema(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """Return a table with the columns and the types of a schema; columns that it lacks are null."""
    import pyarrow as pa

    return pa.concat_tables([schema.empty_table(), table], promote_options="permissive").select(schema.names)
