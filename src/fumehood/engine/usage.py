"""What a tree of processes has used so far, as the host sees it: for the moment before it is killed."""

from __future__ import annotations

import os

from .procfs import read

_TICKS = os.sysconf("SC_CLK_TCK")


def of_tree(pidfd: int) -> tuple[float, int]:
    """Seconds of CPU time, without its supervisor's own, and the largest peak of memory in bytes."""
    cpu_s, peak_bytes = 0.0, 0
    supervisor = _pid(pidfd)
    pending = [supervisor]
    while pending:
        pid = pending.pop()
        fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) < 15:
            continue  # gone
        used = fields[13:15] if pid == supervisor else fields[11:15]  # its own, and that of children it has waited for
        cpu_s += sum(map(int, used)) / _TICKS
        _, _, peak = read(f"/proc/{pid}/status").partition(b"VmHWM:")
        if peak:
            peak_bytes = max(peak_bytes, int(peak.split(None, 1)[0]) * 1024)
        pending += map(int, read(f"/proc/{pid}/task/{pid}/children", 1 << 16).split())
    return cpu_s, peak_bytes


def _pid(pidfd: int) -> int:
    _, _, after = read(f"/proc/self/fdinfo/{pidfd}").partition(b"\nPid:")
    return int(after.split(None, 1)[0]) if after else 0
