"""What happens in a session, told to every WebSocket that listens. Who does not keep up is let go, never waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from . import wire
from .problems import Problem

BACKLOG_BYTES = 4 * 1024 * 1024
MAX_LISTENERS = 16


class Listener:
    """One WebSocket's share of the events."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._more = asyncio.Event()
        self._is_last = False

    def tell(self, data: bytes) -> None:
        if self._is_last:
            return
        self._size += len(data)
        if self._size > BACKLOG_BYTES:
            self._waiting.clear()
            self.end(wire.encode(wire.too_slow()))
            return
        self._waiting.append(data)
        self._more.set()

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
        self._size -= len(data)
        return data


class Hub:
    """The listeners of one session. Also the session's io handler."""

    def __init__(self) -> None:
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
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)


async def serve(
    websocket: WebSocket, hub: Hub, stopping: asyncio.Event, removed: Callable[[], Awaitable[None]]
) -> None:
    """Until the session ends, the other end leaves, its token is removed or the server stops."""
    listener = hub.join()
    try:
        await websocket.accept()
        told = asyncio.ensure_future(_tell(websocket, listener))
        left = asyncio.ensure_future(_leaving(websocket))
        stopped = asyncio.ensure_future(stopping.wait())
        barred = asyncio.ensure_future(removed())
        tasks = (told, left, stopped, barred)
        try:
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
