"""Output files of one call that its caller gets as bytes, rather than as copies in a directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .backends.base import Sandbox
from .errors import FileError
from .paths import plain, refusal, shown
from .types import FileStat

MAX_FILES = 20
MAX_FILE_BYTES = 5 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_TRIED = 100  # of those that a program made unreadable
MAX_LEFT_OUT = 100  # that are named


class HandedFile(NamedTuple):
    """One file as it was when the call ended."""

    path: str  # as the program saw it
    data: bytes


class Handed:
    """Given to a call, and filled when it ends."""

    def __init__(self) -> None:
        self.files: list[HandedFile] = []
        self.left_out: list[dict[str, str]] = []  # path and why; the last may say how many more
        self.size = 0  # of all files

    def clear(self) -> None:
        self.files, self.left_out, self.size = [], [], 0

    def leave_out(self, why: str) -> None:
        """All of them, after all."""
        self.left_out += [{"path": file.path, "why": why} for file in self.files]
        self.files, self.size = [], 0

    async def take(self, sandbox: Sandbox, present: Iterable[FileStat]) -> None:
        """Those of `present` that there is room for."""
        tried = more = 0
        for stat in present:
            is_wanted = not stat.why and tried < MAX_TRIED and len(self.files) < MAX_FILES
            if not is_wanted and len(self.left_out) >= MAX_LEFT_OUT:
                more += 1
                continue
            why = self._refusal(stat) if is_wanted else stat.why or f"more than {MAX_FILES} files"
            if why is None:
                tried += 1
                try:
                    data = await sandbox.read(stat.path, min(MAX_FILE_BYTES, MAX_BYTES - self.size))
                except FileError as error:
                    why = str(error)
                else:
                    self.files.append(HandedFile(stat.path, data))
                    self.size += len(data)
                    continue
            if len(self.left_out) < MAX_LEFT_OUT:
                self.left_out.append({"path": shown(stat.path), "why": why})
            else:
                more += 1
        self.left_out += _rest(more)

    def _refusal(self, stat: FileStat) -> str | None:
        if not plain(stat.path):
            return "its name has control or direction characters"
        if why := refusal(stat.path):
            return why
        if stat.size > MAX_FILE_BYTES:
            return f"larger than {MAX_FILE_BYTES // 1_048_576} MB"
        if self.size + stat.size > MAX_BYTES:
            return f"more than {MAX_BYTES // 1_048_576} MB in all"
        return None


def left_out(others: Sequence[FileStat]) -> list[dict[str, str]]:
    """Path and why; the last may say how many more."""
    named = [{"path": shown(stat.path), "why": stat.why} for stat in others[:MAX_LEFT_OUT]]
    return named + _rest(len(others) - len(named))


def _rest(more: int) -> list[dict[str, str]]:
    return [{"path": "…", "why": f"{more} more"}] if more else []
