"""Cells that wait for a program, so that a request pays for none of their making. Each serves one program and dies.

A thread refills the pool between requests. How many it keeps follows the load: one more than ran at once lately, up to
the maximum; after a quiet minute fewer, in the end none. The kernel wakes it when a cell has ended: a request neither
wakes a thread nor closes what its program leaves.
"""

from __future__ import annotations

import os
import select
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
_TRIES = 3  # in a row that fail: then it is left to the next request
_LEAVING_S = 0.5

_alive: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    def __init__(self, make: Callable[[], Cell], maximum: int):
        self._make = make
        self._maximum = maximum
        self._ready: deque[Cell] = deque()
        self._ended: deque[Cell] = deque()  # still to be closed
        self._running = 0
        self._peak = 0  # most at once in the last window of time
        self._recent = 0  # and in this one
        self._window = time.monotonic()
        self._closed = False
        self._lock = threading.Lock()
        self._filler: threading.Thread | None = None
        self._ends: _Ends | None = None
        _alive.add(self)

    def take(self) -> Cell | None:
        """One that waits and lives, if there is one. The caller says `done` when its program has ended."""
        with self._lock:
            self._note_one_more()
            return self._first_alive()

    def take_waiting(self) -> Cell | None:
        """As `take`, but where there is none it is as if nobody had asked."""
        with self._lock:
            cell = self._first_alive()
            if cell is not None:
                self._note_one_more()
            return cell

    def nudge(self) -> None:
        """A program takes its time: what it took is to be replaced meanwhile. A short one is not disturbed by that."""
        with self._lock:
            self._wake()

    def done(self, cell: Cell | None = None) -> None:
        """`cell`: whose program has ended, if there was one."""
        with self._lock:
            self._running -= 1
            if self._filler is None:
                self._start_filler()
            elif cell is None or not self._will_hear_of(cell):
                self._wake()

    def close_later(self, cell: Cell) -> bool:
        """Whether the thread does it, as soon as the last process of `cell` is gone."""
        with self._lock:
            if not self._will_hear_of(cell):
                return False
            self._ended.append(cell)
            return True

    def grow_to(self, maximum: int) -> None:
        self._maximum = max(self._maximum, maximum)

    def close(self) -> None:
        _alive.discard(self)
        with self._lock:
            self._closed = True
            left = [*self._ready, *self._ended]
            self._ready.clear()
            self._ended.clear()
            filler = self._filler
            self._wake()
        for cell in left:
            cell.close_now()
        if filler is not None:
            filler.join(_LEAVING_S)  # its descriptors go with it

    def abandon(self) -> None:
        """In a forked child: the cells are the parent's, and its thread is not here."""
        self._closed = True
        self._lock = threading.Lock()
        self._ready.clear()
        self._ended.clear()
        self._filler = None
        if self._ends is not None:
            self._ends.close()

    def __len__(self) -> int:
        return len(self._ready)

    # --- inside, with the lock

    def _first_alive(self) -> Cell | None:
        while self._ready:
            cell = self._ready.popleft()
            if cell.is_waiting():
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

    def _will_hear_of(self, cell: Cell) -> bool:
        return not self._closed and self._ends is not None and cell in self._ends

    def _wake(self) -> None:
        if self._ends is not None:
            self._ends.wake()

    def _start_filler(self) -> None:
        """Where none can be had, cells are made when they are asked for."""
        if self._closed:
            return
        try:
            self._ends = _Ends()
        except OSError:
            return
        filler = threading.Thread(target=self._fill, name="fumehood-pool", daemon=True)
        if begin(filler):
            self._filler = filler
        else:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        ends, self._ends = self._ends, None
        if ends is not None:
            ends.close()

    # --- the thread

    def _fill(self) -> None:
        ends = self._ends
        assert ends is not None
        failures = 0
        while True:
            with self._lock:
                left = [*self._ended]
                self._ended.clear()
                wanted = 0 if self._closed or failures >= _TRIES else self._wanted()
                while len(self._ready) > wanted:
                    left.append(self._ready.pop())
                if not wanted:
                    self._filler = None
                    self._stop_waiting()
                is_full, is_busy = len(self._ready) >= wanted, self._running > 0
            for cell in left:
                cell.close_now()
            if not wanted:
                return
            if is_full:
                if not self._wait(ends, _QUIET_S):
                    self._calm_down()
            else:
                if is_busy:
                    self._wait(ends, _PATIENCE_S)
                failures = 0 if self._add(ends) else failures + 1

    def _wait(self, ends: _Ends, within_s: float) -> bool:
        """False if nothing has happened in that time."""
        happened, gone = ends.wait(within_s)
        with self._lock:
            for cell in gone:
                ends.forget(cell)
                if cell in self._ready:
                    self._ready.remove(cell)
                    self._ended.append(cell)
        return happened

    def _add(self, ends: _Ends) -> bool:
        cell = None
        try:
            cell = self._make()
            if not cell.wait_ready(_READY_S):
                raise ConnectionResetError("not ready")
            ends.add(cell)
        except Exception:
            # Whoever needs a cell meets the same trouble and tells its caller; here it is only tried again.
            if cell is not None:
                cell.close()
            self._wait(ends, _RETRY_S)
            return False
        with self._lock:
            if not self._closed:
                self._ready.append(cell)
                return True
        cell.close()
        return True

    def _calm_down(self) -> None:
        """Nobody came for a while: first as if one at a time had, then as if nobody would."""
        with self._lock:
            self._peak = self._recent = 0 if max(self._peak, self._recent) > 0 else -1
            self._window = time.monotonic()


class _Ends:
    """Tells a thread that a cell has ended, or that somebody wants it."""

    def __init__(self) -> None:
        self._called = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._called, select.POLLIN)
        self._cells: dict[Cell, int] = {}  # and a descriptor of its first process

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._cells

    def add(self, cell: Cell) -> None:
        descriptor = cell.end_descriptor()
        self._cells[cell] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, cell: Cell) -> None:
        descriptor = self._cells.pop(cell)
        self._poll.unregister(descriptor)
        os.close(descriptor)

    def wake(self) -> None:
        os.eventfd_write(self._called, 1)

    def wait(self, within_s: float) -> tuple[bool, list[Cell]]:
        """Whether anything has happened, and which cells have ended."""
        ready = {descriptor for descriptor, _ in self._poll.poll(within_s * 1000)}
        if self._called in ready:
            os.eventfd_read(self._called)
        return bool(ready), [cell for cell, descriptor in self._cells.items() if descriptor in ready]

    def close(self) -> None:
        while self._cells:
            os.close(self._cells.popitem()[1])
        if self._called >= 0:
            called, self._called = self._called, -1
            os.close(called)


def _after_fork() -> None:
    for pool in list(_alive):
        pool.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
