"""What a tree of processes has used so far, as the host sees it: for the moment before it is killed."""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK")


def of_tree(pidfd: int) -> tuple[float, int]:
    """Seconds of CPU time, and the largest peak of memory in bytes."""
    cpu_s, peak_bytes = 0.0, 0
    pending = [_pid(pidfd)]
    while pending:
        pid = pending.pop()
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) < 15:
            continue  # gone
        cpu_s += sum(map(int, fields[11:15])) / _TICKS  # its own and that of children it has waited for
        _, _, peak = _read(f"/proc/{pid}/status").partition(b"VmHWM:")
        if peak:
            peak_bytes = max(peak_bytes, int(peak.split(None, 1)[0]) * 1024)
        pending += map(int, _read(f"/proc/{pid}/task/{pid}/children").split())
    return cpu_s, peak_bytes


def _pid(pidfd: int) -> int:
    _, _, after = _read(f"/proc/self/fdinfo/{pidfd}").partition(b"\nPid:")
    return int(after.split(None, 1)[0]) if after else 0


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)
