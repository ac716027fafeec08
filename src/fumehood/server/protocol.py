"""uvicorn's connections, with the time-outs and the cap that it leaves out."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from .connections import Connection, address_of
from .handshake import Handshake
from .options import ServerOptions
from .problems import KINDS, Problem
from .state import Server
from .upgrades import upgrade_fault

_HEAD, _LARGE = b"HTTP/1.1 ", 64 * 1024
_CHUNKS, _CHUNK_BYTES = 256, 256  # so many may have any size, the others that on average
_HEARD, _HEARD_A_SECOND = 160 * 1024, 4 * 1024  # bytes, of what clients say over WebSockets: nothing that we need
_PROBE, _LOOKS_S = b"HTTP/1.1 100 Continue\r\n\r\n", (0.02, 0.1, 0.3, 1.0)
_LISTENS_S = 1.0
_TCP_CLOSE = 7  # the kernel's


class _Joined:
    """A transport that keeps the head of an answer until its body is there, or the loop goes on without one.

    Two writes are two packets, and a client that is woken twice. Once it is closed, its client has `within_s` to read
    the rest.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, within_s: float) -> None:
        self._transport, self._loop, self._within_s = transport, loop, within_s
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
        is_first = not self._transport.is_closing()
        self._transport.close()
        if is_first and self._transport.get_write_buffer_size():
            self._loop.call_later(self._within_s, self._transport.abort)

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class Bounded(asyncio.Protocol):
    """A client that does not read is cut off."""

    transport: asyncio.Transport
    options: ServerOptions
    connection: Connection
    _server: Server  # of the subclass that is made for each server
    _writing: asyncio.TimerHandle | None = None

    @property
    def unsent(self) -> int:
        """Bytes for which its client has no room."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.call_later(self.options.write_timeout_s, self._unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._written()

    def connection_lost(self, exc: Exception | None) -> None:
        self._written()
        super().connection_lost(exc)

    def _unread(self) -> None:
        problem = Problem("request_timeout", "what was asked for was not read in time")
        self._server.connections.refused(self.connection.address, problem)
        self.transport.abort()

    def _written(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


class WebSockets(Bounded, WebSocketsSansIOProtocol):
    """One that was opened; `upgrade_fault` has found nothing against it."""

    _heard, _since = 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.options = self._server.options
        self.connection = self.app_state["connection"]
        self.connection.makes_answer = self.connection.is_between = lambda: False
        self.connection.put_out = lambda _: self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if not self.handshake_complete:  # uvicorn would answer a request that it may not have
            self.transport.abort()
        elif self.conn.state is State.OPEN:
            super().shutdown()
        else:  # either side has said that it closes: nothing may be said any more
            self.transport.close()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:  # before the handshake
            self._break_off()

    def data_received(self, data: bytes) -> None:
        now = self.loop.time()
        self._since = self._since or now
        self._heard += len(data)
        if self._heard > _HEARD + _HEARD_A_SECOND * (now - self._since):
            self.transport.abort()  # each frame costs time, however small it is
            return
        super().data_received(data)
        if not self.handshake_initiated:  # the whole request is in the first piece
            self._break_off()

    def _break_off(self) -> None:
        """`upgrade_fault` has let something through that the parser did not take."""
        problem = Problem("bad_request", "this is no valid request for a WebSocket")
        self._server.connections.refused(self.connection.address, problem)
        self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Nobody waits for a message; uvicorn would decode it, and fails where that cannot be done."""
        self.frames = []

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # else uvicorn takes a refusal for a fault of ours, and logs it


def websockets(server: Server) -> type[WebSockets]:
    """The class of this server's WebSockets."""
    return type("WebSockets", (WebSockets,), {"_server": server})


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


class Http(Bounded, H11Protocol):
    """One client's connection, until it becomes a WebSocket."""

    _heading: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _listening: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kinds: Any) -> None:
        super().__init__(*args, **kinds)
        self.options = self._server.options
        self.conn = _Connection(h11.SERVER, self.options.max_header_bytes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address, own = address_of(transport.get_extra_info("peername")), transport.get_extra_info("sockname")
        is_beside = bool(own) and own == self._server.options.peers_socket
        connection = self._server.connections.open(transport, address, is_beside)
        if self._server.tls is None or is_beside:
            self.begin(transport, connection)
        else:
            Handshake(
                self._server.connections, connection, self._server.tls, self.options, self.connections, self.begin
            )

    def begin(self, transport: asyncio.Transport, connection: Connection) -> None:
        """From here on it is HTTP."""
        transport.set_protocol(self)
        joined = _Joined(transport, self.loop, self.options.write_timeout_s)
        super().connection_made(joined)  # type: ignore[arg-type]
        self.connection = connection
        self.connection.makes_answer = self._makes_answer
        self.connection.is_between = self._is_between
        self.connection.put_out = self._refuse
        self.app_state = {**self.app_state, "connection": self.connection}
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._idle():
            self._await_headers()  # from its first byte, however slowly the others come
        super().data_received(data)
        if not self._idle():
            self._headers_came()

    def handle_events(self) -> None:
        super().handle_events()
        if self.flow.read_paused and self._listening is None:
            self._listen()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has said all that it wants to say is answered."""
        if self.transport.is_closing() or self.transport.get_extra_info("ssl_object") is not None:
            return False
        if self._idle() and not self.conn.trailing_data[0]:
            return False
        if self._idle() or self.cycle.more_body:  # it ends too soon
            self.connection.is_half_closed = True
            super().data_received(b"")
            return not self.transport.is_closing()
        if not self.connection.is_half_closed:
            self.connection.is_half_closed = True
            self._look(0)
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.connection.is_half_closed and self._idle():
            self.transport.close()

    def shutdown(self) -> None:
        with contextlib.suppress(h11.LocalProtocolError):  # nothing may be said any more
            super().shutdown()
            return
        self.transport.close()

    def _should_upgrade(self) -> bool:
        if self._get_upgrade() != b"websocket":
            return False
        fault = upgrade_fault(self.scope)
        if fault is not None:
            self.scope["state"]["fault"] = fault
        return fault is None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._headers_came()
        self._written()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        for timer in (self._looking, self._listening):
            if timer is not None:
                timer.cancel()
        self.connection.lost()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's name
        """Also for headers that are too large."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
        elif getattr(error, "error_status_hint", 400) == KINDS["headers_too_large"][0]:
            most = self.options.max_header_bytes
            self._refuse(Problem("headers_too_large", f"send at most {most} bytes of headers"))
        else:
            self._refuse(Problem("bad_request", "this is no valid HTTP/1.1 request"))

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _makes_answer(self) -> bool:
        """Whether it is our turn: the client has said all, and read all."""
        return not (self._idle() or self.cycle.more_body or self.cycle.response_started or self.unsent)

    def _is_between(self) -> bool:
        """Whether it was answered, read that, and has begun nothing new."""
        is_over = self.cycle is not None and self.cycle.response_complete and not self.unsent
        return is_over and not self.conn.trailing_data[0]

    def _listen(self) -> None:
        """While nothing is read from a client, its end is not read either."""
        self._listening = None
        if self.transport.is_closing() or self._idle() or not self.flow.read_paused or self.connection.may_have_left:
            return
        if not _says_no_more(self.transport.get_extra_info("socket")):
            self._listening = self.loop.call_later(_LISTENS_S, self._listen)
        elif self.transport.get_extra_info("ssl_object") is not None:
            self.transport.abort()
        else:
            self.connection.may_have_left = True
            self._look(0)

    def _look(self, times: int) -> None:
        """Whether a client that says no more still listens. The kernel knows once we have sent something."""
        if self.transport.is_closing() or self._idle():
            return
        if _is_gone(self.transport.get_extra_info("socket")):
            self.transport.abort()
            return
        if not self.cycle.response_started and self.scope["http_version"] == "1.1":
            self.transport.write(_PROBE)
        wait_s = _LOOKS_S[min(times, len(_LOOKS_S) - 1)]
        self._looking = self.loop.call_later(wait_s, self._look, times + 1)

    def _await_headers(self) -> None:
        if self._heading is None:
            self._heading = self.loop.call_later(self.options.header_timeout_s, self._headers_are_late)

    def _headers_are_late(self) -> None:
        if self.transport.is_closing():
            return
        self._server.connections.refused(
            self.connection.address, Problem("request_timeout", "the headers came too slowly")
        )
        self.transport.abort()

    def _headers_came(self) -> None:
        if self._heading is not None:
            self._heading.cancel()
            self._heading = None

    def _refuse(self, problem: Problem) -> None:
        self._headers_came()
        self._server.connections.refuse(self.connection.address, problem, self.transport)


def http(server: Server) -> type[Http]:
    """The class of this server's connections; uvicorn makes one object of it for each."""
    return type("Http", (Http,), {"_server": server})


def _says_no_more(peer: socket.socket | None) -> bool:
    """Whether its end has come, read or not."""
    if peer is None:
        return False
    waiting = select.poll()
    waiting.register(peer.fileno(), select.POLLRDHUP)
    return bool(waiting.poll(0))


def _is_gone(peer: socket.socket | None) -> bool:
    """Whether nobody is at the other end, not even one who only listens."""
    if peer is None:
        return False
    if peer.family == socket.AF_UNIX:
        waiting = select.poll()
        waiting.register(peer.fileno(), 0)  # an end on both sides is told unasked
        return bool(waiting.poll(0))
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
