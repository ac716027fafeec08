"""Threads that the kernel may refuse, with what to say then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import FumehoodError

NO_THREAD = "this user may start no more threads and processes: end some, or raise the limit (ulimit -u, pids.max)"


@contextmanager
def needed_as(kind: type[FumehoodError]) -> Iterator[None]:
    """What starts threads of its own, as a loop does to look up a name: where it cannot, an error of ours."""
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise kind(NO_THREAD) from error


def begin(thread: threading.Thread) -> bool:
    """Whether it could be started. At the end of the interpreter none can, either."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True
