"""The local backend driven by an event loop. Apart from `local`, so that synchronous use never loads asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..engine.cell import Cell
from ..types import Command, Exited, Output
from .base import Process, Sandbox, SandboxSpec


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


class _LocalProcess(Process):
    """A cell's events come through one descriptor, so an event loop can wait for it as for any socket."""

    def __init__(self, cell: Cell):
        self._cell = cell
        self.receipt = cell.receipt

    async def read(self, timeout_s: float | None = None) -> Output | Exited | None:
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
