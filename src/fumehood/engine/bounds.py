"""Bounds how many of something a program may have. It is asked for each new one, and counts them only when it must."""

from __future__ import annotations

import time

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable

_LONG_S, _RESTS = 0.01, 20  # to find too many; then it is not done again for so many times as long


class Bound:
    def __init__(self, most: int, refusal: int, count: Callable[[], int]):
        """`refusal`: the errno for one more."""
        self._most = most
        self._refusal = refusal
        self._count = count
        self._had = 0  # at most: some may be gone by now
        self._count_again = 0.0

    def ask(self) -> int | None:
        """For one more: None if there may be."""
        if self._had >= self._most and (now := time.monotonic()) >= self._count_again:
            began = time.thread_time()
            self._had = self._count()
            if self._had >= self._most and (took_s := time.thread_time() - began) > _LONG_S:
                self._count_again = now + took_s * _RESTS
        if self._had >= self._most:
            return self._refusal
        self._had += 1
        return None
