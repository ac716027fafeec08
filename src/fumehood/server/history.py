"""What was stored of a token's own executions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..records import files
from ..steps import absolute
from ..thread_pool import aside
from . import examples, wire
from .problems import Problem
from .routes import Route
from .sandboxes import is_own
from .state import Call, Server
from .tokens import Token

SEARCH_S = 5.0
TITLE = 120
MAX_KNOWN = 50_000
_ID = re.compile(r"[0-9a-f]{22}")


_Read = Callable[[], dict[str, Any] | None]


class _Known(NamedTuple):
    run_id: object
    told: wire.HistoryEntry


class Index:
    """A part of the server: what the records say in short. Each is read once, since none ever changes."""

    def __init__(self, server: Server) -> None:
        self._directory = Path(absolute(server.settings.artifacts_dir), "executions")
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def newest(self, token: Token, limit: int, before: str | None) -> list[wire.HistoryEntry]:
        """Where there are too many to be read in time, the next request goes on from there."""
        found: list[wire.HistoryEntry] = []
        until = time.monotonic() + SEARCH_S
        with self._lock, closing(self._entries()) as entries:
            for _, known in entries:
                if is_own(token, known.run_id) and (before is None or known.told.execution_id < before):
                    found.append(known.told)
                if len(found) >= limit or time.monotonic() > until:
                    break
        return found

    def one(self, token: Token, execution_id: str) -> dict[str, Any] | None:
        with self._lock, closing(self._entries()) as entries:
            for read, known in entries:
                if known.told.execution_id == execution_id:
                    return read() if is_own(token, known.run_id) else None
        return None

    def _entries(self) -> Generator[tuple[_Read, _Known]]:
        """The newest first, each with what reads the whole of it."""
        with ExitStack() as stack:
            try:
                dir_fd = stack.enter_context(files.directory(self._directory))
            except FileNotFoundError:
                return  # nothing was ever stored
            names = files.names(dir_fd)[0]
            if len(self._known) > len(names):  # some were pruned
                there = set(names)
                self._known = {name: known for name, known in self._known.items() if name in there}
            for name in reversed(names):
                read = partial(_record, dir_fd, name)
                known = self._known.get(name) or self._look(name, read)
                if known is not None:
                    yield read, known

    def _look(self, name: str, read: _Read) -> _Known | None:
        record = read()
        if record is None:
            return None
        known = _Known(record.get("run_id"), _told(record))
        if len(self._known) < MAX_KNOWN:
            self._known[name] = known
        return known

    async def close(self) -> None:
        pass


async def listing(call: Call[None, wire.HistoryQuery]) -> list[wire.HistoryEntry]:
    query = call.query
    return await aside(call.server.part(Index).newest, call.token, query.limit, query.before)


async def one(call: Call[None, None]) -> dict[str, Any]:
    record = None
    if _ID.fullmatch(call.params["id"]):
        record = await aside(call.server.part(Index).one, call.token, call.params["id"])
    if record is None:
        raise Problem(
            "not_found",
            "no execution of yours with this id is stored: GET /history lists what is; the server's SANDBOX_STORE_CODE"
            " says which are",
        )
    return record


def _record(dir_fd: int, name: str) -> dict[str, Any] | None:
    return files.read_entry(dir_fd, name).record


def _told(record: dict[str, Any]) -> wire.HistoryEntry:
    result = record.get("result") or {}
    meta = result.get("meta") or {}
    session_id = record.get("session_id")
    return wire.HistoryEntry(
        execution_id=str(record.get("execution_id", "")),
        time=str(record.get("timestamp", "")),
        kind=str(record.get("kind") or "execute"),
        title=_title(record),
        language=str(record.get("language", "")),
        exit_code=int(result.get("exit_code", 0)),
        reason=str(meta.get("reason", "ok")),
        duration=float(result.get("duration", 0.0)),
        level=str((meta.get("isolation") or {}).get("level", "none")),
        session_id=session_id if isinstance(session_id, str) and session_id.startswith("s_") else None,
    )


def _title(record: dict[str, Any]) -> str:
    command = record.get("command")
    whole = " ".join(map(str, command)) if command else record.get("path") or record.get("code") or ""
    return next((line.strip() for line in str(whole).splitlines() if line.strip()), "")[:TITLE]


ROUTES = (
    Route(
        "GET",
        "/history",
        listing,
        "This token's stored executions, the newest first.",
        query=wire.HistoryQuery,
        reply=list[wire.HistoryEntry],
        reply_example=[examples.ENTRY],
    ),
    Route(
        "GET",
        "/history/{id}",
        one,
        "The whole record of one, with its receipt.",
        reply=dict[str, Any],
        problems=("not_found",),
        reply_example={"execution_id": examples.ENTRY["execution_id"], "code": "1/0", "result": {"exit_code": 1}},
    ),
)
