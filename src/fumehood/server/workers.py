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

from .. import in_use, records
from ..config import Settings
from ..engine import private
from . import log
from .options import ServerOptions
from .peers import any_listens, mark, socket_path
from .reload import InForce, Reread, Told
from .run import AFTER_GRACE_S, STOPS, let_nothing_interrupt, log_as_lines, on_hangup, serve
from .tokens import Tokens

_LIVED_S = 5.0  # a worker that ends sooner is not started again at once
_MAX_QUICK_ENDS = 5


class Order(msgspec.Struct):
    """What a worker is told, over its standard input: tokens belong in no argument and no variable."""

    now: InForce
    settings: Settings
    listening: int


def supervise(reread: Reread, settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> int:
    """Keep `workers` of them running until a signal; the exit code."""
    log_as_lines()
    log.name("supervisor")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns how a worker ended
    private.sweep()
    directory, held = in_use.make(lambda: tempfile.mkdtemp(prefix=in_use.prefix()))  # only this user may enter it
    try:
        return asyncio.run(_Supervisor(reread, settings, listening, directory).run(ready))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


class _Supervisor:
    def __init__(self, reread: Reread, settings: Settings, listening: socket.socket, peers_dir: str) -> None:
        self._reread, self._settings, self._listening, self._peers_dir = reread, settings, listening, peers_dir
        self._tokens = Tokens(self._options.token, self._options.token_file)
        self._stopping = asyncio.Event()
        self._interrupted = self._failed = False
        self._running: set[Process] = set()
        self._serving: set[Process] = set()

    @property
    def _options(self) -> ServerOptions:
        return self._reread.now.options

    async def run(self, ready: Callable[[], None]) -> int:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._signalled, number)
        on_hangup(self._reload)
        following = asyncio.create_task(self._tokens.follow())
        started = [asyncio.Event() for _ in range(self._options.workers)]
        keepers = [asyncio.create_task(self._keep(index, event)) for index, event in enumerate(started)]
        for event in started:
            await event.wait()
        if not self._stopping.is_set():
            ready()
        await self._stopping.wait()
        following.cancel()
        self._tell(signal.SIGTERM)
        await asyncio.wait(keepers, timeout=self._options.grace_s + 2 * AFTER_GRACE_S)
        self._tell(signal.SIGKILL)
        await asyncio.gather(*keepers)
        let_nothing_interrupt()
        return 1 if self._failed else 128 + signal.SIGINT if self._interrupted else 0

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set():
            self._tell(signal.SIGTERM)  # the second one ends the grace
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._stopping.set()

    def _reload(self) -> None:
        """The files are read here, once: no two workers go by different ones."""
        told = self._reread.again()
        log.write("reloading", workers=len(self._running), **told)
        for process in self._serving:
            self._say(process)

    def _say(self, process: Process) -> None:
        """By a line, not by a signal: one that has only just begun would die of that."""
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(msgspec.json.encode(self._reread.now) + b"\n")

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
            log.write("worker_ended", level="warning", index=index, status=status)
            quick_ends = quick_ends + 1 if time.monotonic() - since < _LIVED_S else 0
            if quick_ends >= _MAX_QUICK_ENDS:
                self._failed = True
                self._stopping.set()
        started.set()

    async def _one(self, index: int, started: asyncio.Event) -> int:
        name = f"{self._options.instance}-{index}" if self._options.instance else secrets.token_hex(4)
        mark(self._peers_dir, name)
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
            now = self._reread.now
            own = now.options._replace(instance=name, peers_dir=self._peers_dir)
            order = Order(InForce(own, now.pair, self._tokens.text), self._settings, fd)
            process.stdin.write(msgspec.json.encode(order) + b"\n")  # and left open: its end is ours
            if await process.stdout.readline():
                self._serving.add(process)
                if self._reread.now is not now:  # it was told less meanwhile
                    self._say(process)
                started.set()
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            return await process.wait()
        except (ConnectionError, ProcessLookupError):  # it ended before it was told
            return await process.wait()
        finally:
            self._running.discard(process)
            self._serving.discard(process)
            with contextlib.suppress(FileNotFoundError):  # it was killed
                os.unlink(socket_path(self._peers_dir, name))


def work() -> int:
    """A worker: also listens where the workers beside it find it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that is for the first process, also where somebody tells us all
    parent, told, lines = os.getppid(), Told(0), list[bytes]()
    while not lines:  # no more than one comes before we serve
        if (found := told.lines()) is None:
            return 1
        lines = found
    order = msgspec.json.decode(lines[0], type=Order)
    options = order.now.options
    records.count_together(f"{options.peers_dir}/records-lost")
    path = socket_path(options.peers_dir, options.instance)
    order.now.options = options._replace(peers_socket=path)
    beside = socket.socket(socket.AF_UNIX)
    beside.bind(path)
    sockets = [socket.socket(fileno=order.listening), beside]

    def ready() -> None:
        os.write(1, b"ready\n")

    try:
        return serve(order.now, order.settings, sockets, ready, told)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
            # Who was killed closes its end of the pipe before we have another parent.
            was_left = told.is_over or os.getppid() != parent
            if was_left and not any_listens(options.peers_dir):
                shutil.rmtree(options.peers_dir)  # the last of us tidies up


if __name__ == "__main__":
    sys.exit(work())
