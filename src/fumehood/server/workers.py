"""Several processes behind one port: started, watched, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

import msgspec

from .. import in_use
from ..config import Settings
from ..engine import private
from . import log
from .options import ServerOptions
from .peers import any_listens, socket_path
from .run import AFTER_GRACE_S, STOPS, log_as_lines, serve

_LIVED_S = 5.0  # a worker that ends sooner is not started again at once
_MAX_QUICK_ENDS = 5


class Order(msgspec.Struct):
    """What a worker is told, over its standard input: tokens belong in no argument and no variable."""

    options: ServerOptions
    settings: Settings
    listening: int


def supervise(options: ServerOptions, settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> int:
    """Keep `workers` of them running until a signal; the exit code."""
    log_as_lines()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns how a worker ended
    private.sweep()
    directory, held = in_use.make(lambda: tempfile.mkdtemp(prefix=in_use.prefix()))  # only this user may enter it
    try:
        return asyncio.run(_Supervisor(options._replace(peers_dir=directory), settings, listening).run(ready))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


class _Supervisor:
    def __init__(self, options: ServerOptions, settings: Settings, listening: socket.socket) -> None:
        self._options, self._settings, self._listening = options, settings, listening
        self._stopping = asyncio.Event()
        self._interrupted = self._failed = False
        self._running: set[Process] = set()

    async def run(self, ready: Callable[[], None]) -> int:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._signalled, number)
        started = [asyncio.Event() for _ in range(self._options.workers)]
        keepers = [asyncio.create_task(self._keep(index, event)) for index, event in enumerate(started)]
        for event in started:
            await event.wait()
        if not self._stopping.is_set():
            ready()
        await self._stopping.wait()
        self._tell(signal.SIGTERM)
        await asyncio.wait(keepers, timeout=self._options.grace_s + 2 * AFTER_GRACE_S)
        self._tell(signal.SIGKILL)
        await asyncio.gather(*keepers)
        return 1 if self._failed else 128 + signal.SIGINT if self._interrupted else 0

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set():
            self._tell(signal.SIGTERM)  # the second one ends the grace
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._stopping.set()

    def _tell(self, number: int) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, index: int, started: asyncio.Event) -> None:
        """One worker, and the next in its place."""
        quick_ends = 0
        while not self._stopping.is_set():
            since = time.monotonic()
            status = await self._one(index, started)
            if self._stopping.is_set():
                break
            log.write("worker_ended", worker=index, status=status)
            quick_ends = quick_ends + 1 if time.monotonic() - since < _LIVED_S else 0
            if quick_ends >= _MAX_QUICK_ENDS:
                self._failed = True
                self._stopping.set()
        started.set()

    async def _one(self, index: int, started: asyncio.Event) -> int:
        name = f"{self._options.instance}-{index}" if self._options.instance else secrets.token_hex(4)
        fd = self._listening.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "fumehood.server.workers"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=(fd,),
            start_new_session=True,  # Ctrl-C is for us, who pass it on
        )
        self._running.add(process)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            order = Order(self._options._replace(instance=name), self._settings, fd)
            process.stdin.write(msgspec.json.encode(order) + b"\n")  # and left open: its end is ours
            if await process.stdout.readline():
                started.set()
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            return await process.wait()
        except (ConnectionError, ProcessLookupError):  # it ended before it was told
            return await process.wait()
        finally:
            self._running.discard(process)
            with contextlib.suppress(FileNotFoundError):  # it was killed
                os.unlink(socket_path(self._options.peers_dir, name))


def work() -> int:
    """A worker: also listens where the workers beside it find it."""
    parent, line = os.getppid(), bytearray()
    while not line.endswith(b"\n"):  # no further than that: what follows is its end
        if not (piece := os.read(0, 65536)):
            return 1
        line += piece
    order = msgspec.json.decode(line, type=Order)
    path = socket_path(order.options.peers_dir, order.options.instance)
    beside = socket.socket(socket.AF_UNIX)
    beside.bind(path)
    sockets = [socket.socket(fileno=order.listening), beside]

    def ready() -> None:
        os.write(1, b"ready\n")

    try:
        return serve(order.options, order.settings, sockets, ready, ends_with=0)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
            if os.getppid() != parent and not any_listens(order.options.peers_dir):
                shutil.rmtree(order.options.peers_dir)  # it was killed: the last of us tidies up


if __name__ == "__main__":
    sys.exit(work())
