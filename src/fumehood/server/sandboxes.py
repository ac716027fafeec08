"""The one-shot sandboxes of this server: one for each token and each narrowing, as long as they are wanted."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from .. import config
from ..api import OneShot
from ..config import Settings
from ..thread_pool import aside
from . import wire
from .state import Server
from .tokens import Token

MAX_IDLE = 64
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,40}")


class Sandboxes:
    """A part of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: dict[tuple[str, Settings], list[Any]] = {}  # [sandbox, borrowers], newest last
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def borrowed(self, token: Token, settings: Settings) -> Iterator[OneShot]:
        key = label(token), settings
        entry = self._kept.pop(key, None) or [OneShot(settings, run_id=run_id(token)), 0]
        self._kept[key] = entry
        entry[1] += 1
        try:
            yield entry[0]
        finally:
            entry[1] -= 1
            idle = [key for key, (_, borrowers) in self._kept.items() if not borrowers]
            for key in idle[: max(0, len(self._kept) - MAX_IDLE)]:
                self.later(aside(self._kept.pop(key)[0].close))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that no client waits for; the server's end does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        kept, self._kept = self._kept, {}
        for sandbox, _ in kept.values():
            self.later(aside(sandbox.close))
        await asyncio.gather(*self._tasks, return_exceptions=True)


def label(token: Token) -> str:
    """What the records of a token have in common."""
    name = token.name
    return name if _PLAIN.fullmatch(name) else f"t{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def run_id(token: Token) -> str:
    return f"{label(token)}-{os.urandom(8).hex()}"


def is_own(token: Token, found: object) -> bool:
    """Whether a record's run is one of this token's."""
    return isinstance(found, str) and found.rpartition("-")[0] == label(token)


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
    # Cells kept ready for limits that one request named would wait in vain.
    return settings if settings == server.settings else settings._replace(warm_cells=0), names
