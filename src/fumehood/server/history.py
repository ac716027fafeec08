"""What was stored of a token's own executions."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from .. import records
from ..steps import absolute
from . import examples, wire
from .problems import Problem
from .routes import Route
from .sandboxes import is_own
from .state import Call, Server
from .tokens import Token

SEARCH_S = 5.0
TITLE = 120
_ID = re.compile(r"[0-9a-f]{22}")


def _directory(server: Server) -> Path:
    return Path(absolute(server.settings.artifacts_dir), "executions")


async def listing(call: Call[None, wire.HistoryQuery]) -> list[wire.HistoryEntry]:
    query = call.query
    return await asyncio.to_thread(_newest, _directory(call.server), call.token, query.limit, query.before)


async def one(call: Call[None, None]) -> dict[str, Any]:
    record = None
    if _ID.fullmatch(call.params["id"]):
        record = await asyncio.to_thread(_found, _directory(call.server), call.token, call.params["id"])
    if record is None:
        raise Problem(
            "not_found",
            "no execution of yours with this id is stored: GET /history lists what is; the server's SANDBOX_STORE_CODE"
            " says which are",
        )
    return record


def _newest(directory: Path, token: Token, limit: int, before: str | None) -> list[wire.HistoryEntry]:
    found: list[wire.HistoryEntry] = []
    until = time.monotonic() + SEARCH_S
    for entry in records.load_all(directory):
        record = entry.record
        if len(found) >= limit or time.monotonic() > until:
            break
        if record is None or not is_own(token, record.get("run_id")):
            continue
        if before is None or str(record.get("execution_id", "")) < before:
            found.append(_told(record))
    return found


def _found(directory: Path, token: Token, execution_id: str) -> dict[str, Any] | None:
    for entry in records.find(directory, execution_id):
        if entry.record is not None and entry.record.get("execution_id") == execution_id:
            return dict(entry.record) if is_own(token, entry.record.get("run_id")) else None
    return None


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
