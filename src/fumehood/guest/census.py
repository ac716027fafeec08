"""Who is alive in this pid namespace, and what its control group and disks say. Seen by the first process of it."""

from __future__ import annotations

import os
import signal
import time

from . import wire
from .procfs import PARENT, STARTED, STATE, THREADS, WAITED_SYSTEM, WAITED_USER, number, read, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_HUNT_S, _HUNT_ROUNDS = 1.5, 20


def processes() -> dict[int, list[bytes]]:
    """The living besides us, each with what the kernel says of it."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            fields = stat(name)
            if fields and (fields[STATE] not in b"ZX" or int(fields[THREADS]) > 1):  # its first thread alone is dead
                found[int(name)] = fields
    return found


def identities() -> set[tuple[int, bytes]]:
    """Of the living: a number alone is given out anew."""
    return {(pid, fields[STARTED]) for pid, fields in processes().items()}


def trees(alive: dict[int, list[bytes]], roots: Iterable[int]) -> set[int]:
    """These and all that descend from them."""
    children: dict[int, list[int]] = {}
    for pid, fields in alive.items():
        children.setdefault(int(fields[PARENT]), []).append(pid)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, ())
    return found


def kill_others(roots: Iterable[int], alone: int | None = None, elders: Iterable[tuple[int, bytes]] = ()) -> bool:
    """All but us, the trees of `roots`, the process `alone` and the trees of `elders`. Whether there was anybody.

    First all are stopped, so that nothing forks meanwhile. Who gets away all the same takes everybody with it; a busy
    machine, on which a few rounds take long, is not taken for that.
    """
    roots, elders = set(roots), set(elders)
    if not roots and not elders and alone is None:
        return _send(-1, signal.SIGKILL)
    deadline = time.monotonic() + _HUNT_S
    rounds, stopped = 0, set[int]()
    while fresh := _others(roots, alone, elders) - stopped:
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        stopped |= fresh
        rounds += 1
        if rounds > _HUNT_ROUNDS and time.monotonic() > deadline:
            return _send(-1, signal.SIGKILL)
    for pid in stopped:
        _send(pid, signal.SIGKILL)
    return bool(stopped)


def _others(roots: set[int], alone: int | None, elders: set[tuple[int, bytes]]) -> set[int]:
    alive = processes()
    older = {pid for pid, fields in alive.items() if (pid, fields[STARTED]) in elders}
    return alive.keys() - trees(alive, roots | older) - {alone}


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def used_by(pid: int) -> tuple[int, int]:
    """CPU nanoseconds of it and of those it has waited for, its peak memory in bytes."""
    try:
        cpu_ns = time.clock_gettime_ns((~pid << 3) | 2)  # its own CPU clock
    except OSError:
        cpu_ns = 0
    fields = stat(pid)
    if fields:
        cpu_ns += (int(fields[WAITED_USER]) + int(fields[WAITED_SYSTEM])) * _TICK_NS
    return cpu_ns, number(read(f"/proc/{pid}/status"), b"VmHWM:") * 1024


Counts = tuple[int, int, int]


class Hits:
    """How often the container ran into its limits, and its CPU time; the counters outlive programs."""

    def __init__(self, places: Iterable[str]):
        self._places = tuple(places)
        self._memory = _first("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
        self._processes = _first("/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events")
        self._cpu_us = _first("/sys/fs/cgroup/cpu.stat")
        self._cpu_ns = _first("/sys/fs/cgroup/cpuacct/cpuacct.usage")

    def count(self) -> Counts:
        """(processes killed for memory, forks refused, nanoseconds of CPU of all but us)"""
        memory = number(_again(self._memory), b"oom_kill ")
        used_ns = number(_again(self._cpu_us), b"usage_usec ") * 1000 or number(_again(self._cpu_ns).strip(), b"")
        return memory, number(_again(self._processes), b"max "), max(0, used_ns - time.process_time_ns())

    def flags_since(self, before: Counts) -> int:
        now = self.count()
        flags = wire.OUT_OF_MEMORY if now[0] > before[0] else 0
        flags |= wire.OUT_OF_PROCESSES if now[1] > before[1] else 0
        return flags | (wire.DISK_FULL if any(map(_is_full, self._places)) else 0)


def _is_full(path: str) -> bool:
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bfree * space.f_frsize < 16 * _PAGE or (space.f_files > 0 and space.f_ffree == 0)


def _first(*paths: str) -> int:
    """Open for good: programs are many."""
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass
    return -1


def _again(fd: int) -> bytes:
    try:
        return os.pread(fd, 4096, 0) if fd >= 0 else b""
    except OSError:
        return b""
