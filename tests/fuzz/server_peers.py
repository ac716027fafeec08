"""Peers that have shown no token: any bytes, plain or by TLS, and then they leave, say no more, or stall.

Each is let go within its time, all that is logged of it is ours, and none of it is a fault.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import tempfile
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
from uvicorn.server import ServerState

from certificates import Authority
from fumehood.config_table import Settings
from fumehood.server import certificates, exchange, log, protocol, run
from fumehood.server.app import create_app
from fumehood.server.options import ServerOptions
from fumehood.server.reload import InForce

from .target import Target, fields, finished, piece

_SETTINGS = Settings(type="fake", store_code="never", allowed_packages=())
_OPTIONS = ServerOptions(
    port=8080,
    token="0123456789abcdef",
    instance="fuzzed",
    header_timeout_s=0.02,
    body_timeout_s=0.02,
    write_timeout_s=0.02,
    unauthenticated_s=0.05,
    max_unauthenticated=1,
)
_HANG_S = 60.0
_PATIENT = _OPTIONS._replace(header_timeout_s=_HANG_S, write_timeout_s=_HANG_S, unauthenticated_s=_HANG_S)
_TRUSTING = ("unix",)  # all of them come so; no bound on time but the server's own is left then
_EVENTS = {"request", "connection_refused", "log_lines_lost"}
_TEXTS = {"event", "time", "worker", "level", "request_id", "client", "code", "message"}  # of ours; path and method not
_, _READS, _SAYS_NO_MORE, _LEAVES, _BREAKS_OFF = range(5)  # the first one stalls
_PLAIN, _, _SECURE = range(3)  # the second one says the bytes as they are to a server that speaks TLS
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n"


@cache
def _tls() -> tuple[certificates.Pair, ssl.SSLContext]:
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        files = authority.issue("fuzzed")
        return certificates.Pair(files.certificate.read_bytes(), files.key.read_bytes()), authority.trust()


class _Log:
    """In place of standard error."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def put(self, line: bytes) -> None:
        self.lines.append(line)


def check(data: bytes) -> None:
    """How it comes and how it ends, the size of its pieces; then what comes.

    Half of all are exempt from the time that those without a token have.
    """
    how, sent = fields(data, 2)
    ending, kind, sizes = how[:1], how[1:2], how[2:]
    written = _Log()
    root = logging.getLogger()
    before = root.handlers[:]
    lines = log.Lines()
    lines.addFilter(run.is_news)
    root.handlers[:] = [lines]
    try:
        with patch.object(log, "_errors", written), patch.object(exchange, "_LINGER_S", 0.0):
            is_trusted, kind_number = divmod(sum(kind) % 6, 3)
            options = _OPTIONS._replace(trusted_proxies=_TRUSTING if is_trusted else ())
            finished(_visit(options, sum(ending) % 5, kind_number, piece(sizes, sent), sent))
    finally:
        root.handlers[:] = before
    for line in written.lines:
        _check(line)


def _check(line: bytes) -> None:
    told: dict[str, Any] = json.loads(line)
    assert line.count(b"\n") == 1, line
    assert line.isascii(), line
    assert told["event"] in _EVENTS, line
    assert told.get("level") in ("info", "warning"), line
    assert told.get("status", 0) != 500, line
    assert all(len(str(value)) <= log.MAX_TEXT and str(value).isprintable() for value in told.values()), line
    if told["event"] == "connection_refused":
        assert told.keys() <= _TEXTS | {"pid", "status"}, line


async def _visit(options: ServerOptions, ending: int, kind: int, size: int, sent: bytes) -> None:
    pair, trust = _tls()
    application = create_app(InForce(options, None if kind == _PLAIN else pair), _SETTINGS)
    config = uvicorn.Config(
        application,
        http=protocol.http(application.server),
        ws=protocol.websockets(application.server),
        log_config=None,
        lifespan="off",
        timeout_keep_alive=1,
        ws_max_size=65536,
        ws_per_message_deflate=False,
    )
    config.load()
    state = ServerState()
    try:
        async with asyncio.timeout(_HANG_S), AsyncExitStack() as held:
            with suppress(ConnectionError, ssl.SSLError):
                stream = await _connected(config, state)
                await _say(held, stream, ending, trust if kind == _SECURE else None, size, sent)
            while len(application.server.connections) or state.connections or state.tasks:
                await asyncio.sleep(0.001)
            if kind == _PLAIN:  # it still serves, however slow this machine is
                application.server.options = _PATIENT
                application.server.connections.reconfigure(_PATIENT)
                said = await _say(held, await _connected(config, state), _READS, None, len(_HEALTH), _HEALTH)
                assert said.startswith(b"HTTP/1.1 200 "), said
    finally:
        await application.server.close()


async def _connected(config: uvicorn.Config, state: ServerState) -> socket.socket:
    """The peer's end."""
    ours, theirs = socket.socketpair()
    kinds: dict[str, Any] = {"config": config, "server_state": state, "app_state": {}}
    await asyncio.get_running_loop().connect_accepted_socket(lambda: config.http_protocol_class(**kinds), ours)
    return theirs


async def _say(
    held: AsyncExitStack, stream: socket.socket, ending: int, trust: ssl.SSLContext | None, size: int, sent: bytes
) -> bytes:
    """All that is answered, where somebody reads it."""
    name = "localhost" if trust else None
    reader, writer = await asyncio.open_connection(sock=stream, ssl=trust, server_hostname=name)
    held.callback(_drop, writer)
    for start in range(0, len(sent), size):
        if not writer.transport.is_closing():
            writer.write(sent[start : start + size])
            await asyncio.sleep(0)
    if ending == _LEAVES:
        writer.close()
    elif ending == _BREAKS_OFF:
        writer.transport.abort()
    elif ending == _SAYS_NO_MORE and trust is None:
        writer.write_eof()
    if ending not in (_READS, _SAYS_NO_MORE):
        return b""
    said = await reader.read()
    assert b"HTTP/1.1 500" not in said, said
    return said


def _drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


TARGET = Target("server_peers", check)
