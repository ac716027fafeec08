"""The one-shots that run now, for those who want to end one and still have its result: leaving gives none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import ids
from .problems import Problem
from .routes import Route
from .state import Call, Elsewhere, Server
from .tokens import Token


class Executions:
    """A part of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._running: dict[str, tuple[str, Callable[[], None]]] = {}  # whose, and what ends it

    @contextmanager
    def listed(self, token: Token, end: Callable[[], None]) -> Iterator[str]:
        """Its handle, valid as long as it runs."""
        handle = ids.made("x", self._server.instance)
        self._running[handle] = token.name, end
        try:
            yield handle
        finally:
            del self._running[handle]

    def end(self, token: Token, handle: str) -> None:
        instance = ids.instance_of("x", handle)
        if instance is not None and instance != self._server.instance:
            raise Elsewhere(instance)
        owner, end = self._running.get(handle, (None, None))
        if owner != token.name or end is None:
            raise Problem("not_found", "nothing of yours runs under this handle: it may have ended")
        end()

    async def close(self) -> None:
        pass


async def cancel(call: Call[None, None]) -> None:
    call.server.part(Executions).end(call.token, call.params["handle"])


ROUTES = (
    Route(
        "POST",
        "/executions/{handle}/cancel",
        cancel,
        "End a one-shot; its result tells how. The handle is in the event `started`.",
        status=202,
        problems=("not_found", "session_ended", "misdirected"),
    ),
)
