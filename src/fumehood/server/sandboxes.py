"""The one-shot sandboxes of this server: one for each token and each narrowing, as long as they are wanted."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import config
from ..api import OneShot
from ..config import Settings
from ..thread_pool import aside
from ..types import Limits
from . import wire
from .frequent import CELLS, Frequent, Kind
from .state import Server
from .tokens import Token

MAX_IDLE = 16  # of each token, with limits that its requests brought
_PLAIN = re.compile(r"(?!t[0-9a-f]{32}\Z)[A-Za-z0-9_-]{1,40}")  # and not what stands for another name


class _Kept:
    def __init__(self, sandbox: OneShot) -> None:
        self.sandbox = sandbox
        self.borrowers = 0
        self.is_dropped = False  # it goes with its last borrower


class Sandboxes:
    """A part of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: dict[str, dict[Settings, _Kept]] = {}  # by the token's label; the newest last
        self._frequent = Frequent(self._drop)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def borrowed(self, token: Token, settings: Settings) -> Iterator[OneShot]:
        owner = label(token)
        settings = self._with_cells(owner, settings)
        own = self._kept.setdefault(owner, {})
        kept = own.pop(settings, None) or _Kept(OneShot(settings, run_id=run_id(token)))
        own[settings] = kept
        kept.borrowers += 1
        try:
            yield kept.sandbox
        finally:
            kept.borrowers -= 1
            if kept.is_dropped:
                self._close(kept)
            else:
                self._trim(own)

    def _with_cells(self, owner: str, settings: Settings) -> Settings:
        """Those of `narrowed`, with cells that wait where they come often."""
        usual = self._server.settings
        if settings == usual or usual.type != "local" or not usual.warm_cells:
            return settings
        if (cell := _cell_of(settings)) == _cell_of(usual):
            return settings._replace(warm_cells=usual.warm_cells)
        if self._frequent.is_kept(owner, cell):
            return settings._replace(warm_cells=min(CELLS, usual.warm_cells))
        return settings

    def _drop(self, kind: Kind) -> None:
        owner, cell = kind
        own = self._kept.get(owner, {})
        for settings in [found for found in own if found.warm_cells and _cell_of(found) == cell]:
            kept = own.pop(settings)
            kept.is_dropped = True
            self._close(kept)

    def _trim(self, own: dict[Settings, _Kept]) -> None:
        """The token's usual one stays, and with it the cells that wait for everybody."""
        idle = [key for key, kept in own.items() if not kept.borrowers and key != self._server.settings]
        for key in idle[: max(0, len(idle) - MAX_IDLE)]:
            self._close(own.pop(key))

    def _close(self, kept: _Kept) -> None:
        if not kept.borrowers:
            self.later(aside(kept.sandbox.close))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that no client waits for; the server's end does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        kept, self._kept = self._kept, {}
        for own in kept.values():
            for entry in own.values():
                self.later(aside(entry.sandbox.close))
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _cell_of(settings: Settings) -> tuple[Limits, bool]:
    """What is built into a cell. The rest is counted outside of it, or comes with the program."""
    return settings.limits().built_in(), settings.network


def label(token: Token) -> str:
    """What the records of a token have in common."""
    name = token.name
    return name if _PLAIN.fullmatch(name) else f"t{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def run_id(token: Token) -> str:
    return f"{label(token)}-{os.urandom(8).hex()}"


def owner_of(run_id: object) -> str:
    """The label of who ran it."""
    return run_id.rpartition("-")[0] if isinstance(run_id, str) else ""


def is_own(token: Token, record: Mapping[str, Any]) -> bool:
    """Whether the record's run is one of this token's."""
    return owner_of(record.get("run_id")) == label(token)


def narrowed(server: Server, ask: wire.Narrowing, **further: float | None) -> tuple[Settings, list[str]]:
    """The server's settings with what the request narrows, and what it asked for in vain."""
    limits = ask.limits or wire.Limits()
    asked: dict[str, object] = {name: getattr(limits, name) for name in limits.__struct_fields__}
    asked["max_output_kb"] = asked.pop("output_kb")
    asked |= {"require": ask.require, "network": ask.network, **further}
    if ask.network is False:
        asked["docker_network_enabled"] = False
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return server.settings, []
    settings, cut = config.narrowed(server.settings, asked)
    names = ["output_kb" if name == "max_output_kb" else name for name in cut]
    # Cells kept ready for limits that one request named would wait in vain: see `Sandboxes`.
    return settings if settings == server.settings else settings._replace(warm_cells=0), names
