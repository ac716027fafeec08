"""A thread for what no call waits for: it closes what sessions leave, and makes ahead what they will want.

What is left to it is done at once. What is suggested waits until no call goes on, or for a while; of many suggestions
few are heard.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from ..threads import begin

Task = Callable[[], None]

_MOMENT_S = 0.005
_PATIENCE_S = 0.2
_QUIET_S = 60.0
_LEAVING_S = 5.0
_MOST_SUGGESTIONS = 8

_tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
_suggestions: deque[tuple[float, Task]] = deque()  # and until when each may wait
_thread: threading.Thread | None = None
_stops = False
_when_quiet: list[Task] = []
_is_busy: list[Callable[[], bool]] = []


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


def later(task: Task) -> None:
    """Also for the garbage collector, which may come while this thread holds a lock that the task needs."""
    _tasks.put(task)


def suggest(task: Task) -> None:
    """To make something ahead."""
    if _thread is not None and not _stops and len(_suggestions) < _MOST_SUGGESTIONS:
        _suggestions.append((time.monotonic() + _PATIENCE_S, task))
        _tasks.put(_nothing)  # it may sleep for long


def is_at_work() -> bool:
    return _thread is not None


def when_quiet(call: Task) -> None:
    """If nothing was left to it for a minute."""
    _when_quiet.append(call)


def ask_if_busy(is_busy: Callable[[], bool]) -> None:
    """Whether a call goes on, which shall not be slowed."""
    _is_busy.append(is_busy)


def _work() -> None:
    while True:
        try:
            task = _tasks.get(timeout=_MOMENT_S if _suggestions else _QUIET_S)
        except queue.Empty:
            if _suggestions:
                _consider()
            else:
                for call in _when_quiet:
                    _do(call)
            continue
        if task is None:
            return
        _do(task)


def _consider() -> None:
    until, task = _suggestions[0]
    if time.monotonic() >= until or not any(is_busy() for is_busy in _is_busy):
        _suggestions.popleft()
        _do(task)


def _do(task: Task | None) -> None:
    try:
        if task is not None:
            task()
    except Exception:
        logging.getLogger("fumehood.engine").exception("the engine could not clear away what a session has left")


def _nothing() -> None:
    pass


def stop() -> None:
    """When what was left to it is done: a directory half removed would stay."""
    global _stops
    _stops = True
    _suggestions.clear()
    if _thread is not None:
        _tasks.put(None)
        _thread.join(_LEAVING_S)


def _after_fork() -> None:
    global _thread, _tasks, _stops
    _thread, _tasks, _stops = None, queue.SimpleQueue(), False
    _suggestions.clear()


os.register_at_fork(after_in_child=_after_fork)
