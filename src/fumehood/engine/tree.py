"""The processes beneath one, where no pid namespace holds them together: found by /proc, stopped and killed."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # see zygote
import os
import select
import time

from ..guest.procfs import PARENT, STATE, THREADS, stat

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOOKS = 5


def processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def living(newest: int) -> list[int]:
    """Those up to that number, found without /proc."""
    return [pid for pid in range(1, newest + 1) if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return not poll.poll(0)  # else it waits for somebody to wait for it
    finally:
        os.close(fd)


def children(parent: int) -> list[int]:
    """Those that live."""
    seen = _look()
    return [pid for pid, process in seen.items() if process.lives and process.parent == parent]


def descendants(*roots: int, dead: bool = False) -> list[int]:
    """All that live beneath these, parents before their children; the `dead` too whom nobody has waited for."""
    seen = _look()
    below: dict[int, list[int]] = {}
    for pid, process in seen.items():
        below.setdefault(process.parent, []).append(pid)
    found: list[int] = []
    pending = list(roots)
    while pending:
        for pid in below.get(pending.pop(), ()):
            found.append(pid)
            pending.append(pid)
    return [pid for pid in found if dead or seen[pid].lives]


class _Process:
    __slots__ = ("lives", "parent")

    def __init__(self, fields: list[bytes]):
        self.parent = int(fields[PARENT])
        # Dead is only who has no thread left: the first one may end before the others.
        self.lives = fields[STATE] != b"Z" or int(fields[THREADS]) > 1


def _look() -> dict[int, _Process]:
    """All of them, the dead among them. Whose parent went away while we looked has another one by now."""
    seen = {pid: _Process(fields) for pid in processes() if (fields := stat(pid))}
    for _ in range(_LOOKS):
        lost = [pid for pid, process in seen.items() if process.parent and process.parent not in seen]
        if not lost:
            break
        for pid in lost:
            if fields := stat(pid):
                seen[pid] = _Process(fields)
            else:
                del seen[pid]
    return seen


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
