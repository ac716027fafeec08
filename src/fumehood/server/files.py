"""A session's files: list, download, upload, edit."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import quote

from starlette.responses import Response

from ..config import Settings
from ..errors import FileError
from ..handed import left_out
from ..session import READ_BYTES, AsyncSession, listed
from ..types import FileStat
from . import examples, wire
from .bodies import Downloads
from .execute import checked
from .follow import mime
from .meta import LeftOut
from .problems import Problem
from .routes import BINARY, Route
from .sessions import FINDING, found
from .state import Call

T = TypeVar("T")

PROBLEMS = (*FINDING, "session_busy", "budget_exceeded", "unavailable", "sandbox_lost")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_DOWNLOAD = {"Content-Security-Policy": "default-src 'none'; sandbox", "X-Content-Type-Options": "nosniff"}


async def _with(call: Call[Any, Any], work: Callable[[AsyncSession], Awaitable[T]]) -> T:
    """In the session's turn and among the server's executions: files may be large."""
    live = found(call)

    async def do() -> T:
        async with live.turn(), call.server.gate.execution(call.token):
            return await work(live.session)

    return await call.while_there(do())


async def listing(call: Call[None, wire.DirectoryQuery]) -> wire.FilesReply:
    directory = call.query.directory
    stats = await _with(call, lambda session: listed(session, directory))
    others = cast("list[LeftOut]", left_out([stat for stat in stats if stat.why]))
    return wire.FilesReply([_info(stat) for stat in stats if not stat.why], others)


async def download(call: Call[None, wire.PathQuery]) -> Response:
    path = _path(call.query.path)
    data = await _with(call, lambda session: _content(call, session, path))
    headers = {**_DOWNLOAD, "Accept-Ranges": "bytes", "Content-Disposition": disposition(path)}
    asked = call.request.headers
    span = None if "if-range" in asked else _span(asked.get("range", ""), len(data))
    if span is None:
        return _sent(call, data, 200, headers)
    first, last = span
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return _sent(call, data[first : last + 1], 206, headers)


async def _content(call: Call[Any, Any], session: AsyncSession, path: str) -> bytes:
    try:
        return await session.read(path, READ_BYTES)
    except FileError as error:
        if error.kind != "too_large":
            raise
    async with call.server.part(Downloads).large:  # there may be several sessions with such files
        return await session.read(path, largest(session.settings))


def largest(settings: Settings) -> int:
    """Bytes of the largest file that a session can have."""
    return max(READ_BYTES, settings.limits().file_bytes)


def _sent(call: Call[Any, Any], data: bytes, status: int, headers: Mapping[str, str]) -> Response:
    call.server.part(Downloads).take(call.request.scope, len(data))
    return Response(data, status, headers, media_type=BINARY)


async def upload(call: Call[bytes, wire.PathQuery]) -> wire.FileInfo:
    path = _path(call.query.path)
    size = await _with(call, lambda session: session.write(path, call.body))
    return wire.FileInfo(path, size, mime(path))


async def edit(call: Call[wire.EditRequest, None]) -> None:
    path = _path(call.body.path)
    await _with(call, lambda session: session.edit(path, call.body.old, call.body.new))


def _info(stat: FileStat) -> wire.FileInfo:
    return wire.FileInfo(stat.path, stat.size, mime(stat.path), ".".join(map(str, stat.version)))


def _path(path: str) -> str:
    """As it is there, once it is known to be one of a sandbox."""
    try:
        checked(path)
    except FileError as error:
        raise Problem("validation", f"path: {error}") from None
    return path


def disposition(path: str) -> str:
    """RFC 6266: a plain name for old clients, the true one as RFC 5987 has it."""
    name = path.rpartition("/")[2]
    plain = "".join(ch if ch.isascii() and (ch.isalnum() or ch in "._- ") else "_" for ch in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _span(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte of a single range; None where the whole is to be sent."""
    asked = _RANGE.fullmatch(header.strip())
    if asked is None or asked[0] == "bytes=-":
        return None
    if not asked[1]:
        first, last = max(0, size - int(asked[2])), size - 1
    else:
        first, last = int(asked[1]), min(size - 1, int(asked[2])) if asked[2] else size - 1
        if asked[2] and int(asked[2]) < first:
            return None
    if first >= size or first > last:
        raise Problem("range_not_satisfiable", f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
    return first, last


ROUTES = (
    Route(
        "GET",
        "/sessions/{id}/files",
        listing,
        "The regular files of a session.",
        query=wire.DirectoryQuery,
        reply=wire.FilesReply,
        problems=PROBLEMS,
        reply_example={"files": [examples.FILE]},
    ),
    Route(
        "GET",
        "/sessions/{id}/files/content",
        download,
        "One file, or a range of it.",
        query=wire.PathQuery,
        reply_type=BINARY,
        problems=(*PROBLEMS, "too_large", "range_not_satisfiable"),
        also={206: "The range that was asked for."},
    ),
    Route(
        "PUT",
        "/sessions/{id}/files/content",
        upload,
        "Make or replace a file.",
        upload=True,
        query=wire.PathQuery,
        reply=wire.FileInfo,
        problems=PROBLEMS,
        request_example=examples.CONTENT,
        reply_example=examples.FILE,
    ),
    Route(
        "POST",
        "/sessions/{id}/edit",
        edit,
        "Replace one passage of a text file.",
        request=wire.EditRequest,
        status=204,
        problems=PROBLEMS,
        request_example=examples.EDIT,
    ),
)
