"""Cells that wait for a program, so that a request pays for none of their making. Each serves one program and dies.

A thread refills the pool between requests. How many it keeps follows the load: one more than ran at once lately, up to
the maximum; after a quiet minute fewer, in the end none.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from ..threads import begin
from .cell import Cell

_PATIENCE_S = 0.01  # a refill waits this long for requests to finish, so as not to slow them
_QUIET_S = 60.0
_READY_S = 60.0  # only a hang takes so long, on a busy machine too
_RETRY_S = 1.0

_alive: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    def __init__(self, make: Callable[[], Cell], maximum: int):
        self._make = make
        self._maximum = maximum
        self._ready: deque[Cell] = deque()
        self._running = 0
        self._peak = 0  # most at once in the last window of time
        self._recent = 0  # and in this one
        self._window = time.monotonic()
        self._closed = False
        self._changed = threading.Condition()
        self._filler: threading.Thread | None = None
        _alive.add(self)

    def take(self) -> Cell | None:
        """One that waits and lives, if there is one. The caller says `done` when its program has ended."""
        with self._changed:
            self._note_one_more()
            return self._first_alive()

    def take_waiting(self) -> Cell | None:
        """As `take`, but where there is none it is as if nobody had asked."""
        with self._changed:
            cell = self._first_alive()
            if cell is not None:
                self._note_one_more()
            return cell

    def nudge(self) -> None:
        """A program takes its time: what it took is to be replaced meanwhile. A short one is not disturbed by that."""
        with self._changed:
            self._changed.notify()

    def done(self) -> None:
        with self._changed:
            self._running -= 1
            if self._filler is None and not self._closed:
                filler = threading.Thread(target=self._fill, name="fumehood-pool", daemon=True)
                self._filler = filler if begin(filler) else None  # without one, cells are made when they are asked for
            self._changed.notify()

    def grow_to(self, maximum: int) -> None:
        self._maximum = max(self._maximum, maximum)

    def close(self) -> None:
        _alive.discard(self)
        with self._changed:
            self._closed = True
            waiting = list(self._ready)
            self._ready.clear()
            self._changed.notify()
        for cell in waiting:
            cell.close()

    def abandon(self) -> None:
        """In a forked child: the cells are the parent's, and its thread is not here."""
        self._closed = True
        self._ready.clear()

    def __len__(self) -> int:
        return len(self._ready)

    # --- inside

    def _first_alive(self) -> Cell | None:
        while self._ready:
            cell = self._ready.popleft()
            if not cell.is_gone(0):
                return cell
            cell.close()
        return None

    def _note_one_more(self) -> None:
        self._running += 1
        now = time.monotonic()
        if now - self._window > _QUIET_S:
            self._peak, self._recent, self._window = self._recent, 0, now
        self._recent = max(self._recent, self._running)

    def _wanted(self) -> int:
        return min(self._maximum, max(self._peak, self._recent) + 1)

    def _fill(self) -> None:
        while True:
            with self._changed:
                while not self._closed and len(self._ready) >= self._wanted():
                    if not self._changed.wait(_QUIET_S):
                        self._calm_down()
                    while len(self._ready) > self._wanted():
                        self._ready.pop().close()
                    if not self._wanted():
                        self._filler = None
                        return
                if self._running and not self._closed:
                    self._changed.wait(_PATIENCE_S)
                if self._closed:
                    return
            self._add()

    def _add(self) -> None:
        cell = None
        try:
            cell = self._make()
            if not cell.wait_ready(_READY_S):
                raise ConnectionResetError("not ready")
        except Exception:
            # Whoever needs a cell meets the same trouble and tells its caller; here it is only tried again.
            if cell is not None:
                cell.close()
            with self._changed:
                self._changed.wait(_RETRY_S)
            return
        with self._changed:
            if not self._closed:
                self._ready.append(cell)
                return
        cell.close()

    def _calm_down(self) -> None:
        """Nobody came for a while: first as if one at a time had, then as if nobody would."""
        self._peak = self._recent = 0 if max(self._peak, self._recent) > 0 else -1
        self._window = time.monotonic()


def _after_fork() -> None:
    for pool in list(_alive):
        pool.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
