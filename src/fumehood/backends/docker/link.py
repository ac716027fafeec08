"""The stream of frames to and from the guest of one container."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

from ...guest import wire

_DOCKER = struct.Struct(">BxxxI")  # which stream, how much of it
_STDOUT = 1
_CHUNK = 1 << 18
_ROOM = 4 << 20  # bytes of output that wait for whoever looks at it
_MAX_SAID = 8192
_SPOKEN = frozenset(b"Hrnoedcuxbf")
PING_ID = (1 << 32) - 1  # of no program


class Garbage(Exception):
    """Not from a guest that speaks as we do."""


class Handler(Protocol):
    def hear(self, kind: int, payload: bytes) -> None: ...

    def gone(self) -> None:
        """Nothing will come any more."""


class Frames:
    """Bytes of an attached stream become the guest's frames; what it writes to stderr is kept for a message."""

    def __init__(self) -> None:
        self.said = b""
        self._outer = bytearray()
        self._inner = bytearray()
        self._left = 0  # of the part of a stream that Docker announced
        self._stream = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._outer += data
        while self._outer:
            if not self._left:
                if len(self._outer) < _DOCKER.size:
                    return
                self._stream, self._left = _DOCKER.unpack_from(self._outer)
                del self._outer[: _DOCKER.size]
                continue
            part = self._outer[: self._left]
            del self._outer[: self._left]
            self._left -= len(part)
            if self._stream != _STDOUT:
                self.said = (self.said + part)[-_MAX_SAID:]
                continue
            self._inner += part
            yield from self._frames()

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        start, size = 0, len(self._inner)
        while size - start >= wire.MUX.size:
            kind, number, length = wire.MUX.unpack_from(self._inner, start)
            if kind not in _SPOKEN or length > (wire.MAX_DATA if kind in wire.DATA else wire.MAX_FRAME):
                raise Garbage
            end = start + wire.MUX.size + length
            if size < end:
                break
            yield kind, number, bytes(self._inner[start + wire.MUX.size : end])
            start = end
        del self._inner[:start]


class Link:
    """Belongs to one event loop. Who opens an id hears what comes for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: Callable[[], None]):
        self.is_open = True
        self._reader, self._writer = reader, writer
        self._ended = ended
        self._frames = Frames()
        self._numbers = itertools.count(1)
        self._handlers: dict[int, Handler] = {}
        self._held = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._listen(), name="fumehood-docker-link")

    @property
    def said(self) -> str:
        """By the guest itself, when it broke."""
        return self._frames.said.decode("utf-8", "replace").strip()

    def open(self, handler: Handler) -> int:
        number = next(self._numbers)
        self._handlers[number] = handler
        return number

    def forget(self, number: int) -> None:
        self._handlers.pop(number, None)

    def send(self, kind: int, number: int, payload: bytes | memoryview = b"") -> None:
        if self.is_open and not self._writer.is_closing():
            self._writer.write(wire.MUX.pack(kind, number, len(payload)) + payload)

    async def drain(self) -> None:
        """Until what was sent is on its way."""
        try:
            await self._writer.drain()
        except OSError:
            pass  # the reader learns it too

    def ping(self) -> None:
        self.send(wire.KILL, PING_ID)

    def hold(self, size: int) -> None:
        """Output waits to be looked at; with too much of it no more is read."""
        self._held += size
        if self._held > _ROOM:
            self._has_room.clear()

    def release(self, size: int) -> None:
        self._held -= size
        if self._held <= _ROOM:
            self._has_room.set()

    def close(self) -> None:
        """The guest finds the end of its input, and ends."""
        self.is_open = False
        self._task.cancel()
        self._writer.transport.abort()  # what is unsent would keep it open, and nobody wants it any more

    def let_go(self) -> None:
        """In a forked child: hold the stream no longer, and leave the parent's event loop alone."""
        connection = self._writer.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, connection.fileno(), inheritable=False)
            os.close(null)

    async def _listen(self) -> None:
        try:
            while True:
                await self._has_room.wait()
                data = await self._reader.read(_CHUNK)
                if not data:
                    break
                for kind, number, payload in self._frames.feed(data):
                    if kind == wire.HELLO:
                        if not self.hello.done():
                            self.hello.set_result(payload)
                    elif number in self._handlers:
                        self._handlers[number].hear(kind, payload)
        except (OSError, Garbage, struct.error):
            pass
        finally:
            self.is_open = False
            if not self._task.get_loop().is_closed():  # else somebody closed it over this task: no one is left to tell
                self._end()

    def _end(self) -> None:
        self._writer.transport.abort()
        if not self.hello.done():
            self.hello.cancel()
        self._ended()
        handlers, self._handlers = self._handlers, {}
        for handler in handlers.values():
            handler.gone()
