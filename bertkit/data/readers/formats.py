"""Read files of rows: Parquet, Arrow, JSON, CSV, TSV, CoNLL or plain text, all of them also compressed.

The format is detected from the content of a file, not from its name. `text_files` yields bytes and text, and
one parser per format yields rows. If a file cannot be read, the `UserError` names the file and, if possible,
the row.
"""

import csv
import json
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertkit.data.columns import DOCUMENT_COLUMNS, USUAL_NAMES, guess_column, require_column
from bertkit.data.readers.conll import iter_conll, split_at_blank_lines
from bertkit.data.readers.layouts import (
    SEEN_ROWS,
    NumberedRecords,
    Record,
    RecordLayout,
    convert_records,
    describe_layout,
    find_record_layout,
    is_fasttext,
    parse_fasttext,
    read_document,
)
from bertkit.data.readers.parquet import (
    iter_arrow,
    iter_parquet,
    iter_parquet_column,
    map_arrow,
    require_distinct_names,
)
from bertkit.data.readers.text_files import (
    ARROW_MAGIC,
    CHUNK_BYTES,
    CR_LINE_ENDS,
    EMPTY_FILE,
    JSON_ERRORS,
    NO_ROWS,
    PARQUET_MAGIC,
    Decoding,
    DecodingError,
    FileNotes,
    InputFile,
    RowTable,
    StandardInput,
    decode_chunks,
    digest_path,
    hash_json,
    read_chunks,
    read_text,
    require_file,
    split_lines,
)
from bertkit.data.table import CHUNK_ROWS, STORE_VERSION, Rows, chunk_records, store_rows
from bertkit.errors import UserError, format_count, format_list, shorten, shorten_repr
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, track_reading
from bertkit.utils.text import replace_surrogates

RowFormat = Literal["table", "parquet", "json lines", "delimited"]  # of a corpus file of rows
IN_MEMORY_BYTES = 16 << 20  # the rows of smaller files are not stored on disk
TEXT_FILE_NAME = re.compile(r".*\.txt(\.(gz|bz2|xz|zst))?", re.IGNORECASE)
STANDARD_INPUT = "standard input"
DELIMITERS = "\t,;|"
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?')  # Excel's first line, which names the delimiter
# The beginning of an object, or of a list of objects, with its first key. A bracket without a key does not
# match, because it may be the first word of a CoNLL file.
JSON_OBJECT_START = re.compile(r'\s*(\[\s*)?\{\s*"([^"\\\n]|\\.)*"\s*:')
JSON_TEXT_LIST = re.compile(r'\s*\[\s*"([^"\\\n]|\\.)*"\s*[,\]]')
JSON_TUPLE_START = re.compile(r'\s*\[\s*\[\s*"')  # a list of lists, such as that of spaCy
COLUMN_NAME = re.compile(r"[\w .:/-]{1,40}")
NUMBER = re.compile(r"-?\d+([.,]\d+)?")
SNIFFED_ROWS = 20
MAX_SNIFFED_LINES = 1000  # lines by which the quotation mark and the header of a table are recognized
MIN_ROWS_WITHOUT_HEADER = 5  # fewer rows are no evidence that the header is missing
MAX_NAME_SPACES = 5  # a cell with more spaces is a text, not the name of a column
LARGE_SAMPLE_CHARS = 100_000  # the last line of a longer sample may be incomplete and is ignored


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How to read a text file whose content does not show it, for example because it has no header.

    Attributes:
        header: Whether the first line holds the column names; otherwise they are "0", "1", ... None to detect
            this.
        delimiter: The character between fields; None to detect it.
        quoting: Whether `"` quotes a field; None to detect this.
        ragged: Whether rows may have more or fewer fields than the header. Surplus fields are dropped, and
            missing fields are empty.
        conll: Whether each line is a word, and a blank line ends a sentence.
        task: The task that reads the file, which decides which layouts of annotation tools are possible.
        encoding: Encoding of the file, as passed by the user; None for UTF-8, for the fallback encoding, or
            for the encoding of a byte order mark.
    """

    header: bool | None = None
    delimiter: str | None = None
    quoting: bool | None = None
    ragged: bool = False
    conll: bool = False
    task: str = "classify"
    fallback_encoding: str | None = None
    encoding: str | None = None

    @classmethod
    def from_settings(cls, config: Any) -> "Dialect":
        """Return the dialect with the values of `--encoding`, `--delimiter` and `--header`."""
        delimiter = "\t" if config.delimiter == r"\t" else config.delimiter
        return cls(header=config.header, delimiter=delimiter, encoding=config.encoding)


# ---- data files


def read_file(path: Path, dialect: Dialect | None = None) -> Rows:
    """Return all rows of one file; those of a large file are stored on disk and read when needed."""
    require_file(path)
    dialect = dialect or Dialect()
    if (rows := map_arrow(path)) is not None and not find_layout(rows, dialect.task):
        return rows
    rows = store_file(path, partial(_iter_chunks, path, dialect), repr(dialect))
    for note in rows.notes:
        report_info(note)
    return rows


def store_file(path: Path, iter_parts: Callable[[], Iterator[Rows]], *settings: str | None) -> Rows:
    """Return the rows of a file, stored in memory if the file is small, else in the cache.

    `settings` are everything except the content of the file that the rows depend on.
    """
    size = path.stat().st_size
    if size <= IN_MEMORY_BYTES:
        return store_rows(iter_parts, str(path), key=None)
    key = hash_json([STORE_VERSION, *settings, digest_path(path)])
    with track_reading(size, f"reading {path.name}"):
        return store_rows(iter_parts, str(path), key)


def stream_rows(
    path: Path,
    dialect: Dialect | None = None,
    chunk_size: int = CHUNK_ROWS,
    stream_above_bytes: int = CHUNK_BYTES,
) -> Iterator[Rows]:
    """Yield the rows of one file in chunks, and report how it was read.

    Parquet, Arrow, JSON lines, delimited text and CoNLL files are streamed, so memory does not grow with the
    file: a broken row raises its error when the iterator reaches it. Other formats, and files of up to
    `stream_above_bytes`, are read at once.
    """
    chunks = _iter_chunks(path, dialect or Dialect(), chunk_size, stream_above_bytes)

    def iter_and_report() -> Iterator[Rows]:
        notes: Sequence[str] = ()
        for chunk in chunks:
            notes = chunk.notes
            yield chunk
        for note in notes:
            report_info(note)

    return iter_and_report()


def _iter_chunks(
    path: Path, dialect: Dialect, chunk_size: int = CHUNK_ROWS, stream_above_bytes: int = CHUNK_BYTES
) -> Iterator[Rows]:
    """Return an iterator over the rows of one file in chunks, see `stream_rows`."""
    require_file(path)
    is_streamed = path.stat().st_size > stream_above_bytes
    head = next(read_chunks(path), b"")[:8]
    if head.startswith(ARROW_MAGIC):
        chunks = _convert_table(iter_arrow(path, chunk_size), path, dialect)
    elif head.startswith(PARQUET_MAGIC):
        chunks = _convert_table(iter_parquet(path, chunk_size), path, dialect)
    else:
        chunks = _stream_text_rows(path, dialect, chunk_size, is_streamed)
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{path}: {NO_ROWS}")
    chunks = chain([first], chunks)
    return chunks if is_streamed else iter(list(chunks))


def _convert_table(chunks: Iterator[Rows], path: Path, dialect: Dialect) -> Iterator[Rows]:
    """Return an iterator over the rows of a binary file, converted if they have a layout."""
    first = next(chunks, None)
    if first is None:
        return chunks
    chunks = chain([first], chunks)
    has_layout = find_layout(first, dialect.task)
    return convert_chunks(chunks, str(path), dialect.task) if has_layout else chunks


def find_layout(rows: Rows, task: str) -> RecordLayout | None:
    """Return the layout of the rows of a table; None if they need no conversion."""
    return find_record_layout(list(rows.select(range(min(len(rows), SEEN_ROWS)))), task)


def convert_chunks(chunks: Iterable[Rows], name: str, task: str) -> Iterator[Rows]:
    """Yield the rows of a table that has a layout in the columns of bertkit."""
    notes: list[str] = []
    left_out: Counter[str] = Counter()
    numbered = (
        (number, row) for rows in chunks for number, row in zip(rows.row_numbers.tolist(), rows, strict=True)
    )
    layout, records = convert_records(name, numbered, left_out, task)
    if layout:
        records = _note_layout(Path(name), layout.name, records, notes, left_out)
    return (replace(chunk, notes=notes) for chunk in chunk_records(records, name))


def _stream_text_rows(path: Path, dialect: Dialect, chunk_size: int, is_streamed: bool) -> Iterator[Rows]:
    """Return an iterator over the rows of a text file in chunks."""
    if path.suffix.lower() in (".yml", ".yaml"):
        raise UserError(f"{path}: a YAML file, which is not read; write its rows to CSV, JSON or JSONL")
    decoding = _resolve_decoding(path, dialect)
    if is_streamed:
        open_text = partial(read_text, path, decoding)
        sample = _read_beginning(open_text)
    else:
        sample = "".join(read_text(path, decoding))
        open_text = partial(iter, [sample])
    data_format = _detect_data_format(sample, dialect)
    if data_format == "conll":
        sentences = iter_conll(path, lambda: split_at_blank_lines(open_text()))
        return chain.from_iterable(part.iter_chunks(chunk_size) for part in sentences)
    if not sample.strip():
        raise UserError(f"{path}: {EMPTY_FILE}")
    notes: list[str] = []
    left_out: Counter[str] = Counter()
    if data_format == "json" and not starts_with_json_lines(sample):
        layout, document = parse_json_document(path, "".join(open_text()), is_conll=dialect.conll)
        if isinstance(document, dict):
            rows = Rows.from_columns(document, str(path))
            notes += [describe_layout(path, layout, len(rows))] if layout else []
            return _convert_table(replace(rows, notes=notes).iter_chunks(chunk_size), path, dialect)
        if layout:
            notes.append(describe_layout(path, layout, len(document)))
        records: NumberedRecords = enumerate(document, start=1)
    else:
        lines = split_lines(open_text(), max_chars=None)
        if data_format == "json":
            records = enumerate((record for _, record in parse_json_lines(path, lines)), start=1)
        elif is_fasttext(sample):
            records = _note_layout(path, "fastText", parse_fasttext(lines, left_out), notes, left_out)
        else:
            columns, rows_of_fields = parse_delimited(path, lines, sample, dialect, notes)
            first = next(rows_of_fields, None)
            if first is None:
                hint = " (it begins with neither { nor [, as JSON does)" if ".json" in path.name else ""
                raise UserError(f"{path}: the file has a header and no rows{hint}; pass a file with rows")
            require_distinct_names(path, columns)
            records = (
                (number, dict(zip(columns, fields, strict=True)))
                for number, fields in chain([first], rows_of_fields)
            )
    record_layout, records = convert_records(
        path, records, left_out, "ner" if dialect.conll else dialect.task
    )
    if record_layout:
        records = _note_layout(path, record_layout.name, records, notes, left_out)
    chunks = chunk_records(records, str(path), chunk_size)
    return (replace(chunk, notes=notes) for chunk in chunks)


def _read_beginning(open_text: Callable[[], Iterable[str]]) -> str:
    """Return the first complete lines of a text, which are not all blank unless the whole text is."""
    beginning = ""
    for part in open_text():
        beginning += part
        if not part.isspace():
            break
    return drop_partial_line(beginning)


def _note_layout(
    path: Path,
    layout: str,
    records: NumberedRecords,
    notes: list[str],
    left_out: Mapping[str, int] | None = None,
) -> NumberedRecords:
    """Yield the records, and then add a note on the layout that they were read in."""
    num_rows = 0
    for record in records:
        num_rows += 1
        yield record
    notes.append(describe_layout(path, layout, num_rows, left_out))


def _detect_data_format(sample: str, dialect: Dialect) -> Literal["json", "conll", "delimited"]:
    """Return the format of a labeled data file of text, given its beginning.

    A dialect that determines the format describes delimited text or CoNLL files. JSON is accepted in place of
    CoNLL files.
    """
    if dialect.conll:
        if JSON_OBJECT_START.match(sample) or JSON_TUPLE_START.match(sample) or _is_json_list(sample):
            return "json"
        return "delimited" if sample.strip() and _is_word_table(sample, dialect) else "conll"
    determines_format = (
        dialect.header is False or replace(dialect, encoding=None, header=None, task="classify") != Dialect()
    )
    return "json" if not determines_format and sample.lstrip()[:1] in ("{", "[") else "delimited"


def _is_json_list(text: str) -> bool:
    """Return whether a text is a list with objects in JSON, which may be broken or begin otherwise."""
    text = text.strip()
    return text[:1] + text[-1:] == "[]" and "{" in text


def _is_word_table(sample: str, dialect: Dialect) -> bool:
    """Return whether a text is delimited and has one of the layouts of tables with words."""
    try:
        lines = islice(sample.split("\n"), 10 * SNIFFED_ROWS)
        columns, rows = parse_delimited(
            "", lines, drop_partial_line(sample), replace(dialect, header=True), []
        )
        records = [dict(zip(columns, row, strict=True)) for _, row in islice(rows, SEEN_ROWS)]
    except UserError:
        return False
    return len(columns) > 1 and find_record_layout(records, "ner") is not None


def _resolve_decoding(path: Path, dialect: Dialect) -> Decoding:
    """Return the encoding passed by the user, or else the dialect's fallback if the file is not UTF-8."""
    if dialect.fallback_encoding and not dialect.encoding:
        try:
            for _ in decode_chunks(path, read_chunks(path), Decoding()):
                pass
        except DecodingError:
            return Decoding(dialect.fallback_encoding)
    return Decoding(dialect.encoding)


# ---- corpus files with rows


def detect_row_format(file: InputFile, column: str | None, decoding: Decoding) -> RowFormat | None:
    """Return the format of the rows in a corpus file, of which only the beginning is read.

    The format is None if the file holds running text, which is an error if the user passed a text column.
    """
    if isinstance(file, RowTable):
        return "table"
    if next(read_chunks(file), b"").startswith(PARQUET_MAGIC):
        return "parquet"
    sample = next(read_text(file, decoding))
    if JSON_OBJECT_START.match(sample):
        if sample.lstrip().startswith("["):
            raise UserError(
                f"{file}: a list of objects, which cannot be read row by row; write one object per line"
            )
        return "json lines"
    if JSON_TEXT_LIST.match(sample):
        raise UserError(
            f"{file}: a list of texts, which cannot be read row by row; write one text per line, or objects "
            'such as {"text": ...}'
        )
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

    By default, the text column is the only column, or the first one with a usual name.
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
    file: InputFile, row_format: RowFormat, column: str | None, decoding: Decoding, notes: FileNotes | None
) -> Iterator[tuple[int, Any]]:
    """Yield the row numbers and the values of the text column."""

    def choose_column(names: list[str]) -> str:
        rows = Rows.from_columns({name: [] for name in names}, str(file))
        if column:
            require_column(rows, column, "--text-column")
            return column
        return names[0] if len(names) == 1 else guess_column(rows, DOCUMENT_COLUMNS, "text")

    if isinstance(file, RowTable):
        yield from enumerate(file.rows[choose_column(list(file.rows.columns))], start=1)
        return
    if row_format == "parquet":
        yield from iter_parquet_column(file, choose_column)
        return
    lines = split_lines(read_text(file, decoding, notes), max_chars=None)
    if row_format == "json lines":
        chosen = None
        for number, record in parse_json_lines(file, lines):
            chosen = chosen or choose_column(list(record))
            yield number, record.get(chosen)
        return
    sample = next(read_text(file, decoding))
    delimiter = detect_delimiter(sample, column, DOCUMENT_COLUMNS) or ","
    dialect = Dialect(header=True, delimiter=delimiter)
    columns, rows = parse_delimited(file, lines, drop_partial_line(sample), dialect, [])
    index = columns.index(choose_column(columns))
    yield from ((number, row[index]) for number, row in rows)


# ---- one text per line


def read_text_lines(
    data: str, column: str | None, encoding: str | None = None, flag: str = "--data"
) -> Iterator[str] | None:
    """Return an iterator over the lines of a `.txt` file; None for tables and other files."""
    decoding = Decoding(encoding)
    path = expand_home(data)
    if not path.is_file() or not TEXT_FILE_NAME.fullmatch(path.name):
        return None
    sample = next(read_text(path, decoding))
    if not sample.strip() or JSON_OBJECT_START.match(sample):
        return None
    if detect_delimiter(sample, column, DOCUMENT_COLUMNS) or detect_delimiter(sample, None, DOCUMENT_COLUMNS):
        return None
    report_info(f"{flag} {data}: reading one text per line")
    return (line.rstrip("\r") for line in split_lines(read_text(path, decoding), max_chars=None))


def read_stdin_rows(
    stdin: BinaryIO | None,
    alternatives: str,
    parse_line: Callable[[int, str], Record],
    encoding: str | None = None,
) -> Iterator[Record]:
    """Return an iterator over the rows on standard input: one JSON object or one text per line.

    Empty lines are skipped in JSON. Otherwise they are rows. A broken line raises its error when the iterator
    reaches it. `parse_line` converts the number and the content of a line that is not JSON into a row.
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


# ---- delimited text


def parse_delimited(
    name: object, lines: Iterable[str], sample: str, dialect: Dialect, notes: list[str]
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the column names, and an iterator over the numbers and the values of the rows.

    Several columns without a name are left out, like rows without any value. Sheets that are saved as CSV end
    in such columns and rows.

    Args:
        lines: Lines of the file, split only at line feeds: a text may contain U+2028 or a form feed.
        sample: Beginning of the file, from which the delimiter, the quoting and the header are detected.
        notes: Receives remarks on what was detected or left out.
    """
    sample = sample.lstrip("\r\n")
    first_line, end = _get_first_line(sample)
    if "\r" in first_line.rstrip("\r"):
        raise UserError(f"{name}: {CR_LINE_ENDS}")
    if JSON_OBJECT_START.match(sample, end):
        raise UserError(f"{name}: row 1: found a JSON object below a header; remove the first line")
    delimiter = dialect.delimiter
    if match := SEPARATOR_LINE.fullmatch(first_line):
        delimiter, sample = delimiter or match[1], sample[end:].lstrip("\r\n")
        lines = islice(dropwhile(lambda line: not line.strip("\r\n"), lines), 1, None)
        first_line, _ = _get_first_line(sample)
    delimiter = delimiter or _detect_delimiter(sample, first_line)
    quote = '"' if dialect.quoting else None
    if dialect.quoting is None and (delimiter != "\t" or uses_quoting(sample)):
        quote = _find_quote(sample, delimiter) or '"'
    records = _split_fields(name, lines, delimiter, quote)
    first = next(records)
    has_header = dialect.header
    if has_header is None:
        has_header = not _looks_like_row(sample, delimiter, quote)
        if not has_header:
            notes.append(f"{name}: no header; its columns are {format_columns(range(len(first)), first)}")
    columns = [column.strip() for column in first] if has_header else list(map(str, range(len(first))))
    return _select_columns(columns), _iter_rows(
        name, records if has_header else chain([first], records), columns, dialect, notes
    )


def _get_first_line(text: str) -> tuple[str, int]:
    """Return the first line of a text, and the index of its end."""
    end = text.find("\n")
    end = len(text) if end < 0 else end
    return text[:end], end


def format_columns(names: Iterable[object], cells: Sequence[str]) -> str:
    """Return the names of columns without a header, each with a cell."""
    return format_list(f"{name} ({shorten_repr(cell)})" for name, cell in zip(names, cells, strict=False))


def _select_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns with a name; a single one may lack it, such as that of the index of pandas."""
    return list(columns) if columns.count("") < 2 else list(filter(None, columns))


def _iter_rows(
    name: object, records: Iterable[list[str]], columns: list[str], dialect: Dialect, notes: list[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers and the values of the rows."""
    is_selected = list(map(bool, columns)) if columns.count("") > 1 else None
    num_blank = num_unread = 0
    for number, row in enumerate(records, start=1):
        if dialect.ragged:
            row = (row + [""] * len(columns))[: len(columns)]
        if len(columns) > 1 and not any(map(str.strip, row)):
            num_blank += 1
            continue
        if len(columns) > 1 and row == columns and dialect.header is not False:
            raise UserError(f"{name}: row {number}: repeats the header; remove the row")
        if len(row) != len(columns):
            expected = f"{format_count(len(columns), 'field')} ({format_list(map(shorten, columns))})"
            fix = "enclose fields that contain the delimiter in quotes"
            if len(row) < len(columns):
                fix = "add the missing fields, or enclose fields that contain line breaks in quotes"
            raise UserError(f"{name}: row {number}: expected {expected}, found {len(row)}; {fix}")
        if is_selected:
            num_unread += any(map(str.strip, compress(row, map(operator.not_, is_selected))))
            row = list(compress(row, is_selected))
        yield number, row
    if num_blank:
        notes.append(f"{name}: {format_count(num_blank, 'empty row')} left out")
    if is_selected:
        content = f"with content in {format_count(num_unread, 'row')}" if num_unread else "without content"
        notes.append(f"{name}: {columns.count('')} columns without a name left out, {content}")


def _detect_delimiter(sample: str, first_line: str) -> str:
    """Return the first delimiter in the first line, unless only another one gives rows of equal length."""
    marks = [mark for mark in DELIMITERS if mark in first_line] or [","]
    if marks[0] == "\t" or len(marks) == 1:
        return marks[0]
    quotes = {mark: quote for mark in marks if (quote := _find_quote(sample, mark))}
    has_single_quotes = (mark for mark, quote in quotes.items() if quote == "'")
    return next(chain(has_single_quotes, quotes), marks[0])


def _get_lines(sample: str) -> list[str]:
    """Return the first lines of a sample; the rest is not split, which would need much memory."""
    lines = sample.split("\n", MAX_SNIFFED_LINES)
    return lines[:MAX_SNIFFED_LINES]


def _find_quote(sample: str, delimiter: str) -> str | None:
    """Return the quotation mark with which all rows of a sample have the same number of fields, or None.

    Single quotes are quotation marks only if they enclose a field in every line.
    """
    lines = [line.rstrip("\r") for line in _get_lines(sample) if line.strip("\r")]
    mark = re.escape(delimiter)
    has_single_quotes = all(re.search(f"(^|{mark})'.*'({mark}|$)", line) for line in lines)
    for quote in "'\"" if has_single_quotes else '"':
        with suppress(csv.Error):
            reader = csv.reader(
                (line + "\n" for line in lines), delimiter=delimiter, quotechar=quote, strict=True
            )
            lengths = {len(row) for row in reader if row}
            if len(lengths) == 1 and lengths != {1}:
                return quote
    return None


def _looks_like_row(sample: str, delimiter: str, quote: str | None) -> bool:
    """Return whether the first line of a table is a row, not a header.

    It is a header if it has a usual name, a text above a column of numbers, or consecutive numbers, as pandas
    writes them. It is a row if a cell occurs again in a column of repeated values or is a long text, or if a
    cell is a number in a column of numbers and no other cell can be a name.
    """
    lines = _get_lines(sample)
    try:
        first, *rows = list(_split_fields("", lines, delimiter, quote))[: 5 * SNIFFED_ROWS] or [[]]
    except UserError:
        return False
    rows = [row for row in rows if len(row) == len(first)]
    if len(first) < 2 or len(rows) < MIN_ROWS_WITHOUT_HEADER or first == list(map(str, range(len(first)))):
        return False
    has_row_cell = has_number = has_name = False
    for index, cell in enumerate(map(str.strip, first)):
        column = [row[index].strip() for row in rows]
        has_numbers = all(map(NUMBER.fullmatch, column))
        is_number = NUMBER.fullmatch(cell) is not None
        if cell.lower() in USUAL_NAMES or (cell and has_numbers and not is_number):
            return False
        is_repeated = cell in column and len(set(column)) < len(column)
        has_row_cell |= bool(cell) and (is_repeated or cell.count(" ") > MAX_NAME_SPACES)
        has_number |= is_number and has_numbers
        has_name |= cell.isidentifier() and cell not in column
    return has_row_cell or (has_number and not has_name)


def _split_fields(
    name: object, lines: Iterable[str], delimiter: str, quote: str | None
) -> Iterator[list[str]]:
    """Yield the fields of each row; `quote` is None if quotation marks have no special meaning."""
    if quote is None:
        yield from (line.rstrip("\r").split(delimiter) for line in lines if line.strip("\r\n"))
        return
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, quotechar=quote, strict=True)
    number = 0
    try:
        for row in filter(None, reader):
            number += 1
            yield row
    except csv.Error as error:
        location = f"row {number}" if number else "the header"
        raise UserError(
            f"{name}: {location}: broken CSV ({error}; near line {reader.line_num}); "
            f"enclose the field in quotes, and write a quote in it twice ({quote * 2})"
        ) from error


def drop_partial_line(sample: str) -> str:
    """Return a sample without its last line, which may be incomplete, unless it has only one line."""
    return sample.rpartition("\n")[0] or sample


def uses_quoting(text: str) -> bool:
    """Return whether `"` quotes fields in a TAB-separated text.

    Files such as those of MRPC contain quotation marks that are part of the text. They occur at the start of
    a field but not at its end, or single ones occur within a field. If the lines have different numbers of
    TABs, the text is quoted if parsing with quotes gives rows of equal length.
    """
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip("\r")]
    if len({line.count("\t") for line in lines}) > 1:
        try:
            return len({len(row) for row in csv.reader(lines, delimiter="\t", strict=True) if row}) == 1
        except csv.Error:
            return False
    quoted_fields = [field for line in lines for field in line.split("\t") if field[:1] == '"']
    return bool(quoted_fields) and all(
        len(field) > 1 and field[-1] == '"' and '"' not in field[1:-1].replace('""', "")
        for field in quoted_fields
    )


def detect_delimiter(sample: str, column: str | None = None, text_columns: Iterable[str] = ()) -> str | None:
    """Return the delimiter of a text with a header and rows of the same length; None for running text.

    The only column of a file must be named `column` or as in `text_columns`. Several columns may have any
    names, but without such a name more rows are needed as evidence.
    """
    return next((mark for mark in DELIMITERS if _has_header(sample, mark, column, [*text_columns])), None)


def _has_header(sample: str, delimiter: str, column: str | None, text_columns: list[str]) -> bool:
    csv.field_size_limit(sys.maxsize)
    complete = sample.rpartition("\n")[0] if len(sample) > LARGE_SAMPLE_CHARS else sample
    lines = (line + "\n" for line in complete.lstrip("\r\n").split("\n"))
    is_quoted = delimiter != "\t" or uses_quoting(drop_partial_line(sample))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        names, *rows = list(islice(filter(None, reader), SNIFFED_ROWS)) or [[]]
    except csv.Error:
        return False
    if column:
        text_names = [name for name in names if name == column]
    else:
        text_names = [name for name in names if name.lower() in text_columns]
    if len(names) == 1:
        return delimiter == "," and names[0] in (column, *text_columns) and bool(text_names)
    num_matching_rows = sum(len(row) == len(names) for row in rows)
    if text_names and all(map(str.isidentifier, names)):  # surely a header, so some rows may be broken
        rows_match = 2 * num_matching_rows > len(rows)
    else:
        rows_match = num_matching_rows == len(rows)
    has_enough_rows = len(rows) >= (1 if text_names else 5)
    return bool(names) and rows_match and has_enough_rows and all(map(COLUMN_NAME.fullmatch, names))


# ---- JSON


def describe_json_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg})"
    return "broken JSON (a number of thousands of digits)"


def parse_json_lines(name: object, lines: Iterable[str]) -> Iterator[tuple[int, Record]]:
    """Yield the line number and the object of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except JSON_ERRORS as error:
            raise UserError(f"{name}: row {number}: {describe_json_error(error)}") from error
        yield number, _require_object(name, number, record)


def starts_with_json_lines(sample: str) -> bool:
    """Return whether each of the first two lines of a text is a JSON object; blank lines are skipped."""
    lines = [line for line in sample.split("\n") if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except JSON_ERRORS:
        return False


def parse_json_document(
    name: object, text: str, is_conll: bool = False
) -> tuple[str | None, list[Record] | dict[str, list[Any]]]:
    """Return the rows of a JSON text as records, or as columns if the text is an object of columns.

    The text is a list of objects, `{"data": [...]}`, an object of columns, one object per line, or one of
    `DOCUMENT_LAYOUTS`, whose name is returned, too. If `is_conll`, a row holds lists of words and tags, and
    an object of lists may be a single row.
    """
    if text.lstrip().startswith("["):
        try:
            document = json.loads(text)
        except JSON_ERRORS as error:
            line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
            raise UserError(f"{name}: {line}{describe_json_error(error)}") from error
        return _unwrap_document(name, document, is_conll)
    lines = parse_json_lines(name, text.split("\n"))
    try:
        first = next(lines)[1]
    except UserError as line_error:
        try:
            document = json.loads(text)  # an object of several lines
        except JSON_ERRORS:
            raise line_error from line_error.__cause__
        return _unwrap_document(name, document, is_conll)
    records = [first, *(record for _, record in lines)]
    if len(records) == 1:
        return _unwrap_document(name, first, is_conll)
    return None, records


def _unwrap_document(
    name: object, document: Any, is_conll: bool
) -> tuple[str | None, list[Record] | dict[str, list[Any]]]:
    """Return the layout of a parsed document (None for a usual one), and its records or columns."""
    layout, document = read_document(document)
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if isinstance(document, dict) and (layout or _is_column_table(document, is_conll)):
        return layout, document
    records = document if isinstance(document, list) else [document]
    if not records:
        raise UserError(f"{name}: {NO_ROWS}")
    if isinstance(document, dict) and (path := _find_nested_rows(document)):
        raise UserError(
            f"{name}: one object, whose rows are the list in {path!r}; write this list to a file of its own"
        )
    return layout, [_require_object(name, number, record) for number, record in enumerate(records, start=1)]


def _find_nested_rows(record: Record) -> str | None:
    """Return the path to a list of objects in an object that is no row itself, since it holds no text."""
    has_text = any(isinstance(value, str) and " " in value.strip() for value in record.values())
    if has_text or {"text", "tokens", "words"} & record.keys():
        return None
    nested = {key: value for key, value in record.items() if isinstance(value, dict)}
    values = {(key,): value for key, value in record.items()} | {
        (outer, key): value for outer, items in nested.items() for key, value in items.items()
    }
    for path, value in values.items():
        if isinstance(value, list) and len(value) > 1 and all(isinstance(item, dict) for item in value):
            return None if path[-1] in ("paragraphs", "qas") else ".".join(path)
    return None


def read_json_splits(path: Path, dialect: Dialect, split_names: Container[str]) -> dict[str, Rows] | None:
    """Return the tables of a JSON object whose keys are names of splits; None for other files.

    Args:
        split_names: Words that name splits; one of the keys must be such a word.
    """
    require_file(path)
    head = next(read_chunks(path), b"")[:200]
    match = re.match(rb'\s*\{\s*"([^"\\]+)"\s*:\s*\[', head)
    if not match:
        return None
    text = "".join(read_text(path, _resolve_decoding(path, dialect)))
    try:
        document = json.loads(text)
    except JSON_ERRORS:
        return None  # JSON lines, or broken
    if not any(key.lower() in split_names for key in document) or not all(
        isinstance(rows, list) and rows and isinstance(rows[0], (dict, list)) for rows in document.values()
    ):
        return None
    tables = {}
    for key, rows in document.items():
        name = f"{path}[{key!r}]"
        _, records = _unwrap_document(name, rows, dialect.conll)
        assert isinstance(records, list)
        table = Rows.from_dicts(records, name)
        if find_layout(table, dialect.task):
            table = Rows.concatenate(list(convert_chunks([table], name, dialect.task)))
        tables[key] = table
    return tables


def _require_object(name: object, number: int, record: Any) -> Record:
    if not isinstance(record, dict):
        raise UserError(f"{name}: row {number}: not a JSON object with named columns; write it as {{...}}")
    return record


def _is_column_table(record: Record, is_conll: bool) -> bool:
    """Return whether an object holds columns: at least two lists, all of the same length.

    In a CoNLL file, lists of words and tags are a single row. Columns are lists of such lists.
    """
    lengths = {len(value) if isinstance(value, list) else -1 for value in record.values()}
    if len(record) < 2 or len(lengths) != 1 or lengths == {-1}:
        return False
    num_nested = sum(any(isinstance(item, list) for item in value) for value in record.values())
    return not is_conll or 2 * num_nested > len(record)
