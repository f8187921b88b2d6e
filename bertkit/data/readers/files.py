"""Rows of a file, whatever its format: Parquet, JSON, JSON lines, CSV, TSV, CoNLL or plain text.

The format is detected by content, compressed or not, and not by name. Reading has three stages: `contents`
yields bytes, `text_files` yields text, and one parser per format yields rows. Everything that cannot be read
is a `UserError` with the file and the row.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertkit.data.columns import DOCUMENT_COLUMNS, guess_column, require_column
from bertkit.data.readers.conll import parse_conll
from bertkit.data.readers.contents import (
    CHUNK_BYTES,
    CONVERT_HINT,
    EMPTY_FILE,
    PARQUET_MAGIC,
    read_chunks,
    require_file,
)
from bertkit.data.readers.delimited import JSON_OBJECT_START, detect_delimiter, parse_delimited
from bertkit.data.readers.delimited import Dialect as Dialect
from bertkit.data.readers.json import parse_json_document, parse_json_lines, starts_with_json_lines
from bertkit.data.readers.parquet import (
    iter_parquet,
    iter_parquet_column,
    read_parquet,
    require_distinct_names,
)
from bertkit.data.readers.text_files import (
    UTF8_DECODING,
    Decoding,
    DecodingError,
    FileNotes,
    StandardInput,
    TextFile,
    read_sample,
    read_text,
    split_lines,
)
from bertkit.data.rows import CHUNK_ROWS, Rows, chunk_records
from bertkit.errors import UserError, format_count
from bertkit.utils.reporting import Reporter
from bertkit.utils.text import replace_surrogates

RowFormat = Literal["parquet", "json lines", "delimited"]
TextFormat = Literal["json", "conll", "delimited"]
TEXT_FILE_NAME = re.compile(r".*\.txt(\.gz|\.zst)?", re.IGNORECASE)
STANDARD_INPUT = "standard input"


# ---- rows of a data file


def read_file(path: Path, dialect: Dialect | None = None) -> Rows:
    """Return all rows of one file.

    Args:
        path: The file.
        dialect: How a text file is read, where its content does not show it.

    Raises:
        UserError: The file does not exist, is empty or not text, or a row cannot be parsed (with its number).
    """
    require_file(path)
    if _is_parquet(path):
        return read_parquet(path)
    text = "".join(read_text(path, _resolve_decoding(path, dialect)))
    text_format = _detect_text_format(text, dialect)
    if text_format == "conll":
        return parse_conll(path, text)
    if not text.strip():
        raise UserError(f"{path}: {EMPTY_FILE}")
    if text_format == "json":
        rows = parse_json_document(path, text, is_conll=dialect is not None and dialect.conll)
        return (
            Rows.from_columns(rows, str(path)) if isinstance(rows, dict) else Rows.from_dicts(rows, str(path))
        )
    return _read_delimited(path, text, dialect or Dialect())


def stream_rows(
    path: Path,
    dialect: Dialect | None = None,
    chunk_size: int = CHUNK_ROWS,
    stream_above_bytes: int = CHUNK_BYTES,
) -> Iterator[Rows]:
    """Yield the rows of `read_file` in chunks, so that memory does not grow with the file.

    Parquet, JSON lines and delimited text are streamed. A JSON document and a CoNLL file are read as a whole.

    Args:
        path: The file.
        dialect: How a text file is read, where its content does not show it.
        chunk_size: Rows in a chunk.
        stream_above_bytes: Smaller files are read as a whole.

    Raises:
        UserError: As in `read_file`, once reading reaches the error.
    """
    require_file(path)
    if path.stat().st_size <= stream_above_bytes:
        return read_file(path, dialect).iter_chunks(chunk_size)
    if _is_parquet(path):
        return _require_rows(path, iter_parquet(path, chunk_size))
    records = _stream_records(path, dialect)
    if records is None:
        return read_file(path, dialect).iter_chunks(chunk_size)
    return _require_rows(path, chunk_records(records, str(path), chunk_size))


def _stream_records(path: Path, dialect: Dialect | None) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of JSON lines or of delimited text; return None for a file that is read as a whole."""
    decoding = _resolve_decoding(path, dialect)
    sample = read_sample(path, decoding)
    if not sample.strip():
        return None
    lines = split_lines(read_text(path, decoding), max_chars=None)
    text_format = _detect_text_format(sample, dialect)
    if text_format == "json" and not sample.lstrip().startswith("[") and starts_with_json_lines(sample):
        return (record for _, record in parse_json_lines(path, lines))
    if text_format != "delimited":
        return None
    complete_lines = sample.rpartition("\n")[0] or sample
    rows = parse_delimited(path, lines, complete_lines, dialect or Dialect())
    columns = next(rows)
    require_distinct_names(path, columns)
    return (dict(zip(columns, row, strict=True)) for row in rows)


def _require_rows(path: Path, chunks: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the chunks. Raises a `UserError` if there is none."""
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{path}: the file has no rows; pass a file with rows")
    return chain([first], chunks)


def _is_parquet(path: TextFile) -> bool:
    return next(read_chunks(path), b"").startswith(PARQUET_MAGIC)


def _detect_text_format(sample: str, dialect: Dialect | None) -> TextFormat:
    """Return the format of a data file, judged by its beginning.

    A dialect describes delimited text, or CoNLL files, in place of which JSON is accepted too.
    """
    if dialect is None:
        return "json" if sample.lstrip()[:1] in ("{", "[") else "delimited"
    if dialect.conll:
        return "json" if JSON_OBJECT_START.match(sample) else "conll"
    return "delimited"


def _resolve_decoding(path: Path, dialect: Dialect | None) -> Decoding:
    """Return UTF-8, or the dialect's encoding if the file is not UTF-8."""
    if dialect is None or dialect.encoding is None:
        return UTF8_DECODING
    try:
        for _ in read_text(path, UTF8_DECODING):
            pass
    except DecodingError:
        return Decoding(dialect.encoding, hint=CONVERT_HINT)
    return UTF8_DECODING


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


# ---- texts in one column of a corpus file


def detect_row_format(path: TextFile, column: str | None, decoding: Decoding) -> RowFormat | None:
    """Return the format of the rows in a corpus file, judged by its beginning; None for running text.

    Args:
        path: The file.
        column: Name of the text column, if the user passed one.
        decoding: Encoding of the file.

    Raises:
        UserError: The file is a JSON document, or running text although a column was passed.
    """
    if _is_parquet(path):
        return "parquet"
    sample = next(read_text(path, decoding))
    if JSON_OBJECT_START.match(sample):
        if sample.lstrip().startswith("["):
            raise UserError(
                f"{path}: a list of objects, which cannot be read row by row; write one object per line"
            )
        return "json lines"
    if detect_delimiter(sample, column, DOCUMENT_COLUMNS):
        return "delimited"
    if column:
        fix = "remove the flag, or pass a table"
        raise UserError(f"{path}: running text, with no column {column!r} (--text-column); {fix}")
    return None


def read_text_column(
    path: TextFile,
    row_format: RowFormat,
    column: str | None,
    decoding: Decoding,
    notes: FileNotes | None = None,
) -> Iterator[str]:
    """Yield the text of each row; an empty string for a row without one.

    Args:
        path: The file.
        row_format: Its format.
        column: Name of the text column; None for the only one, or the first with a usual name.
        decoding: Encoding of the file.
        notes: Receives a note on rows without text.

    Raises:
        UserError: A row cannot be parsed or its text is not a text, or the column does not exist.
    """
    num_empty = 0
    for number, value in _iter_cells(path, row_format, column, decoding, notes):
        if value is not None and not isinstance(value, str):
            raise UserError(
                f"{path}: row {number}: the text is {str(value)[:40]!r}, not a text; "
                "put it in quotes, or remove the row"
            )
        text = value or ""
        num_empty += not text.strip()
        yield replace_surrogates(text)
    if notes and num_empty:
        rows = format_count(num_empty, "row without a text was", "rows without a text were")
        notes.add(path, f"{rows} left out")


def _iter_cells(
    path: TextFile,
    row_format: RowFormat,
    column: str | None,
    decoding: Decoding,
    notes: FileNotes | None,
) -> Iterator[tuple[int, Any]]:
    """Yield the row number and the value of one column."""
    choose_column = partial(_choose_column, path, column)
    if row_format == "parquet":
        return iter_parquet_column(path, choose_column)
    lines = split_lines(read_text(path, decoding, notes), max_chars=None)
    if row_format == "json lines":
        return _iter_json_cells(path, lines, choose_column)
    sample = next(read_text(path, decoding))
    delimiter = detect_delimiter(sample, column, DOCUMENT_COLUMNS) or ","
    complete_lines = sample.rpartition("\n")[0] or sample
    rows = parse_delimited(path, lines, complete_lines, Dialect(), delimiter)
    columns = next(rows)
    index = columns.index(choose_column(columns))
    return ((number, row[index]) for number, row in enumerate(rows, start=1))


def _iter_json_cells(
    path: TextFile, lines: Iterable[str], choose_column: Callable[[list[str]], str]
) -> Iterator[tuple[int, Any]]:
    column = None
    for number, record in parse_json_lines(path, lines):
        column = column or choose_column(list(record))
        yield number, record.get(column)


def _choose_column(path: TextFile, column: str | None, names: list[str]) -> str:
    """Return the text column: the one passed, the only one, or the first with a usual name."""
    rows = Rows.from_columns({name: [] for name in names}, str(path))
    if column:
        require_column(rows, column, "--text-column")
        return column
    return names[0] if len(names) == 1 else guess_column(rows, DOCUMENT_COLUMNS, "text")


# ---- one text per line


def read_text_lines(data: str, column: str | None, reporter: Reporter) -> Iterator[str] | None:
    """Yield the lines of a `.txt` file; return None for other files and for a table in a `.txt` file.

    Args:
        data: Value of --data.
        column: Name of the text column, if the user passed one.
        reporter: Receives a note that each line is read as a text.
    """
    path = Path(data).expanduser()
    if not path.is_file() or not TEXT_FILE_NAME.fullmatch(path.name):
        return None
    sample = next(read_text(path, UTF8_DECODING))
    if not sample.strip() or JSON_OBJECT_START.match(sample):
        return None
    if detect_delimiter(sample, column, DOCUMENT_COLUMNS) or detect_delimiter(sample, None, DOCUMENT_COLUMNS):
        return None
    reporter.info(f"--data {data}: reading one text per line")
    return (line.rstrip("\r") for line in split_lines(read_text(path, UTF8_DECODING), max_chars=None))


def read_stdin_rows(
    stdin: BinaryIO | None, alternatives: str, parse_line: Callable[[int, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows on standard input: JSON objects, or other lines as `parse_line` converts them.

    Empty lines are rows too, unless the rows are JSON.

    Args:
        stdin: Standard input; None if it is a terminal.
        alternatives: The flags that pass texts, for the error.
        parse_line: Converts a line number and a line into a row.

    Raises:
        UserError: Standard input is empty; or, while rows are read, a line cannot be read.
    """
    parts = read_text(StandardInput(stdin), UTF8_DECODING) if stdin else iter(())
    lines = (line.rstrip("\r") for line in split_lines(parts, max_chars=None))
    first = next(lines, None)
    if first is None:
        raise UserError(f"no texts: pass {alternatives}, or lines on standard input")
    all_lines = chain([first], lines)
    if first.lstrip().startswith("{"):
        return (record for _, record in parse_json_lines(STANDARD_INPUT, all_lines))
    return (parse_line(number, line) for number, line in enumerate(all_lines, start=1))
