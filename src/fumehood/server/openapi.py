"""OpenAPI 3.1 from the route table: types, examples, and every status that a route can give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from .. import __version__
from . import wire
from .problems import KINDS, ProblemBody
from .routes import BINARY, JSON, Route, Router, Socket
from .state import Call

PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

# 503 is what a connection gets that is one too many, whatever it asks for.
ALWAYS = ("bad_request", "host_not_allowed", "method_not_allowed", "headers_too_large", "internal", "unavailable")
SOCKET = (*ALWAYS, "unauthorized", "not_found", "session_ended", "misdirected", "too_many")
# What msgspec does not know of a problem: its codes, and the members that some have beside.
_MORE: dict[str, Any] = {
    "code": {"type": "string", "enum": [*KINDS, "too_slow"]},
    "instance": {"type": "string", "description": "of `misdirected`: which has it"},
    "kind": {"type": "string", "description": "of an error about a file: which"},
}
WITH_TOKEN = ("unauthorized", "role_not_allowed", "too_many", "validation")
WITH_BODY = ("request_timeout", "too_large", "unsupported_media_type")


def document(router: Router) -> dict[str, Any]:
    """The whole description."""
    types = [
        kind for route in router.routes for kind in (route.request, route.reply, route.streams) if kind is not None
    ]
    types += [ProblemBody, wire.SessionEvent]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(types, schemas, strict=True))
    components["ProblemBody"]["properties"] |= _MORE
    components["Failure"]["properties"]["error"] = known[ProblemBody]
    components["ExecuteRequest"]["oneOf"] = [_exactly("code", "command"), _exactly("command", "code")]
    paths: dict[str, dict[str, Any]] = {}
    for route in router.routes:
        paths.setdefault(route.path.replace("...}", "}"), {})[route.method.lower()] = _operation(route, known)
    for socket in router.sockets:
        paths.setdefault(socket.path, {})["get"] = _socket(socket, known)
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


def _exactly(given: str, other: str) -> dict[str, Any]:
    """One is there, the other absent or null."""
    kind = "array" if given == "command" else "string"
    return {"required": [given], "properties": {given: {"type": kind}, other: {"type": "null"}}}


def _socket(socket: Socket, known: dict[Any, Any]) -> dict[str, Any]:
    """A WebSocket is a GET that is answered with 101; its messages are said beside."""
    ticket = {"name": "ticket", "in": "query", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": f"get_{_named(socket.path)}",
        "summary": "WebSocket: what happens in a session, as one JSON text for each event.",
        "description": "Upgrade with a fresh ticket, which stands for a token. What a client sends is not read.",
        "parameters": [*_path_parameters(socket.path), ticket],
        "security": [],
        "responses": {"101": {"description": "The WebSocket is open."}, **_refusals(SOCKET, known)},
        "x-websocket": {"receives": known[wire.SessionEvent], "sends": None},
    }


def _operation(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{_named(route.path)}",
        "summary": route.summary,
        "parameters": [*_path_parameters(route.path), *_range(route), *_query_parameters(route)],
        "responses": _responses(route, known),
    }
    if route.public:
        found["security"] = []
    if route.upload:
        content = dict(_BYTES)
        if route.request_example is not None:
            content["example"] = route.request_example
        found["requestBody"] = {"required": True, "content": {BINARY: content}}
    elif route.request is not None:
        content = {"schema": known[route.request]}
        if route.request_example is not None:
            content["example"] = msgspec.to_builtins(route.request_example)
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    return found


def _named(path: str) -> str:
    return re.sub(r"[^a-z]+", "_", path.lower()).strip("_") or "page"


def _range(route: Route) -> Iterable[dict[str, Any]]:
    if 206 in route.also:
        text = "`bytes=first-last`, one range; what is no such range is answered with the whole."
        yield {"name": "Range", "in": "header", "description": text, "schema": {"type": "string"}}


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)", path):
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
        success["content"] = {route.reply_type: _TEXT if route.reply_type.startswith("text/") else _BYTES}
    if route.streams is not None:
        events = {"schema": known[route.streams]}
        success["content"] |= {"application/x-ndjson": events, "text/event-stream": _TEXT}
        success["description"] += " As NDJSON: one event on each line; as SSE: one in the `data:` of each message."
    success["headers"] = _headers("X-Request-Id", "X-Fumehood-Version")
    found = {str(route.status): success}
    for code, text in route.also.items():
        found[str(code)] = {"description": text, "headers": success["headers"]}
    if 206 in route.also:
        success["headers"] |= _headers("Accept-Ranges", "Content-Disposition")
        ranged = {"content": {route.reply_type: _BYTES}, "headers": {**success["headers"], **_headers("Content-Range")}}
        found["206"] |= ranged
    codes = dict.fromkeys((*ALWAYS, *route.problems))
    if not route.public:
        codes |= dict.fromkeys(WITH_TOKEN)
    codes |= dict.fromkeys(WITH_BODY)  # of a body that nobody asked for too
    return found | _refusals(codes, known)


def _headers(*names: str) -> dict[str, Any]:
    return {name: {**_ABOUT.get(name, {}), **_TEXT} for name in names}


_ABOUT = {"Retry-After": {"description": "Seconds. Not there with `sandbox_lost`."}}
_OF_STATUS = {401: "WWW-Authenticate", 405: "Allow", 416: "Content-Range", 429: "Retry-After", 503: "Retry-After"}


def _refusals(codes: Iterable[str], known: dict[Any, Any]) -> dict[str, Any]:
    found, by_status = dict[str, Any](), dict[int, list[str]]()
    for code in codes:
        by_status.setdefault(KINDS[code][0], []).append(code)
    for status, named in sorted(by_status.items()):
        content = {PROBLEM: {"schema": known[ProblemBody]}}
        found[str(status)] = {
            "description": "; ".join(f"{code}: {KINDS[code][1]}" for code in named),
            "content": content,
            "headers": _headers("X-Request-Id", "X-Fumehood-Version", *filter(None, (_OF_STATUS.get(status),))),
        }
    return found


async def describe(call: Call[Any, Any]) -> dict[str, Any]:
    return document(call.request.scope["state"]["router"])


ROUTES = (Route("GET", "/openapi.json", describe, "This description.", reply=dict[str, Any]),)
