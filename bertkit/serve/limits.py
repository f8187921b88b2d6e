"""ASGI middleware that reads the bodies of requests, with limits on type, size and time."""

from collections.abc import Mapping

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.serve.responses import RequestError, make_error_response

BODY_SECONDS = 10.0  # time in which a client must send the body
MEGABYTE = 1_000_000
PREDICT_PATH = "/predict"  # other paths have no body, and respond with 404 or 405


class LimitsMiddleware:
    """Refuses bodies that are not JSON, too large or too slow.

    Args:
        app: The application. It receives the whole body in one message.
        max_body_bytes: Maximum size of a body.
        body_seconds: Time in which the body must arrive.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_seconds: float = BODY_SECONDS) -> None:
        self.app, self.max_body_bytes, self.body_seconds = app, max_body_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a valid request, or send an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            if scope["method"] == "POST" and scope["path"] == PREDICT_PATH:
                check_media_type(headers)
            body = await self._read_body(headers, receive)
        except RequestError as error:
            await make_error_response(error)(scope, receive, send)
            return
        await self.app(scope, _replay(body, receive), send)

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """Return the whole body.

        The rest of a body that is too large is read, but not stored: otherwise the connection would be reset
        before the client has read the response.
        """
        chunks, size = [], 0
        is_announced_too_large = _parse_length(headers) > self.max_body_bytes
        try:
            with anyio.fail_after(self.body_seconds):
                while True:
                    message = await receive()
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size <= self.max_body_bytes and not is_announced_too_large:
                        chunks.append(chunk)
                    else:
                        chunks.clear()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        break
        except TimeoutError:
            problem = f"request: did not arrive within {self.body_seconds:g} seconds; send it faster"
            raise RequestError(408, problem, {"connection": "close"}) from None
        if size > self.max_body_bytes:
            limit = f"{self.max_body_bytes / MEGABYTE:g} MB"
            raise RequestError(413, f"request: is larger than {limit}; send fewer rows at a time")
        return b"".join(chunks)


def check_media_type(headers: Mapping[str, str]) -> None:
    """Raise `RequestError` unless the body is announced as JSON in UTF-8, without compression.

    A page of another site can send other types without the permission of this server, which sends no CORS
    headers. For this type, a browser asks for permission first.
    """
    media_type, *parameters = headers.get("content-type", "").lower().split(";")
    if media_type.strip() != "application/json":
        raise RequestError(415, "request: is not JSON; send the header Content-Type: application/json")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(" \"'") not in ("utf-8", "utf8"):
            raise RequestError(415, "request: has another charset than UTF-8; encode it in UTF-8")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestError(415, "request: is compressed; send it without Content-Encoding")


def _parse_length(headers: Mapping[str, str]) -> int:
    """Return the announced size of the body; 0 if there is none. The size is not trusted to be right."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives the body, and then the disconnection of the client."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next
