"""What happens before routing, to HTTP and to WebSockets: host, origin, headers, token; and after: the log."""

from __future__ import annotations

import time
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import BackendError, ConfigurationError
from . import bodies, ids, log
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
        host = headers.get("host", "")
        if not host_allowed(host, options):
            raise Problem("host_not_allowed", "this Host is not served: see --allow-host of fumehood serve")
        opens_page = scope.get("method") in ("GET", "HEAD") and (path == "/" or path.startswith(PUBLIC_BELOW))
        check_origin(headers, host, navigates=opens_page)
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
        if not ids.beside(scope):  # else it was counted where it came in
            self.server.gate.count_call(token)

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
        if passed_to is None:  # else who answers counts it
            self.server.numbers.request(method, scope["state"].get("route", ""), status or 0, seconds)
        if problem is not None:
            self.server.numbers.refused(problem.code)
        if path in ("/healthz", "/readyz") and status == 200:
            return
        log.write(
            "request",
            level=_level(problem),
            request_id=exchange.request_id,
            method=method,
            path=path,
            status=status,
            ms=round(seconds * 1000, 1),
            token=token.name if token else None,
            client=scope["client"][0] if scope.get("client") else None,
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


def is_public(method: str, path: str) -> bool:
    """Whether it is to be had without a token."""
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_BELOW))
