"""How much at a time: executions of the whole server and of each token, and calls per minute."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .options import ServerOptions
from .problems import Problem, later
from .quotas import Quotas
from .tokens import Token


class Gate:
    """Runs at most `max_running` executions, keeps `max_queue` waiting for at most `queue_wait_s`, refuses the rest."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.running = 0
        self.closed = False
        self.quotas = Quotas(options.peers_dir)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._keys: dict[object, asyncio.Future[None]] = {}

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def count_call(self, token: Token) -> None:
        """One request of this token; 429 past its number for a minute."""
        if token.per_minute is not None and (wait_s := self.quotas.wait_s(token)):
            raise later("too_many", f"this token may make {token.per_minute} requests a minute", wait_s)

    @asynccontextmanager
    async def execution(self, token: Token, key: object = None) -> AsyncIterator[None]:
        """A place among those that run, waited for if need be; `key` is for who wants to end the waiting."""
        if self.closed:
            raise later("unavailable", "the server is stopping: try another instance, or again", 5)
        place = self.quotas.place(token, "executions", token.max_concurrent)
        if place is None:
            raise later("too_many", f"this token may have {token.max_concurrent} executions at a time", 1)
        try:
            await self._enter(key)
            try:
                yield
            finally:
                self._leave()
        finally:
            place.leave()

    def give_up(self, key: object) -> bool:
        """End the waiting of whoever waits under this key; False where nobody does."""
        place = self._keys.get(key)
        if place is None or place.done():
            return False
        place.set_exception(Problem("conflict", "it was cancelled before there was a place for it to run"))
        return True

    async def _enter(self, key: object) -> None:
        if self.running < self.options.max_running:
            self.running += 1
            return
        if len(self._waiting) >= self.options.max_queue:
            raise later("unavailable", "the server has too much to do: try again", 2)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        if key is not None:
            self._keys[key] = place
        try:
            async with asyncio.timeout(self.options.queue_wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave()  # it was given to us in the same moment
            else:
                self._forget(place)
            if isinstance(error, TimeoutError):
                raise later("unavailable", "the server was busy for too long: try again", 5) from None
            raise
        finally:
            self._keys.pop(key, None)

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
