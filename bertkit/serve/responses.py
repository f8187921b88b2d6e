"""Errors with an HTTP status, and their responses."""

from collections.abc import Mapping

import msgspec
from fastapi import Request, Response


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
