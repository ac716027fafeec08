"""TLS on a connection that was just accepted: bounded in time, logged, and with an answer to plain HTTP."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

from .connections import Connection, Connections
from .options import ServerOptions
from .problems import Problem

_TLS = 0x16  # how a handshake begins
_UNBOUNDED = 2**40
_LOOK_S = 0.02

Begin = Callable[[asyncio.Transport, Connection], None]


class Handshake(asyncio.Protocol):
    """Who is there until the client is known to speak TLS; `begin` is called then."""

    def __init__(
        self,
        account: Connections,
        connection: Connection,
        context: ssl.SSLContext,
        options: ServerOptions,
        connected: set[Any],
        begin: Begin,
    ) -> None:
        self._account, self._connection, self._context, self._options = account, connection, context, options
        self._connected, self._begin = connected, begin
        self._loop = asyncio.get_running_loop()
        self._transport = connection.transport
        self._timer = self._loop.call_later(options.header_timeout_s, self._late)
        connection.put_out = self._put_out
        connected.add(self)
        self._transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if data[0] != _TLS:
            problem = Problem("bad_request", "this server speaks TLS: use https://")
            self._account.refuse(self._connection.address, problem, self._transport)
            return
        over = self._loop.create_future()
        over.add_done_callback(self._over)
        protocol = _Tls(self._loop, self._secured, self._context, over, self._options.write_timeout_s)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        rest = memoryview(data)
        while rest and not self._transport.is_closing():
            room = protocol.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            protocol.buffer_updated(size)
            rest = rest[size:]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._end()
        self._connection.lost()

    def shutdown(self) -> None:
        """What uvicorn asks of every connection at the end."""
        self._transport.abort()

    def _secured(self, transport: asyncio.Transport) -> None:
        self._end()
        self._begin(_Secure(transport, self._transport, self._loop), self._connection)  # type: ignore[arg-type]

    def _over(self, over: asyncio.Future[None]) -> None:
        """The handshake has succeeded or failed, or the connection is lost."""
        if self not in self._connected:
            return
        if (error := over.exception()) is not None:
            why = "the client left" if isinstance(error, ConnectionError) else _reason(error)
            self._account.refused(self._connection.address, Problem("bad_request", f"the TLS handshake failed: {why}"))
        self.connection_lost(None)

    def _late(self) -> None:
        if not self._transport.is_closing():
            self._put_out(Problem("request_timeout", "the TLS handshake came too slowly"))

    def _put_out(self, problem: Problem) -> None:
        self._account.refused(self._connection.address, problem)
        self._transport.abort()

    def _end(self) -> None:
        self._timer.cancel()
        self._connected.discard(self)


class _Tls(SSLProtocol):
    """Says that the client reads too slowly when the socket is full. asyncio's own says so only much later."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        secured: Callable[[asyncio.Transport], None],
        context: ssl.SSLContext,
        over: asyncio.Future[None],
        shutdown_timeout_s: float,
    ) -> None:
        super().__init__(
            loop, _Then(secured, self), context, over, server_side=True, ssl_shutdown_timeout=shutdown_timeout_s
        )
        self.secured: asyncio.Transport | None = None
        self._is_full = False

    def pause_writing(self) -> None:
        self._is_full = True
        super().pause_writing()
        if (protocol := self._above()) is not None:
            protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        super().resume_writing()
        if not self._is_full and (protocol := self._above()) is not None:
            protocol.resume_writing()

    def _above(self) -> asyncio.BaseProtocol | None:
        return None if self.secured is None else self.secured.get_protocol()


class _Then(asyncio.Protocol):
    """Only there to be told that the handshake is over."""

    def __init__(self, secured: Callable[[asyncio.Transport], None], tls: _Tls) -> None:
        self._secured, self._tls = secured, tls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._tls.secured = transport
        transport.set_write_buffer_limits(_UNBOUNDED)
        self._secured(transport)


class _Secure:
    """A transport that, once closed, does not wait for the client to close as well: an idle one does not read."""

    def __init__(self, inner: asyncio.Transport, outer: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._outer, self._loop = inner, outer, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        if not self._inner.is_closing():  # asyncio forgets all of a transport that is closed twice
            self._inner.close()
            self._look()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size() + self._outer.get_write_buffer_size()

    def abort(self) -> None:
        self._outer.abort()

    def _look(self) -> None:
        if self._outer.is_closing():
            return
        if self._inner.get_write_buffer_size():
            self._loop.call_later(_LOOK_S, self._look)
        else:
            self._outer.close()


def _reason(error: BaseException) -> str:
    """As OpenSSL names it."""
    return str(getattr(error, "reason", None) or type(error).__name__).lower().replace("_", " ")
