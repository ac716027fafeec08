"""How the work of a call grows with its input, told apart from how fast this machine is just now."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

TIMES = 8  # the larger input is so many times the smaller one
AT_MOST = 24.0  # linear work grows 8-fold, quadratic work 64-fold


def growth(work: Callable[[int], object], size: int, tries: int = 5) -> float:
    """How many times the processor time of `work(size)` the same takes for an input of `TIMES` that size.

    The least of several measurements counts, since what else the machine does only ever adds to one.
    """
    small = min(_cpu_s(work, size) for _ in range(tries))
    large = float("inf")
    for _ in range(tries):
        large = min(large, _cpu_s(work, size * TIMES))
        if large < small * AT_MOST:
            break
        small = min(small, _cpu_s(work, size))
    return large / small


def _cpu_s(work: Callable[[int], object], size: int) -> float:
    started = time.thread_time()
    work(size)
    return time.thread_time() - started


def calls(work: Callable[[], object]) -> list[str]:
    """The functions that this thread calls in it, in order: what it costs on any machine."""
    names: list[str] = []

    def note(frame: Any, event: str, what: Any) -> None:
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_name if event == "call" else what.__name__)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names
