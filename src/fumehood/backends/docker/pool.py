"""All containers of one event loop: those in use, those that wait for a program, those that are on their way out."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import os
import threading
import time
import weakref
from collections import deque
from typing import Any

from ...config import Settings
from ...errors import BackendUnavailable, FumehoodError
from ...types import Limits
from ..base import SandboxSpec
from . import body, client, podman
from .address import Address
from .client import Client, Facts, Refused, remove_now
from .container import Container
from .sweep import sweep

_PING_S = body.PATIENCE_S / 5
_CLOSED = "this backend is closed; make a new sandbox"
_CLOSE_S = 15.0  # for an engine that does not answer

_hubs: dict[tuple[asyncio.AbstractEventLoop, Address], Hub] = {}
_parents: list[Hub] = []  # kept for good: their ends would be the parent's
_known: dict[Address, Facts] = {}
_left: dict[Address, set[str]] = {}  # what could not be removed; a request may be carried out long after it was made
_silent: set[Address] = set()  # engines that did not answer when we left them
_lock = threading.Lock()
_is_registered = False


def hub_for(address: Address) -> Hub:
    """The running loop's."""
    global _is_registered
    loop = asyncio.get_running_loop()
    with _lock:
        if not _is_registered:
            _is_registered = True
            atexit.register(_remove_all)
            os.register_at_fork(after_in_child=_after_fork)
        for key in [key for key in _hubs if key[0].is_closed()]:
            _leave_behind(_hubs.pop(key))
        hub = _hubs.get((loop, address))
        if hub is None or hub.is_closed:
            hub = _hubs[loop, address] = Hub(address, _known.get(address))
        return hub


class Hub:
    def __init__(self, address: Address, facts: Facts | None):
        self.loop = asyncio.get_running_loop()
        self.client = Client(address, facts)
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.alive: dict[str, Container] = {}
        self.is_closed = False
        self._waiting: dict[str, deque[Container]] = {}
        self._coming: dict[str, int] = {}  # being made ahead
        self._takers: dict[str, deque[asyncio.Future[Container]]] = {}  # of those
        self._taken: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._swept: asyncio.Task[None] | None = None
        self._keeper = asyncio.create_task(self._keep(), name="fumehood-docker")

    async def meet(self) -> Facts:
        facts = _known[self.client.address] = await self.client.meet()
        if self._swept is None:
            self._swept = self._spawn(self._sweep())
        return facts

    async def sweep(self) -> None:
        """Leftovers are looked for at the first use; wait until they are gone."""
        if self._swept is not None:
            await asyncio.shield(self._swept)

    async def take(self, settings: Settings, spec: SandboxSpec, limits: Limits) -> Container:
        """A container that nobody has used."""
        facts = await self.meet()
        request = _request(facts, settings, spec, limits)
        key = _key(settings, request)
        waiting = self._waiting.setdefault(key, deque())
        found: Container | None = None
        while waiting and found is None:
            found = waiting.popleft()
            if not found.is_alive or time.monotonic() - found.made_at > body.WAITING_S:
                self.discard(found)
                found = None
        taker = None
        if found is None and self._unclaimed(key):  # it was begun before one of our own could be
            taker = self.loop.create_future()
            self._takers.setdefault(key, deque()).append(taker)
        if spec.packages is None and settings.warm_cells:
            self._taken[key] = self._taken.get(key, 0) + 1
            wanted = settings.warm_cells if self._taken[key] > 1 else 1  # who asks once may not come back
            for _ in range(wanted - len(waiting) - self._unclaimed(key)):
                self._coming[key] = self._coming.get(key, 0) + 1
                self._spawn(self._make_ahead(key, settings, limits, request))
        if taker is not None:
            return await self._handed(key, taker)
        return found or await self._make(settings, limits, request)

    def give_back(self, container: Container, settings: Settings, spec: SandboxSpec, limits: Limits) -> None:
        """It was made to see whether it can be, and nobody has used it."""
        if not settings.warm_cells or self.client.facts is None:
            self.discard(container)
            return
        key = _key(settings, _request(self.client.facts, settings, spec, limits))
        self._waiting.setdefault(key, deque()).append(container)

    def discard(self, container: Container) -> None:
        """In the background."""
        container.close()
        if not self.is_closed:
            self._spawn(self._remove(container))

    async def leave(self, user: object) -> None:
        """The last one to leave closes."""
        self.users.discard(user)
        if not self.users and not self.is_closed:
            self.is_closed = True
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    # --- inside

    async def _make(self, settings: Settings, limits: Limits, request: dict[str, Any]) -> Container:
        if self.is_closed:
            raise BackendUnavailable(_CLOSED)
        container = Container(self.client)
        self.alive[container.name] = container
        try:
            await container.make(settings, limits, request)
        except BaseException:
            self.discard(container)
            raise
        return container

    async def _make_ahead(self, key: str, settings: Settings, limits: Limits, request: dict[str, Any]) -> None:
        try:
            container = await self._make(settings, limits, request)
        except Exception as error:
            taker = self._next_taker(key)
            if taker is not None:
                taker.set_exception(error)
            elif not isinstance(error, FumehoodError):  # of those, whoever needs one will hear
                raise
        else:
            self._hand_out(key, container)
        finally:
            self._coming[key] -= 1

    def _unclaimed(self, key: str) -> int:
        return self._coming.get(key, 0) - len(self._takers.get(key, ()))

    def _next_taker(self, key: str) -> asyncio.Future[Container] | None:
        takers = self._takers.get(key)
        while takers:
            taker = takers.popleft()
            if not taker.done():
                return taker
        return None

    def _hand_out(self, key: str, container: Container) -> None:
        taker = self._next_taker(key)
        if taker is not None:
            taker.set_result(container)
        else:
            self._waiting[key].append(container)

    async def _handed(self, key: str, taker: asyncio.Future[Container]) -> Container:
        try:
            return await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled() and taker.exception() is None:
                self._hand_out(key, taker.result())
            elif taker in self._takers[key]:
                self._takers[key].remove(taker)
            raise

    async def _remove(self, container: Container) -> None:
        if not await container.remove():
            self._swept = None  # look again when the engine is back
            _left.setdefault(self.client.address, set()).add(container.name)
        self.alive.pop(container.name, None)

    async def _sweep(self) -> None:
        try:
            await sweep(self.client, _is_known)
        except (FumehoodError, Refused):
            self._swept = None  # the next one will

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(self) -> None:
        """Signs of life to every guest; when the loop ends, so do they."""
        try:
            while True:
                await asyncio.sleep(_PING_S)
                if not self.users:  # they went without closing
                    break
                for container in list(self.alive.values()):
                    if hasattr(container, "link"):
                        container.link.ping()
                for waiting in self._waiting.values():
                    while waiting and time.monotonic() - waiting[0].made_at > body.WAITING_S:
                        self.discard(waiting.popleft())
        finally:
            self.is_closed = True
            if not self.loop.is_closed():  # else somebody closed it over this task, and nothing can be awaited
                await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for taker in itertools.chain.from_iterable(self._takers.values()):
            if not taker.done():
                taker.set_exception(BackendUnavailable(_CLOSED))
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._tasks:
                    await asyncio.wait(self._tasks)
                if self.alive:
                    await self._remove_alive()
        except TimeoutError:
            pass
        await self.client.close()
        with _lock:
            _leave_behind(self)
            if _hubs.get((self.loop, self.client.address)) is self:
                del _hubs[self.loop, self.client.address]

    async def _remove_alive(self) -> None:
        """For as long as the engine answers."""
        removing = [asyncio.ensure_future(self._remove(container)) for container in self.alive.values()]
        try:
            while await self.client.answers():
                if not (await asyncio.wait(removing, timeout=client.ALIVE_S))[1]:
                    return
        finally:
            for task in removing:
                task.cancel()


def _request(facts: Facts, settings: Settings, spec: SandboxSpec, limits: Limits) -> dict[str, Any]:
    request = body.create_body(settings, spec, limits, facts.cpus)
    return podman.reworded(request) if facts.is_podman else request


def _key(settings: Settings, request: dict[str, Any]) -> str:
    """Containers of one key are as good as each other."""
    return json.dumps([settings.require, request])


def _is_known(name: str) -> bool:
    return any(name.lstrip("/") in hub.alive for hub in list(_hubs.values()))


def _leave_behind(hub: Hub) -> None:
    if hub.client.is_silent:
        _silent.add(hub.client.address)
    if hub.alive:
        _left.setdefault(hub.client.address, set()).update(hub.alive)


def _remove_all() -> None:
    """At the end of the process: what nobody closed."""
    coming: set[str] = set()
    for hub in list(_hubs.values()):
        hub.is_closed = True  # its loop may go on in a thread, and begins no more
        _leave_behind(hub)
        coming.update(name for name, container in list(hub.alive.items()) if container.is_coming)
    for address, names in list(_left.items()):
        if address in _known:
            version, was_silent = _known[address].version, address in _silent
            remove_now(address, version, list(names), coming, was_silent=was_silent)  # others may still add


def _after_fork() -> None:
    """The containers are the parent's, and so is the far end of each stream."""
    global _lock
    _lock = threading.Lock()
    _parents.extend(_hubs.values())
    for hub in _hubs.values():
        for container in hub.alive.values():
            if hasattr(container, "link"):
                container.link.let_go()
    for inherited in (_hubs, _known, _left, _silent):
        inherited.clear()
