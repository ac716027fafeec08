"""Runs coroutines for callers without an event loop, and for callers inside one (notebooks)."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from . import interrupts
from .descriptors import NO_WATCHES, exhausted
from .errors import EngineFailed
from .threads import NO_THREAD, begin

T = TypeVar("T")

_CLEAN_UP_S = 5.0


class Portal:
    """One event loop in a daemon thread of its own, started when first needed and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._parents: list[object] = []  # loops from before a fork: never closed here, their fds are shared

    @interrupts.held
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for `coroutine`; when the wait is interrupted it is cancelled and given time to clean up."""
        try:
            loop = self._started()
            if loop is None:
                return _on_the_spot(coroutine)
        except EngineFailed:
            coroutine.close()
            raise
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this would wait for itself: inside the portal's own loop, await the async method")
        done = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_watched(coroutine, done), loop)
        try:
            return _wait(future)
        except BaseException:
            if not done.is_set():
                future.cancel()
                done.wait(_CLEAN_UP_S)
            raise

    def _started(self) -> asyncio.AbstractEventLoop | None:
        if self._pid != os.getpid():  # before the lock: another thread of the parent may have held it
            self._parents.append(self._loop)
            self._lock, self._loop, self._thread, self._pid = threading.Lock(), None, None, os.getpid()
        with self._lock:
            if self._loop is None:
                loop = _new_loop()
                thread = threading.Thread(target=loop.run_forever, name="fumehood-portal", daemon=True)
                if not begin(thread):
                    loop.close()
                    if threading.main_thread().is_alive():
                        raise EngineFailed(NO_THREAD)
                    return None  # the interpreter is shutting down
                self._loop, self._thread = loop, thread
            return self._loop


def _wait(future: Future[T]) -> T:
    """A signal ends no wait, so in the thread that gets them each wait is short."""
    while True:
        with suppress(TimeoutError):
            return future.result(interrupts.wait_s(threading.TIMEOUT_MAX))
        if future.done():
            return future.result()
        interrupts.let_through()


async def _watched(coroutine: Coroutine[Any, Any, T], done: threading.Event) -> T:
    try:
        return await coroutine
    finally:
        done.set()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        _check_room()
        return asyncio.new_event_loop()
    except OSError as error:
        said = NO_WATCHES if error.errno == errno.ENOSPC else exhausted(error)
        raise EngineFailed(said or f"no event loop can be started: {error}") from error


def _check_room() -> None:
    """First, because a loop that finds nothing left for itself complains again when it is collected."""
    room: list[int] = []
    try:
        room += os.pipe()
        room += os.pipe()
        with selectors.DefaultSelector() as selector:
            selector.register(room[0], selectors.EVENT_READ)
    finally:
        for fd in room:
            os.close(fd)


def _on_the_spot(coroutine: Coroutine[Any, Any, T]) -> T:
    loop = _new_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


portal = Portal()
