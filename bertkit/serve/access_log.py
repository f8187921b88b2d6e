"""ASGI middleware that logs and counts each request, without its text."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.errors import format_count
from bertkit.serve.model_registry import ModelRegistry

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
