"""A program on the server: its events come as lines of JSON, in one answer that lasts as long as it runs."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx2

from ...errors import FumehoodError, SandboxLost
from ...types import Exited, Limits, Output, Receipt
from .._base_async import happens
from ..base import Event, Process
from . import refusals, said
from .client import Client

BACKLOG_BYTES = 4 * 1024 * 1024  # unread; past it the server has to wait
MAX_LINE = 128 * 1024 * 1024
SILENCE_S = 60.0  # the server says something every 15 s
_END_S = 5.0
_EVENT_BYTES = 200  # of one that holds nothing
_KILLED = 128 + signal.SIGKILL

Cancel = Callable[[str], Awaitable[object]]


class RemoteProcess(Process):
    """`cancel` asks the server to end what runs, by the handle it gave; where it gave none, leaving does."""

    def __init__(self, client: Client, response: httpx2.Response, limits: Limits, cancel: Cancel, *, keeps_state: bool):
        self.result: dict[str, Any] | None = None
        self._client = client
        self._response = response
        self._limits = limits
        self._cancel = cancel
        self._handle = ""
        self._keeps_state = keeps_state
        self._events: deque[tuple[Event, int]] = deque()
        self._backlog = 0
        self._failure: Exception | None = None
        self._has_begun = False
        self._has_left = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._cancelling: asyncio.Task[None] | None = None
        self._pump = asyncio.create_task(self._read_on(), name="fumehood-remote")

    async def begun(self, fallback: Callable[[], Awaitable[Receipt]], within_s: float) -> None:
        """Until the program runs; `fallback` gives the receipt where the server started nothing."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):  # empty lines say that the server is there, and no more
                    while not self._has_begun and not self._pump.done():
                        self._news.clear()
                        await self._news.wait()
            if not self._has_begun:
                raise self._failure or refusals.lost(self._client.where, None, "before the program began")
            if not hasattr(self, "receipt"):
                self.receipt = await fallback()
        except BaseException:
            await self.close()
            raise

    async def read(self, timeout_s: float | None = None) -> Event | None:
        if not self._events and not self._pump.done():
            self._news.clear()
            if not await happens(self._news, timeout_s):
                return None
        if self._events:
            event, size = self._events.popleft()
            self._backlog -= size
            self._room.set()
            return event
        if self._pump.done():
            raise self._failure or refusals.lost(self._client.where, None, "while the program ran")
        return None

    def kill(self) -> None:
        """The server interrupts what keeps state, and kills it if it does not stop; all else it kills."""
        if self._cancelling is None and not self._pump.done():
            self._cancelling = asyncio.create_task(self._ask_to_end())

    async def close(self) -> None:
        """A late request to end would strike the next one that runs there: so it is waited for."""
        if self._cancelling is not None:
            await asyncio.wait([self._cancelling], timeout=_END_S)
            self._cancelling.cancel()
        if self.result is not None:
            await asyncio.wait([self._pump], timeout=_END_S)  # the connection may be used again
        if not self._pump.done():
            self._leave()
            await asyncio.wait([self._pump], timeout=_END_S)

    # --- inside

    async def _ask_to_end(self) -> None:
        try:
            await self._cancel(self._handle)
        except FumehoodError:
            self._leave()

    def _leave(self) -> None:
        """The server ends what nobody waits for."""
        if self._has_left or self._pump.done() or self.result is not None:
            return
        self._has_left = True
        stream = self._response.extensions.get("network_stream")
        raw = None if stream is None else stream.get_extra_info("socket")
        if raw is not None:
            with suppress(OSError):  # closing is not enough where a fork has it too
                raw.shutdown(socket.SHUT_RDWR)
        self._pump.cancel()
        self._add(Exited(_KILLED, "signal", state_lost=self._keeps_state))

    async def _read_on(self) -> None:
        try:
            async for line in self._lines():
                if self.result is None:  # it is the last one
                    self._hear(json.loads(line), len(line))
                while self._backlog > BACKLOG_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            self._fail(refusals.silent(self._client.where, SILENCE_S))
        except (httpx2.TransportError, OSError) as error:
            self._fail(refusals.lost(self._client.where, error, "while the program ran"))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            self._fail(SandboxLost(f"what the server at {self._client.where} sent is no event: use the same version"))
        except FumehoodError as error:  # whatever it is, the program may have run
            self._fail(error if isinstance(error, SandboxLost) else SandboxLost(f"while the program ran: {error}"))
        finally:
            with suppress(httpx2.TransportError, OSError):
                await self._response.aclose()
            self._news.set()

    async def _lines(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        parts = self._response.aiter_raw()
        while True:
            async with asyncio.timeout(SILENCE_S):
                part = await anext(parts, None)
            if part is None:
                return
            seen = len(rest)
            rest += part
            while (end := rest.find(b"\n", seen)) >= 0:
                line = bytes(rest[:end])
                del rest[: end + 1]
                seen = 0
                if line:  # an empty one says that the server is there
                    yield line
            if len(rest) > MAX_LINE:
                raise ValueError

    def _hear(self, event: dict[str, Any], size: int) -> None:
        kind = event.get("type")
        if kind == "started":
            if event.get("receipt") is not None:
                self.receipt = said.receipt(event["receipt"])
            self._handle = quote(str(event.get("handle") or ""), safe="")
            self._has_begun = True
            self._news.set()
        elif kind == "output":
            self._add(said.output(event))
        elif kind == "display":
            self._add(said.display(event), size)
        elif kind == "result":
            self._finish(event)
        elif kind == "error":
            problem = event.get("error")
            raise refusals.from_problem(self._client.where, problem if isinstance(problem, dict) else {}).error()

    def _finish(self, event: dict[str, Any]) -> None:
        exited = said.ending(event)
        if said.nothing_ran(event):
            self._add(Output("stderr", str(event.get("stderr", "")).encode("utf-8", "replace")))
        self.began_anew = said.began_anew(event)
        self.ran = said.ran(event, self._limits)
        self.result = event
        self._add(exited)

    def _add(self, event: Event, size: int = 0) -> None:
        size += _EVENT_BYTES + (len(event.data) if isinstance(event, Output) else 0)
        self._events.append((event, size))
        self._backlog += size
        self._news.set()

    def _fail(self, error: Exception) -> None:
        if not self._has_left and self.result is None:
            self._failure = error
            self._client.is_sure = False
