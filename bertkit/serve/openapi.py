"""The OpenAPI description of the server: its rows, its errors, and its token."""

from typing import Any

from fastapi import FastAPI

from bertkit.serve.access import OPEN_PATHS
from bertkit.serve.model_registry import ModelRegistry

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
