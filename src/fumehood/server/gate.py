"""How much at a time: executions of the whole server and of each token, and calls per minute."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .options import ServerOptions
from .problems import later
from .tokens import Token

_MINUTE_S = 60.0


class Gate:
    """Runs at most `max_running` executions, keeps `max_queue` waiting for at most `queue_wait_s`, refuses the rest."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.running = 0
        self.closed = False
        self.refused: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._of_token: Counter[bytes] = Counter()
        self._calls: dict[bytes, deque[float]] = {}

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def count_call(self, token: Token) -> None:
        """One request of this token; 429 past its number for a minute."""
        if token.per_minute is None:
            return
        now, calls = time.monotonic(), self._calls.setdefault(token.digest, deque())
        while calls and now - calls[0] >= _MINUTE_S:
            calls.popleft()
        if len(calls) >= token.per_minute:
            self.refused["per_minute"] += 1
            wait_s = _MINUTE_S - (now - calls[0]) if calls else _MINUTE_S
            raise later("too_many", f"this token may make {token.per_minute} requests a minute", wait_s)
        calls.append(now)

    @asynccontextmanager
    async def execution(self, token: Token) -> AsyncIterator[None]:
        """A place among those that run, waited for if need be."""
        if self.closed:
            raise later("unavailable", "the server is stopping: try another instance, or again", 5)
        held = self._of_token[token.digest]
        if token.max_concurrent is not None and held >= token.max_concurrent:
            self.refused["token"] += 1
            raise later("too_many", f"this token may have {token.max_concurrent} executions at a time", 1)
        self._of_token[token.digest] += 1
        try:
            await self._enter()
            try:
                yield
            finally:
                self._leave()
        finally:
            self._of_token[token.digest] -= 1
            if not self._of_token[token.digest]:
                del self._of_token[token.digest]

    async def _enter(self) -> None:
        if self.running < self.options.max_running:
            self.running += 1
            return
        if len(self._waiting) >= self.options.max_queue:
            self.refused["queue_full"] += 1
            raise later("unavailable", "the server has too much to do: try again", 2)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self.options.queue_wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave()  # it was given to us in the same moment
            else:
                self._forget(place)
            if isinstance(error, TimeoutError):
                self.refused["queue_wait"] += 1
                raise later("unavailable", "the server was busy for too long: try again", 5) from None
            raise

    def _leave(self) -> None:
        while self._waiting:  # hands its place on
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.running -= 1

    def _forget(self, place: asyncio.Future[None]) -> None:
        try:
            self._waiting.remove(place)
        except ValueError:
            pass

    def close(self) -> None:
        """Take nothing more; what waits is refused, what runs may end."""
        self.closed = True
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(later("unavailable", "the server is stopping: try another instance, or again", 5))
