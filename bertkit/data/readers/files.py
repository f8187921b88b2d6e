"""Files to rows. A file is known by its content, not by its name: compressed or not, Parquet, JSON,
JSONL, CSV or TSV; only whether other text holds a word a line must be said. Everything that cannot be
read is a `UserError` naming the file and the row.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.labels import map_tag_ids
from bertkit.data.readers.conll import parse_conll
from bertkit.data.readers.contents import (
    CONVERT_HINT,
    EMPTY_FILE,
    decode_text,
    read_decompressed,
    require_file,
)
from bertkit.data.readers.json import JSON_ERRORS, describe_json_error
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list

PARQUET_MAGIC = b"PAR1"
# An object with its first name, or a list of such: a column file's first token may be a bracket alone.
JSON_OBJECT_START = re.compile(r'\s*(\[\s*)?\{\s*"([^"\\\n]|\\.)*"\s*:')


@dataclass(frozen=True)
class Dialect:
    """How a text file departs from what its content suggests; data sets with quirks name theirs.

    Attributes:
        header: whether the first line names the columns; without it they are called "0", "1", ...
        quoting: whether `"` quotes a field; None: seen from the content.
        ragged: whether rows may have more or fewer fields than the first.
        words: whether each line is a word, and a blank line ends a sentence.
        encoding: that of the bytes where they are not UTF-8.
    """

    header: bool = True
    quoting: bool | None = None
    ragged: bool = False
    conll: bool = False
    encoding: str | None = None


def read_file(path: Path, dialect: Dialect | None = None) -> Rows:
    """All rows of one file.

    Raises:
        UserError: no such file, empty, not text, not UTF-8, or a row that cannot be parsed (its number).
    """
    require_file(path)
    raw = read_decompressed(path)
    if raw[:4] == PARQUET_MAGIC:
        return _parquet(path, raw)
    text = decode_text(path, raw, dialect.encoding if dialect else None)
    if dialect is not None and dialect.conll:
        return _words(path, text)
    start = text.lstrip()[:1]
    if not start:
        raise UserError(f"{path}: {EMPTY_FILE}")
    if dialect is None and start == "[":
        return _json_document(path, text)
    if dialect is None and start == "{":
        return _json_lines(path, text)
    return _delimited(path, text, dialect or Dialect())


def _words(path: Path, text: str) -> Rows:
    """A column file, unless it is JSON."""
    if not JSON_OBJECT_START.match(text):
        return parse_conll(path, text)
    return _json_document(path, text) if text.lstrip()[0] == "[" else _json_lines(path, text, words=True)


def _parquet(path: Path, raw: bytes) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: a broken Parquet file ({str(error).splitlines()[0]})") from error
    if table.num_rows == 0:
        raise UserError(f"{path}: the file has no rows")
    return Rows.from_columns(convert_arrow_columns(path, table), str(path))


def convert_arrow_columns(path: Path, table: Any, first_row: int = 1) -> dict[str, list[Any]]:
    """The columns of an Arrow table or batch as plain values, class numbers by the names that it brings.

    Args:
        path, first: its file, and the number of its first row in it, for errors.

    Raises:
        UserError: a column that is there twice, a text that is not UTF-8, or a class without a name.
    """
    import pyarrow as pa

    _check_names(path, table.schema.names)
    columns = {name: _plain(path, name, table.column(name)) for name in table.schema.names}
    for column, labels in _class_names(table.schema.metadata or {}).items():
        if column not in columns:
            continue
        if pa.types.is_integer(table.schema.field(column).type):
            columns[column] = _classes(path, first_row, column, columns[column], labels)
        else:
            columns[column] = map_tag_ids(columns[column], labels)
    return columns


def _plain(path: Path, name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: column {name!r} is not UTF-8 ({error.reason}); {CONVERT_HINT}") from error


def _classes(path: Path, first: int, column: str, numbers: list[Any], labels: list[str]) -> list[Any]:
    """The names of class numbers; None, and -1 as the Hub has it, are none."""
    for row, number in enumerate(numbers, start=first):
        if number is not None and number >= len(labels):
            there = f"the file names {len(labels)} classes ({format_list(labels)})"
            raise UserError(f"{path}: row {row}: column {column!r} holds class {number}, and {there}")
    return [labels[number] if number is not None and number >= 0 else None for number in numbers]


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Label names that `datasets` keeps in a Parquet file's metadata: column -> names by number.

    Of a column of lists they are those of its elements, under `feature` or, as older versions wrote it,
    in a list of one.
    """
    try:
        about: Any = json.loads(metadata.get(b"huggingface", b"{}"))
    except JSON_ERRORS:  # of some other program: numbers stay numbers
        return {}
    for key in ("info", "features"):
        about = about.get(key) if isinstance(about, dict) else None
    elements = {name: _element(each) for name, each in about.items()} if isinstance(about, dict) else {}
    return {
        name: each["names"]
        for name, each in elements.items()
        if isinstance(each, dict) and each.get("_type") == "ClassLabel" and _are_names(each.get("names"))
    }


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def _element(about: Any) -> Any:
    if isinstance(about, list):
        return about[0] if about else None
    return about.get("feature", about) if isinstance(about, dict) else None


def _json_document(path: Path, text: str) -> Rows:
    try:
        document = json.loads(text)
    except JSON_ERRORS as error:
        line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}: {line}{describe_json_error(error)}") from error
    return _rows_of(path, document)


def _json_lines(path: Path, text: str, words: bool = False) -> Rows:
    """One object a line; a file that is one object of columns or of `data` is taken as that."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except JSON_ERRORS as error:
            if number == 1 or not rows:
                return _rows_of(path, _one_object(path, text, error), words)
            raise UserError(f"{path}: row {number}: {describe_json_error(error)}") from error
    if len(rows) == 1 and any(isinstance(value, list) for value in rows[0].values()):
        whole = "data" in rows[0] or _is_columns(rows[0], words)
        return _rows_of(path, rows[0] if whole else rows, words)
    return _rows_of(path, rows)


def _one_object(path: Path, text: str, first_error: Exception) -> Any:
    try:
        return json.loads(text)
    except JSON_ERRORS:
        raise UserError(f"{path}: row 1: {describe_json_error(first_error)}") from first_error


def _is_columns(record: dict[str, Any], words: bool) -> bool:
    """Lists alike in length; but of words they are one row, unless most are lists of lists."""
    sizes = {len(value) if isinstance(value, list) else -1 for value in record.values()}
    alike = len(sizes) == 1 and sizes != {-1} and len(record) > 1
    nested = [any(isinstance(item, list) for item in value) for value in record.values()] if alike else []
    return alike and (not words or 2 * sum(nested) > len(nested))


def _rows_of(path: Path, document: Any, words: bool = False) -> Rows:
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if isinstance(document, dict) and _is_columns(document, words):
        return Rows.from_columns(document, str(path))
    records = document if isinstance(document, list) else [document]
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise UserError(f"{path}: row {number}: not a JSON object with named columns")
    if not records:
        raise UserError(f"{path}: the file has no rows")
    return Rows.from_dicts(records, str(path))


def _delimited(path: Path, text: str, dialect: Dialect) -> Rows:
    names, *body = parse_delimited(path, text.split("\n"), text, dialect)
    if not body:
        json_ = " (it begins with neither { nor [, as JSON does)" if ".json" in path.name else ""
        raise UserError(f"{path}: the file has a header and no rows{json_}")
    _check_names(path, names)
    return Rows.from_columns(
        {name: list(values) for name, values in zip(names, zip(*body, strict=True), strict=True)}, str(path)
    )


def parse_delimited(path: Path, lines: Iterable[str], sample: str, dialect: Dialect) -> Iterator[list[str]]:
    """The names of the columns, and then row by row their values.

    Args:
        lines: of the text, not cut by `splitlines`: a text may hold U+2028 or a form feed.
        sample: so much of the text that delimiter and quoting can be seen.
    """
    first = sample.lstrip("\r\n").split("\n", 1)[0]
    if "\r" in first.rstrip("\r"):
        raise UserError(f"{path}: its lines end in CR alone; save it with LF, as tr '\\r' '\\n' does")
    delimiter = next((mark for mark in "\t,;" if mark in first), ",")
    quoting = dialect.quoting
    if quoting is None:
        quoting = delimiter != "\t" or uses_quoting(sample)
    records = _records(path, lines, delimiter, quoting)
    if JSON_OBJECT_START.match(sample.lstrip("\r\n")[len(first) :]):
        raise UserError(f"{path}: row 1: a JSON object under a header; leave out the first line")
    head = next(records)
    names = [name.strip() for name in head] if dialect.header else [str(i) for i in range(len(head))]
    yield names
    for number, row in enumerate(records if dialect.header else chain([head], records), start=1):
        if dialect.ragged:
            row = (row + [""] * len(names))[: len(names)]
        if len(row) != len(names):
            raise UserError(
                f"{path}: row {number}: {format_count(len(row), 'field')} where the header has {len(names)} "
                f"({', '.join(names)})"
            )
        yield row


def _check_names(path: Path, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: the header names {twice[0]!r} twice; rename one of the columns")


def uses_quoting(text: str) -> bool:
    """Whether `"` quotes fields in a TAB-separated text.

    Files such as MRPC's hold bare quotes: there a field begins with one and does not end with one, or
    holds single ones inside. Where the lines do not even have the same number of TABs, quoting is
    taken to be what makes them whole.
    """
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip("\r")]
    if len({line.count("\t") for line in lines}) > 1:
        try:
            return len({len(row) for row in csv.reader(lines, delimiter="\t", strict=True) if row}) == 1
        except csv.Error:
            return False
    opened = [field for line in lines for field in line.split("\t") if field[:1] == '"']
    return bool(opened) and all(
        len(field) > 1 and field[-1] == '"' and '"' not in field[1:-1].replace('""', "") for field in opened
    )


def _records(path: Path, lines: Iterable[str], delimiter: str, quoting: bool) -> Iterator[list[str]]:
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
        where = f"row {number}" if number else "the header"
        raise UserError(
            f"{path}: {where}: broken CSV ({error}; near line {reader.line_num}); "
            "a quote stands around a field, and twice in it"
        ) from error
