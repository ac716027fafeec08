"""What was stored of a token's own executions."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..records import Entry, files
from ..records.search import earliest_name, run_of, with_id
from ..steps import absolute
from ..thread_pool import aside
from . import examples, wire
from .problems import Problem, later
from .routes import Route
from .sandboxes import is_own, label, owner_of
from .state import Call, Server
from .tokens import Token

SEARCH_S = 5.0
TITLE = 120
MAX_TOLD = 20_000
_ID = re.compile(r"[0-9a-f]{22}")
T = TypeVar("T")


class Search:
    """How long a request looks through records: for a while, and not once nobody waits for it."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SEARCH_S
        self.is_left = False

    def is_over(self) -> bool:
        return self.is_left or time.monotonic() > self._until


class Index:
    """A part of the server: whose each record is, which its last bytes say; and what a token's own say in short.

    None ever changes, so each is looked at once.
    """

    def __init__(self, server: Server) -> None:
        self._directory = Path(absolute(server.settings.artifacts_dir), "executions")
        self._seen: set[str] = set()
        self._names: dict[str, list[str]] = {}  # by the label of who ran it; in order
        self._told: dict[str, wire.HistoryEntry] = {}
        self._lock = threading.Lock()  # of the above
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def search(self, token: Token, work: Callable[[Search], T]) -> T:
        """One of an owner at a time, and one of another owner beside it."""
        async with self._turns[label(token)]:
            search = Search()
            doing = asyncio.ensure_future(aside(work, search))
            try:
                return await asyncio.shield(doing)
            except asyncio.CancelledError:  # nobody waits for it any more
                search.is_left = True
                await asyncio.wait([doing])
                doing.exception()
                raise

    def newest(self, token: Token, limit: int, before: str | None, search: Search) -> list[wire.HistoryEntry]:
        """Fewer than `limit` are all that there are; a Problem where there was no time to look at enough records."""
        found: list[wire.HistoryEntry] = []
        with self._opened() as dir_fd:
            unseen, names = self._look(dir_fd, token, search)
            end = len(names) if before is None else self._place(dir_fd, names, before, search)
            was_read = False  # one at least, whatever the time
            for name in reversed(names[bisect_right(names, unseen) : end]):
                entry = self._told.get(name)
                if entry is None:
                    if was_read and search.is_over():
                        raise _busy()
                    entry, was_read = self._read(dir_fd, name, token), True
                if entry is not None:
                    found.append(entry)
                if len(found) == limit:
                    return found
            if unseen:
                raise _busy()
        return found

    def one(self, token: Token, execution_id: str, search: Search) -> dict[str, Any] | None:
        with self._opened() as dir_fd:
            unseen, names = self._look(dir_fd, token, search)
            entry = _with_id(dir_fd, names, execution_id, search)
            if entry is None and unseen:
                raise _busy()
        return entry.record if entry is not None and entry.record is not None and is_own(token, entry.record) else None

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                dir_fd = stack.enter_context(files.directory(self._directory))
            except FileNotFoundError:  # nothing was ever stored
                dir_fd = -1
            yield dir_fd

    def _look(self, dir_fd: int, token: Token, search: Search) -> tuple[str, list[str]]:
        """Look whose the new ones are, the newest first.

        The name of the first that there was no time for, if any, and those of this owner.
        """
        with self._lock:
            names = files.names(dir_fd)[0] if dir_fd >= 0 else []
            touched, unseen = set[str](), ""
            for at, name in enumerate(reversed([name for name in names if name not in self._seen])):
                if at and search.is_over():
                    unseen = name
                    break
                try:
                    run_id = run_of(dir_fd, name)
                except OSError:  # the next request looks again
                    continue
                self._seen.add(name)
                if run_id is not None:
                    touched.add(owner := owner_of(run_id))
                    self._names.setdefault(owner, []).append(name)
            for owner in touched:
                self._names[owner].sort()
            if not unseen and len(self._seen) > len(names):  # some were pruned
                self._forget_all_but(set(names))
            return unseen, list(self._names.get(label(token), ()))

    def _forget_all_but(self, there: set[str]) -> None:
        self._seen &= there
        self._names = {owner: [name for name in names if name in there] for owner, names in self._names.items()}
        self._told = {name: entry for name, entry in self._told.items() if name in there}

    def _read(self, dir_fd: int, name: str, token: Token) -> wire.HistoryEntry | None:
        entry = files.read_entry(dir_fd, name)
        if entry.error is not None or entry.record is None or not is_own(token, entry.record):
            return None  # `fumehood verify` says which is not as it was written
        told = _told(entry.record)
        with self._lock:
            if len(self._told) >= MAX_TOLD:
                del self._told[next(iter(self._told))]
            self._told[name] = told
        return told

    def _place(self, dir_fd: int, names: list[str], execution_id: str, search: Search) -> int:
        """Where it stands among these; where it would, if it is none of them."""
        first = bisect_left(names, earliest_name(execution_id))
        for at in range(first, len(names)):
            if (entry := self._told.get(names[at])) is not None and entry.execution_id == execution_id:
                return at
        found = _with_id(dir_fd, names, execution_id, search)
        return first if found is None else bisect_left(names, found.name)

    async def close(self) -> None:
        pass


async def listing(call: Call[None, wire.HistoryQuery]) -> list[wire.HistoryEntry]:
    index, query, token = call.server.part(Index), call.query, call.token
    looked = index.search(token, lambda search: index.newest(token, query.limit, query.before, search))
    return await call.while_there(looked)


async def one(call: Call[None, None]) -> dict[str, Any]:
    record, index, token, wanted = None, call.server.part(Index), call.token, call.params["id"]
    if _ID.fullmatch(wanted):
        looked = index.search(token, lambda search: index.one(token, wanted, search))
        record = await call.while_there(looked)
    if record is None:
        raise Problem(
            "not_found",
            "no execution of yours with this id is stored: GET /history lists what is; the server's SANDBOX_STORE_CODE"
            " says which are",
        )
    return record


def _with_id(dir_fd: int, names: list[str], execution_id: str, search: Search) -> Entry | None:
    try:
        return with_id(dir_fd, names, execution_id, search.is_over)
    except TimeoutError:
        raise _busy() from None


def _busy() -> Problem:
    return later("unavailable", "there are many records, and they are still being looked through: try again", 1)


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
        problems=("unavailable",),
        reply_example=[examples.ENTRY],
    ),
    Route(
        "GET",
        "/history/{id}",
        one,
        "The whole record of one, with its receipt.",
        reply=dict[str, Any],
        problems=("not_found", "unavailable"),
        reply_example={"execution_id": examples.ENTRY["execution_id"], "code": "1/0", "result": {"exit_code": 1}},
    ),
)
