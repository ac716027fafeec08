"""One connection to a server in this process, without a network: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import uvicorn
from uvicorn.server import ServerState

from fumehood.config_table import Settings
from fumehood.server import exchange, log, protocol
from fumehood.server.app import Application, create_app
from fumehood.server.options import ServerOptions
from fumehood.server.reload import InForce
from fumehood.server.tokens import Token

TOKEN = "0123456789abcdef"
_OPTIONS = ServerOptions(token=TOKEN, body_timeout_s=0.01, header_timeout_s=600.0, instance="fuzzed")
_SETTINGS = Settings(type="fake", store_code="never", allowed_packages=())


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8080)})
        self.written = b""
        self.is_closed = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0  # this client reads all

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Served:
    """An application with one session, and what a client of it needs to know."""

    def __init__(self, application: Application, session: str, token: Token) -> None:
        self._application, self.session, self._token = application, session, token

    def ticket(self) -> bytes:
        path = f"/sessions/{self.session}/events"
        return f"{path}?ticket={self._application.server.tickets.make(self._token, path)}".encode()

    async def answer(self, *parts: bytes) -> bytes:
        """What comes back by the time that the client has sent all and left."""
        config = uvicorn.Config(
            self._application,
            http=protocol.http(self._application.server),
            ws=protocol.websockets(self._application.server),
            log_config=None,
            lifespan="off",
            ws_max_size=65536,
            ws_per_message_deflate=False,
        )
        config.load()
        state, transport = ServerState(), _Transport()
        transport.protocol = config.http_protocol_class(config=config, server_state=state, app_state={})
        transport.protocol.connection_made(transport)
        for part in filter(None, parts):
            if not transport.is_closed:
                transport.protocol.data_received(part)
            await _settle()
        answering = set(state.tasks)
        if answering and b"101 Switching" not in transport.written:
            await asyncio.wait(answering, timeout=60)
        transport.protocol.connection_lost(None)
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=60)
        assert not state.tasks, "a request does not end"
        return transport.written


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def served(use: Callable[[Served], Any]) -> None:
    """While it lasts nothing may be logged as an error, and no program runs."""
    faults: list[Any] = []
    handler = logging.Handler()
    handler.emit = faults.append  # type: ignore[method-assign]
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    try:
        with patch.object(exchange, "_LINGER_S", 0.0), patch.object(log, "write", _noted(faults)):
            application = create_app(InForce(_OPTIONS), _SETTINGS)
            token = application.server.tokens.find(TOKEN)
            assert token is not None
            try:
                opened = await Served(application, "", token).answer(_OPEN)
                assert b"201 Created" in opened, opened
                await use(
                    Served(application, opened.partition(b'"session_id":"')[2].partition(b'"')[0].decode(), token)
                )
            finally:
                await application.server.close()
    finally:
        logger.removeHandler(handler)
    errors = [fault for fault in faults if getattr(fault, "levelno", logging.ERROR) >= logging.ERROR]
    assert not errors, errors


def _noted(faults: list[Any]) -> Callable[..., None]:
    def write(event: str, *, level: str = "info", **fields: Any) -> None:
        if level == "error":
            faults.append((event, fields))

    return write


def head(line: bytes, size: int) -> bytes:
    lines = (
        line,
        b"Host: 127.0.0.1:8080",
        b"Authorization: Bearer " + TOKEN.encode(),
        b"Content-Type: application/json",
    )
    return b"\r\n".join((*lines, b"Content-Length: %d" % size, b"", b""))


_OPEN = head(b"POST /sessions HTTP/1.1", 2) + b"{}"
