"""How much of all requests' bodies may be in memory at a time, of this process."""

from __future__ import annotations

from starlette.types import Scope

from .problems import Problem, later
from .state import Server


class Bodies:
    """A part of the server. What is taken for a request is held until it has been answered."""

    def __init__(self, server: Server) -> None:
        self._most = server.options.max_bodies_bytes
        self._held = 0

    def check(self, size: int) -> None:
        """Refuse at once what would not fit now."""
        if self._held + size > self._most:
            raise self._full()

    def take(self, scope: Scope, size: int) -> None:
        self.check(size)
        self._held += size
        state = scope["state"]
        state["held"] = state.get("held", 0) + size

    def leave(self, scope: Scope) -> None:
        self._held -= scope["state"].pop("held", 0)

    async def close(self) -> None:
        pass

    def _full(self) -> Problem:
        return later("unavailable", "the server holds as many bytes of requests as it may: try again", 1)
