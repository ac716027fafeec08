"""One execution, followed to its end: the library's events become those of the wire, the last one its reply."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, cast

from .. import types
from ..execution import whole_characters
from ..handed import Handed, HandedFile
from ..streaming import Stream
from . import wire
from .meta import ResultMeta

Emit = Callable[[wire.Event], Awaitable[None]]

_types = mimetypes.MimeTypes()  # not the machine's


async def follow(
    stream: Stream,
    handed: Handed,
    emit: Emit | None,
    count: Callable[[types.ExecutionResult], None],
    has_room: Callable[[int], bool],
    *,
    session_id: str | None = None,
    cut: Iterable[str] = (),
    handle: str | None = None,
) -> wire.Result:
    """Tell every event but the last, the result. An error of ours comes before `started`, unless in mid-run."""
    if emit is None:
        done = await stream.whole()
        count(done)
        return _result(done, handed, has_room, session_id, list(cut))
    texts = {"stdout": _Text("stdout"), "stderr": _Text("stderr")}
    async with stream:
        await stream.begun()
        await emit(wire.Started(stream.execution_id, stream.receipt and stream.receipt.as_dict(), handle))
        async for event in stream:
            if isinstance(event, types.Output):
                if (told := texts[event.stream].add(event.data)) is not None:
                    await emit(told)
            elif isinstance(event, types.Display):
                await emit(wire.Display(dict(event.data)))
    count(stream.result)
    for text in texts.values():
        if (told := text.rest()) is not None:
            await emit(told)
    result = _result(stream.result, handed, has_room, session_id, list(cut))
    for file in result.files:
        await emit(wire.File(file.path, file.size, file.mime))
    return result


def mime(path: str) -> str:
    """By its name alone."""
    return _types.guess_type(path.rpartition("/")[2], strict=False)[0] or "application/octet-stream"


def _result(
    done: types.ExecutionResult,
    handed: Handed,
    has_room: Callable[[int], bool],
    session_id: str | None,
    cut: list[str],
) -> wire.Result:
    meta = dict(done.meta)
    results = meta.pop("results", [])
    if not has_room(handed.size * 4 // 3 + (len(wire.encode(results)) if results else 0)):
        handed.leave_out("the server holds as many answers as it may: clients read too slowly")
        if results:
            results, meta["results_truncated"] = [], True
    if session_id is None:
        meta.pop("session_id", None)  # of one that was made for this call alone
    if handed.left_out:
        meta["files_left_out"] = handed.left_out
    if cut:
        meta["limits_clamped"] = cut
    return wire.Result(
        execution_id=meta["execution_id"],
        session_id=session_id,
        stdout=done.stdout,
        stderr=done.stderr,
        exit_code=done.exit_code,
        duration=done.duration,
        results=results,
        meta=cast("ResultMeta", meta),
        files=[_file(file) for file in handed.files],
    )


def _file(file: HandedFile) -> wire.FileReply:
    return wire.FileReply(file.path, len(file.data), mime(file.path), file.data)


class _Text:
    """The bytes of one stream as text; a character cut between two chunks waits for its rest."""

    def __init__(self, stream: Literal["stdout", "stderr"]) -> None:
        self._stream = stream
        self._held = b""

    def add(self, data: bytes) -> wire.Output | None:
        data = self._held + data
        whole = whole_characters(data)
        self._held = data[len(whole) :]
        return self._told(whole)

    def rest(self) -> wire.Output | None:
        held, self._held = self._held, b""
        return self._told(held)

    def _told(self, data: bytes) -> wire.Output | None:
        if not data:
            return None
        try:
            return wire.Output(self._stream, text=data.decode())
        except UnicodeDecodeError:
            return wire.Output(self._stream, base64=data)
