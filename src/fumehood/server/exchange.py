"""One request and its answer: our headers on every one, and no body left unread on a kept connection."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .. import __version__
from . import ids
from .problems import Problem

_LINGER_S, _LINGER_BYTES = 1.0, 4 * 1024 * 1024
_PIECE = 256 * 1024

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


_RAW = tuple((name.lower().encode(), value.encode()) for name, value in SECURITY.items())


class Cut(Exception):
    """An answer that had begun cannot be ended."""


class Exchange:
    """`receive` and `send` of one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.request_id = ids.of_request(scope)
        self.status: int | None = None
        names = {name for name, _ in scope["headers"]}
        self._unread = scope["type"] == "http" and bool(names & {b"content-length", b"transfer-encoding"})
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            given = [pair for pair in message.get("headers", ()) if pair[0] != b"x-request-id"]
            names = {name for name, _ in given}
            own = [pair for pair in _RAW if pair[0] not in names]
            own.append((b"x-request-id", self.request_id.encode()))
            if self._unread:
                own.append((b"connection", b"close"))
            message["headers"] = [*given, *own]
        elif kind == "websocket.accept":
            self.status = 101
        elif kind == "http.response.body" and len(message["body"]) > _PIECE:
            await self._send_pieces(message)
            return
        await self._send(message)

    async def _send_pieces(self, message: Message) -> None:
        """A client has its time for each piece, and we go on when it has read: a slow one gets a large answer too."""
        whole = memoryview(message["body"])
        for start in range(0, len(whole), _PIECE):
            more = message.get("more_body", False) or start + _PIECE < len(whole)
            piece = whole[start : start + _PIECE].tobytes()
            await self._send({"type": message["type"], "body": piece, "more_body": more})

    async def refuse(self, problem: Problem) -> None:
        """The problem as an answer, also in place of a WebSocket."""
        body = msgspec.json.encode(problem.body(self.request_id))
        response = Response(body, problem.status, problem.headers, media_type="application/problem+json")
        if not self._unread:
            await response(self.scope, self.receive, self.send)
            return
        # A client that still sends would meet a reset before it has read why: let it send a little more.
        await self.send({"type": "http.response.start", "status": problem.status, "headers": response.raw_headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self._linger()
        await self.send({"type": "http.response.body", "body": b""})

    async def _linger(self) -> None:
        left = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return
