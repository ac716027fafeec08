"""Files read, written and listed for the host, a piece at a time: neither side ever holds a whole one here."""

from __future__ import annotations

import errno
import json
import os

from . import wire
from .files import TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from .files import Draft, Tree
    from .link import Link

_CHUNK = 1 << 18


class Verbs:
    def __init__(self, tree: Tree, link: Link):
        self._tree = tree
        self._link = link
        self._answers: dict[int, Generator[bytes]] = {}
        self._drafts: dict[int, Draft | OSError] = {}

    @property
    def is_answering(self) -> bool:
        return bool(self._answers)

    def ask(self, number: int, request: dict[str, Any]) -> None:
        verb, path = request["verb"], request["path"]
        if verb == "write":
            try:
                self._drafts[number] = self._tree.begin(path, request.get("mode"))
            except OSError as error:
                self._drafts[number] = error
        elif verb == "read":
            self._answers[number] = self._read(path, int(request.get("max_bytes", 0)))
        else:
            self._answers[number] = self._list(path, request.get("leave_out"))

    def add(self, number: int, data: bytes) -> None:
        """To what is being written; nothing ends it."""
        draft = self._drafts.get(number)
        if isinstance(draft, OSError) and not data:
            del self._drafts[number]
            self._answer(number, draft)
        elif draft is not None and not isinstance(draft, OSError):
            try:
                if data:
                    draft.add(data)
                    return
                draft.finish()
            except OSError as error:
                if data:
                    self._drafts[number] = error
                else:
                    del self._drafts[number]
                    self._answer(number, error)
            else:
                del self._drafts[number]
                self._answer(number)
            draft.close()

    def go_on(self) -> None:
        """One more piece of what was asked for first."""
        number, answer = next(iter(self._answers.items()))
        try:
            self._link.send(wire.BODY, number, next(answer))
        except StopIteration:
            del self._answers[number]
            self._answer(number)
        except OSError as error:
            del self._answers[number]
            self._answer(number, error)

    def drop(self, number: int) -> None:
        """The host wants no answer any more; an answer it gets, so that it knows."""
        draft, answer = self._drafts.pop(number, None), self._answers.pop(number, None)
        if answer is not None:
            answer.close()
        if draft is not None and not isinstance(draft, OSError):
            draft.close()
        if draft is not None or answer is not None:
            self._answer(number, OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)))

    def _answer(self, number: int, error: OSError | None = None) -> None:
        said: dict[str, Any] = {"ok": True}
        if error is not None:
            said = {"ok": False, "errno": error.errno or errno.EIO, "detail": error.strerror or type(error).__name__}
        self._link.send(wire.ANSWER, number, json.dumps(said).encode())

    def _read(self, path: str, max_bytes: int) -> Generator[bytes]:
        fd = self._tree.open(path, max_bytes)
        try:
            while data := os.read(fd, min(_CHUNK, max_bytes + 1)):
                max_bytes -= len(data)
                if max_bytes < 0:  # it grew
                    raise TooLarge(errno.EFBIG, os.strerror(errno.EFBIG))
                yield data
        finally:
            os.close(fd)

    def _list(self, path: str, leave_out: str | None) -> Generator[bytes]:
        lines = bytearray()
        for found in self._tree.beneath(path, leave_out):
            lines += json.dumps(found if found[3] else found[:3], ensure_ascii=False).encode() + b"\n"
            if len(lines) >= _CHUNK:
                yield bytes(lines)
                lines.clear()
        if lines:
            yield bytes(lines)
