"""The rows of a file some at a time, so that memory does not grow with the file."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.readers.contents import CONVERT_HINT, ZIP_MAGIC, require_file
from bertkit.data.readers.files import (
    JSON_OBJECT_START,
    PARQUET_MAGIC,
    Dialect,
    convert_arrow_columns,
    parse_delimited,
    read_file,
)
from bertkit.data.readers.json import JSON_ERRORS, describe_json_error
from bertkit.data.readers.text_files import CHUNK_BYTES, Decoding, read_chunks, read_text, split_lines
from bertkit.data.rows import Rows
from bertkit.errors import UserError

CHUNK_ROWS = 2048
UTF8_DECODING = Decoding(hint=CONVERT_HINT)


def stream_rows(
    path: Path,
    dialect: Dialect | None = None,
    chunk_size: int = CHUNK_ROWS,
    stream_above_bytes: int = CHUNK_BYTES,
) -> Iterator[Rows]:
    """The rows of `read_file`, `size` at a time.

    Parquet, JSON lines and delimited text of more than `small` bytes are never held whole; what has no rows
    of its own until it is read to its end is: one JSON document, a column file, a zip archive.

    Raises:
        UserError: as `read_file`, where reading has come to it.
    """
    require_file(path)
    head = next(read_chunks(path), b"") if path.stat().st_size > stream_above_bytes else b""
    if head.startswith(PARQUET_MAGIC):
        return _some(path, _parquet(path, chunk_size))
    records = _records(path, dialect) if head and not head.startswith(ZIP_MAGIC) else None
    if records is None:
        return chunk_rows(read_file(path, dialect), chunk_size)
    return _some(path, chunk_records(records, str(path), chunk_size))


def _some(path: Path, parts: Iterator[Rows]) -> Iterator[Rows]:
    """The parts. Raises `UserError` where there is none, as `read_file` does."""
    if (first := next(parts, None)) is None:
        raise UserError(f"{path}: the file has no rows")
    return chain([first], parts)


def chunk_rows(rows: Rows, chunk_size: int = CHUNK_ROWS) -> Iterator[Rows]:
    """Rows that are all there, `size` at a time."""
    return (rows.select(range(at, min(at + chunk_size, len(rows)))) for at in range(0, len(rows), chunk_size))


def chunk_records(
    records: Iterable[dict[str, Any]], file: str, chunk_size: int = CHUNK_ROWS
) -> Iterator[Rows]:
    """Rows that come one by one, `size` at a time; the columns of the first ones are there in all."""
    records, first, names = iter(records), 1, list[str]()
    while some := list(islice(records, chunk_size)):
        rows = Rows.from_dicts(some, file, first, names)
        names = names or list(rows.columns)
        yield rows
        first += len(some)


def parse_json_lines(path: str, some: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The object of each line that is not blank."""
    for number, line in enumerate(some, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except JSON_ERRORS as error:
            raise UserError(f"{path}: row {number}: {describe_json_error(error)}") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}: row {number}: not a JSON object with named columns")
        yield record


def _records(path: Path, dialect: Dialect | None) -> Iterator[dict[str, Any]] | None:
    """The rows of JSON lines and of delimited text; None of other files."""
    sample = next(read_text(path, UTF8_DECODING))
    if JSON_OBJECT_START.match(sample):
        return (
            parse_json_lines(str(path), split_lines(read_text(path, UTF8_DECODING), max_chars=None))
            if _is_lines(sample)
            else None
        )
    if (dialect and dialect.conll) or sample.lstrip()[:1] in ("{", "["):
        return None
    return _delimited(path, sample, dialect or Dialect())


def _is_lines(sample: str) -> bool:
    """Whether at least two lines are an object each."""
    some = [line for line in sample.split("\n")[:-1] if line.strip()][:2]
    try:
        return len(some) == 2 and all(isinstance(json.loads(line), dict) for line in some)
    except JSON_ERRORS:
        return False


def _delimited(path: Path, sample: str, dialect: Dialect) -> Iterator[dict[str, Any]]:
    whole = sample.rpartition("\n")[0] or sample
    rows = parse_delimited(path, split_lines(read_text(path, UTF8_DECODING), max_chars=None), whole, dialect)
    names = next(rows)
    return (dict(zip(names, row, strict=True)) for row in rows)


def _parquet(path: Path, size: int) -> Iterator[Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 1
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(size):
                yield Rows.from_columns(convert_arrow_columns(path, batch, first), str(path), first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: a broken Parquet file ({str(error).splitlines()[0]})") from error
