"""The application: guard, then routes. What it offers is the tables that are named here."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..config import Settings
from . import execute, executions, files, health, history, info, openapi, sessions, static, telemetry
from .guard import Guard
from .reload import InForce
from .routes import Route, Router, Socket, SocketCall, answer
from .state import Server
from .tokens import Token

ROUTES: tuple[Iterable[Route], ...] = (
    *(health.ROUTES, openapi.ROUTES, static.ROUTES),
    *(execute.ROUTES, executions.ROUTES, sessions.ROUTES, files.ROUTES, history.ROUTES, info.ROUTES),
)
SOCKETS: tuple[Iterable[Socket], ...] = (sessions.SOCKETS,)
NOBODY = Token("", b"", max_concurrent=0, max_sessions=0)  # whose requests the public paths are


def create_app(now: InForce, settings: Settings) -> Application:
    """The ASGI application; programs run with `settings`, which no request can widen."""
    return Application(Server(now, settings, telemetry.start()))


class Application:
    """ASGI. `server` is what its handlers share."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.router = Router((r for rows in ROUTES for r in rows), (s for rows in SOCKETS for s in rows))
        self._guarded: ASGIApp = Guard(self._route, server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = scope["state"].get("token", NOBODY)
        if scope["type"] == "websocket":
            socket, params = self.router.find_socket(scope["path"])
            await socket.handler(SocketCall(self.server, WebSocket(scope, receive, send), token, params))
            return
        route, params = self.router.find(scope["method"], scope["path"])
        scope["state"] |= {"route": route.path, "router": self.router}
        response = await answer(self.server, route, params, Request(scope, receive), token)
        await response(scope, receive, send)
