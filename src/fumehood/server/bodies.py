"""How much of requests and of downloads may be in memory at a time, of this process."""

from __future__ import annotations

import asyncio

from starlette.types import Scope

from .problems import Problem, later
from .state import Server

SMALL = 256 * 1024


class Bodies:
    """A part of the server: what clients send. What is taken for a request is held until it has been answered."""

    what = "sent to it"

    def __init__(self, server: Server) -> None:
        self._most = server.options.max_bodies_bytes
        self._held = 0

    def check(self, size: int) -> None:
        """Refuse at once what would not fit now; alone, everything fits."""
        if self._held and self._held + size > self._most:
            raise later("unavailable", f"the server holds as much of what is {self.what} as it may: try again", 1)

    def take(self, scope: Scope, size: int) -> None:
        self.check(size)
        self._held += size
        held: dict[Bodies, int] = scope["state"].setdefault("held", {})
        held[self] = held.get(self, 0) + size

    def give_back(self, size: int) -> None:
        self._held -= size

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
        bodies.give_back(size)
