"""What a tree of processes has used so far, as the host sees it: for the moment before it is killed."""

from __future__ import annotations

import os
import time

from ..guest.procfs import SYSTEM, USER, WAITED_SYSTEM, WAITED_USER, number, read, stat
from .flags import LOST

_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_S = 0.05  # who has started thousands of processes does not put off its end by that


def of_tree(pidfd: int) -> tuple[float, int]:
    """Seconds of CPU time, without its supervisor's own, and the largest peak of memory in bytes."""
    supervisor = pid_of(pidfd)
    ticks, peak_kib = number(read(f"/proc/{supervisor}/comm"), LOST), 0
    pending = [supervisor]
    until = time.monotonic() + _MOST_S
    while pending and time.monotonic() < until:
        pid = pending.pop()
        fields = stat(pid)
        if not fields:
            continue  # gone
        ticks += int(fields[WAITED_USER]) + int(fields[WAITED_SYSTEM])  # of children it has waited for
        if pid != supervisor:
            ticks += int(fields[USER]) + int(fields[SYSTEM])
        peak_kib = max(peak_kib, number(read(f"/proc/{pid}/status"), b"VmHWM:"))
        for task in _tasks(pid):
            pending += map(int, read(f"/proc/{pid}/task/{task}/children").split())
    return ticks / _TICKS, peak_kib * 1024


def _tasks(pid: int) -> list[str]:
    """Its threads: each has the children that it started."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def pid_of(pidfd: int) -> int:
    return number(read(f"/proc/self/fdinfo/{pidfd}"), b"Pid:")


def first_child(pidfd: int) -> int:
    """Of a supervisor: the program. Who was adopted comes after it. 0 if there is none any more."""
    pid = pid_of(pidfd)
    children = read(f"/proc/{pid}/task/{pid}/children").split()
    return int(children[0]) if children else 0
