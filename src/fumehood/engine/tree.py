"""The processes beneath one, where no pid namespace holds them together: found by /proc, stopped and killed."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # see zygote
import os
import time

from ..guest.procfs import PARENT, STATE, THREADS, stat

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def children(parent: int) -> list[int]:
    return _by_parent().get(parent, [])


def descendants(*roots: int) -> list[int]:
    """All that live beneath these."""
    children = _by_parent()
    found: list[int] = []
    pending = list(roots)
    while pending:
        for pid in children.get(pending.pop(), ()):
            found.append(pid)
            pending.append(pid)
    return found


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in processes():
        fields = stat(pid)
        # Dead is only who has no thread left: the first one may end before the others.
        if fields and (fields[STATE] != b"Z" or int(fields[THREADS]) > 1):
            found.setdefault(int(fields[PARENT]), []).append(pid)
    return found


def kill(find: Callable[[], Iterable[int]], until: float) -> bool:
    """Stop all that is found, so that nothing forks meanwhile, then kill it. Whether there was anything."""
    stopped: set[int] = set()
    while (fresh := set(find()) - stopped) and time.monotonic() < until:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return bool(stopped)


def send(pid: int, signo: int) -> None:
    try:
        os.kill(pid, signo)
    except (ProcessLookupError, PermissionError):
        pass
