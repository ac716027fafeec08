"""What happens in a session, told to every WebSocket that listens. Who does not keep up is let go, never waited for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect

from . import wire
from .problems import Problem
from .state import Moment, Server

BACKLOG_BYTES = 4 * 1024 * 1024  # waiting for one that takes nothing
SLOW_S = 5.0  # for so long
MOST_BYTES = 80 * 1024 * 1024  # waiting for one that does: all that a run may show, twice
ALL_BYTES = 256 * 1024 * 1024  # waiting for all of a process
MAX_LISTENERS = 16


class Backlogs:
    """What waits for all listeners of a process. Where that is too much, whoever has most of it is let go."""

    def __init__(self, server: Server | None = None) -> None:  # noqa: ARG002 - as a part of the server
        self._size = 0
        self._listeners: set[Listener] = set()

    def add(self, listener: Listener, size: int) -> None:
        self._listeners.add(listener)
        self._size += size
        while self._size > ALL_BYTES:
            max(self._listeners, key=lambda each: each.size).let_go()

    def take(self, listener: Listener, size: int) -> None:
        self._size -= size
        if not listener.size:
            self._listeners.discard(listener)

    async def close(self) -> None:
        pass


class Listener:
    """One WebSocket's share of the events."""

    def __init__(self, backlogs: Backlogs) -> None:
        self.size = 0
        self._backlogs = backlogs
        self._waiting: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._is_last = False
        self._took = time.monotonic()  # when it had nothing more to wait for, or took something of that

    def tell(self, data: bytes) -> None:
        if self._is_last:
            return
        if not self._waiting:
            self._took = time.monotonic()
        is_slow = self.size > BACKLOG_BYTES and time.monotonic() - self._took > SLOW_S
        if is_slow or self.size > MOST_BYTES:
            self.let_go()
            return
        self.size += len(data)
        self._waiting.append(data)
        self._more.set()
        self._backlogs.add(self, len(data))

    def let_go(self) -> None:
        self.drop()
        self.end(wire.encode(wire.too_slow()))

    def drop(self) -> None:
        """Nobody waits for it any more."""
        size, self.size = self.size, 0
        self._waiting.clear()
        self._backlogs.take(self, size)

    def end(self, last: bytes) -> None:
        if not self._is_last:
            self._is_last = True
            self._waiting.append(last)
            self._more.set()

    async def next(self) -> bytes | None:
        """The next event, or None after the last."""
        while not self._waiting:
            if self._is_last:
                return None
            self._more.clear()
            await self._more.wait()
        data = self._waiting.popleft()
        self._took = time.monotonic()
        if self.size:  # else it is the last, which is not counted
            self.size -= len(data)
            self._backlogs.take(self, len(data))
        return data


class Hub:
    """The listeners of one session. Also the session's io handler."""

    def __init__(self, backlogs: Backlogs) -> None:
        self._backlogs = backlogs
        self._listeners: set[Listener] = set()

    def publish(self, event: wire.SessionEvent) -> None:
        if not self._listeners:
            return
        data = wire.encode(event)
        for listener in self._listeners:
            listener.tell(data)

    async def send_visualization(self, path: str) -> None:
        self.publish(wire.Visualization(path))

    async def send_progress(self, text: str) -> None:
        self.publish(wire.Progress(text))

    def end(self) -> None:
        for listener in self._listeners:
            listener.end(wire.encode(wire.Ended()))

    def join(self) -> Listener:
        if len(self._listeners) >= MAX_LISTENERS:
            raise Problem("too_many", f"{MAX_LISTENERS} WebSockets listen to this session already: close one")
        listener = Listener(self._backlogs)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        listener.drop()


async def serve(websocket: WebSocket, hub: Hub, stopping: Moment, removed: Callable[[], Awaitable[None]]) -> None:
    """Until the session ends, the other end leaves, its token is removed or the server stops."""
    listener = hub.join()
    try:
        await websocket.accept()
        told = asyncio.ensure_future(_tell(websocket, listener))
        left = asyncio.ensure_future(_leaving(websocket))
        stopped = asyncio.get_running_loop().create_future()
        barred = asyncio.ensure_future(removed())
        tasks = (told, left, stopped, barred)
        try:
            with stopping.telling(partial(stopped.set_result, None)):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not left.done():
                with suppress(WebSocketDisconnect, RuntimeError):
                    await websocket.close(1001 if stopped.done() else 1008 if barred.done() else 1000)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        hub.leave(listener)


async def _tell(websocket: WebSocket, listener: Listener) -> None:
    while (data := await listener.next()) is not None:
        await websocket.send_text(data.decode())


async def _leaving(websocket: WebSocket) -> None:
    """What a client sends is not for us."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
