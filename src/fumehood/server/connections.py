"""Who is connected. Connections that have shown no token are few for each address, and have little time."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from .. import __version__
from . import ids, log
from .numbers import Numbers
from .options import ServerOptions
from .problems import Problem, later

RESERVED_FOR = "/healthz"
RESERVE, MOST_RESERVED = 64, 1024
_YOUNG_S = 0.5  # so long nobody is put out for another: many clients of one address connect first and ask then
_PASSES = 3  # nor before so many of the loop: on a busy machine the request may be there and not be read yet
_MORE_S = 0.1  # for an answer that we are still making
_WITH_PORT = re.compile(r"\[([^]]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+")  # as some proxies write it
UNIX = "unix"  # the address of all who come over a socket that is a file


class Connection:
    """One client's, also after it became a WebSocket."""

    def __init__(self, account: Connections, transport: asyncio.Transport, address: str, is_beside: bool) -> None:
        self.address, self.is_beside = address, is_beside
        self.is_half_closed = False  # the client has said all, and may still listen
        self.may_have_left = False  # it has, beyond something that we do not read yet
        self.makes_answer: Callable[[], bool] = lambda: False
        self.is_between: Callable[[], bool] = lambda: False
        self.put_out: Callable[[Problem], None] = lambda _: None
        self.since = 0.0
        self.is_new = True  # nothing was read from it yet
        self.timer: asyncio.TimerHandle | None = None
        self.transport = transport
        self._account = account

    @property
    def is_known(self) -> bool:
        """Whether it showed a token last, or need not."""
        return self._account.knows(self)

    def shows_token(self, path: str) -> None:
        """Its token was accepted; raises a Problem where there is no room for it all the same."""
        self._account.mark_known(self)
        if path != RESERVED_FOR:
            self._account.refuse_beyond(self)

    def shows_none(self, path: str) -> None:
        """A request without a token; raises a Problem where the connection is one too many."""
        self._account.mark_unknown(self)
        if path != RESERVED_FOR:
            self._account.refuse_beyond(self)

    def lost(self) -> None:
        self._account.forget(self)


class Connections:
    """All of one process. What comes in beyond a bound may show a token or ask for /healthz, and nothing else."""

    def __init__(self, options: ServerOptions, numbers: Numbers) -> None:
        self._options, self._numbers = options, numbers
        self._trusted = networks(options.trusted_proxies)
        self._waiting: dict[Connection, None] = {}  # without a token, within the bound
        self._reserve: dict[Connection, None] = {}  # without a token, beyond it: the oldest first
        self._others: dict[Connection, None] = {}  # with a token, or exempt
        self._by_address: Counter[str] = Counter()
        numbers.connected(lambda: len(self), lambda: len(self._waiting) + len(self._reserve))

    def reconfigure(self, options: ServerOptions) -> None:
        """For those that come from now on."""
        self._options = options
        self._trusted = networks(options.trusted_proxies)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._reserve) + len(self._others)

    def open(self, transport: asyncio.Transport, address: str, is_beside: bool) -> Connection:
        """One that was just accepted."""
        made = Connection(self, transport, address, is_beside)
        loop = asyncio.get_running_loop()
        made.since = loop.time()
        if is_beside:
            self._others[made] = None
            return made
        if self._is_full:
            self._reserve[made] = None
        elif self.is_trusted(address):
            self._others[made] = None
            return made
        elif self._by_address[_block(address)] >= self._options.max_unauthenticated:
            self._reserve[made] = None
        else:
            self._wait(made)
        made.timer = loop.call_later(self._options.unauthenticated_s, self._late, made)
        loop.call_soon(self._grow_old, made, _PASSES)
        self._trim()
        return made

    def knows(self, connection: Connection) -> bool:
        return connection in self._others

    def mark_known(self, connection: Connection) -> None:
        """It showed a token, and one that showed none gives way to it; where all have, it stays in the reserve."""
        if connection in self._others:
            return
        if connection in self._reserve and self._is_full:
            silent = next((each for each in self._waiting if not each.makes_answer()), None)
            if silent is None:
                return
            self._put_out(silent)
        self.forget(connection)
        self._others[connection] = None

    def mark_unknown(self, connection: Connection) -> None:
        """It showed none: a connection counts by what it showed last."""
        if connection in self._others and not connection.is_beside and not self.is_trusted(connection.address):
            del self._others[connection]
            self._wait(connection)
            loop = asyncio.get_running_loop()
            connection.timer = loop.call_later(self._options.unauthenticated_s, self._late, connection)

    def refuse_beyond(self, connection: Connection) -> None:
        """Raises a Problem where it is in the reserve."""
        if connection in self._reserve:
            if self._is_full:
                raise _too_many()
            raise later(
                "unavailable",
                f"{self._options.max_unauthenticated} connections of this address have shown no token: try again, or"
                " send one (see --max-unauthenticated and --trusted-proxy of fumehood serve)",
                1,
            )

    def forget(self, connection: Connection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None
        if connection in self._waiting:
            del self._waiting[connection]
            block = _block(connection.address)
            self._by_address[block] -= 1
            if not self._by_address[block]:
                del self._by_address[block]
        self._reserve.pop(connection, None)
        self._others.pop(connection, None)

    def is_trusted(self, address: str) -> bool:
        """Whether a proxy that we were told to trust has this address."""
        return _is_among(address, self._trusted)

    def client(self, connection: Connection, forwarded: Iterable[str]) -> str:
        """Whose request it is: what the nearest proxies that are trusted say, and never what a client says."""
        if connection.is_beside:  # another worker, who has found it out
            return next(iter(forwarded), connection.address)
        if not self.is_trusted(connection.address):
            return connection.address
        found = connection.address
        for each in reversed(",".join(forwarded).split(",")):
            text = each.strip()
            with_port = _WITH_PORT.fullmatch(text)
            named = _address((with_port[1] or with_port[2]) if with_port else text)
            if named is None:
                break
            found = named
            if not self.is_trusted(found):
                break
        return found

    def refused(self, address: str | None, problem: Problem, request_id: str | None = None) -> None:
        """A refusal that no request was made of: said in the log, and counted."""
        self._numbers.refused("", problem.code)
        log.write(
            "connection_refused",
            level="warning" if problem.status >= 500 else "info",
            request_id=request_id,
            status=problem.status,
            client=address,
            code=problem.code,
            message=problem.detail,
        )

    def refuse(self, address: str | None, problem: Problem, transport: asyncio.Transport) -> None:
        """As above, and it is told so."""
        request_id = ids.new_request()
        self.refused(address, problem, request_id)
        transport.write(_answer(problem, request_id))
        transport.close()

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) + len(self._others) >= self._options.max_connections

    def _wait(self, connection: Connection) -> None:
        self._waiting[connection] = None
        self._by_address[_block(connection.address)] += 1

    def _grow_old(self, connection: Connection, passes: int) -> None:
        """By passes of the loop, not by the clock: what has come is read in the next, however long each takes."""
        if passes:
            asyncio.get_running_loop().call_soon(self._grow_old, connection, passes - 1)
            return
        connection.is_new = False
        self._trim()

    def _trim(self) -> None:
        """The oldest leave the reserve, so that whoever comes next is heard."""
        now = asyncio.get_running_loop().time()
        while len(self._reserve) > RESERVE:
            oldest = next(iter(self._reserve))
            is_young = oldest.is_new or now - oldest.since < _YOUNG_S
            if (is_young or oldest.makes_answer()) and len(self._reserve) <= MOST_RESERVED:
                return
            self._put_out(oldest)

    def _put_out(self, connection: Connection) -> None:
        """At once: it does not wait for a client that has not read what it was told before."""
        self.forget(connection)
        connection.put_out(_too_many())
        if connection.transport.get_write_buffer_size():
            connection.transport.abort()

    def _late(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        if connection.makes_answer():
            connection.timer = loop.call_later(_MORE_S, self._late, connection)
            return
        if connection.is_between():  # it got what it asked for: nothing is refused
            connection.transport.close()
            return
        self.refused(connection.address, Problem("request_timeout", "no token was shown in time"))
        connection.transport.abort()


def networks(texts: Iterable[str]) -> tuple[str | ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks as they are written, and `unix`; a ValueError for anything else."""
    return tuple(UNIX if text == UNIX else ipaddress.ip_network(text) for text in texts)


def _is_among(address: str, among: tuple[str | ipaddress.IPv4Network | ipaddress.IPv6Network, ...]) -> bool:
    if not among:
        return False
    if address == UNIX:
        return UNIX in among
    named = ipaddress.ip_address(address)
    return any(not isinstance(each, str) and named in each for each in among)


def _address(text: str) -> str | None:
    """An address in its shortest form; that of IPv4 where IPv6 only carries it."""
    try:
        named = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return str(getattr(named, "ipv4_mapped", None) or named)


def address_of(peer: object) -> str:
    """What counts as one client's address, from a socket's name for its peer."""
    return (isinstance(peer, tuple) and _address(str(peer[0]))) or UNIX


def _block(address: str) -> str:
    """One client has a whole /64 of IPv6."""
    return str(ipaddress.ip_network(f"{address}/64", strict=False)) if ":" in address else address


def _answer(problem: Problem, request_id: str) -> bytes:
    """To what could not be read as a request."""
    body = msgspec.json.encode(problem.body(request_id))
    headers: dict[str, Any] = {
        "Content-Type": "application/problem+json",
        "Content-Length": len(body),
        "X-Content-Type-Options": "nosniff",
        "X-Fumehood-Version": __version__,
        "X-Request-Id": request_id,
        "Connection": "close",
        **problem.headers,
    }
    lines = [f"HTTP/1.1 {problem.status} {problem.title}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _too_many() -> Problem:
    return later("unavailable", "the server has as many connections as it may: try again", 1)
