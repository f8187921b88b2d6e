"""CSV, TSV and other delimited text."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Literal

from bertkit.data.readers.text_files import NO_ROWS
from bertkit.errors import UserError, format_count

DELIMITERS = "\t,;"
# The beginning of an object, or of a list of objects, with its first key. A bracket without a key does not
# match, because it may be the first word of a CoNLL file.
JSON_OBJECT_START = re.compile(r'\s*(\[\s*)?\{\s*"([^"\\\n]|\\.)*"\s*:')
COLUMN_NAME = re.compile(r"[\w .:/-]{1,40}")
SNIFFED_ROWS = 20
LARGE_SAMPLE_CHARS = 100_000  # the last line of a longer sample may be incomplete and is ignored
CR_LINE_ENDS = "its lines end in CR only; save it with LF line ends, as tr '\\r' '\\n' does"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How to read a text file whose content does not show it, for example because it has no header.

    Attributes:
        header: Whether the first line holds the column names; otherwise they are "0", "1", ...
        quoting: Whether `"` quotes a field; None to detect this.
        ragged: Whether rows may have more or fewer fields than the header. Surplus fields are dropped, and
            missing fields are empty.
        conll: Whether each line is a word, and a blank line ends a sentence.
        fallback_encoding: Encoding to use if the bytes are not UTF-8.
        encoding: Encoding of the file, as passed by the user; None for UTF-8, for the fallback encoding, or
            for the encoding of a byte order mark.
    """

    header: bool = True
    quoting: bool | None = None
    ragged: bool = False
    conll: bool = False
    fallback_encoding: str | None = None
    encoding: str | None = None

    @property
    def determines_format(self) -> bool:
        """Whether the dialect determines the format of a file; otherwise its content does."""
        return replace(self, encoding=None) != Dialect()


def parse_delimited(
    name: object, lines: Iterable[str], sample: str, dialect: Dialect, delimiter: str | None = None
) -> Iterator[list[str]]:
    """Yield the column names, and then the values of each row.

    Args:
        name: Name of the file, for errors.
        lines: Lines of the file, split only at line feeds: a text may contain U+2028 or a form feed.
        sample: Beginning of the file, from which the delimiter and the quoting are detected.
        dialect: How to read the file.
        delimiter: Separator of the fields; None to detect it.

    Raises:
        UserError: A row cannot be parsed, or its number of fields differs from that of the header.
    """
    first_line = sample.lstrip("\r\n").split("\n", 1)[0]
    if "\r" in first_line.rstrip("\r"):
        raise UserError(f"{name}: {CR_LINE_ENDS}")
    if delimiter is None:
        delimiter = next((mark for mark in DELIMITERS if mark in first_line), ",")
    quoting = dialect.quoting
    if quoting is None:
        quoting = delimiter != "\t" or uses_quoting(sample)
    if JSON_OBJECT_START.match(sample.lstrip("\r\n")[len(first_line) :]):
        raise UserError(f"{name}: row 1: found a JSON object below a header; remove the first line")
    records = _split_fields(name, lines, delimiter, quoting)
    first = next(records)
    if dialect.header:
        columns = [column.strip() for column in first]
        rows = records
    else:
        columns = [str(index) for index in range(len(first))]
        rows = chain([first], records)
    yield columns
    for number, row in enumerate(rows, start=1):
        if dialect.ragged:
            row = (row + [""] * len(columns))[: len(columns)]
        if len(row) != len(columns):
            raise UserError(_describe_field_count(name, number, row, columns))
        yield row


def _describe_field_count(name: object, number: int, row: list[str], columns: list[str]) -> str:
    expected = f"{format_count(len(columns), 'field')} ({', '.join(columns)})"
    fix = "quote fields that contain the delimiter"
    return f"{name}: row {number}: expected {expected}, found {len(row)}; {fix}"


def _split_fields(name: object, lines: Iterable[str], delimiter: str, quoting: bool) -> Iterator[list[str]]:
    if not quoting:
        yield from (line.rstrip("\r").split(delimiter) for line in lines if line.strip("\r\n"))
        return
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    number = 0
    try:
        for row in filter(None, reader):
            number += 1
            yield row
    except csv.Error as error:
        location = f"row {number}" if number else "the header"
        raise UserError(
            f"{name}: {location}: broken CSV ({error}; near line {reader.line_num}); "
            'enclose the field in quotes, and write a quote in it twice ("")'
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

    Args:
        sample: Beginning of the text.
        column: Name of the text column; None if the user passed none.
        text_columns: Usual names of text columns.
    """
    return next((mark for mark in DELIMITERS if _has_header(sample, mark, column, [*text_columns])), None)


def _has_header(sample: str, delimiter: str, column: str | None, text_columns: list[str]) -> bool:
    names, *rows = _read_first_rows(sample, delimiter) or [[]]
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


def _read_first_rows(sample: str, delimiter: str) -> list[list[str]]:
    """Return the header and the first rows; an empty list if they cannot be parsed."""
    csv.field_size_limit(sys.maxsize)
    complete = sample.rpartition("\n")[0] if len(sample) > LARGE_SAMPLE_CHARS else sample
    lines = (line + "\n" for line in complete.lstrip("\r\n").split("\n"))
    is_quoted = delimiter != "\t" or uses_quoting(drop_partial_line(sample))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        return list(islice(filter(None, reader), SNIFFED_ROWS))
    except csv.Error:
        return []


# Errors of `json.loads`. A number of too many digits gives a `ValueError` that is not a `JSONDecodeError`.
JSON_ERRORS = (ValueError, RecursionError)
Record = dict[str, Any]


def describe_json_error(error: Exception) -> str:
    """Return why JSON cannot be parsed, such as `broken JSON (Expecting value)`."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg})"
    return "broken JSON (a number of thousands of digits)"


def parse_json_lines(name: object, lines: Iterable[str]) -> Iterator[tuple[int, Record]]:
    """Yield the line number and the object of each line that is not blank.

    Args:
        name: Name of the file, for errors.
        lines: Lines of the file.

    Raises:
        UserError: A line cannot be parsed, or is not an object.
    """
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
    lines = [line for line in sample.split("\n")[:-1] if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except JSON_ERRORS:
        return False


def parse_json_document(
    name: object, text: str, is_conll: bool = False
) -> list[Record] | dict[str, list[Any]]:
    """Return the rows of a JSON text as records, or as columns if the text is an object of columns.

    The text is a list of objects, `{"data": [...]}`, an object of columns, or one object per line.

    Args:
        name: Name of the file, for errors.
        text: Text of the file.
        is_conll: Whether a row holds lists of words and tags. An object of lists may then be a single row.

    Raises:
        UserError: The text cannot be parsed, or has no rows.
    """
    if text.lstrip().startswith("["):
        return _unwrap_document(name, _load_document(name, text), is_conll)
    lines = parse_json_lines(name, text.split("\n"))
    try:
        first = next(lines)[1]
    except UserError as error:
        return _unwrap_document(name, _load_multiline_object(text, error), is_conll)
    records = [first, *(record for _, record in lines)]
    if len(records) == 1 and ("data" in first or _is_column_table(first, is_conll)):
        return _unwrap_document(name, first, is_conll)
    return records


def _load_document(name: object, text: str) -> Any:
    try:
        return json.loads(text)
    except JSON_ERRORS as error:
        line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{name}: {line}{describe_json_error(error)}") from error


def _load_multiline_object(text: str, line_error: UserError) -> Any:
    """Load a text whose first line is not a JSON object; raise `line_error` if this fails too."""
    try:
        return json.loads(text)
    except JSON_ERRORS:
        raise line_error from line_error.__cause__


def _unwrap_document(name: object, document: Any, is_conll: bool) -> list[Record] | dict[str, list[Any]]:
    """Return the records or the columns of a parsed document."""
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if isinstance(document, dict) and _is_column_table(document, is_conll):
        return document
    records = document if isinstance(document, list) else [document]
    if not records:
        raise UserError(f"{name}: {NO_ROWS}")
    return [_require_object(name, number, record) for number, record in enumerate(records, start=1)]


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
