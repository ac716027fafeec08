"""What happens before routing, to HTTP and to WebSockets: host, origin, headers, token; and after: headers, the log."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import Iterable
from urllib.parse import parse_qs

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from . import log
from .options import ServerOptions
from .problems import Problem, from_error
from .state import ClientLeft, Server
from .tokens import Token

PROTOCOL = "1"
PUBLIC = ("/", "/healthz", "/readyz")
PUBLIC_BELOW = "/assets/"
_LINGER_S, _LINGER_BYTES = 1.0, 4 * 1024 * 1024
_ONCE = ("host", "authorization", "origin", "content-type", "content-length", "x-fumehood-protocol")

SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "Cache-Control": "no-store",
    "X-Fumehood-Version": __version__,
}


class Guard:
    """Pure ASGI, around everything."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        request_id, started = secrets.token_hex(16), time.monotonic()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status: list[int] = []

        async def stamped(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status.append(message["status"])
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = request_id
            elif message["type"] == "websocket.accept":
                status.append(101)
            elif message["type"] == "websocket.close" and not status:
                status.append(403)
            await send(message)

        failed: BaseException | None = None
        try:
            self._admit(scope)
            await self.app(scope, receive, stamped)
        except ClientLeft:
            failed = None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failed = error
            if status:  # too late to say anything: the connection is cut
                raise
            await refuse(scope, receive, stamped, from_error(error), request_id)
        finally:
            self._log(scope, status[0] if status else None, started, failed)

    def _admit(self, scope: Scope) -> None:
        """Raises a Problem, or notes whose request it is."""
        headers, options = Headers(scope=scope), self.server.options
        raw = scope["headers"]
        if len(raw) > options.max_headers or sum(len(n) + len(v) for n, v in raw) > options.max_header_bytes:
            raise Problem("headers_too_large", f"send at most {options.max_headers} headers")
        if any(len(headers.getlist(name)) > 1 for name in _ONCE):
            raise Problem("bad_request", "a header is there twice")
        path = scope["path"]
        if not path.startswith("/") or "\0" in path:
            raise Problem("bad_request", "the target must be a path")
        host = headers.get("host", "")
        if not host_allowed(host, options):
            raise Problem("host_not_allowed", "this Host is not served: see --allow-host of fumehood serve")
        opens_page = scope.get("method") in ("GET", "HEAD") and (path == "/" or path.startswith(PUBLIC_BELOW))
        _same_origin(headers, host, navigates=opens_page)
        if headers.get("x-fumehood-protocol", PROTOCOL) != PROTOCOL:
            raise Problem("version_mismatch", f"this server speaks protocol {PROTOCOL}: use its version of fumehood")
        if scope["type"] == "http" and is_public(scope["method"], path):
            return
        token = self._token(scope, headers)
        if token is None:
            raise Problem(
                "unauthorized",
                "send `Authorization: Bearer <token>`; a WebSocket is opened with a fresh ?ticket=",
                {"WWW-Authenticate": 'Bearer realm="fumehood"'},
            )
        scope["state"]["token"] = token
        self.server.gate.count_call(token)

    def _token(self, scope: Scope, headers: Headers) -> Token | None:
        if scope["type"] == "websocket":
            tickets = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [])
            token = self.server.tickets.redeem(tickets[0], scope["path"]) if len(tickets) == 1 else None
            return token if token is not None and self.server.tokens.current(token) else None
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        return self.server.tokens.find(presented.strip()) if scheme.lower() == "bearer" else None

    def _log(self, scope: Scope, status: int | None, started: float, failed: BaseException | None) -> None:
        token, known = scope["state"].get("token"), isinstance(failed, Problem)
        path = scope["path"]
        if path in ("/healthz", "/readyz") and status == 200:
            return
        log.write(
            "request",
            request_id=scope["state"]["request_id"],
            method=scope.get("method", "WEBSOCKET"),
            path=path,
            status=status,
            ms=round((time.monotonic() - started) * 1000, 1),
            token=token.name if token else None,
            client=scope["client"][0] if scope.get("client") else None,
            code=failed.code if isinstance(failed, Problem) else None,
            error=type(failed).__name__ if failed and not known else None,
            at=log.where(failed) if failed and not known else None,
        )


def is_public(method: str, path: str) -> bool:
    """Whether it is to be had without a token."""
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_BELOW))


def host_allowed(host: str, options: ServerOptions) -> bool:
    """A name that leads here by DNS rebinding is none of ours; an address cannot be rebound."""
    name, port = _split(host.lower())
    allowed = {each.lower() for each in options.allowed_hosts}
    if allowed & {"*", host.lower(), name}:
        return bool(host)
    if options.loopback:
        return name in ("127.0.0.1", "localhost", "[::1]", options.host) and port == str(options.port)
    return name == "localhost" or _is_address(name)


def _split(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "80")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def _same_origin(headers: Headers, host: str, navigates: bool) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in _origins(host.lower()):
        raise Problem("origin_not_allowed", "pages of other origins may not call this server")
    site = headers.get("sec-fetch-site", "none")
    following_a_link = navigates and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not following_a_link:
        raise Problem("origin_not_allowed", "pages of other sites may not call this server")


def _origins(host: str) -> Iterable[str]:
    return f"http://{host}", f"https://{host}"


async def refuse(scope: Scope, receive: Receive, send: Send, problem: Problem, request_id: str) -> None:
    """The problem as an answer, also in place of a WebSocket."""
    body = msgspec.json.encode(problem.body(request_id))
    response = Response(body, problem.status, problem.headers, media_type="application/problem+json")
    if scope["type"] == "websocket" or problem.code != "too_large":
        await response(scope, receive, send)
        return
    # A client that still sends would meet a reset before it has read why: let it send a little more.
    await send({"type": "http.response.start", "status": problem.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _linger(Request(scope, receive))
    await send({"type": "http.response.body", "body": b""})


async def _linger(request: Request) -> None:
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                message = await request.receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
