"""How much each token may have. Workers of one server count together, in files that each of them locks."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .tokens import Token

_MINUTE_S = 60.0
_SLOTS_A_S = 4
_SLOTS = int(_MINUTE_S * _SLOTS_A_S) + 1  # one more, since the oldest is over only in part
_SLOT = struct.Struct("=QQ")


class Place:
    """One of so many. Left once; a process that is killed leaves its own."""

    def __init__(self, places: _Places | None = None, number: int = 0) -> None:
        self._places, self._number = places, number

    def leave(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.give_back(self._number)


class Quotas:
    """`directory` is what the workers share; none: this process alone."""

    def __init__(self, directory: str = "") -> None:
        self._directory = directory
        self._places: dict[tuple[str, str], _Places] = {}
        self._calls: dict[str, _Calls] = {}

    def place(self, token: Token, kind: str, most: int | None) -> Place | None:
        """One of `most` places of this kind; None where all are taken."""
        if most is None:
            return Place()
        key = kind, token.name
        if key not in self._places:
            self._places[key] = _Places(self._path(kind, token))
        return self._places[key].take(most)

    def wait_s(self, token: Token) -> float:
        """0, and one of this minute's requests is used; or how long it is until there is one."""
        most = token.per_minute
        if most is None:
            return 0.0
        if most == 0:
            return _MINUTE_S
        if token.name not in self._calls:
            self._calls[token.name] = _Calls(self._path("calls", token))
        return self._calls[token.name].wait_s(most)

    def _path(self, kind: str, token: Token) -> str:
        name = hashlib.sha256(token.name.encode("utf-8", "replace")).hexdigest()[:32]
        return f"{self._directory}/{kind}-{name}" if self._directory else ""


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class _Places:
    """Each is one byte of a file: who has locked it has the place."""

    def __init__(self, path: str) -> None:
        self._fd = _opened(path) if path else None  # never closed: that would unlock them all
        self._held: set[int] = set()

    def take(self, most: int) -> Place | None:
        for number in range(most):
            if number not in self._held and self._lock(number):
                self._held.add(number)
                return Place(self, number)
        return None

    def give_back(self, number: int) -> None:
        self._held.discard(number)
        if self._fd is not None:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def _lock(self, number: int) -> bool:
        if self._fd is None:
            return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True


class _Calls:
    """How many there were in each quarter of a second of the last minute: as little for many as for few."""

    def __init__(self, path: str) -> None:
        size = _SLOT.size * _SLOTS
        self._fd = _opened(path) if path else None
        if self._fd is not None:
            os.ftruncate(self._fd, size)  # nothing is lost: it has this size, or is new
        self._slots = mmap.mmap(-1 if self._fd is None else self._fd, size)

    def wait_s(self, most: int) -> float:
        with self._alone():
            now = time.monotonic() * _SLOTS_A_S
            number = int(now)
            calls = {at: count for at, count in _SLOT.iter_unpack(self._slots) if count and number - at < _SLOTS}
            left = sum(calls.values())
            if left < most:
                _SLOT.pack_into(self._slots, _SLOT.size * (number % _SLOTS), number, calls.get(number, 0) + 1)
                return 0.0
        for at in sorted(calls):  # the oldest go first
            left -= calls[at]
            if left < most:
                break
        return float(at + _SLOTS - now) / _SLOTS_A_S

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._fd is None:
            yield
            return
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # for microseconds
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
