"""The local backend driven by an event loop. Apart from `local`, so that synchronous use never loads asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.cell import Cell
from ..types import Command, FileStat
from .base import Event, Places, Process, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from ..engine.interpreter import Interpreter
    from ..engine.volume import Volume

_MANY = 200  # files: fewer are looked through in less time than a thread takes


class LocalSandbox(Sandbox):
    def __init__(self, start: Callable[[SandboxSpec, Command], Cell], spec: SandboxSpec):
        self._start = start
        self._spec = spec
        self._process: _LocalProcess | None = None

    async def start(self, command: Command) -> Process:
        cell = await asyncio.to_thread(self._start, self._spec, command)
        self._process = _LocalProcess(cell)
        return self._process

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()


async def keep(open_volume: Callable[[], Volume]) -> KeptSandbox:
    return KeptSandbox(await asyncio.to_thread(open_volume))


class KeptSandbox(Sandbox):
    """A volume: commands come and go, its files and its interpreter stay."""

    def __init__(self, volume: Volume):
        self._volume = volume
        self._has_many = False
        directory = volume.directory
        self.places = Places() if directory is None else Places(f"{directory}/workspace", f"{directory}/tmp")

    async def start(self, command: Command) -> Process:
        if not command.keeps_state:
            return _LocalProcess(await asyncio.to_thread(self._volume.start, command))
        interpreter = self._volume.waiting_interpreter()
        if interpreter is None:
            interpreter = await asyncio.to_thread(self._volume.make_interpreter, command)
        interpreter.begin((command.script or b"").decode())
        return _Run(interpreter)

    async def read(self, path: str, max_bytes: int) -> bytes:
        return await asyncio.to_thread(self._volume.read, path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._volume.write, path, data)

    async def list(self, directory: str) -> list[FileStat]:
        look = functools.partial(self._volume.beneath, directory, self.places.data)
        found = await asyncio.to_thread(look) if self._has_many else look()
        self._has_many = len(found) > _MANY
        return found

    async def close(self) -> None:
        await asyncio.to_thread(self._volume.close)

    def drop(self) -> None:
        self._volume.bury()


class _LocalProcess(Process):
    """A cell's events come through one descriptor, so an event loop can wait for it as for any socket."""

    def __init__(self, cell: Cell):
        self._cell = cell
        self.receipt = cell.receipt

    async def read(self, timeout_s: float | None = None) -> Event | None:
        event = self._cell.read(0)
        if event is not None:
            return event
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._cell.fileno(), readable.set)
        try:
            async with asyncio.timeout(timeout_s):
                await readable.wait()
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(self._cell.fileno())
        return self._cell.read(0)

    def kill(self) -> None:
        self._cell.kill()

    async def close(self) -> None:
        await asyncio.to_thread(self._cell.close)


class _Run(_LocalProcess):
    """One run in an interpreter that outlives it."""

    def __init__(self, interpreter: Interpreter):
        super().__init__(interpreter)
        self._interpreter = interpreter
        self.began_anew = interpreter.replaces_untold
        interpreter.replaces_untold = False

    def kill(self) -> None:
        if self._interpreter.is_running:
            super().kill()

    def interrupt(self) -> None:
        if self._interpreter.is_running:
            self._interpreter.interrupt()

    async def close(self) -> None:
        """Nobody will read the rest of a run that was left before its end: it goes, and its interpreter with it."""
        if self._interpreter.is_running or self._interpreter.is_dead:
            await super().close()
