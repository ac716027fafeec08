"""What every handler is given: the server, and the call."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request

from ..config import Settings
from ..thread_pool import aside
from . import certificates
from .connections import Connections
from .gate import Gate
from .numbers import Numbers
from .options import changed
from .problems import Problem
from .reload import InForce
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

    def __init__(self, now: InForce, settings: Settings, tracing: Tracing | None = None) -> None:
        self.options = options = now.options
        self.tls = _tls(now)
        self.settings = settings
        self.tracing = tracing
        self.instance = options.instance or secrets.token_hex(4)
        self.tokens = Tokens(options.token, options.token_file, now.token_text)
        self.tickets = Tickets(self.instance)
        self.gate = Gate(options)
        self.numbers = Numbers(self.gate, self.tokens)
        self.connections = Connections(options, self.numbers)
        self.stopping = Moment()  # take no new work; a stream without a run ends now
        self.ending = Moment()  # the grace is over: whatever runs is cancelled
        self._parts: dict[type[Any], Part] = {}

    def reconfigure(self, now: InForce) -> None:
        """Go by this from now on, in what may change while it runs."""
        self.options = changed(self.options, now.options)
        self.tls = _tls(now)
        self.gate.reconfigure(self.options)
        self.connections.reconfigure(self.options)

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
            await aside(self.tracing.close)


class Moment:
    """It comes once, and whoever asked for it is called. Not an asyncio.Event: each wait for one is a task."""

    def __init__(self) -> None:
        self.is_set = False
        self.told: set[Callable[[], None]] = set()

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """`tell` is called when it comes, or now where it has come."""
        if self.is_set:
            tell()
        self.told.add(tell)
        try:
            yield
        finally:
            self.told.discard(tell)

    def set(self) -> None:
        if self.is_set:
            return
        self.is_set = True
        for tell in tuple(self.told):
            tell()


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

    def runs(self, execution_id: str) -> None:
        """What the log names beside this request."""
        self.request.scope["state"]["execution_id"] = execution_id

    async def gone(self) -> None:
        """Returns when the client has left. The body must have been read; one such wait at a time."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, which is cancelled when the client leaves, its token does, or the grace is over."""
        task, ending, tokens = asyncio.current_task(), self.server.ending, self.server.tokens
        assert task is not None
        if ending.is_set:
            work.close()
            raise _stopped()
        if not tokens.current(self.token):
            work.close()
            raise _removed()
        others, why = task.cancelling(), list[Exception]()

        def end(error: Exception) -> None:
            why.append(error)
            if len(why) == 1:
                task.cancel()

        def left(_: object) -> None:
            end(ClientLeft())

        def stop() -> None:
            end(_stopped())

        def bar() -> None:
            end(_removed())

        gone = asyncio.ensure_future(self.gone())
        gone.add_done_callback(left)
        ending.told.add(stop)
        tokens.watch(self.token, bar)
        try:
            outcome = await work  # in this task, as asyncio.timeout() does it: one more would double its wake-ups
        except (Exception, asyncio.CancelledError) as error:
            if not why or (isinstance(error, asyncio.CancelledError) and task.cancelling() > others + 1):
                raise
        finally:
            ending.told.discard(stop)
            tokens.unwatch(bar)
            gone.remove_done_callback(left)
            gone.cancel()
            if why:
                task.uncancel()
        if why:
            raise why[0]
        return outcome


def _tls(now: InForce) -> ssl.SSLContext | None:
    return None if now.pair is None else certificates.context(now.pair)


def _stopped() -> Problem:
    return Problem("sandbox_lost", "the server was stopped while the program ran: try again")


def _removed() -> Problem:
    return Problem("unauthorized", "this token was removed while the request was answered: use another one")


class Elsewhere(Exception):
    """What was asked for belongs to another instance: a worker beside us answers, or the client is told which."""

    def __init__(self, instance: str) -> None:
        super().__init__(instance)
        self.instance = instance


class ClientLeft(Exception):
    """Nobody is there to be answered."""
