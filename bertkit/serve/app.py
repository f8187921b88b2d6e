"""The OpenAPI description of the server: its rows, its errors, and its token."""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from functools import cache
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from bertkit._version import __version__
from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError, shorten_repr
from bertkit.report.page import render_template
from bertkit.serve.batcher import QueueFullError, Records
from bertkit.serve.middleware import (
    CLIENT_DISCONNECTED,
    MEGABYTE,
    OPEN_PATHS,
    PREDICT_PATH,
    RECORD_KEY,
    AccessLogMiddleware,
    AccessMiddleware,
    ConnectionCloseMiddleware,
    LimitsMiddleware,
)
from bertkit.serve.models import ModelRegistry, ServedModel
from bertkit.serve.requests import (
    InvalidBodyError,
    RequestError,
    handle_request_error,
    make_error_response,
    make_json_response,
)

ERRORS = {
    400: "The body is not JSON in UTF-8",
    403: "The header Host is not a name of this server",
    408: "The body did not arrive in time",
    413: "The body has too many bytes, rows or tokens",
    415: "The body is not announced as JSON",
    422: "A row, a key or a parameter is invalid",
    429: "Too many rows are waiting",
    500: "The server failed because of a bug",
    503: "The rows were not predicted in time, or the server is shutting down",
}
PREDICT_ERRORS = (400, 403, 408, 413, 415, 422, 429, 500, 503)
ERROR_SCHEMA = {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "string", "description": "<object>: <problem>; <fix>"}},
}  # fmt: skip
RECORD_SCHEMA = {
    "type": "object", "required": ["id"], "additionalProperties": True,
    "properties": {"id": {"type": ["integer", "string"], "description": "Position in the request"}},
}  # fmt: skip


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path for these statuses."""
    return {status: _describe_response(ERRORS[status], ERROR_SCHEMA) for status in statuses}


def describe_predictions() -> dict[int | str, dict[str, Any]]:
    """Return the responses of `POST /predict`."""
    schema = {"anyOf": [RECORD_SCHEMA, {"type": "array", "items": RECORD_SCHEMA}]}
    return {200: _describe_response("A record for each row", schema), **describe_errors(*PREDICT_ERRORS)}


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
            operation["responses"]["401"] = _describe_response("The token is missing or wrong", ERROR_SCHEMA)


def _describe_response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# The policy of the page itself allows only its own script, and requests to this server.
PAGE_HEADERS = {
    "content-security-policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@cache
def render_page() -> bytes:
    """Return the page. It is the same for all servers: its script reads the models from `/info`.

    So it contains nothing that a token protects.
    """
    return render_template("server.html", "server.js", title="bertkit serve").encode()


logger = logging.getLogger(__name__)

PREDICTION_SECONDS = 60.0  # time after which a client gets 503 instead of predictions
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PredictParameters(BaseModel):
    """Query parameters of `POST /predict`."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    all_scores: bool = False


def create_app(
    registry: ModelRegistry,
    config: ServeConfig,
    token: bytes | None,
    allowed_hosts: Collection[str] | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        registry: The models.
        config: Settings of the server.
        token: The bearer token; None if no token is needed.
        allowed_hosts: Names of the server in requests; None to allow all names.
    """
    app = FastAPI(title="bertkit serve", version=__version__, docs_url=None, redoc_url=None)
    _add_probes(app, registry)
    _add_model_routes(app, registry)
    app.add_exception_handler(RequestError, handle_request_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_query_error)
    app.add_exception_handler(Exception, _handle_bug)
    if token is not None:
        describe_token(app)
    limited = LimitsMiddleware(app, config.max_body_mb * MEGABYTE)
    allowed = AccessMiddleware(limited, token, allowed_hosts)
    logged = AccessLogMiddleware(allowed, registry, config.log_texts)
    return ConnectionCloseMiddleware(logged, lambda: registry.is_draining)


def _add_probes(app: FastAPI, registry: ModelRegistry) -> None:
    # Some load balancers send HEAD.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether the process responds")
    async def healthz() -> Response:
        return make_json_response({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether the server accepts requests", responses=describe_errors(503))
    async def readyz() -> Response:
        if registry.is_ready:
            return make_json_response({"status": "ready"})
        raise RequestError(503, "server: is shutting down; send the request to another server")

    @app.get("/metrics", summary="Measurements in the text format of Prometheus")
    async def metrics() -> Response:
        return Response(registry.metrics.format(), headers={"content-type": METRICS_TYPE})


def _add_model_routes(app: FastAPI, registry: ModelRegistry) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(render_page(), media_type="text/html", headers=PAGE_HEADERS)

    @app.get("/info", summary="The served models")
    async def info() -> Response:
        models = [model.info for model in registry.models.values()]
        return make_json_response({"version": __version__, "models": models})

    @app.post(
        PREDICT_PATH, summary="Predict rows", openapi_extra=describe_bodies(registry),
        responses=describe_predictions(),
    )  # fmt: skip
    async def predict(request: Request, parameters: Annotated[PredictParameters, Query()]) -> Response:
        return await _predict(registry, request, parameters)


async def _predict(registry: ModelRegistry, request: Request, parameters: PredictParameters) -> Response:
    record = request.scope[RECORD_KEY]
    _refuse_repeated_parameters(request)
    try:
        body = await request.body()
        model = registry.find(parameters.model)
        record.model = model.name
        record.rows, is_list = model.decoder.decode(body)
        with model.open_requests.track():
            prediction = _count_and_predict(model, record.rows, len(body), parameters.all_scores)
            records = await _wait_for_prediction(request, prediction)
    except InvalidBodyError as error:
        raise RequestError(error.status, str(error)) from None
    except UserError as error:
        raise RequestError(422, str(error)) from None
    except QueueFullError:
        raise RequestError(
            429, "queue: is full; send the request again later", {"retry-after": "1"}
        ) from None
    if records is None:
        return Response(status_code=CLIENT_DISCONNECTED)
    return make_json_response(records if is_list else records[0])


async def _count_and_predict(model: ServedModel, rows: Records, body_bytes: int, all_scores: bool) -> Records:
    num_tokens = await model.token_limit.count_tokens(rows, body_bytes)
    return await model.batcher.predict(rows, all_scores, num_tokens)


async def _wait_for_prediction(request: Request, prediction: Coroutine[Any, Any, Records]) -> Records | None:
    """Return the records; None if the client disconnects before they are computed.

    Raises:
        RequestError: The prediction takes too long.
    """
    predicted = asyncio.ensure_future(prediction)
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


def _refuse_repeated_parameters(request: Request) -> None:
    """Raise `RequestError` if a query parameter occurs twice, because its last value would win silently."""
    names = [name for name, _ in request.query_params.multi_items()]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(422, f"parameter {shorten_repr(repeated)}: is repeated; send it once")


def _handle_http_error(_: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)
    problem = {404: "path: does not exist", 405: "method: is not allowed for this path"}
    message = problem.get(error.status_code, "request: is invalid")
    return make_error_response(
        RequestError(error.status_code, f"{message}; see /openapi.json", error.headers)
    )


def _handle_query_error(_: Request, error: Exception) -> Response:
    """Return the response for a query parameter that is unknown or has an invalid value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    problem = "is unknown" if first["type"] == "extra_forbidden" else "has an invalid value"
    name = shorten_repr(first["loc"][-1])
    return make_error_response(
        RequestError(422, f"parameter {name}: {problem}; use model=NAME and all_scores=true")
    )


def _handle_bug(_: Request, error: Exception) -> Response:
    logger.error("a bug; please report it", exc_info=error)
    return make_error_response(RequestError(500, "server: failed because of a bug; see its log"))
