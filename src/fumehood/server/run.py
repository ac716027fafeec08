"""One server process: listen, serve, and stop as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..config import Settings
from . import log, protocol
from .app import Application, create_app
from .options import ServerOptions

_BACKLOG = 1024
_MAX_MESSAGE_BYTES = 64 * 1024  # of what a client says over a WebSocket
_LOOK_S = 0.05
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AFTER_GRACE_S = 5.0  # for what was cancelled to be gone


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `localhost` is 127.0.0.1 alone."""
    address = "127.0.0.1" if host == "localhost" else host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else headers wait 40 ms for their body's sake
    return listening


def serve(
    options: ServerOptions,
    settings: Settings,
    sockets: list[socket.socket],
    ready: Callable[[], None],
    ends_with: int | None = None,
) -> int:
    """Serve until a signal that stops it, or until the file `ends_with` ends; the exit code."""
    log_as_lines()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, connections = open_files(options, hard)
    if files > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if connections < options.max_connections:
        log.write("fewer_connections", level="warning", max_connections=connections, open_files=hard)
    options = options._replace(max_connections=connections)
    return asyncio.run(_serve(options, settings, sockets, ready, ends_with))


def open_files(options: ServerOptions, hard: int) -> tuple[int, int]:
    """How many it may need, and the connections that leave enough of them for programs and sessions."""
    others = 256 + 16 * options.max_sessions + 32 * options.max_running
    wanted = others + options.max_connections
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        return wanted, options.max_connections
    return hard, min(options.max_connections, max(hard - others, hard // 2))


async def _serve(
    options: ServerOptions,
    settings: Settings,
    sockets: list[socket.socket],
    ready: Callable[[], None],
    ends_with: int | None,
) -> int:
    application = create_app(options, settings)
    config = uvicorn.Config(
        application,
        http=protocol.http(options),
        ws=protocol.websockets(options),
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=options.max_header_bytes,
        timeout_keep_alive=int(options.idle_timeout_s),
        timeout_graceful_shutdown=int(options.grace_s + AFTER_GRACE_S),
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
    )
    server = Stoppable(config, application, ready)
    if ends_with is not None:
        asyncio.get_running_loop().add_reader(ends_with, server.read_end, ends_with)
    try:
        await server.serve(sockets)
    finally:
        await application.server.close()
    return 128 + signal.SIGINT if server.interrupted else 0


class Stoppable(uvicorn.Server):
    """Stops in two steps: nothing new and the grace for what runs, then the end of everything."""

    def __init__(self, config: uvicorn.Config, application: Application, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.application, self.ready = application, ready
        self.interrupted = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # uvicorn's own would end us by the signal, with nothing closed
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.signalled, number)
        try:
            yield
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)

    def signalled(self, number: int) -> None:
        """The first begins the grace, the second ends it."""
        if self.should_exit:
            self.application.server.ending.set()
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.should_exit = True

    def read_end(self, fd: int) -> None:
        """Who started us is gone, and with it whoever would wait for a grace."""
        if not os.read(fd, 4096):
            asyncio.get_running_loop().remove_reader(fd)
            self.application.server.ending.set()
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        server, loop = self.application.server, asyncio.get_running_loop()
        log.write("stopping", running=server.gate.running, queued=server.gate.queued, grace_s=server.options.grace_s)
        server.stop()
        over = loop.call_later(server.options.grace_s, server.ending.set)
        while server.gate.running and not server.ending.is_set:  # those who come meanwhile are told (503)
            await asyncio.sleep(_LOOK_S)
        late = loop.create_task(self._end_late(set(self.server_state.connections)))
        await super().shutdown(sockets)
        late.cancel()
        over.cancel()
        log.write("stopped")

    async def _end_late(self, known: set[Any]) -> None:
        """uvicorn closes the connections that it knows of once; one accepted just before may be known just after."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for connection in self.server_state.connections - known:
                known.add(connection)
                connection.shutdown()


def log_as_lines() -> None:
    """What libraries log goes the way of our own lines."""
    root = logging.getLogger()
    root.handlers[:] = [log.Lines()]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "without completing handshake" not in record.msg  # said of every WebSocket that was refused with an answer
