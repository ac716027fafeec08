"""A thread for what no call waits for: it closes what sessions leave, and makes ahead what they will want."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from ..threads import begin

_QUIET_S = 60.0
_LEAVING_S = 5.0
_MOMENT_S = 0.005
_PATIENCE_S = 0.2

_tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_stops = threading.Event()
_when_quiet: list[Callable[[], None]] = []


def start() -> None:
    """Before anything is left to it. Where no thread can be had, whoever comes next does the work."""
    global _thread
    if _thread is None:
        thread = threading.Thread(target=_work, name="fumehood-volumes", daemon=True)
        if begin(thread):
            _thread = thread
        else:
            while not _tasks.empty():
                _do(_tasks.get())


def later(task: Callable[[], None]) -> None:
    """Also for the garbage collector, which may come while this thread holds a lock that the task needs."""
    _tasks.put(task)


def is_at_work() -> bool:
    return _thread is not None


def wait_a_moment(is_busy: Callable[[], bool]) -> bool:
    """Before something is made ahead, so as not to slow the calls that go on, unless they go on for long.

    False: nobody will want it any more.
    """
    until = time.monotonic() + _PATIENCE_S
    while not _stops.wait(_MOMENT_S):
        if not is_busy() or time.monotonic() >= until:
            return True
    return False


def when_quiet(call: Callable[[], None]) -> None:
    """If nothing was left to it for a minute."""
    _when_quiet.append(call)


def _work() -> None:
    while True:
        try:
            task = _tasks.get(timeout=_QUIET_S)
        except queue.Empty:
            for call in _when_quiet:
                _do(call)
            continue
        if task is None:
            return
        _do(task)


def _do(task: Callable[[], None] | None) -> None:
    try:
        if task is not None:
            task()
    except Exception:
        logging.getLogger("fumehood.engine").exception("what a session has left could not be cleared away")


def stop() -> None:
    """When what was left to it is done: a directory half removed would stay."""
    _stops.set()
    if _thread is not None:
        _tasks.put(None)
        _thread.join(_LEAVING_S)


def _after_fork() -> None:
    global _thread, _tasks, _stops
    _thread, _tasks, _stops = None, queue.SimpleQueue(), threading.Event()


os.register_at_fork(after_in_child=_after_fork)
