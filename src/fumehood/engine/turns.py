"""Calls that need more descriptors than this process may open wait for one another, and hold none while they wait."""

from __future__ import annotations

import os
import threading
import time

from ..descriptors import allow
from ..interrupts import let_through, wait_s

_FEW = 8  # at once: nobody looks whether there is room for them
_EACH = 12  # descriptors that a call takes at most
_LATER = 2  # of these, what a program that runs may still want
_SPARE = 96  # for whatever else this process opens meanwhile
_PATIENCE_S = 300.0  # the longest that a program usually may take


class Turns:
    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child, too: the parent's calls are not its own."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._starting = 0  # calls whose descriptors are still to be opened
        self._running = 0
        self._ended = 0

    @property
    def are_taken(self) -> bool:
        return self._starting + self._running > 0

    def begin(self) -> None:
        """Once there is room. `started` or `give_up` follows."""
        with self._lock:
            if self._starting + self._running >= _FEW:
                self._wait_for_room()
            self._starting += 1

    def started(self) -> None:
        with self._lock:
            self._starting -= 1
            self._running += 1

    def begin_at_once(self) -> None:
        """One that has its descriptors already."""
        with self._lock:
            self._running += 1

    def give_up(self) -> None:
        with self._lock:
            self._starting -= 1
            if self._waiting:
                self._changed.notify()

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            self._ended += 1
            if self._waiting:
                self._changed.notify()

    def _wait_for_room(self) -> None:
        ended, until = self._ended, time.monotonic() + _PATIENCE_S
        self._waiting += 1
        try:
            while not self._has_room():
                let_through()
                if self._ended != ended:
                    ended, until = self._ended, time.monotonic() + _PATIENCE_S
                elif time.monotonic() >= until:
                    return  # nobody gives any back: let the call say what it lacks
                self._changed.wait(wait_s(_PATIENCE_S))
        finally:
            self._waiting -= 1
            self._changed.notify()  # there may be room for the next one, too

    def _has_room(self) -> bool:
        if not self._starting + self._running:
            return True
        try:
            now = len(os.listdir("/proc/self/fd"))
        except OSError:
            return False
        wanted = now + _EACH * (self._starting + 1) + _LATER * self._running + _SPARE
        return allow(wanted) >= wanted


turns = Turns()
os.register_at_fork(after_in_child=turns.begin_anew)
