"""Read JSON documents and JSON lines."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from bertkit.data.readers.contents import NO_ROWS
from bertkit.errors import UserError

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
