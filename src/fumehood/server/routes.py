"""The typed route table: what a route takes, gives and may refuse; finding the route; reading what it takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from .bodies import SMALL, Bodies, Downloads
from .options import ServerOptions
from .problems import Problem, stopping
from .state import Call, ClientLeft, Server
from .tokens import Token

JSON = "application/json"
BINARY = "application/octet-stream"
_NOTHING_BYTES = 64
METHODS = ("GET", "POST", "PUT", "DELETE")

Handler = Callable[[Call[Any, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """One operation. Its handler gives what `reply` says (or None, or a whole Response) or raises a Problem."""

    method: str
    path: str  # {name} stands for one segment, {name...} for the rest
    handler: Handler
    summary: str
    request: Any = None  # the JSON body's type
    upload: bool = False  # the body is raw bytes, application/octet-stream
    query: Any = None  # a Struct of the query's parameters
    reply: Any = None  # the JSON answer's type
    reply_type: str = JSON  # where it is no JSON
    status: int = 200
    problems: tuple[str, ...] = ()  # codes, beside those that every such route has
    streams: Any = None  # type of the events, where Accept may ask for SSE or NDJSON
    also: Mapping[int, str] = field(default_factory=dict)  # further statuses that are no problem, such as 206
    request_example: Any = None
    reply_example: Any = None
    public: bool = False  # without a token


class SocketCall:
    """One authorised WebSocket, not yet accepted."""

    def __init__(self, server: Server, websocket: WebSocket, token: Token, params: dict[str, str]) -> None:
        self.server, self.websocket, self.token, self.params = server, websocket, token, params


@dataclass(frozen=True)
class Socket:
    """One WebSocket, opened with a ticket. Its handler must always have a receive() pending."""

    path: str
    handler: Callable[[SocketCall], Awaitable[None]]


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route], sockets: Iterable[Socket]) -> None:
        self.routes, self.sockets = tuple(routes), tuple(sockets)
        self._routes = [(_pattern(path), by_method) for path, by_method in _grouped(self.routes).items()]
        self._sockets = [(_pattern(socket.path), socket) for socket in self.sockets]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for pattern, by_method in self._routes:
            if match := pattern.fullmatch(path):
                route = by_method.get("GET" if method == "HEAD" else method)
                if route is None:
                    raise _not_allowed(by_method)
                return route, match.groupdict()
        if any(pattern.fullmatch(path) for pattern, _ in self._sockets):
            if method in ("GET", "HEAD"):
                raise Problem("bad_request", "this is a WebSocket: open it with an upgrade, and a ?ticket= for it")
            raise _not_allowed(("GET",))
        raise Problem("not_found", "there is nothing at this path: see /openapi.json")

    def find_socket(self, path: str) -> tuple[Socket, dict[str, str]]:
        for pattern, socket in self._sockets:
            if match := pattern.fullmatch(path):
                return socket, match.groupdict()
        raise Problem("not_found", "there is no WebSocket at this path: see /openapi.json")


async def answer(server: Server, route: Route, params: dict[str, str], request: Request, token: Token) -> Response:
    """Read what the route takes, call it, write what it gives."""
    body = await _body(server, route, request)
    given = await route.handler(Call(server, request, token, params, body, _query(route, request)))
    if isinstance(given, Response):
        return given
    if given is None:
        return Response(status_code=route.status)
    data = msgspec.json.encode(given)
    if len(data) > SMALL:
        server.part(Downloads).take(request.scope, len(data))
    return Response(data, route.status, media_type=JSON)


def _not_allowed(methods: Iterable[str]) -> Problem:
    allowed = ", ".join(sorted({*methods, *("HEAD" for method in methods if method == "GET")}))
    return Problem("method_not_allowed", f"this path takes {allowed}", {"Allow": allowed})


def _grouped(routes: Iterable[Route]) -> dict[str, dict[str, Route]]:
    found: dict[str, dict[str, Route]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route
    return found


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{\w+(?:\.\.\.)?\})", path)
    return re.compile("".join(_piece(part) for part in parts))


def _piece(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{.}")
    return f"(?P<{name}>.+)" if part.endswith("...}") else f"(?P<{name}>[^/]+)"


def _query(route: Route, request: Request) -> Any:
    pairs = request.query_params.multi_items()
    if route.query is None:
        if pairs and not route.public:
            raise Problem("validation", "this path takes no query")
        return None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise Problem("validation", "a parameter of the query is there twice")
    try:
        return msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("validation", f"query: {error}") from None


async def _body(server: Server, route: Route, request: Request) -> Any:
    options = server.options
    if route.upload:
        _media_type(request, BINARY)
        return _kept(options, request, await read(server, request, options.max_upload_bytes))
    if route.request is None:
        if not _is_nothing(request, await read(server, request, _NOTHING_BYTES if route.method == "POST" else 0)):
            raise Problem("bad_request", "this path takes no body")
        return None
    _media_type(request, JSON)
    data = _kept(options, request, await read(server, request, options.max_body_bytes))
    if deeper(data, options.max_depth):
        raise Problem("bad_request", f"the JSON is nested more than {options.max_depth} deep, or has too many parts")
    try:
        return _decoder(route.request).decode(data)
    except msgspec.ValidationError as error:
        raise Problem("validation", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem("bad_request", "the body is not JSON in UTF-8") from None


def _is_nothing(request: Request, data: bytes) -> bool:
    """No body; an empty object is none either, as some clients send with every POST."""
    if data:
        _media_type(request, JSON)
    return data.strip() in (b"", b"{}")


def _kept(options: ServerOptions, request: Request, data: bytes) -> bytes:
    if options.peers_dir:
        request.scope["state"]["body"] = data  # another worker may have to be told
    return data


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _media_type(request: Request, wanted: str) -> None:
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    utf8 = rest.strip().lower().replace('"', "") in ("", "charset=utf-8")
    if kind.strip().lower() != wanted or not utf8 or request.headers.get("content-encoding", "identity") != "identity":
        raise Problem("unsupported_media_type", f"send the body as Content-Type: {wanted}, not compressed")


async def read(server: Server, request: Request, max_bytes: int) -> bytes:
    """The body, never more of it in memory than its cap, nor than there is room for."""
    within_s, bodies = server.options.body_timeout_s, server.part(Bodies)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal():
        raise Problem("bad_request", "Content-Length is not a number")
    if int(length) > max_bytes:
        raise _too_large(max_bytes)
    bodies.check(request.scope, int(length))
    data, loop = bytearray(), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within_s) as deadline:
            with server.stopping.telling(lambda: deadline.reschedule(loop.time())):
                async for chunk in request.stream():
                    if len(data) + len(chunk) > max_bytes:
                        raise _too_large(max_bytes)
                    bodies.take(request.scope, len(chunk))
                    data += chunk
    except TimeoutError:
        if server.stopping.is_set:
            raise stopping() from None
        raise Problem("request_timeout", f"the body took longer than {within_s:g} s") from None
    except ClientDisconnect:
        raise ClientLeft from None
    return bytes(data)


def _too_large(max_bytes: int) -> Problem:
    text = f"the body may have {max_bytes / 2**20:.3g} MiB" if max_bytes > _NOTHING_BYTES else "this path takes no body"
    return Problem("too_large", text)


# A string that does not end is taken to the end, and once: else each quote in it would begin another.
_STRUCTURE = re.compile(rb'"[^"]*+"?|[\[{,\]}]')
MAX_PARTS = 50_000  # far more than any request of ours can have


def deeper(data: bytes, most: int) -> bool:
    """Whether JSON text is nested more than `most` deep, or has too many parts; found without parsing it."""
    if data.count(b"{") + data.count(b"[") <= most and data.count(b",") <= MAX_PARTS:
        return False
    depth = 0
    without_escapes = data.replace(rb"\\", b"").replace(rb"\"", b"")  # the pattern would be ten times as slow with them
    for number, match in enumerate(_STRUCTURE.finditer(without_escapes)):
        mark = match.group() if match.end() - match.start() == 1 else b""
        depth += (mark in (b"[", b"{")) - (mark in (b"]", b"}"))
        if depth > most or number > MAX_PARTS:
            return True
    return False
