"""Threads that work beside an event loop. Where the kernel starts no more of them, the caller does the work itself.

Not the loop's own: to end those takes another thread, and where there is none the caller's `asyncio.run` would fail.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A few threads, started when they are needed, and again after a fork."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """What becomes of it. It is called once: by a thread, or here before this returns."""
        outcome: Future[T] = Future()
        taken = threading.Lock()

        def work() -> None:
            if not taken.acquire(blocking=False) or not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)

        try:
            self._started().submit(work)
        except RuntimeError:  # it may be queued all the same, and a thread that is busy now comes to it
            work()
        return outcome

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(contextvars.copy_context().run, work, *args, **kwargs)
        return await asyncio.wrap_future(self.submit(call))

    def _started(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():  # a fork has no threads of its parent's
            self._lock, self._threads, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._most, self._name)
            return self._threads


_MOST = min(32, (os.cpu_count() or 1) + 4)
_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Workers] = weakref.WeakKeyDictionary()


def workers() -> Workers:
    """Those of the running loop: a thread may wait for another loop, whose own threads must then be free."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Workers(_MOST, "fumehood-work"))


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, from a thread."""
    return await workers().do(work, *args, **kwargs)
