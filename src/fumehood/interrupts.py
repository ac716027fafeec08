"""Ctrl-C is held back while a call makes and ends what it must not lose, and let through where it waits.

Python raises KeyboardInterrupt between any two instructions: also between a pipe and the variable that is to hold it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the wrappers make enumerations, which every call would pay for
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SIGINT = int(signal.SIGINT)
LOOK_S = 0.05  # how long a wait may take before it looks for one
_AGAIN_S = 1.0  # who presses again after so long means it: it is let through wherever we are

_main_thread = threading.main_thread().ident
_handler: Callable[[int, FrameType | None], Any] | None = None  # the host's, while we hold it back
_holder = 0  # the thread that does: only the main one can
_came_at: float | None = None


class Held:
    """While it is entered, in the main thread, `let_through` alone raises. In other threads nothing is to be held."""

    __slots__ = ("_is_ours",)

    def __enter__(self) -> None:
        global _handler, _holder, _came_at
        self._is_ours = False
        this_thread = threading.get_ident()
        if this_thread != _main_thread:
            return
        handler = _signal.getsignal(_SIGINT)
        if handler is _note or not callable(handler):
            return
        _handler, _holder, _came_at = handler, this_thread, None
        try:
            _signal.signal(_SIGINT, _note)  # up to here one is raised as ever, from here on it is noted
            self._is_ours = True
        except ValueError:  # in an interpreter beside the main one
            _handler, _holder = None, 0

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            _give_back()


def held(function: Callable[P, T]) -> Callable[P, T]:
    """The same, in `Held`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with Held():
            return function(*args, **kwargs)

    return call


def let_through() -> None:
    """Raise the one that came, if one did."""
    global _came_at
    if _came_at is not None and _handler is not None and threading.get_ident() == _holder:
        _came_at = None
        _handler(signal.SIGINT, sys._getframe())


def wait_s(wanted_s: float) -> float:
    """How long this thread may wait before it must look."""
    return min(wanted_s, LOOK_S) if _holder == threading.get_ident() else wanted_s


def acquire(lock: threading.Lock) -> None:
    """As long as it takes: somebody else may hold it while a process starts."""
    while not lock.acquire(timeout=wait_s(threading.TIMEOUT_MAX)):
        let_through()


def _give_back() -> None:
    global _handler, _holder, _came_at
    handler = _handler
    if _signal.getsignal(_SIGINT) is _note:
        _signal.signal(_SIGINT, handler)
    came = _came_at is not None
    _handler, _holder, _came_at = None, 0, None
    if came and handler is not None:
        handler(signal.SIGINT, sys._getframe())


def _note(number: int, frame: FrameType | None) -> None:
    global _came_at
    now = time.monotonic()
    if _came_at is None:
        _came_at = now
    elif _handler is not None and now - _came_at > _AGAIN_S:
        _handler(number, frame)


def _after_fork() -> None:
    """Made by another thread, the child has nobody who would give it back."""
    global _main_thread
    _main_thread = threading.get_ident()
    if _handler is not None and threading.get_ident() != _holder:
        _give_back()


os.register_at_fork(after_in_child=_after_fork)
