"""uvicorn's connections, with the time-outs and the cap that it leaves out."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .options import ServerOptions
from .problems import KINDS, Problem

_NOT_PARSED = "-" * 8
_HEAD, _LARGE = b"HTTP/1.1 ", 64 * 1024
_CHUNKS, _CHUNK_BYTES = 256, 256  # so many may have any size, the others that on average
_HEARD, _HEARD_A_SECOND = 160 * 1024, 4 * 1024  # bytes, of what clients say over WebSockets: nothing that we need


class _Joined:
    """A transport that keeps the head of an answer until its body is there, or the loop goes on without one.

    Two writes are two packets, and a client that is woken twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) > _LARGE:  # copied, it would cost more than it saves
                self._transport.write(head)
            else:
                data = head + data
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class _Bounded(asyncio.Protocol):
    """A client that does not read is cut off."""

    transport: asyncio.Transport
    write_timeout_s: float
    _writing: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._written()

    def connection_lost(self, exc: Exception | None) -> None:
        self._written()
        super().connection_lost(exc)

    def _written(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def websockets(options: ServerOptions) -> type[WebSocketsSansIOProtocol]:
    """As below, of WebSockets."""

    class WebSockets(_Bounded, WebSocketsSansIOProtocol):
        write_timeout_s = options.write_timeout_s
        _heard, _since = 0, 0.0

        def data_received(self, data: bytes) -> None:
            now = self.loop.time()
            self._since = self._since or now
            self._heard += len(data)
            if self._heard > _HEARD + _HEARD_A_SECOND * (now - self._since):
                self.transport.abort()  # each frame costs time, however small it is
                return
            super().data_received(data)

        def send_receive_event_to_app(self) -> None:
            """Nobody waits for a message; uvicorn would decode it, and fails where that cannot be done."""
            self.frames = []

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
                self.handshake_complete = True  # else uvicorn takes a refusal for a fault of ours, and logs it

    return WebSockets


class _Connection(h11.Connection):
    """Every chunk of a body costs as much as a small request, so a body of tiny ones is refused."""

    _chunks = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            if self._bytes < (self._chunks - _CHUNKS) * _CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks are too small")
        return event


def http(options: ServerOptions) -> type[H11Protocol]:
    """The protocol class for these options; uvicorn makes one object of it for each connection."""

    class Http(_Bounded, H11Protocol):
        write_timeout_s = options.write_timeout_s
        _heading: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **kinds: Any) -> None:
            super().__init__(*args, **kinds)
            self.conn = _Connection(h11.SERVER, options.max_header_bytes)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
            if len(self.connections) > options.max_connections:
                self._refuse(Problem("unavailable", "too many connections: try again", {"Retry-After": "1"}))
                return
            self._await_headers()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._idle():
                self._await_headers()  # from its first byte, however slowly the others come
            super().data_received(data)
            if not self._idle():
                self._headers_came()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._headers_came()
            self._written()
            super().handle_websocket_upgrade(event)

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_came()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's name
            """Also for headers that are too large."""
            error = sys.exc_info()[1]
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.close()
            elif getattr(error, "error_status_hint", 400) == KINDS["headers_too_large"][0]:
                self._refuse(Problem("headers_too_large", f"send at most {options.max_header_bytes} bytes of headers"))
            else:
                self._refuse(Problem("bad_request", "this is no valid HTTP/1.1 request"))

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self.loop.call_later(self.write_timeout_s, self.transport.abort)  # what it has not read by then is lost

        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _await_headers(self) -> None:
            if self._heading is None:
                self._heading = self.loop.call_later(options.header_timeout_s, self.transport.abort)

        def _headers_came(self) -> None:
            if self._heading is not None:
                self._heading.cancel()
                self._heading = None

        def _refuse(self, problem: Problem) -> None:
            self._headers_came()
            self.transport.write(_raw(problem))
            self.transport.close()

    return Http


def _raw(problem: Problem) -> bytes:
    body = msgspec.json.encode(problem.body(_NOT_PARSED))
    headers: dict[str, Any] = {
        "Content-Type": "application/problem+json",
        "Content-Length": len(body),
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **problem.headers,
    }
    lines = [f"HTTP/1.1 {problem.status} {problem.title}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body
