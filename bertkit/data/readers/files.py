"""Read files of rows: Parquet, Arrow, JSON, CSV, TSV, CoNLL or plain text, all of them also compressed.

The format is detected from the content of a file, not from its name. Reading has three stages: `contents`
yields bytes, `text_files` yields text, and one parser per format yields rows. If a file cannot be read, the
`UserError` names the file and, if possible, the row.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertkit.data.columns import DOCUMENT_COLUMNS, guess_column, require_column
from bertkit.data.readers.conll import iter_conll, parse_conll, split_at_blank_lines
from bertkit.data.readers.delimited import (
    JSON_OBJECT_START,
    detect_delimiter,
    drop_partial_line,
    parse_delimited,
    parse_json_document,
    parse_json_lines,
    starts_with_json_lines,
)
from bertkit.data.readers.delimited import Dialect as Dialect
from bertkit.data.readers.parquet import (
    is_arrow,
    iter_arrow,
    iter_parquet,
    iter_parquet_column,
    map_arrow,
    read_parquet,
    require_distinct_names,
)
from bertkit.data.readers.text_files import (
    CHUNK_BYTES,
    EMPTY_FILE,
    NO_ROWS,
    PARQUET_MAGIC,
    UTF8_DECODING,
    Decoding,
    FileNotes,
    InputFile,
    RowTable,
    StandardInput,
    digest_path,
    hash_json,
    is_decodable,
    read_chunks,
    read_sample,
    read_text,
    require_file,
    split_lines,
)
from bertkit.data.table import CHUNK_ROWS, STORE_VERSION, Rows, chunk_records, store_rows
from bertkit.errors import UserError, format_count, shorten_repr
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, track_reading
from bertkit.utils.text import replace_surrogates

DataFormat = Literal["json", "conll", "delimited"]  # of a labeled data file that is not Parquet
RowFormat = Literal["table", "parquet", "json lines", "delimited"]  # of a corpus file of rows
IN_MEMORY_BYTES = 16 << 20  # the rows of smaller files are not stored on disk
TEXT_FILE_NAME = re.compile(r".*\.txt(\.gz|\.zst)?", re.IGNORECASE)
STANDARD_INPUT = "standard input"


# ---- data files


def read_file(path: Path, dialect: Dialect | None = None) -> Rows:
    """Return all rows of one file.

    The values of a large file are stored on disk, and read when they are needed.

    Args:
        path: The file.
        dialect: How to read a text file whose content does not show it.

    Raises:
        UserError: The file does not exist, is empty or not text, or contains a row that cannot be parsed.
    """
    require_file(path)
    if is_arrow(path) and (rows := map_arrow(path)) is not None:
        return rows
    return store_file(path, partial(stream_rows, path, dialect), repr(dialect))


def store_file(path: Path, iter_parts: Callable[[], Iterator[Rows]], *settings: str | None) -> Rows:
    """Return the rows of a file, stored in memory if the file is small, else in the cache.

    Args:
        path: The file.
        iter_parts: Returns an iterator over the rows of the file, in parts.
        settings: Everything except the content of the file that the rows depend on.
    """
    size = path.stat().st_size
    if size <= IN_MEMORY_BYTES:
        return store_rows(iter_parts, str(path), key=None)
    key = hash_json([STORE_VERSION, *settings, digest_path(path)])
    with track_reading(size, f"reading {path.name}"):
        return store_rows(iter_parts, str(path), key)


def _parse_file(path: Path, dialect: Dialect | None) -> Rows:
    """Return all rows of one file in memory."""
    if _is_parquet(path):
        return read_parquet(path)
    text = "".join(read_text(path, _resolve_decoding(path, dialect)))
    data_format = _detect_data_format(text, dialect)
    if data_format == "conll":
        return parse_conll(path, text)
    if not text.strip():
        raise UserError(f"{path}: {EMPTY_FILE}")
    if data_format == "json":
        is_conll = dialect is not None and dialect.conll
        document = parse_json_document(path, text, is_conll)
        if isinstance(document, dict):
            return Rows.from_columns(document, str(path))
        return Rows.from_dicts(document, str(path))
    return _read_delimited(path, text, dialect or Dialect())


def stream_rows(
    path: Path,
    dialect: Dialect | None = None,
    chunk_size: int = CHUNK_ROWS,
    stream_above_bytes: int = CHUNK_BYTES,
) -> Iterator[Rows]:
    """Yield the rows of one file in chunks.

    Parquet, JSON lines, delimited text and CoNLL files are streamed, so memory does not grow with the file.
    Other formats and small files are read as a whole.

    Args:
        path: The file.
        dialect: How to read a text file whose content does not show it.
        chunk_size: Maximum number of rows in a chunk.
        stream_above_bytes: Size up to which a file is read as a whole.

    Raises:
        UserError: As in `read_file`. A broken row raises the error only when the iterator reaches it.
    """
    require_file(path)
    if is_arrow(path):
        return _require_rows(path, iter_arrow(path, chunk_size))
    if path.stat().st_size <= stream_above_bytes:
        return _parse_file(path, dialect).iter_chunks(chunk_size)
    if _is_parquet(path):
        return _require_rows(path, iter_parquet(path, chunk_size))
    if dialect is not None and dialect.conll and _is_conll(path, dialect):
        decoding = _resolve_decoding(path, dialect)
        sentences = iter_conll(path, lambda: split_at_blank_lines(read_text(path, decoding)))
        return (chunk for part in sentences for chunk in part.iter_chunks(chunk_size))
    records = _stream_records(path, dialect)
    if records is None:
        return _parse_file(path, dialect).iter_chunks(chunk_size)
    return _require_rows(path, chunk_records(records, str(path), chunk_size))


def _is_conll(path: Path, dialect: Dialect) -> bool:
    return _detect_data_format(read_sample(path, _resolve_decoding(path, dialect)), dialect) == "conll"


def _stream_records(path: Path, dialect: Dialect | None) -> Iterator[dict[str, Any]] | None:
    """Return an iterator over the rows of JSON lines or delimited text; None for other formats."""
    decoding = _resolve_decoding(path, dialect)
    sample = read_sample(path, decoding)
    if not sample.strip():
        return None
    lines = split_lines(read_text(path, decoding), max_chars=None)
    data_format = _detect_data_format(sample, dialect)
    is_list = sample.lstrip().startswith("[")
    if data_format == "json" and not is_list and starts_with_json_lines(sample):
        return (record for _, record in parse_json_lines(path, lines))
    if data_format != "delimited":
        return None
    rows = parse_delimited(path, lines, drop_partial_line(sample), dialect or Dialect())
    columns = next(rows)
    require_distinct_names(path, columns)
    return (dict(zip(columns, row, strict=True)) for row in rows)


def _require_rows(path: Path, chunks: Iterator[Rows]) -> Iterator[Rows]:
    """Return an iterator over the same chunks; raise a `UserError` if there are none."""
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{path}: {NO_ROWS}")
    return chain([first], chunks)


def _is_parquet(file: InputFile) -> bool:
    return next(read_chunks(file), b"").startswith(PARQUET_MAGIC)


def _detect_data_format(sample: str, dialect: Dialect | None) -> DataFormat:
    """Return the format of a data file, given its beginning.

    A dialect that determines the format describes delimited text or CoNLL files. JSON is accepted in place of
    CoNLL files.
    """
    if dialect is None or not dialect.determines_format:
        return "json" if sample.lstrip()[:1] in ("{", "[") else "delimited"
    if dialect.conll:
        return "json" if JSON_OBJECT_START.match(sample) else "conll"
    return "delimited"


def _resolve_decoding(path: Path, dialect: Dialect | None) -> Decoding:
    """Return the encoding passed by the user, or else the dialect's fallback if the file is not UTF-8."""
    if dialect is None:
        return UTF8_DECODING
    if dialect.encoding or not dialect.fallback_encoding or is_decodable(path, UTF8_DECODING):
        return Decoding(dialect.encoding)
    return Decoding(dialect.fallback_encoding)


def _read_delimited(path: Path, text: str, dialect: Dialect) -> Rows:
    columns, *rows = parse_delimited(path, text.split("\n"), text, dialect)
    if not rows:
        hint = " (it begins with neither { nor [, as JSON does)" if ".json" in path.name else ""
        raise UserError(f"{path}: the file has a header and no rows{hint}; pass a file with rows")
    require_distinct_names(path, columns)
    values = zip(*rows, strict=True)
    return Rows.from_columns(
        {column: list(cells) for column, cells in zip(columns, values, strict=True)}, str(path)
    )


# ---- corpus files with rows


def detect_row_format(file: InputFile, column: str | None, decoding: Decoding) -> RowFormat | None:
    """Return the format of the rows in a corpus file; None if the file holds running text.

    Args:
        file: The file, of which only the beginning is read.
        column: Name of the text column; None if the user passed none.
        decoding: How bytes become text.

    Raises:
        UserError: The file is a list of JSON objects, or it holds running text and `column` is not None.
    """
    if isinstance(file, RowTable):
        return "table"
    if _is_parquet(file):
        return "parquet"
    sample = next(read_text(file, decoding))
    if JSON_OBJECT_START.match(sample):
        if sample.lstrip().startswith("["):
            raise UserError(
                f"{file}: a list of objects, which cannot be read row by row; write one object per line"
            )
        return "json lines"
    if detect_delimiter(sample, column, DOCUMENT_COLUMNS):
        return "delimited"
    if column:
        fix = "remove the flag, or pass a table"
        raise UserError(f"{file}: running text, with no column {column!r} (--text-column); {fix}")
    return None


def read_text_column(
    file: InputFile,
    row_format: RowFormat,
    column: str | None,
    decoding: Decoding,
    notes: FileNotes | None = None,
) -> Iterator[str]:
    """Yield the text of each row; an empty string for a row without text.

    Args:
        file: The file.
        row_format: Format of the file.
        column: Name of the text column; None for the only column, or the first one with a usual name.
        decoding: How bytes become text.
        notes: Receives a note on the number of rows without text.

    Raises:
        UserError: A row cannot be parsed, a value is not a string, or the column does not exist.
    """
    num_empty = 0
    for number, value in _iter_cells(file, row_format, column, decoding, notes):
        if value is not None and not isinstance(value, str):
            raise UserError(
                f"{file}: row {number}: the text column holds {shorten_repr(value)}, not a text; "
                "write the text as a string, or remove the row"
            )
        text = value or ""
        num_empty += not text.strip()
        yield replace_surrogates(text)
    if notes and num_empty:
        notes.add(file, f"{format_count(num_empty, 'row')} left out: no text")


def _iter_cells(
    file: InputFile,
    row_format: RowFormat,
    column: str | None,
    decoding: Decoding,
    notes: FileNotes | None,
) -> Iterator[tuple[int, Any]]:
    """Return an iterator over the row numbers and the values of the text column."""
    choose_column = partial(_choose_column, file, column)
    if isinstance(file, RowTable):
        return enumerate(file.rows[choose_column(list(file.rows.columns))], start=1)
    if row_format == "parquet":
        return iter_parquet_column(file, choose_column)
    lines = split_lines(read_text(file, decoding, notes), max_chars=None)
    if row_format == "json lines":
        return _iter_json_cells(file, lines, choose_column)
    sample = next(read_text(file, decoding))
    delimiter = detect_delimiter(sample, column, DOCUMENT_COLUMNS) or ","
    rows = parse_delimited(file, lines, drop_partial_line(sample), Dialect(), delimiter)
    columns = next(rows)
    index = columns.index(choose_column(columns))
    return ((number, row[index]) for number, row in enumerate(rows, start=1))


def _iter_json_cells(
    file: InputFile, lines: Iterable[str], choose_column: Callable[[list[str]], str]
) -> Iterator[tuple[int, Any]]:
    column = None
    for number, record in parse_json_lines(file, lines):
        column = column or choose_column(list(record))
        yield number, record.get(column)


def _choose_column(file: InputFile, column: str | None, names: list[str]) -> str:
    """Return the column passed by the user; without one, the only column or the first with a usual name."""
    rows = Rows.from_columns({name: [] for name in names}, str(file))
    if column:
        require_column(rows, column, "--text-column")
        return column
    return names[0] if len(names) == 1 else guess_column(rows, DOCUMENT_COLUMNS, "text")


# ---- one text per line


def read_text_lines(data: str, column: str | None, encoding: str | None = None) -> Iterator[str] | None:
    """Return an iterator over the lines of a `.txt` file; None if the file is a table or not a `.txt` file.

    Args:
        data: Value of --data.
        column: Name of the text column; None if the user passed none.
        encoding: Encoding of the file, as passed by the user.
    """
    decoding = Decoding(encoding)
    path = expand_home(data)
    if not path.is_file() or not TEXT_FILE_NAME.fullmatch(path.name):
        return None
    sample = next(read_text(path, decoding))
    if not sample.strip() or JSON_OBJECT_START.match(sample):
        return None
    if detect_delimiter(sample, column, DOCUMENT_COLUMNS) or detect_delimiter(sample, None, DOCUMENT_COLUMNS):
        return None
    report_info(f"--data {data}: reading one text per line")
    return (line.rstrip("\r") for line in split_lines(read_text(path, decoding), max_chars=None))


def read_stdin_rows(
    stdin: BinaryIO | None,
    alternatives: str,
    parse_line: Callable[[int, str], dict[str, Any]],
    encoding: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Return an iterator over the rows on standard input: one JSON object or one text per line.

    Empty lines are skipped in JSON. Otherwise they are rows.

    Args:
        stdin: Standard input; None if it is a terminal.
        alternatives: The flags that pass texts, for the error.
        parse_line: Converts the number and the content of a line that is not JSON into a row.
        encoding: Encoding of the lines, as passed by the user.

    Raises:
        UserError: Standard input is empty. A broken line raises the error only when the iterator reaches it.
    """
    parts = read_text(StandardInput(stdin), Decoding(encoding)) if stdin else iter(())
    lines = (line.rstrip("\r") for line in split_lines(parts, max_chars=None))
    first = next(lines, None)
    if first is None:
        raise UserError(f"standard input: contains no texts; pass {alternatives}, or lines on standard input")
    all_lines = chain([first], lines)
    if first.lstrip().startswith("{"):
        return (record for _, record in parse_json_lines(STANDARD_INPUT, all_lines))
    return (parse_line(number, line) for number, line in enumerate(all_lines, start=1))
