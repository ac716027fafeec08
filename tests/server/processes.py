"""Processes beneath another one, as the kernel has them."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from support import wait_until

# A program that lasts until the test lets it go on, or ends it.
WAITS = """
import signal, time
_told = []
_ = signal.signal(signal.SIGUSR1, lambda *_: _told.append(1))
print('here', flush=True)
while not _told: time.sleep(0.01)
print('done')
"""
LASTING = {"code": WAITS, "timeout": 300}


class Known(NamedTuple):
    """A process that cannot be taken for a later one with its number."""

    pid: int
    started: str

    @property
    def lives(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and fields[0] != "Z" and fields[19] == self.started


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()  # state, parent, ...
    except OSError:
        return None


def beneath(pid: int) -> set[Known]:
    """It, its children, and theirs."""
    stats = {int(name): fields for name in os.listdir("/proc") if name.isdigit() if (fields := _stat(int(name)))}
    found, parents = set(), [pid]
    while parents:
        parent = parents.pop()
        if parent in stats:
            found.add(Known(parent, stats[parent][19]))
        parents += [each for each, fields in stats.items() if int(fields[1]) == parent]
    return found


def all_gone(family: set[Known]) -> bool:
    """Waits for it."""
    return wait_until(lambda: not any(each.lives for each in family))


def waiting(pid: int) -> set[Known]:
    """The programs `WAITS` beneath this process: those that have a handler for the signal they wait for."""
    return {each for each in beneath(pid) if _handles(each.pid, signal.SIGUSR1)}


def let_go(programs: set[Known]) -> None:
    for each in programs:
        os.kill(each.pid, signal.SIGUSR1)


def _handles(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) & 1 << (number - 1))
