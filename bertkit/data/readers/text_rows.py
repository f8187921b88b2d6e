"""Texts in a column: the rows of JSONL, CSV, TSV and Parquet files one by one, never all at once."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from bertkit.data.columns import guess_column, require_column
from bertkit.data.readers.files import JSON_OBJECT_START, PARQUET_MAGIC, uses_quoting
from bertkit.data.readers.json import JSON_ERRORS, describe_json_error
from bertkit.data.readers.text_files import (
    CHUNK_BYTES,
    Decoding,
    FileNotes,
    TextFile,
    read_chunks,
    read_text,
    split_lines,
)
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count
from bertkit.hub.files import BLOCK_SIZE
from bertkit.utils.text import replace_surrogates

RowFormat = Literal["parquet", "json lines", "delimited"]
DOCUMENT_COLUMNS = [
    "text", "content", "document", "body", "article", "review", "passage", "paragraph", "story", "abstract",
    "sentence", "comment",
]  # fmt: skip
COLUMN_NAME = re.compile(r"[\w .:/-]{1,40}")
SNIFFED_ROWS = 20
PARQUET_BATCH_ROWS = 64  # of Parquet at a time: a row may be a book
NumberedValues = Iterator[tuple[int, Any]]  # the number of a row and its value in the column


def detect_row_format(path: TextFile, column: str | None, decoding: Decoding) -> RowFormat | None:
    """What rows a file holds, seen from its beginning; None: it is running text.

    Raises:
        UserError: one JSON document, or running text where a column is named.
    """
    if next(read_chunks(path), b"").startswith(PARQUET_MAGIC):
        return "parquet"
    sample = next(read_text(path, decoding))
    if JSON_OBJECT_START.match(sample):
        if sample.lstrip()[0] == "[":
            raise UserError(f"{path}: a list of objects, which cannot be read row by row; give one a line")
        return "json lines"
    if detect_delimiter(sample, column):
        return "delimited"
    if column:
        raise UserError(f"{path}: running text, with no column {column!r} (--text-column)")
    return None


def read_text_column(
    path: TextFile,
    row_format: RowFormat,
    column: str | None,
    decoding: Decoding,
    notes: FileNotes | None = None,
) -> Iterator[str]:
    """The text of each row; "" of one that has none. Of these and of blank ones the notes are told.

    Raises:
        UserError: a row that cannot be parsed or whose text is none, no such column, none that looks like it.
    """
    missing = 0
    for number, value in _records(path, row_format, column, decoding, notes):
        if value is not None and not isinstance(value, str):
            raise UserError(f"{path}: row {number}: the text is {str(value)[:40]!r}, not a text")
        missing += not (value or "").strip()
        yield replace_surrogates(value or "")
    if notes and missing:
        rows = format_count(missing, "row without a text was", "rows without a text were")
        notes.add(path, f"{rows} left out")


def _records(
    path: TextFile, kind: RowFormat, column: str | None, decoding: Decoding, notes: FileNotes | None
) -> NumberedValues:
    if kind == "parquet":
        return _parquet(path, column)
    if kind == "json lines":
        return _json_lines(path, column, split_lines(read_text(path, decoding, notes), max_chars=None))
    sample = next(read_text(path, decoding))
    return _delimited(path, column, sample, split_lines(read_text(path, decoding, notes), max_chars=None))


def _chosen(path: TextFile, names: list[str], column: str | None) -> str:
    """The column of the texts: the one named, the only one, or the first of the usual names."""
    rows = Rows.from_columns({name: [] for name in names}, str(path))
    if column:
        require_column(rows, column, "--text-column")
    return column or (names[0] if len(names) == 1 else guess_column(rows, DOCUMENT_COLUMNS, "text"))


def _parquet(path: TextFile, column: str | None) -> NumberedValues:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        source = path if isinstance(path, Path) else path.open(block_size=BLOCK_SIZE)
        # Left alone it reads the column of all row groups before it gives the first row.
        with pq.ParquetFile(source, buffer_size=CHUNK_BYTES, pre_buffer=False) as file:
            name = _chosen(path, file.schema_arrow.names, column)
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=[name]):
                for number, value in enumerate(batch.column(0).to_pylist(), start=number + 1):  # noqa: B020
                    yield number, value
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: a broken Parquet file ({str(error).splitlines()[0]})") from error


def _json_lines(path: TextFile, column: str | None, rows: Iterable[str]) -> NumberedValues:
    name = None
    full = ((number, line) for number, line in enumerate(rows, start=1) if line.strip())
    for number, line in full:
        try:
            record = json.loads(line)
        except JSON_ERRORS as error:
            raise UserError(f"{path}: row {number}: {describe_json_error(error)}") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}: row {number}: not a JSON object with named columns")
        name = name or _chosen(path, list(record), column)
        yield number, record.get(name)


# ---- delimited


def detect_delimiter(sample: str, column: str | None = None) -> str | None:
    """The mark between the columns of a text that has a header and rows like it; None: it is running text.

    A single column is called exactly as wanted or usual; several, of which none is, take more rows to be
    believed.
    """
    for mark in "\t,;":
        names, *rows = _first_rows(sample, mark) or [[]]
        usual = [
            name for name in names if name == column or (not column and name.lower() in DOCUMENT_COLUMNS)
        ]
        if len(names) == 1 and mark == "," and usual and names[0] in (column, *DOCUMENT_COLUMNS):
            return mark
        fit = sum(len(row) == len(names) for row in rows)
        sure = bool(usual) and all(map(str.isidentifier, names))  # then an unlike row is a broken one
        alike = len(names) > 1 and (2 * fit > len(rows) if sure else fit == len(rows))
        if alike and len(rows) > (0 if usual else 4) and all(map(COLUMN_NAME.fullmatch, names)):
            return mark
    return None


def _first_rows(sample: str, mark: str) -> list[list[str]]:
    """The header and some rows; none where they cannot be parsed."""
    csv.field_size_limit(sys.maxsize)
    whole = sample.rpartition("\n")[0] if len(sample) > 100_000 else sample  # the last may be cut off
    lines = (line + "\n" for line in whole.lstrip("\r\n").split("\n"))
    reader = csv.reader(lines, delimiter=mark, quoting=_quoting(sample, mark), strict=True)
    try:
        return list(islice(filter(None, reader), SNIFFED_ROWS))
    except csv.Error:
        return []


def _quoting(sample: str, mark: str) -> Literal[0, 3]:
    quoted = mark != "\t" or uses_quoting(sample.rpartition("\n")[0] or sample)
    return csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE


def _delimited(path: TextFile, column: str | None, sample: str, rows: Iterable[str]) -> NumberedValues:
    mark = detect_delimiter(sample, column) or ","
    reader = csv.reader(
        (line + "\n" for line in rows), delimiter=mark, quoting=_quoting(sample, mark), strict=True
    )
    records = filter(None, reader)
    names = [name.strip() for name in next(records)]
    at, number = names.index(_chosen(path, names, column)), 0
    try:
        for number, row in enumerate(records, start=1):
            if len(row) != len(names):
                there = f"{format_count(len(row), 'field')} where the header has {len(names)}"
                raise UserError(f"{path}: row {number}: {there} ({', '.join(names)})")
            yield number, row[at]
    except csv.Error as error:
        raise UserError(f"{path}: row {number + 1}: broken CSV ({error})") from error
