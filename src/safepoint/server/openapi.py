"""The server's description of itself: every status that an operation can answer with, and how callers are known.

Routes say what they answer and which errors are their own (`answers`, `errors`). What the middleware and the connection
refuse before any route, and what any route may meet, is added here to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from safepoint.server.described import Error, Event, Invalid

Responses: TypeAlias = dict[int | str, dict[str, Any]]  # Any: as FastAPI has it
Schema: TypeAlias = dict[str, Any]  # Any: JSON

_WHAT = {
    400: "The request can't be meant like this.",
    401: "No key, or one that is wrong or revoked.",
    403: "Not for this caller, host or origin.",
    404: "Not there, or not the caller's.",
    408: "The request was not sent in time.",
    409: "It stands against what is so now.",
    413: "The body is too large.",
    422: "The request has the wrong shape.",
    429: "Too many: of runs, of cancels, or of wrong keys.",
    431: "The head of the request is too large.",
    500: "A fault of the server, which is in its log.",
    503: "Not now: the server is shutting down or full, or its store is out of reach.",
}
# What every operation may answer, whatever it does; and only where callers are known.
_ALWAYS, _WITH_KEY = (400, 403, 408, 431, 500), (401, 429, 503)
_OPEN = ("/health", "/ready")
_OF_SESSIONS = ("/run", "/run_sse")  # which they name in the body
_METHODS = ("get", "post", "put", "patch", "delete")
# The middleware says these as plain text; so does the connection, below everything that knows JSON.
_PLAIN, _PLAIN_ONLY = (403,), (408, 431)
_STREAM = (
    "Server-sent events. Each `data:` is an Event as JSON, each `id:` a place to come back to (`Last-Event-ID`). The "
    "last `data:` after a failure is `{error, error_details}`. Comments keep the connection open."
)


def by_name(route: APIRoute) -> str:
    """The id of an operation, from which clients are named: the name of its handler."""
    return route.name


def answers(model: object, what: str = "It is done.") -> Responses:
    """For a route's `responses`: what it answers when all is well."""
    return {200: {"model": model, "description": what}}


def answers_null(what: str) -> Responses:
    return {200: {"description": what, "content": {"application/json": {"schema": {"type": "null"}}}}}


def errors(*statuses: int) -> Responses:
    """For a route's `responses`: the errors of its own."""
    return {status: {"model": Error, "description": _WHAT[status]} for status in statuses}


def streams() -> Responses:
    """For a route's `responses`: a stream of events."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref("Event")}
    item = {"type": "object", "properties": {"id": {"type": "string"}, "data": data}, "required": ["data"]}
    return {200: {"description": _STREAM, "content": {"text/event-stream": {"itemSchema": item}}}}


def describe(app: FastAPI, *, has_keys: bool) -> Callable[[], Schema]:
    """What `app.openapi` is to be. It is made when it is first asked for: its user may add routes before that."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _made(app, has_keys=has_keys)
        return app.openapi_schema

    return openapi


def _made(app: FastAPI, *, has_keys: bool) -> Schema:
    schema = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    components: Schema = schema.setdefault("components", {})
    schemas: Schema = components.setdefault("schemas", {})
    for model in (Error, Event, Invalid):
        made = model.model_json_schema(by_alias=True, mode="serialization", ref_template="#/components/schemas/{model}")
        for name, each in made.pop("$defs", {}).items():
            schemas.setdefault(name, each)
        schemas.setdefault(model.__name__, made)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method in methods:
                _complete(path, methods[method])
    components["securitySchemes"] = _SCHEMES
    # Without keys everybody who can reach the server may call it.
    schema["security"] = [{"bearer": []}, {"cookie": []}, *([] if has_keys else [{}])]
    return schema


def _complete(path: str, operation: Schema) -> None:
    responses: Schema = operation["responses"]
    if path in _OPEN:
        operation["security"] = []
    for body in operation.get("requestBody", {}).get("content", {}).values():
        body["schema"] = _without_null(body["schema"])
    for media in responses["200"].get("content", {}).values():
        if "itemSchema" in media:  # of OpenAPI 3.2, as FastAPI has it. Its `schema` would be of the stream as a whole
            media["schema"] = {"title": "Frames"}
    responses.pop("422", None)  # FastAPI's own, also where nothing can be wrong
    for status in _met(path, operation):
        known: Schema = responses.setdefault(str(status), {"description": _WHAT[status]})
        content: Schema = known.setdefault("content", {})
        if status in _PLAIN or status in _PLAIN_ONLY:
            content["text/plain"] = {"schema": {"type": "string"}}
        if status not in _PLAIN_ONLY:
            content.setdefault("application/json", {"schema": _ref("Invalid" if status == 422 else "Error")})
    operation["responses"] = dict(sorted(responses.items()))


def _without_null(schema: Schema) -> Schema:
    """A body that may be left out need not be null, and generated clients would send that."""
    several: list[Schema] = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return several[0] if len(several) == 1 else schema


def _met(path: str, operation: Schema) -> Iterator[int]:
    """What the operation may answer, besides what its route says."""
    yield from _ALWAYS
    if path not in _OPEN:
        yield from _WITH_KEY
    if "{" in path or path in _OF_SESSIONS:
        yield 404
    has_body = "requestBody" in operation
    if has_body or any(given["in"] == "query" for given in operation.get("parameters", ())):
        yield 422
    if has_body:
        yield 413


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_SCHEMES: Schema = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key: `safepoint keys add`."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "safepoint_8000",
        "description": "What the server's own page gets for a key. The name ends with the port.",
    },
}
_ABOUT = (
    "Runs of agents, which can be stopped. The run, session and cancel routes are those of Google's ADK; `/runs` is "
    "Safepoint's own. `WS /run_live`, which OpenAPI can't describe, takes messages and answers with Events."
)
