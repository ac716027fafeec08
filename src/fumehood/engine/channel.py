"""The host's half of the talk with an interpreter that serves one run after another, whatever carries it.

Everything that comes is the program's word: frames are bounded, of one shape, and decide nothing but this run.

All runs of an interpreter are one process, so code that an earlier one left behind can reach whatever tells of the end
of this one. What is made sure: nothing said before a run was asked for counts for it, since its id is drawn by lot; and
who says of one run both that it went well and that it did not is believed the latter. That a process ended, what it
used, and which limit it hit are never taken from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from ..errors import BadArgument
from ..guest.wire import BUNDLE_BYTES, FRAME, MAX_FRAME, RESULTS_BYTES
from ..types import Display

_MAX_DISPLAYS = 1000
_MAX_FRAMES = 4 * _MAX_DISPLAYS  # of a run: many small ones take longer to read than few large ones
_MAX_FORMS = 32
_MOST = BUNDLE_BYTES + (64 << 10)  # bytes of a frame
_MOST_OF_A_RUN = RESULTS_BYTES + (1 << 20)
_MAX_NODES = 400_000  # values in a frame: small as text, large once parsed, and nobody else runs meanwhile
_TOO_COMPLEX = {"text/plain": "... (left out: a value with too many parts to show)"}


class TooMuch(Exception):
    """More than an honest interpreter would say."""


class Channel:
    """One run at a time: `begin` gives the request, `hear` what is shown; then `done` is there."""

    def __init__(self) -> None:
        self.has_begun = False  # the run has reached it
        self.done: int | None = None  # the run's exit code
        self._run = 0
        self._is_awaited = False
        self._received = bytearray()
        self._displays = 0
        self._frames = 0
        self._heard = 0

    def begin(self, code: str) -> bytes:
        self._run = int.from_bytes(os.urandom(8), "little")
        body = json.dumps({"op": "run", "id": self._run, "code": code}, ensure_ascii=False).encode()
        if len(body) > MAX_FRAME:
            raise BadArgument(
                f"code is {len(body):,} bytes, more than the {MAX_FRAME:,} that one run may have;"
                " write the data to a file and keep the program small"
            )
        self._is_awaited, self.has_begun, self.done = True, False, None
        self._displays = self._frames = self._heard = 0
        return FRAME.pack(len(body)) + body

    def hear(self, data: bytes) -> Iterator[Display | None]:
        """What the run shows, in order; None when it is done."""
        self._received += data
        self._heard += len(data)
        while len(self._received) >= FRAME.size:
            (size,) = FRAME.unpack_from(self._received)
            if size > _MOST or self._heard > _MOST_OF_A_RUN or self._frames >= _MAX_FRAMES:
                self._received.clear()
                raise TooMuch
            if len(self._received) < FRAME.size + size:
                return
            body = bytes(self._received[FRAME.size : FRAME.size + size])
            del self._received[: FRAME.size + size]
            self._frames += 1
            yield from self._handle(_parsed(body, self._run))

    def _handle(self, frame: dict[str, Any]) -> Iterator[Display | None]:
        if frame.get("id") != self._run:
            return  # from a run that is over
        if not self._is_awaited:
            if self.done == 0 and frame.get("event") == "done":
                self.done = _exit_code(frame)
            return
        self.has_begun = True
        if frame.get("event") == "display" and self._displays < _MAX_DISPLAYS:
            data = frame.get("data")
            if isinstance(data, dict) and 0 < len(data) <= _MAX_FORMS:
                self._displays += 1
                yield Display(data)
        elif frame.get("event") == "done":
            self.done = _exit_code(frame)
            self._is_awaited = False
            yield None


def _exit_code(frame: dict[str, Any]) -> int:
    code = frame.get("exit_code")
    return code if type(code) is int and 0 <= code <= 255 else 1


def _parsed(body: bytes, run: int) -> dict[str, Any]:
    if len(body) > _MAX_NODES and sum(map(body.count, (b"[", b"{", b",", b":"))) > _MAX_NODES:
        return {"id": run, "event": "display", "data": _TOO_COMPLEX}
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return frame if isinstance(frame, dict) else {}
