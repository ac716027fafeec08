"""The sessions that live on this server: whose they are, how many there may be, and which have ended."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET

from ..session import AsyncSession
from . import ids, wire
from .events import Hub
from .problems import Problem, later
from .quotas import Place
from .state import Elsewhere, Server
from .tokens import Token

MAX_WAITING = 16  # calls of one session
MAX_REMEMBERED = 4096
_GONE = "this session has ended, and its files and variables are gone: open another one with POST /sessions"


class Live:
    """One session, and what the server knows about it."""

    def __init__(
        self, session_id: str, owner: str, session: AsyncSession, hub: Hub, cut: list[str], place: Place
    ) -> None:
        self.id, self.owner, self.session, self.hub, self.cut = session_id, owner, session, hub, cut
        self.place = place
        self.created = datetime.now(UTC)
        self.receipt: dict[str, Any] = {}
        self.calls = 0  # that run or wait
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waited for here, so that a call holds none of the server's places before it can run."""
        queues = self.session.settings.session_busy == "queue"
        if self.calls > MAX_WAITING or (self.calls and not queues):
            raise Problem("session_busy", "this session is running another call: wait for it, or POST …/cancel")
        self.calls += 1
        try:
            async with self._lock:
                if self.session.ended:
                    raise Problem("session_ended", _GONE)
                yield
        finally:
            self.calls -= 1

    def told(self, token: Token) -> wire.SessionReply:
        session = self.session
        places = session.places
        return wire.SessionReply(
            session_id=self.id,
            state="open",
            busy=self.calls > 0,
            created_at=_stamp(self.created),
            expires_at=_stamp(datetime.now(UTC) + timedelta(seconds=session.ends_in_s)),
            idle_seconds=session.settings.session_idle_sec,
            backend=session.backend_name,
            requirements=list(session.requirements),
            places=wire.Places(places.workspace, places.tmp, places.data, places.output),
            receipt=self.receipt,
            limits_clamped=self.cut,
            owner=self.owner if token.oversees else UNSET,
        )


class Registry:
    """A part of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._live: dict[str, Live] = {}
        self._ended: dict[str, str] = {}  # whose they were, the oldest first
        self._coming: Counter[str] = Counter()  # by owner
        self._sweeper = asyncio.create_task(self._sweep(), name="fumehood-sessions")

    def __len__(self) -> int:
        return len(self._live)

    def new_id(self) -> str:
        return ids.made("s", self._server.instance)

    @asynccontextmanager
    async def room(self, token: Token) -> AsyncIterator[Place]:
        """For one more session, held while it is made; the place among the token's own is the session's to keep."""
        self._bury()
        share = self._share(token)
        if self._server.numbers.sessions[token.name] + self._coming[token.name] >= share:
            raise later(
                "too_many", f"{share} sessions here may be yours, and the others are for other tokens: close one", 60
            )
        if len(self._live) + self._coming.total() >= self._server.options.max_sessions:
            raise later("unavailable", "this server has as many sessions as it takes: close one, or try again", 60)
        place = self._server.gate.quotas.place(token, "sessions", token.max_sessions)
        if place is None:
            raise later("too_many", f"this token may have {token.max_sessions} sessions: close one", 60)
        self._coming[token.name] += 1
        try:
            yield place
        except BaseException:
            place.leave()
            raise
        finally:
            self._coming[token.name] -= 1

    def _share(self, token: Token) -> float:
        """How many may be one owner's: not all where there are others, unless the operator wrote how many."""
        most = self._server.options.max_sessions
        if token.max_sessions is not None or self._server.tokens.runners < 2 or not most:
            return math.inf
        return max(1, most - max(1, most // 4))

    def add(self, live: Live) -> None:
        self._live[live.id] = live
        self._server.numbers.sessions[live.owner] += 1

    def find(self, token: Token, session_id: str, *, oversees: bool = False) -> Live:
        """The owner's own session; nobody learns of another's but who oversees them all."""
        instance = ids.instance_of("s", session_id)
        if instance is not None and instance != self._server.instance:
            raise Elsewhere(instance)
        live = self._live.get(session_id)
        if live is not None and (oversees or live.owner == token.name):
            if not live.session.ended:
                return live
            self._bury()
        owner = self._ended.get(session_id)
        if ids.is_of_earlier(session_id) or (owner is not None and (oversees or owner == token.name)):
            raise Problem("session_ended", _GONE)
        raise Problem("not_found", "you have no such session: GET /sessions lists them, POST /sessions opens one")

    def seen_by(self, token: Token) -> Iterator[Live]:
        """The owner's own, or all of them."""
        self._bury()
        return (live for live in self._live.values() if token.oversees or live.owner == token.name)

    async def end(self, live: Live) -> None:
        self._forget(live)
        await live.session.close()

    async def close(self) -> None:
        self._sweeper.cancel()
        lives = list(self._live.values())
        await asyncio.gather(*map(self.end, lives), return_exceptions=True)

    def _bury(self) -> None:
        """Those that ended by themselves."""
        for live in [live for live in self._live.values() if live.session.ended]:
            self._forget(live)

    def _forget(self, live: Live) -> None:
        if self._live.pop(live.id, None) is None:
            return
        self._server.numbers.sessions[live.owner] -= 1
        live.hub.end()
        live.place.leave()
        self._ended[live.id] = live.owner
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.pop(next(iter(self._ended)))

    async def _sweep(self) -> None:
        """So that those who listen hear of an end."""
        while True:
            await asyncio.sleep(1.0)
            self._bury()


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
