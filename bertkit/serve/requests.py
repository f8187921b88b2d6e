"""The rows of a request, and the errors that end one."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Response

from bertkit.errors import UserError, format_count, shorten_repr
from bertkit.tasks.base import ColumnKind, InputSchema


class RequestError(Exception):
    """Error that ends a request.

    Attributes:
        status: HTTP status: 400 if a body is not JSON, 413 if it is too large, 422 if it has no valid rows.
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


COLUMN_TYPES: dict[ColumnKind, Any] = {
    "text": str, "words": str | list[str], "texts": list[str], "optional text": str | msgspec.UnsetType,
    "optional span": dict[str, Any] | msgspec.UnsetType,
}  # fmt: skip
EXAMPLES: dict[ColumnKind, Any] = {"text": "...", "words": ["..."], "texts": ["...", "..."]}
MSGSPEC_ERROR = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?:\[(?P<row>\d+)\])?\.?(?P<key>.*)`)?$", re.DOTALL)
UNKNOWN_KEY = "Object contains unknown field"


class RowDecoder:
    """Decodes JSON to rows that have exactly the input columns of a task.

    msgspec validates while it parses: unknown keys, other types, NaN, invalid UTF-8 and half surrogate pairs
    are errors, and nested values are refused before they are read.

    Raises:
        UserError: The name of a column cannot be a key.
    """

    def __init__(self, schema: InputSchema, max_rows: int) -> None:
        self.schema, self.kinds, self.max_rows = schema, schema.get_column_kinds(), max_rows
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
        self._body_type: Any = row | list[row]  # type: ignore[valid-type]
        self._decoder = msgspec.json.Decoder(self._body_type)

    @property
    def example(self) -> dict[str, Any]:
        """A valid row with placeholder texts."""
        row = {column: EXAMPLES[kind] for column, kind in self.kinds.items() if kind in EXAMPLES}
        first = [column for column in self.schema.text_columns[:1] if self.kinds[column] == "text"]
        return row | dict.fromkeys(first, self.schema.example_text)

    def make_json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a body, with the schema of a row in `$defs`."""
        return msgspec.json.schema(self._body_type)

    def decode(self, body: bytes | bytearray) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows, and whether the body is a list.

        Messages of errors contain no text of the body, except an unknown key.
        """
        try:
            decoded = self._decoder.decode(body)
            _refuse_repeated_keys(body)
        except msgspec.ValidationError as error:
            raise RequestError(422, self._format_error(str(error))) from None
        except UnicodeDecodeError:
            raise RequestError(400, "request: is not UTF-8; encode it in UTF-8") from None
        except msgspec.DecodeError as error:
            raise RequestError(400, _format_syntax_error(body, str(error))) from None
        except RecursionError:  # in the dictionary of a span, whose values are not validated here
            raise RequestError(422, "request: is nested too deeply; send flat rows") from None
        is_list = isinstance(decoded, list)
        rows = []
        for row in decoded if is_list else [decoded]:
            values = zip(self.kinds, msgspec.structs.astuple(row), strict=True)
            rows.append({column: value for column, value in values if value is not msgspec.UNSET})
        if not rows:
            raise RequestError(422, "request: has no rows; send at least one")
        if len(rows) > self.max_rows:
            count = format_count(len(rows), "row")
            raise RequestError(413, f"request: has {count}; send at most {self.max_rows:,} at a time")
        return rows, is_list

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
    """Refuse rows that have a key twice, because its last value would win silently."""

    def check_keys(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise RequestError(422, "request: a row has a key twice; send each key once")

    json.loads(body, object_pairs_hook=check_keys)
