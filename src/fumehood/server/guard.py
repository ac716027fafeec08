"""What happens before routing, to HTTP and to WebSockets: host, origin, headers, token; and after: the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import BackendError, ConfigurationError
from . import bodies, ids, log
from .connections import Connection
from .exchange import Cut, Exchange
from .origins import check_origin, host_allowed
from .peers import Peers
from .problems import Problem, from_error
from .state import ClientLeft, Elsewhere, Server
from .tokens import Token

PROTOCOL = "1"
PUBLIC = ("/", "/healthz", "/readyz")
PUBLIC_BELOW = "/assets/"
_SAID = (BackendError, ConfigurationError)  # whose messages quote no program
_ONCE = ("host", "authorization", "origin", "content-type", "content-length", "x-fumehood-protocol")


class Guard:
    """Pure ASGI, around everything."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server, self.peers = app, server, server.part(Peers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        tracing = self.server.tracing
        if tracing is None:
            await self._answer(exchange)
            return
        with tracing.request(scope) as finish:
            try:
                await self._answer(exchange)
            finally:
                finish(exchange.status)

    async def _answer(self, exchange: Exchange) -> None:
        started, failed = time.monotonic(), None
        state = exchange.scope["state"]
        state["client"] = self.server.connections.client(state["connection"], _forwarded(exchange.scope))
        try:
            await self._try(exchange)
        except ClientLeft:
            pass
        except Exception as error:
            failed = error
            if exchange.status is not None:  # too late to say anything: the connection is cut
                raise Cut from None
            await exchange.refuse(from_error(error))
        finally:
            bodies.leave(exchange.scope)
            self._note(exchange, time.monotonic() - started, failed or exchange.scope["state"].get("failed"))

    async def _try(self, exchange: Exchange) -> None:
        try:
            self._admit(exchange.scope)
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except Elsewhere as other:
            await self.peers.pass_on(exchange, other.instance)

    def _admit(self, scope: Scope) -> None:
        """Raises a Problem, or notes whose request it is."""
        headers, options = Headers(scope=scope), self.server.options
        raw = scope["headers"]
        size = len(scope["path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in raw)
        if len(raw) > options.max_headers or size > options.max_header_bytes:
            text = f"send at most {options.max_headers} headers and {options.max_header_bytes} bytes before the body"
            raise Problem("headers_too_large", text)
        if len({name for name, _ in raw}) < len(raw) and any(len(headers.getlist(name)) > 1 for name in _ONCE):
            raise Problem("bad_request", "a header is there twice")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise Problem("bad_request", "a body has one length")  # a proxy before us may have taken the other
        path = scope["path"]
        if not path.startswith("/") or "\0" in path:
            raise Problem("bad_request", "the target must be a path")
        if not (_is_utf8(scope["raw_path"]) and _is_utf8(scope["query_string"])):
            raise Problem("bad_request", "the path and the query must be UTF-8")
        host = headers.get("host", "")
        if not host_allowed(host, options):
            raise Problem("host_not_allowed", "this Host is not served: see --allow-host of fumehood serve")
        opens_page = scope.get("method") in ("GET", "HEAD") and (path == "/" or path.startswith(PUBLIC_BELOW))
        check_origin(headers, host, options, navigates=opens_page)
        if headers.get("x-fumehood-protocol", PROTOCOL) != PROTOCOL:
            raise Problem("version_mismatch", f"this server speaks protocol {PROTOCOL}: use its version of fumehood")
        connection: Connection = scope["state"]["connection"]
        if (fault := scope["state"].get("fault")) is not None:
            connection.shows_none(path)
            raise fault
        if scope["type"] == "http" and is_public(scope["method"], path):
            if self._token(scope, headers) is None:
                connection.shows_none(path)
            else:
                connection.shows_token(path)
            return
        token = self._token(scope, headers)
        if token is None:
            connection.shows_none(path)
            raise Problem(
                "unauthorized",
                "send `Authorization: Bearer <token>`; a WebSocket is opened with a fresh ?ticket=",
                {"WWW-Authenticate": 'Bearer realm="fumehood"'},
            )
        connection.shows_token(path)
        scope["state"]["token"] = token
        if not ids.beside(scope):  # else it was counted where it came in
            self.server.gate.count_call(token)
        if not token.may_ask(path):
            raise Problem("role_not_allowed", f"a token with the role {token.role} reads /metrics alone: use another")

    def _token(self, scope: Scope, headers: Headers) -> Token | None:
        if scope["type"] == "websocket":
            tickets = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [])
            if len(tickets) != 1:
                return None
            made_by = tickets[0].rpartition(".")[0]
            if self.peers.path(made_by) is not None:
                raise Elsewhere(made_by)
            token = self.server.tickets.redeem(tickets[0], scope["path"])
            return token if token is not None and self.server.tokens.current(token) else None
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        return self.server.tokens.find(presented.strip()) if scheme.lower() == "bearer" else None

    def _note(self, exchange: Exchange, seconds: float, failed: Exception | None) -> None:
        scope, status = exchange.scope, exchange.status
        token, path, method = scope["state"].get("token"), scope["path"], scope.get("method", "WEBSOCKET")
        problem, passed_to = None if failed is None else from_error(failed), scope["state"].get("passed_to")
        cause = None if isinstance(failed, Problem) else failed
        owner = token.name if token else ""
        if passed_to is None:  # else who answers counts it
            self.server.numbers.request(owner, method, scope["state"].get("route", ""), status or 0, seconds)
        if problem is not None:
            self.server.numbers.refused(owner, problem.code)
        if path in ("/healthz", "/readyz") and status == 200:
            return
        log.write(
            "request",
            level=_level(problem),
            request_id=exchange.request_id,
            execution_id=scope["state"].get("execution_id"),
            method=method,
            path=path,
            status=status,
            ms=round(seconds * 1000, 1),
            token=token.name if token else None,
            client=scope["state"]["client"],
            code=problem.code if problem else None,
            passed_to=passed_to,
            error=type(cause).__name__ if cause else None,
            message=str(cause) if isinstance(cause, _SAID) else None,
            at=log.where(cause) if cause and problem and problem.status >= 500 else None,
        )


def _level(problem: Problem | None) -> str:
    if problem is None or problem.status < 500:
        return "info"
    return "error" if problem.code == "internal" else "warning"


def _forwarded(scope: Scope) -> Iterator[str]:
    return (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")


def _is_utf8(quoted: bytes) -> bool:
    """Else it would be read as another name, and two of them as one."""
    try:
        unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        return False
    return True


def is_public(method: str, path: str) -> bool:
    """Whether it is to be had without a token."""
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_BELOW))
