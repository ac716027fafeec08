"""What every handler is given: the server, and the call."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request

from ..config import Settings
from .gate import Gate
from .numbers import Numbers
from .options import ServerOptions
from .problems import Problem
from .telemetry import Tracing
from .tokens import Tickets, Token, Tokens

B = TypeVar("B")
Q = TypeVar("Q")
T = TypeVar("T")


class Part(Protocol):
    """Something made once for the server and closed with it."""

    def __init__(self, server: Server) -> None: ...
    async def close(self) -> None: ...


P = TypeVar("P", bound=Part)


class Server:
    """One instance: its options, the settings that are the ceiling of every request, and what is shared."""

    def __init__(self, options: ServerOptions, settings: Settings, tracing: Tracing | None = None) -> None:
        self.options = options
        self.settings = settings
        self.tracing = tracing
        self.instance = options.instance or secrets.token_hex(4)
        self.tokens = Tokens(options.token, options.token_file)
        self.tickets = Tickets(self.instance)
        self.gate = Gate(options)
        self.numbers = Numbers(self.gate)
        self.stopping = asyncio.Event()  # take no new work; a stream without a run ends now
        self.ending = asyncio.Event()  # the grace is over: whatever runs is cancelled
        self._parts: dict[type[Any], Part] = {}

    def part(self, kind: type[P]) -> P:
        """The one `kind(server)`, made when first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found = self._parts[kind]
        assert isinstance(found, kind)
        return found

    def stop(self) -> None:
        """Take no new work, from now on."""
        self.stopping.set()
        self.gate.close()

    async def close(self) -> None:
        """End everything, the newest part first."""
        self.stop()
        self.ending.set()
        while self._parts:
            await self._parts.pop(next(reversed(self._parts))).close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


class Call(Generic[B, Q]):
    """One authorised request: `body` and `query` as the route's types, `params` from its path."""

    def __init__(
        self, server: Server, request: Request, token: Token, params: dict[str, str], body: B, query: Q
    ) -> None:
        self.server, self.request, self.token, self.params = server, request, token, params
        self.body, self.query = body, query

    @property
    def request_id(self) -> str:
        found: str = self.request.scope["state"]["request_id"]
        return found

    async def gone(self) -> None:
        """Returns when the client has left. The body must have been read; one such wait at a time."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, work: Awaitable[T]) -> T:
        """The outcome of `work`, which is cancelled when the client leaves or the server's grace is over."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.gone())
        ending = asyncio.ensure_future(self.server.ending.wait())
        try:
            await asyncio.wait((task, gone, ending), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and ending.done():
                raise Problem("sandbox_lost", "the server was stopped while the program ran: try again")
            if not task.done():
                raise ClientLeft
            return task.result()
        finally:
            for each in (task, gone, ending):
                each.cancel()
            await asyncio.gather(task, gone, ending, return_exceptions=True)


class Elsewhere(Exception):
    """What was asked for belongs to another instance: a worker beside us answers, or the client is told which."""

    def __init__(self, instance: str) -> None:
        super().__init__(instance)
        self.instance = instance


class ClientLeft(Exception):
    """Nobody is there to be answered."""
