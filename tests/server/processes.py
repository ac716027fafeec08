"""Processes beneath another one, as the kernel has them."""

from __future__ import annotations

import os
from typing import NamedTuple


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
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()  # state, parent, ...
    except OSError:
        return None


def beneath(pid: int) -> set[Known]:
    """It, its children, and theirs."""
    stats = {int(name): fields for name in os.listdir("/proc") if name.isdigit() if (fields := _stat(int(name)))}
    found, waiting = set(), [pid]
    while waiting:
        parent = waiting.pop()
        if parent in stats:
            found.add(Known(parent, stats[parent][19]))
        waiting += [each for each, fields in stats.items() if int(fields[1]) == parent]
    return found
