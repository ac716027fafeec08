"""Lines to a descriptor that may be read slowly, or never: who writes them does not wait."""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from ..threads import begin

_KEPT_BYTES = 1024 * 1024
_LAST_S = 1.0  # at the end, for what is left
_SAY_S = 1.0  # between two words about what was lost, while there is always more to write


class Writer:
    """A thread that writes, and a queue before it; what there is no room for is lost, and counted.

    Not O_NONBLOCK: that is of the open file, which a parent's terminal may share.
    """

    def __init__(self, fd: int, lost: Callable[[int], bytes]) -> None:
        self._fd, self._say = fd, lost
        self._queue: deque[bytes] = deque()
        self._size = self._lost = 0
        self._is_busy = self._is_started = self._is_torn = False
        self._said = 0.0
        self._changed = threading.Condition()

    def put(self, line: bytes) -> None:
        """Write it soon."""
        with self._changed:
            if not self._started() or self._size + len(line) > _KEPT_BYTES:
                self._lost += 1
                return
            self._queue.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def flush(self, within_s: float = _LAST_S) -> bool:
        """Whether all of it was written in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, within_s)

    def _started(self) -> bool:
        if not self._is_started:
            self._is_started = begin(threading.Thread(target=self._run, name="fumehood-log", daemon=True))
            if self._is_started:
                atexit.register(self.flush)
        return self._is_started

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue)
                line, self._is_busy = self._queue.popleft(), True
            written = self._write(line)
            with self._changed:
                self._size -= len(line)
                self._lost += not written
                lost, is_last = self._lost, not self._queue
            now = time.monotonic()
            if written and lost and (is_last or now - self._said > _SAY_S):
                self._said = now
                if self._write(self._say(lost)):
                    with self._changed:
                        self._lost -= lost

    def _write(self, line: bytes) -> bool:
        if self._is_torn:
            line = b"\n" + line
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # somebody else has made it so
                ready = select.poll()
                ready.register(self._fd, select.POLLOUT)
                ready.poll()
            except OSError:  # closed, or the disk is full
                self._is_torn = self._is_torn or len(rest) < len(line)
                return False
        self._is_torn = False
        return True
