"""The local backend driven by an event loop. Apart from `local`, so that synchronous use never loads asyncio."""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..engine.cell import Cell
from ..engine.files import ManyFiles, listing_at_most
from ..thread_pool import Workers, aside, workers
from ..types import Command, Exited, FileStat
from .base import Event, Places, Process, Sandbox, SandboxSpec, keeps_nothing

if TYPE_CHECKING:
    from ..engine.interpreter import Interpreter
    from ..engine.volume import Volume

T = TypeVar("T")

_LOOK_S = 0.01
_starters = Workers(8, "fumehood-start")  # they may wait until others end, which takes threads as well
_FEW = 200  # entries: so many are looked through in little more time than a thread takes


async def _owned(make: Callable[[], T], discard: Callable[[T], None], makers: Workers | None = None) -> T:
    """Make it in a thread. What was made for somebody who stopped waiting is discarded, whenever it is there."""
    lock = threading.Lock()
    is_wanted = True
    made: list[T] = []

    def work() -> T:
        thing = make()
        with lock:
            if is_wanted:
                made.append(thing)
                return thing
        discard(thing)
        return thing

    try:
        return await (makers or workers()).do(work)
    except asyncio.CancelledError:
        with lock:
            is_wanted = False
        for thing in made:
            workers().submit(functools.partial(discard, thing))
        raise


class LocalSandbox(Sandbox):
    def __init__(
        self,
        start: Callable[[SandboxSpec, Command], Cell],
        start_waiting: Callable[[SandboxSpec, Command], Cell | None],
        spec: SandboxSpec,
    ):
        self._start, self._start_waiting = start, start_waiting
        self._spec = spec
        self._process: _LocalProcess | None = None
        self._shown: Cell | None = None

    async def start(self, command: Command) -> Process:
        cell = self._start_waiting(self._spec, command)
        if cell is None:
            cell = await _owned(functools.partial(self._start, self._spec, command), Cell.close, _starters)
        if self._spec.hands_back:
            self._shown = cell
            if cell.directory is not None:
                self.places = _places(cell.directory)
            return _ShownProcess(cell)
        self._process = _LocalProcess(cell)
        return self._process

    async def read(self, path: str, max_bytes: int) -> bytes:
        if self._shown is None or (files := self._shown.files()) is None:
            raise keeps_nothing(path)
        return await aside(files.read, path, max_bytes)

    async def list(self, directory: str) -> list[FileStat]:
        if self._shown is None:
            raise keeps_nothing(directory)
        files = self._shown.files()
        if files is None or files.has_nothing(directory):
            return []
        return await aside(files.beneath, directory)

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()
        if self._shown is not None:
            await _close(self._shown)


async def _close(cell: Cell) -> None:
    if cell.closes_soon:
        cell.close()
    else:
        await aside(cell.close)


def _places(directory: str) -> Places:
    return Places(f"{directory}/workspace", f"{directory}/tmp")


async def keep(open_volume: Callable[[], Volume]) -> KeptSandbox:
    return KeptSandbox(await _owned(open_volume, lambda volume: volume.close()))


class KeptSandbox(Sandbox):
    """A volume: commands come and go, its files and its interpreter stay."""

    def __init__(self, volume: Volume):
        self._volume = volume
        directory = volume.directory
        self.places = Places() if directory is None else _places(directory)

    async def start(self, command: Command) -> Process:
        if not command.keeps_state:
            cell = self._volume.start_waiting(command)
            if cell is None:
                cell = await _owned(functools.partial(self._volume.start, command), Cell.close)
            return _LocalProcess(cell)
        interpreter = self._volume.waiting_interpreter() or self._volume.use_spare_interpreter(command)
        if interpreter is None:
            interpreter = await aside(self._volume.make_interpreter, command)
        return _Run(self._volume, interpreter, command)

    async def read(self, path: str, max_bytes: int) -> bytes:
        return await aside(self._volume.read, path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await aside(self._volume.write, path, data)

    async def list(self, directory: str) -> list[FileStat]:
        look = functools.partial(self._volume.beneath, directory, self.places.data)
        try:
            with listing_at_most(_FEW):
                return look()
        except ManyFiles:
            return await aside(look)

    async def close(self) -> None:
        if self._volume.closes_soon:
            self._volume.close_soon()
        else:
            await aside(self._volume.close_soon)

    def drop(self) -> None:
        self._volume.bury()


class _LocalProcess(Process):
    """A cell's events come through one descriptor, so an event loop can wait for it as for any socket."""

    def __init__(self, cell: Cell):
        self._cell = cell
        self._is_closed = False
        self.receipt = cell.receipt

    async def read(self, timeout_s: float | None = None) -> Event | None:
        event = self._cell.read(0)
        if event is not None:
            return event
        # Not asyncio.timeout: in a task that is being cancelled, Python 3.11 takes its end for the cancellation.
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(fd := self._cell.fileno(), readable.set)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return await self._read_without_watches(timeout_s)
        timer = None if timeout_s is None else loop.call_later(timeout_s, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(fd)  # by then the cell may have closed it, and would open another
            if timer is not None:
                timer.cancel()
        return self._cell.read(0)

    async def _read_without_watches(self, timeout_s: float | None) -> Event | None:
        """This user's processes hold all that the kernel allows (`fs.epoll.max_user_watches`): look now and then."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        event = None
        while event is None and time.monotonic() < until and not self._cell.has_ended:
            await asyncio.sleep(_LOOK_S)
            event = self._cell.read(0)
        return event

    def kill(self) -> None:
        self._cell.kill()

    async def close(self) -> None:
        if not self._is_closed:
            await _close(self._cell)
            self._is_closed = True


class _ShownProcess(_LocalProcess):
    """Its cell is the sandbox's to close, when what it left has been read."""

    async def close(self) -> None:
        if not self._cell.has_ended:
            await aside(self._cell.end)


class _Run(_LocalProcess):
    """One run in an interpreter that outlives it."""

    def __init__(self, volume: Volume, interpreter: Interpreter, command: Command):
        super().__init__(interpreter)
        self._volume = volume
        self._command = command
        self._may_begin_again = True
        self._begin(interpreter)

    def _begin(self, interpreter: Interpreter) -> None:
        self._cell = self._interpreter = interpreter
        self.began_anew = interpreter.replaces_untold
        interpreter.replaces_untold = False
        interpreter.begin((self._command.script or b"").decode(), self._command.cpu_s)

    async def read(self, timeout_s: float | None = None) -> Event | None:
        event = await super().read(timeout_s)
        if isinstance(event, Exited) and event.state_lost and self._may_begin_again and not self._interpreter.has_begun:
            # It was dying when the run came, and never saw it.
            self._may_begin_again = False
            self._interpreter.death_was_told = False
            self._begin(await aside(self._volume.make_interpreter, self._command))
            return None
        return event

    def kill(self) -> None:
        self._may_begin_again = False
        if self._interpreter.is_running:
            super().kill()

    def interrupt(self) -> None:
        self._may_begin_again = False
        if self._interpreter.is_running:
            self._interpreter.interrupt()

    async def close(self) -> None:
        """Nobody will read the rest of a run that was left before its end: it goes, and its interpreter with it."""
        if self._interpreter.is_running or self._interpreter.is_dead:
            await super().close()
