"""OpenAPI 3.1 from the route table: types, examples, and every status that a route can give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from .. import __version__
from .problems import KINDS, ProblemBody
from .routes import BINARY, JSON, Route, Router
from .state import Call

PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"

ALWAYS = ("bad_request", "host_not_allowed", "headers_too_large", "internal")
WITH_TOKEN = ("unauthorized", "too_many", "validation")
WITH_BODY = ("request_timeout", "too_large", "unsupported_media_type")


def document(router: Router) -> dict[str, Any]:
    """The whole description."""
    types = [
        kind for route in router.routes for kind in (route.request, route.reply, route.streams) if kind is not None
    ]
    schemas, components = msgspec.json.schema_components([ProblemBody, *types], ref_template=_REF)
    known = dict(zip([ProblemBody, *types], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in router.routes:
        paths.setdefault(route.path.replace("...}", "}"), {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fumehood",
            "version": __version__,
            "description": "Runs programs in sandboxes. Every error is a problem (RFC 9457) whose `code` says which.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z]+', '_', route.path.lower()).strip('_') or 'page'}",
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route, known),
    }
    if route.public:
        found["security"] = []
    if route.upload:
        content = {} if route.request_example is None else {"example": route.request_example}
        found["requestBody"] = {"required": True, "content": {BINARY: content}}
    elif route.request is not None:
        content = {"schema": known[route.request]}
        if route.request_example is not None:
            content["example"] = msgspec.to_builtins(route.request_example)
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    return found


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    if route.query is None:
        return
    schema = msgspec.json.schema(route.query)
    described = schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for name, kind in described["properties"].items():
        yield {"name": name, "in": "query", "required": name in described.get("required", ()), "schema": kind}


def _responses(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": route.summary}
    if route.reply is not None:
        content = {"schema": known[route.reply]}
        if route.reply_example is not None:
            content["example"] = msgspec.to_builtins(route.reply_example)
        success["content"] = {JSON: content}
    elif route.status not in (202, 204):
        success["content"] = {route.reply_type: {}}
    if route.streams is not None:
        events = {"schema": known[route.streams]}
        success["content"] |= {"application/x-ndjson": events, "text/event-stream": {"schema": {"type": "string"}}}
    found = {str(route.status): success, **{str(code): {"description": text} for code, text in route.also.items()}}
    codes = dict.fromkeys((*ALWAYS, *route.problems))
    if not route.public:
        codes |= dict.fromkeys(WITH_TOKEN)
    codes |= dict.fromkeys(WITH_BODY)  # of a body that nobody asked for too
    if route.upload or route.request is not None:
        codes["unavailable"] = None  # no room for it
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(KINDS[code][0], []).append(code)
    for status, named in sorted(by_status.items()):
        content = {PROBLEM: {"schema": known[ProblemBody]}}
        found[str(status)] = {
            "description": "; ".join(f"{code}: {KINDS[code][1]}" for code in named),
            "content": content,
        }
    return found


async def describe(call: Call[Any, Any]) -> dict[str, Any]:
    return document(call.request.scope["state"]["router"])


ROUTES = (Route("GET", "/openapi.json", describe, "This description.", reply=dict[str, Any]),)
