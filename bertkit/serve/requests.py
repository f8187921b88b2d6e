"""Errors with an HTTP status, and their responses."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
from fastapi import Request, Response

from bertkit.errors import UserError, format_count, shorten_repr
from bertkit.tasks.base import ColumnKind, InputSchema


class RequestError(Exception):
    """Error that ends a request.

    Attributes:
        status: HTTP status.
        headers: Further headers of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def make_json_response(content: object, status: int = 200) -> Response:
    """Return a JSON response; NaN and infinity become null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def make_error_response(error: RequestError) -> Response:
    """Return the response `{"error": "<object>: <problem>; <fix>"}`."""
    response = make_json_response({"error": str(error)}, error.status)
    response.headers.update(error.headers)
    return response


def handle_request_error(_: Request, error: Exception) -> Response:
    """Return the response for an error that a handler of FastAPI raised."""
    assert isinstance(error, RequestError)
    return make_error_response(error)


COLUMN_TYPES: dict[ColumnKind, Any] = {
    "text": str, "words": str | list[str], "texts": list[str], "optional text": str | msgspec.UnsetType,
    "optional span": dict[str, Any] | msgspec.UnsetType,
}  # fmt: skip
EXAMPLES: dict[ColumnKind, Any] = {"text": "...", "words": ["..."], "texts": ["...", "..."]}
MSGSPEC_ERROR = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?:\[(?P<row>\d+)\])?\.?(?P<key>.*)`)?$", re.DOTALL)
UNKNOWN_KEY = "Object contains unknown field"


class InvalidBodyError(Exception):
    """Error for a body that has no valid rows.

    Attributes:
        status: HTTP status: 400 if the body is not JSON, 413 if it has too many rows, else 422.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RowDecoder:
    """Decodes JSON to rows that have exactly the input columns of a task.

    msgspec validates while it parses: unknown keys, other types, NaN, invalid UTF-8 and half surrogate pairs
    are errors, and nested values are refused before they are read.

    Args:
        schema: The columns of the task.
        max_rows: Maximum number of rows of a request.

    Raises:
        UserError: The name of a column cannot be a key.
    """

    def __init__(self, schema: InputSchema, max_rows: int) -> None:
        self.schema, self.kinds, self.max_rows = schema, schema.get_column_kinds(), max_rows
        self._decoder = msgspec.json.Decoder(self.body_type)

    @cached_property
    def body_type(self) -> Any:
        """The type of a body: a row, or a list of rows."""
        fields = [
            (f"column{index}", COLUMN_TYPES[kind])
            if not kind.startswith("optional")
            else (f"column{index}", COLUMN_TYPES[kind], msgspec.UNSET)
            for index, kind in enumerate(self.kinds.values())
        ]
        rename = {f"column{index}": column for index, column in enumerate(self.kinds)}
        try:
            row = msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=True, kw_only=True)
        except ValueError as error:  # such as a quotation mark
            columns = ", ".join(self.kinds)
            raise UserError(f"columns {columns}: {error}; rename the columns, and train again") from error
        return row | list[row]  # type: ignore[valid-type]

    @property
    def example(self) -> dict[str, Any]:
        """A valid row with placeholder texts."""
        row = {column: EXAMPLES[kind] for column, kind in self.kinds.items() if kind in EXAMPLES}
        first = [column for column in self.schema.text_columns[:1] if self.kinds[column] == "text"]
        return row | dict.fromkeys(first, self.schema.example_text)

    def make_json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a body, with the schema of a row in `$defs`."""
        return msgspec.json.schema(self.body_type)

    def decode(self, body: bytes | bytearray) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows, and whether the body is a list.

        Raises:
            InvalidBodyError: The body has no valid rows. The message contains no text of the body, except an
                unknown key.
        """
        try:
            decoded = self._decoder.decode(body)
            _refuse_repeated_keys(body)
        except msgspec.ValidationError as error:
            raise InvalidBodyError(422, self._format_error(str(error))) from None
        except UnicodeDecodeError:
            raise InvalidBodyError(400, "request: is not UTF-8; encode it in UTF-8") from None
        except msgspec.DecodeError as error:
            raise InvalidBodyError(400, _format_syntax_error(body, str(error))) from None
        except RecursionError:  # in the dictionary of a span, whose values are not validated here
            raise InvalidBodyError(422, "request: is nested too deeply; send flat rows") from None
        is_list = isinstance(decoded, list)
        rows = [self._to_dict(row) for row in (decoded if is_list else [decoded])]
        if not rows:
            raise InvalidBodyError(422, "request: has no rows; send at least one")
        if len(rows) > self.max_rows:
            count = format_count(len(rows), "row")
            raise InvalidBodyError(413, f"request: has {count}; send at most {self.max_rows:,} at a time")
        return rows, is_list

    def _to_dict(self, row: Any) -> dict[str, Any]:
        values = zip(self.kinds, msgspec.structs.astuple(row), strict=True)
        return {column: value for column, value in values if value is not msgspec.UNSET}

    def _format_error(self, error: str) -> str:
        """Return an error of msgspec as `request: row 1: key 'text': expected str, got int; <fix>`."""
        match = MSGSPEC_ERROR.match(error)
        assert match is not None
        problem = match["problem"]
        if problem.startswith(UNKNOWN_KEY):
            problem = f"unknown key {shorten_repr(problem.removeprefix(UNKNOWN_KEY).strip(' `'))}"
        problem = problem.replace("`", "'")
        problem = problem.replace("Object missing required field", "missing key")
        problem = problem[0].lower() + problem[1:]
        row = f"row {int(match['row'] or 0) + 1}: "
        key = f"key '{match['key']}': " if match["key"] else ""
        example = json.dumps(self.example, ensure_ascii=False)
        return f"request: {row}{key}{problem}; send rows such as {example}"


def _format_syntax_error(body: bytes | bytearray, error: str) -> str:
    """Return the error for a body that msgspec cannot parse."""
    try:
        json.loads(body.decode())
    except (ValueError, RecursionError):
        problem = error.removeprefix("JSON is malformed: ")
        return f"request: cannot parse it as JSON ({problem}); send JSON"
    # Python's parser accepts more than JSON: NaN, infinity, and halves of surrogate pairs.
    return "request: contains NaN, Infinity or half of a surrogate pair; send JSON"


def _refuse_repeated_keys(body: bytes | bytearray) -> None:
    """Raise `InvalidBodyError` if a row has a key twice, because its last value would win silently."""

    def check_keys(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise InvalidBodyError(422, "request: a row has a key twice; send each key once")

    json.loads(body, object_pairs_hook=check_keys)
