"""One server process: listen, serve, and stop as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import uvicorn

from .. import __version__
from ..config import Settings
from . import listening, log, protocol
from .app import Application, create_app
from .connections import MOST_RESERVED
from .options import ServerOptions
from .reload import InForce, Reread, Told

_MAX_MESSAGE_BYTES = 64 * 1024  # of what a client says over a WebSocket
_LOOK_S = 0.05
_AT_ONCE = 128  # connections that are taken from the kernel before any of them is looked at
STOPS = (signal.SIGINT, signal.SIGTERM)
AFTER_GRACE_S = 5.0  # for what was cancelled to be gone
_STALLED_S = 2.0  # a client that has read nothing for so long


def serve(
    now: InForce,
    settings: Settings,
    sockets: list[socket.socket],
    ready: Callable[[], None],
    reread: Reread | Told,
) -> int:
    """Serve until a signal that stops it, or until who started it is gone; the exit code."""
    log_as_lines()
    instance = now.options.instance or secrets.token_hex(4)
    log.name(instance)
    now = _fitting(msgspec.structs.replace(now, options=now.options._replace(instance=instance)))
    return asyncio.run(_serve(now, settings, sockets, ready, reread))


def _fitting(now: InForce) -> InForce:
    """May open as many files as it needs, or has fewer connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, connections = open_files(now.options, hard)
    if files > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if connections < now.options.max_connections:
        log.write("fewer_connections", level="warning", max_connections=connections, open_files=hard)
    return msgspec.structs.replace(now, options=now.options._replace(max_connections=connections))


def open_files(options: ServerOptions, hard: int) -> tuple[int, int]:
    """How many it may need, and the connections that leave enough of them for programs and sessions."""
    others = 256 + MOST_RESERVED + 16 * options.max_sessions + 32 * options.max_running
    wanted = others + options.max_connections
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        return wanted, options.max_connections
    return hard, min(options.max_connections, max(hard - others, hard // 2))


async def _serve(
    now: InForce,
    settings: Settings,
    sockets: list[socket.socket],
    ready: Callable[[], None],
    reread: Reread | Told,
) -> int:
    application, options = create_app(now, settings), now.options
    config = uvicorn.Config(
        application,
        http=protocol.http(application.server),
        ws=protocol.websockets(application.server),
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_AT_ONCE,
        h11_max_incomplete_event_size=options.max_header_bytes,
        timeout_keep_alive=int(options.idle_timeout_s),
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
    )
    server = Stoppable(config, application, ready, reread)
    if isinstance(reread, Told):
        asyncio.get_running_loop().add_reader(reread.fd, server.hear, reread)
    try:
        await server.serve(sockets)
    finally:
        await application.server.close()
    return 128 + signal.SIGINT if server.interrupted else 0


class Stoppable(uvicorn.Server):
    """Stops in two steps: nothing new and the grace for what runs, then the end of everything."""

    def __init__(
        self, config: uvicorn.Config, application: Application, ready: Callable[[], None], reread: Reread | Told
    ) -> None:
        super().__init__(config)
        self.application, self.ready, self.reread = application, ready, reread
        self.interrupted = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # uvicorn's own would end us by the signal, with nothing closed
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.signalled, number)
        if isinstance(self.reread, Reread):
            on_hangup(partial(self.reload, self.reread))
        try:
            yield
        finally:
            let_nothing_interrupt()

    def signalled(self, number: int) -> None:
        """The first begins the grace, the second ends it."""
        if self.should_exit:
            self.application.server.ending.set()
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.should_exit = True

    def reload(self, reread: Reread) -> None:
        """Read the files again."""
        told = reread.again()
        self.take(reread.now, told)

    def take(self, now: InForce, told: dict[str, Any]) -> None:
        """What may change while it runs: tokens, options, the certificate."""
        server = self.application.server
        server.tokens.reload()
        server.reconfigure(_fitting(now))
        kept = server.tokens.failure is not None
        level = told.pop("level", "warning" if kept else "info")
        log.write("reloaded", level=level, tokens="kept" if kept else "read", **told)

    def hear(self, told: Told) -> None:
        """What to go by from now on; or the end: who started us is gone, and with it whoever would wait for a grace."""
        lines = told.lines()
        for line in lines or ():
            self.take(msgspec.json.decode(line, type=InForce), {})
        if lines is None:
            asyncio.get_running_loop().remove_reader(told.fd)
            self.application.server.ending.set()
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(listening.BACKLOG)  # the kernel keeps more of them than are taken at a time
        options, settings = self.application.server.options, self.application.server.settings
        log.write(
            "started",
            version=__version__,
            address=options.address,
            workers=options.workers,
            backend=settings.type,
            require=settings.require,
        )
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        server, loop = self.application.server, asyncio.get_running_loop()
        log.write("stopping", running=server.gate.running, queued=server.gate.queued, grace_s=server.options.grace_s)
        server.stop()
        over = loop.call_later(server.options.grace_s, server.ending.set)
        while server.gate.running and not server.ending.is_set:  # those who come meanwhile are told (503)
            await asyncio.sleep(_LOOK_S)
        self.config.timeout_graceful_shutdown = int(server.options.grace_s + AFTER_GRACE_S)
        late = loop.create_task(self._end_late(set(self.server_state.connections)))
        cutting = loop.create_task(self._cut_unread())
        await super().shutdown(sockets)
        for each in (late, cutting, over):
            each.cancel()
        log.write("stopped")

    async def _cut_unread(self) -> None:
        """Nobody waits for a client that does not read; for one with a token once the grace is over."""
        loop, seen = asyncio.get_running_loop(), dict[protocol.Bounded, tuple[int, float]]()
        while True:
            now = loop.time()
            bounded = [each for each in self.server_state.connections if isinstance(each, protocol.Bounded)]
            for each in bounded:
                unsent, (before, since) = each.unsent, seen.get(each, (0, now))
                if unsent != before:
                    seen[each] = unsent, now
                is_over = self.application.server.ending.is_set or not each.connection.is_known
                if is_over and unsent == before > 0 and now - since >= _STALLED_S:
                    each.transport.abort()
            await asyncio.sleep(_LOOK_S)

    async def _end_late(self, known: set[Any]) -> None:
        """uvicorn closes the connections that it knows of once; one accepted just before may be known just after."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for connection in self.server_state.connections - known:
                known.add(connection)
                connection.shutdown()


def on_hangup(reload: Callable[[], None]) -> None:
    """SIGHUP reloads; where it was ignored at the start, as under nohup, it stays so."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def let_nothing_interrupt() -> None:
    """From here to the end of the process: what stops us has been heard."""
    loop, numbers = asyncio.get_running_loop(), (*STOPS, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)  # which leaves the default: the end of the process
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def log_as_lines() -> None:
    """What libraries log, and the interpreter itself, goes the way of our own lines."""
    sys.stderr = log.Stream()
    root = logging.getLogger()
    root.handlers[:] = [log.Lines()]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(is_news)


_SAID_BY_US = ("without completing handshake", "Invalid HTTP request received")  # of what was refused


def is_news(record: logging.LogRecord) -> bool:
    """Whether we have not said it better."""
    return not any(each in record.msg for each in _SAID_BY_US)
