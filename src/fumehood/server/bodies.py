"""How much of requests and of downloads may be in memory at a time, of this process."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import Scope

from .problems import Problem, later
from .state import Server

SMALL = 256 * 1024


class Bodies:
    """A part of the server: what clients send. What is taken for a request is held until it has been answered."""

    what = "sent to it"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._held: Counter[str] = Counter()  # by owner

    def check(self, scope: Scope, size: int) -> None:
        """Refuse at once what would not fit now. One thing alone may be larger than its owner's share."""
        options, owner = self._server.options, _owner(scope)
        most, own = options.max_bodies_bytes, self._held[owner]
        share = max(most // 2, options.max_upload_bytes, options.max_body_bytes)
        if own and own + size > share:
            raise later("unavailable", f"as much of what is {self.what} is yours as may be: try again", 1)
        others = sum(min(held, share) for name, held in self._held.items() if name != owner)
        if others and others + min(own + size, share) > most:
            raise later("unavailable", f"the server holds as much of what is {self.what} as it may: try again", 1)

    def take(self, scope: Scope, size: int) -> None:
        self.check(scope, size)
        self._held[_owner(scope)] += size
        held: dict[Bodies, int] = scope["state"].setdefault("held", {})
        held[self] = held.get(self, 0) + size

    def give_back(self, scope: Scope, size: int) -> None:
        owner = _owner(scope)
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]

    async def close(self) -> None:
        pass


class Downloads(Bodies):
    """What is sent to clients."""

    what = "fetched from it"

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.large = asyncio.Lock()  # one at a time is read

    def has_room(self, scope: Scope, size: int) -> bool:
        """Whether an answer of this size may wait for its client; small ones always may."""
        if size > SMALL:
            try:
                self.take(scope, size)
            except Problem:
                return False
        return True


def leave(scope: Scope) -> None:
    """The request has been answered."""
    held: dict[Bodies, int] = scope["state"].pop("held", {})
    for bodies, size in held.items():
        bodies.give_back(scope, size)


def _owner(scope: Scope) -> str:
    token = scope["state"].get("token")
    return token.name if token is not None else ""
