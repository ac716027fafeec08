"""How much at a time: executions of the whole server and of each owner, and calls per minute."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from .options import ServerOptions
from .problems import Problem, later, stopping
from .quotas import Quotas
from .tokens import Token


class _Waiting(NamedTuple):
    place: asyncio.Future[None]
    token: Token


class Gate:
    """Runs at most `max_running` executions, keeps `max_queue` waiting for at most `queue_wait_s`, refuses the rest.

    Owners take turns, and without a quota of its own none has all the places, or keeps another out of the queue.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.running = 0
        self.running_of: Counter[str] = Counter()
        self.closed = False
        self.quotas = Quotas(options.peers_dir)
        self.entered: Callable[[Token, float], None] = lambda token, queued_s: None  # noqa: ARG005
        self._queues: dict[str, deque[_Waiting]] = {}  # by owner, whose turn is next first; none is empty
        self._keys: dict[object, asyncio.Future[None]] = {}

    def reconfigure(self, options: ServerOptions) -> None:
        """More places are handed on at once; fewer hold when so many have been left."""
        self.options = options
        self._hand_on()

    @property
    def queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def queued_of(self, owner: str) -> int:
        return len(self._queues.get(owner, ()))

    def share(self, token: Token) -> int:
        """How many of its owner may run here at a time: all but one, unless the operator wrote how many."""
        most = self.options.max_running
        return max(1, most - 1) if token.max_concurrent is None else min(most, token.max_concurrent)

    def count_call(self, token: Token) -> None:
        """One request of this owner; 429 past its number for a minute."""
        if token.per_minute is not None and (wait_s := self.quotas.wait_s(token)):
            raise later("too_many", f"this token may make {token.per_minute} requests a minute", wait_s)

    @asynccontextmanager
    async def execution(self, token: Token, key: object = None) -> AsyncIterator[float]:
        """A place among those that run, and the seconds it was waited for; `key` is for who wants to end the waiting.

        A quota that the operator wrote refuses at once; the default share only makes its owner wait.
        """
        if self.closed:
            raise stopping()
        place = self.quotas.place(token, "executions", token.max_concurrent)
        if place is None:
            text = f"this token may have {token.max_concurrent} executions at a time; {self._load(token.name)}"
            raise later("too_many", text, 1)
        try:
            since = time.monotonic()
            waited = await self._enter(token, key)
            queued_s = time.monotonic() - since if waited else 0.0
            try:
                self.entered(token, queued_s)
                yield queued_s
            finally:
                self._leave(token.name)
        finally:
            place.leave()

    def give_up(self, key: object) -> bool:
        """End the waiting of whoever waits under this key; False where nobody does."""
        place = self._keys.get(key)
        if place is None or place.done():
            return False
        place.set_exception(Problem("conflict", "it was cancelled before there was a place for it to run"))
        return True

    async def _enter(self, token: Token, key: object) -> bool:
        """Whether it was waited for."""
        owner = token.name
        if self.running < self.options.max_running and self._may_take(token):  # who waits now has its share
            self._take(owner)
            return False
        self._make_room(owner)
        waiting = _Waiting(asyncio.get_running_loop().create_future(), token)
        place = waiting.place
        self._queues.setdefault(owner, deque()).append(waiting)
        if key is not None:
            self._keys[key] = place
        try:
            async with asyncio.timeout(self.options.queue_wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave(owner)  # it was given to us in the same moment
            else:
                self._forget(owner, waiting)
            if isinstance(error, TimeoutError):
                text = f"the server was busy for too long: try again; {self._load(owner)}"
                raise later("unavailable", text, 5) from None
            raise
        finally:
            self._keys.pop(key, None)
        return True

    def _make_room(self, owner: str) -> None:
        """In a full queue the newest of the owner with the most gives way to one of an owner with fewer."""
        if self.queued < self.options.max_queue:
            return
        full = "the server has too much to do: try again; {}"
        longest = max(self._queues, key=self.queued_of, default=owner)
        if self.queued_of(longest) <= self.queued_of(owner) + 1:
            raise later("unavailable", full.format(self._load(owner)), 2)
        newest = self._queues[longest][-1]
        self._forget(longest, newest)
        if not newest.place.done():
            newest.place.set_exception(later("unavailable", full.format(self._load(longest)), 2))

    def _load(self, owner: str) -> str:
        """Of this owner alone: the others' load is theirs."""
        return f"{self.running_of[owner]} of yours run here and {self.queued_of(owner)} wait"

    def _may_take(self, token: Token) -> bool:
        return self.running_of[token.name] < self.share(token)

    def _take(self, owner: str) -> None:
        self.running += 1
        self.running_of[owner] += 1

    def _leave(self, owner: str) -> None:
        self.running -= 1
        self.running_of[owner] -= 1
        if not self.running_of[owner]:
            del self.running_of[owner]
        self._hand_on()

    def _hand_on(self) -> None:
        """Free places go to the owners in turn, but for those that have their share."""
        while self.running < self.options.max_running:
            turns = (name for name, queue in self._queues.items() if self._may_take(queue[0].token))
            if (owner := next(turns, None)) is None:
                return
            queue = self._queues.pop(owner)
            place = queue.popleft().place
            if queue:
                self._queues[owner] = queue  # behind the others
            if not place.done():
                self._take(owner)
                place.set_result(None)

    def _forget(self, owner: str, waiting: _Waiting) -> None:
        queue = self._queues.get(owner)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._queues[owner]

    def close(self) -> None:
        """Take nothing more; what waits is refused, what runs may end."""
        self.closed = True
        queues, self._queues = self._queues, {}
        for place in (waiting.place for queue in queues.values() for waiting in queue):
            if not place.done():
                place.set_exception(stopping())
