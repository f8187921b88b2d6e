"""ASGI middleware that decides which clients may send requests: by token, and by the name of the server."""

import hmac
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.errors import format_count
from bertkit.serve.models import ModelRegistry
from bertkit.serve.requests import RequestError, make_error_response

# The page has no data of the models; its script asks for the token. Probes do not know the token.
OPEN_PATHS = ("/", "/healthz", "/readyz")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def choose_hosts(host: str) -> set[str]:
    """Return the names, in the header `Host`, of a server that listens on a loopback address.

    Args:
        host: The address that the user passed.
    """
    return {*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host.lower()}


class AccessMiddleware:
    """Refuses requests without the token, or with another name of the server.

    A page of another site can let its own name resolve to 127.0.0.1 (DNS rebinding). The browser then permits
    the page to read responses, but still sends this name as `Host`.

    Args:
        app: The application.
        token: The bearer token; None if no token is needed.
        allowed_hosts: Names of the server in the header `Host`; None to allow all names.
    """

    def __init__(self, app: ASGIApp, token: bytes | None, allowed_hosts: Collection[str] | None) -> None:
        self.app, self.token, self.allowed_hosts = app, token, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is allowed, or send an error."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = Headers(scope=scope)
            try:
                self._check_host(headers)
                self._check_token(headers)
            except RequestError as error:
                await make_error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestError` if a browser could have been redirected to this server."""
        name = re.sub(r":\d*$", "", headers.get("host", "").lower())  # without the port
        if self.allowed_hosts is not None and name not in self.allowed_hosts:
            raise RequestError(
                403, "host: is not a name of this server; send Host: localhost, or start it with --token-file"
            )

    def _check_token(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestError` if the token is missing or wrong."""
        if self.token is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # The comparison takes the same time for any wrong token.
        is_valid = hmac.compare_digest(token.strip().encode(), self.token)
        if scheme.lower() != "bearer" or not is_valid:
            raise RequestError(
                401, "token: is missing or wrong; send the header Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )  # fmt: skip


logger = logging.getLogger(__name__)

PATHS = ("/", "/predict", "/healthz", "/readyz", "/metrics", "/openapi.json", "/info")
OTHER_PATH = "other"  # an unknown path could contain a text
QUIET_PATHS = ("/healthz", "/readyz", "/metrics")  # not logged if they succeed, because they are frequent
RECORD_KEY = "bertkit.record"  # key of the `RequestRecord` in the ASGI scope
CLIENT_DISCONNECTED = 499  # nginx's status for a client that did not wait for the response


@dataclass
class RequestRecord:
    """What a handler adds to the log: the model and the rows of the request."""

    model: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)


class AccessLogMiddleware:
    """Logs and counts requests.

    Args:
        app: The application.
        registry: The models.
        log_texts: Whether the log contains the rows.
    """

    def __init__(self, app: ASGIApp, registry: ModelRegistry, log_texts: bool) -> None:
        self.app, self.registry, self.log_texts = app, registry, log_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, and log it with the status of its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, record, status = time.perf_counter(), RequestRecord(), 500
        scope[RECORD_KEY] = record

        async def send_and_record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_record_status)
        finally:
            self._log(scope, record, status, time.perf_counter() - start)

    def _log(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in PATHS else OTHER_PATH
        self.registry.metrics.observe_request(path, status, seconds)
        if path in QUIET_PATHS and status == 200:
            return
        client = scope["client"][0] if scope.get("client") else "-"
        rows = f" {record.model}, {format_count(len(record.rows), 'row')}" if record.rows else ""
        texts = f" {msgspec.json.encode(record.rows).decode()}" if record.rows and self.log_texts else ""
        logger.info(
            "%s %s %s %d %.1f ms%s%s", client, scope["method"], path, status, 1000 * seconds, rows, texts
        )


class ConnectionCloseMiddleware:
    """Adds `Connection: close` to responses while the server drains.

    Args:
        app: The application.
        is_draining: Returns whether the server is shutting down.
    """

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self.app, self.is_draining = app, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and self.is_draining():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, send_with_header)


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
