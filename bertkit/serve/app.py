"""The application: paths and errors, the log, requests that are refused, and the OpenAPI description."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import anyio
import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit._version import __version__
from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError, format_count, shorten_repr
from bertkit.reports.page import render_template
from bertkit.serve.batcher import Records
from bertkit.serve.models import ModelRegistry, ServedModel
from bertkit.serve.requests import RequestError, make_error_response, make_json_response

PREDICT_PATH = "/predict"  # other paths have no body, and respond with 404 or 405
PATHS = ("/", PREDICT_PATH, "/healthz", "/readyz", "/metrics", "/openapi.json", "/info")
PREDICTION_SECONDS = 60.0  # time after which a client gets 503 instead of predictions
BODY_SECONDS = 10.0  # time in which a client must send the body
MEGABYTE = 1_000_000
RECORD_KEY = "bertkit.record"  # key of the `RequestRecord` in the ASGI scope
# The policy of the page itself allows only its own script, and requests to this server.
PAGE_HEADERS = {
    "content-security-policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}

logger = logging.getLogger(__name__)


def create_app(
    registry: ModelRegistry,
    config: ServeConfig,
    token: bytes | None,
    allowed_hosts: Collection[str] | None = None,
) -> ASGIApp:
    """Return the application; see `RequestChecks` for the token and the hosts."""
    app = FastAPI(title="bertkit serve", version=__version__, docs_url=None, redoc_url=None)
    add_descriptions(app, registry)
    add_predictions(app, registry)
    for kind in (RequestError, UserError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, handle_error)
    if token is not None:
        describe_token(app)
    checked = RequestChecks(app, token, allowed_hosts, config.max_body_mb * MEGABYTE)
    return AccessLog(checked, registry, config.log_texts)


# ---- paths


def add_descriptions(app: FastAPI, registry: ModelRegistry) -> None:
    """Add the paths that describe the server: its page, its state and its models."""

    # Some load balancers send HEAD.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether the process responds")
    async def healthz() -> Response:
        return make_json_response({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether the server accepts requests", responses=describe_errors(503))
    async def readyz() -> Response:
        if registry.models and not registry.is_draining:
            return make_json_response({"status": "ready"})
        raise RequestError(503, "server: is shutting down; send the request to another server")

    @app.get("/metrics", summary="Measurements in the text format of Prometheus")
    async def metrics() -> Response:
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(generate_latest(registry.metrics.registry), headers={"content-type": content_type})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(render_page(), media_type="text/html", headers=PAGE_HEADERS)

    @app.get("/info", summary="The served models")
    async def info() -> Response:
        models = [model.info for model in registry.models.values()]
        return make_json_response({"version": __version__, "models": models})


@cache
def render_page() -> bytes:
    """Return the page, which contains nothing that a token protects: its script reads `/info`."""
    return render_template("server.html", "server.js", title="bertkit serve").encode()


class PredictParameters(BaseModel):
    """Query parameters of `POST /predict`."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    all_scores: bool = False


def add_predictions(app: FastAPI, registry: ModelRegistry) -> None:
    """Add `POST /predict`."""

    @app.post(
        PREDICT_PATH, summary="Predict rows", openapi_extra=describe_bodies(registry),
        responses={
            200: _describe_response("A record for each row", RECORDS_SCHEMA),
            **describe_errors(400, 403, 408, 413, 415, 422, 429, 500, 503),
        },
    )  # fmt: skip
    async def predict(request: Request, parameters: Annotated[PredictParameters, Query()]) -> Response:
        names = [name for name, _ in request.query_params.multi_items()]
        # The last value of a repeated parameter would win silently.
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise RequestError(422, f"parameter {shorten_repr(repeated)}: is repeated; send it once")
        body = await request.body()
        model = registry.find(parameters.model)
        record = request.scope[RECORD_KEY]
        record.model = model.name
        record.rows, is_list = model.decoder.decode(body)
        with model.track_request():
            records = await predict_while_connected(
                request, model, record.rows, len(body), parameters.all_scores
            )
        if records is None:
            return Response(status_code=499)  # nginx's status for a client that has disconnected
        return make_json_response(records if is_list else records[0])


async def predict_while_connected(
    request: Request, model: ServedModel, rows: Records, body_bytes: int, all_scores: bool
) -> Records | None:
    """Return the records of rows; None if the client disconnects before they are computed."""

    async def predict() -> Records:
        num_tokens = await model.token_limit.count_tokens(rows, body_bytes)
        return await model.batcher.predict(rows, all_scores, num_tokens)

    predicted = asyncio.ensure_future(predict())
    disconnected = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait(
            {predicted, disconnected}, timeout=PREDICTION_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if predicted.done():
            return predicted.result()
        if disconnected.done():
            return None
        raise RequestError(
            503,
            f"server: did not predict the rows within {PREDICTION_SECONDS:g} seconds; send fewer or shorter "
            "rows, or send them later",
            {"retry-after": "10"},
        )
    finally:
        predicted.cancel()
        disconnected.cancel()


def handle_error(_: Request, error: Exception) -> Response:
    """Return the response for an error of a path, or for a path that does not exist."""
    if isinstance(error, UserError):  # a row or the name of the model
        error = RequestError(422, str(error))
    elif isinstance(error, HTTPException):  # an unknown path or method
        problems = {404: "path: does not exist", 405: "method: is not allowed for this path"}
        problem = problems.get(error.status_code, "request: is invalid")
        error = RequestError(error.status_code, f"{problem}; see /openapi.json", error.headers)
    elif isinstance(error, RequestValidationError):  # a query parameter
        first = error.errors()[0]
        problem = "is unknown" if first["type"] == "extra_forbidden" else "has an invalid value"
        name = shorten_repr(first["loc"][-1])
        error = RequestError(422, f"parameter {name}: {problem}; use model=NAME and all_scores=true")
    elif not isinstance(error, RequestError):
        logger.error("a bug; please report it", exc_info=error)
        error = RequestError(500, "server: failed because of a bug; see its log")
    return make_error_response(error)


# ---- the log

QUIET_PATHS = ("/healthz", "/readyz", "/metrics")  # not logged if they succeed, because they are frequent


@dataclass
class RequestRecord:
    """What `predict` adds to the log: the model and the rows of the request."""

    model: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)


class AccessLog:
    """Middleware that logs and counts requests, and adds `Connection: close` while the server drains.

    Args:
        log_texts: Whether the log contains the rows.
    """

    def __init__(self, app: ASGIApp, registry: ModelRegistry, log_texts: bool) -> None:
        self.app, self.registry, self.log_texts = app, registry, log_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, record, status = time.perf_counter(), RequestRecord(), 500
        scope[RECORD_KEY] = record

        async def send_and_record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.registry.is_draining:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self.app(scope, receive, send_and_record_status)
        finally:
            self._log(scope, record, status, time.perf_counter() - start)

    def _log(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"  # it could contain a text
        self.registry.metrics.requests.labels(path, status).inc()
        self.registry.metrics.request_seconds.labels(path).observe(seconds)
        if path in QUIET_PATHS and status == 200:
            return
        client = scope["client"][0] if scope.get("client") else "-"
        rows = f" {record.model}, {format_count(len(record.rows), 'row')}" if record.rows else ""
        texts = f" {msgspec.json.encode(record.rows).decode()}" if record.rows and self.log_texts else ""
        logger.info(
            "%s %s %s %d %.1f ms%s%s", client, scope["method"], path, status, 1000 * seconds, rows, texts
        )


# ---- requests that are refused

# The page has no data of the models; its script asks for the token. Probes do not know the token.
OPEN_PATHS = ("/", "/healthz", "/readyz")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def choose_hosts(host: str) -> set[str]:
    """Return the names, in the header `Host`, of a server that listens on a loopback address."""
    return {*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host.lower()}


class RequestChecks:
    """Middleware that refuses requests without access, and bodies that are not JSON, too large or too slow.

    Args:
        app: The application. It receives the whole body in one message.
        token: The bearer token; None if no token is needed.
        allowed_hosts: Names of the server in the header `Host`; None to allow all names.
        max_body_bytes: Maximum size of a body.
        body_seconds: Time in which the body must arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: bytes | None,
        allowed_hosts: Collection[str] | None,
        max_body_bytes: int,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.app, self.token, self.allowed_hosts = app, token, allowed_hosts
        self.max_body_bytes, self.body_seconds = max_body_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if scope["path"] not in OPEN_PATHS:
                self._check_access(headers)
            if scope["method"] == "POST" and scope["path"] == PREDICT_PATH:
                check_media_type(headers)
            body = await self._read_body(headers, receive)
        except RequestError as error:
            await make_error_response(error)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, receive_body, send)

    def _check_access(self, headers: Mapping[str, str]) -> None:
        """Refuse another name of the server, and a missing or wrong token.

        A page of another site can let its own name resolve to 127.0.0.1 (DNS rebinding). The browser then
        permits the page to read responses, but still sends this name as `Host`.
        """
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())  # without the port
        if self.allowed_hosts is not None and host not in self.allowed_hosts:
            raise RequestError(
                403, "host: is not a name of this server; send Host: localhost, or start it with --token-file"
            )
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

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """Return the whole body.

        The rest of a body that is too large is read, but not stored: otherwise the connection would be reset
        before the client has read the response.
        """
        length = headers.get("content-length", "")
        is_number = length.isascii() and length.isdigit() and len(length) < 20
        is_announced_too_large = is_number and int(length) > self.max_body_bytes  # the length may be wrong
        chunks, size, has_more = [], 0, True
        try:
            with anyio.fail_after(self.body_seconds):
                while has_more:
                    message = await receive()
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size <= self.max_body_bytes and not is_announced_too_large:
                        chunks.append(chunk)
                    else:
                        chunks.clear()
                    has_more = message["type"] != "http.disconnect" and message.get("more_body", False)
        except TimeoutError:
            problem = f"request: did not arrive within {self.body_seconds:g} seconds; send it faster"
            raise RequestError(408, problem, {"connection": "close"}) from None
        if size > self.max_body_bytes:
            limit = f"{self.max_body_bytes / MEGABYTE:g} MB"
            raise RequestError(413, f"request: is larger than {limit}; send fewer rows at a time")
        return b"".join(chunks)


def check_media_type(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not announced as JSON in UTF-8, without compression.

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


# ---- the OpenAPI description

ERRORS = {
    400: "The body is not JSON in UTF-8",
    401: "The token is missing or wrong",
    403: "The header Host is not a name of this server",
    408: "The body did not arrive in time",
    413: "The body has too many bytes, rows or tokens",
    415: "The body is not announced as JSON",
    422: "A row, a key or a parameter is invalid",
    429: "Too many rows are waiting",
    500: "The server failed because of a bug",
    503: "The rows were not predicted in time, or the server is shutting down",
}
ERROR_SCHEMA = {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "string", "description": "<object>: <problem>; <fix>"}},
}  # fmt: skip
RECORD_SCHEMA = {
    "type": "object", "required": ["id"], "additionalProperties": True,
    "properties": {"id": {"type": ["integer", "string"], "description": "Position in the request"}},
}  # fmt: skip
RECORDS_SCHEMA = {"anyOf": [RECORD_SCHEMA, {"type": "array", "items": RECORD_SCHEMA}]}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path for these statuses."""
    return {status: _describe_response(ERRORS[status], ERROR_SCHEMA) for status in statuses}


def describe_bodies(registry: ModelRegistry) -> dict[str, Any]:
    """Return the description of the rows of all models."""
    schemas, examples = [], {}
    for model in registry.models.values():
        schema = model.decoder.make_json_schema()
        row = schema.pop("$defs")["Row"] | {"title": model.name}
        schemas.append({"anyOf": [row, {"type": "array", "items": row}]})
        examples[model.name] = {"value": model.decoder.example}
    content = {"schema": {"anyOf": schemas}, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def describe_token(app: FastAPI) -> None:
    """Add the token, and the error of a missing token, to all paths that need it."""
    description = app.openapi()  # FastAPI returns this object for each request
    schemes = description.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer"}
    for path, operations in description["paths"].items():
        for operation in operations.values() if path not in OPEN_PATHS else ():
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = _describe_response(ERRORS[401], ERROR_SCHEMA)


def _describe_response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
