"""What the kernel shows of processes, groups and descriptors: those of this process and of its descendants alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fumehood.engine import engine as engines
from fumehood.engine import housekeeper
from fumehood.engine.cell import Cell
from fumehood.engine.cgroup_home import Home
from fumehood.engine.cgroups import Group
from fumehood.engine.root import Root

_HANG_S = 250.0  # below the deadline of those who start us


class Seen(NamedTuple):
    parent: int
    state: str
    born: str  # tells a process from a later one with the same number


def processes() -> dict[int, Seen]:
    """All of the machine, the dead whom nobody has waited for among them."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[int(entry)] = Seen(int(fields[1]), fields[0], fields[19])
    return found


def children(*parents: int) -> dict[int, str]:
    """Those that live, and when each was born."""
    return {pid: seen.born for pid, seen in processes().items() if seen.parent in parents and seen.state != "Z"}


def descendants(root: int | None = None) -> dict[int, Seen]:
    """All beneath that process, or beneath this one, the dead among them."""
    everybody = processes()
    found: dict[int, Seen] = {}
    edge = {os.getpid() if root is None else root}
    while edge:
        edge = {pid for pid, seen in everybody.items() if seen.parent in edge and pid not in found}
        found |= {pid: everybody[pid] for pid in edge}
    return found


def commands(pids: Iterable[int]) -> Iterator[str]:
    """The command lines of those that are still there."""
    for pid in pids:
        with suppress(OSError):
            yield Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")


def alive(pids: dict[int, str]) -> list[int]:
    """Of these, each with when it was born."""
    now = processes()
    return [pid for pid, born in pids.items() if pid in now and now[pid].born == born and now[pid].state != "Z"]


def state(pid: int) -> str:
    seen = processes().get(pid)
    return "gone" if seen is None else seen.state


def open_descriptors() -> dict[int, str]:
    """Of this process: where each leads."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            pass  # the one by which they were listed
    return found


def opened_since(before: dict[int, str], now: dict[int, str]) -> dict[int, str]:
    """Less is no leak: what earlier tests left to the background may be closed meanwhile."""
    return {fd: path for fd, path in now.items() if before.get(fd) != path}


def roots() -> list[Root]:
    """Of all engines of this process."""
    return [root for engine in list(engines._engines.values()) for root in list(engine._roots.values())]


def groups() -> list[Group]:
    return [group for root in roots() for group in list(root.zygote.groups._groups)]


def wait_for_housekeeper() -> None:
    """Until it has done what was left and suggested to it so far."""
    until = time.monotonic() + _HANG_S
    housekeeper.start()
    while housekeeper._suggestions and time.monotonic() < until:
        time.sleep(0.005)
    done = threading.Event()
    housekeeper.later(done.set)
    assert done.wait(_HANG_S)


def waiting_cells() -> list[Cell]:
    return [cell for root in roots() for pool in list(root._pools.values()) for cell in list(pool._ready)]


def descriptors() -> dict[int, str]:
    """Those of this process that belong neither to a cell that waits for a program, its pool, nor to a control group.

    A group is kept for the next cell, and there are as many as cells were alive at once. How many that were depends on
    how soon the kernel clears away a cell that has ended.
    """
    kept = {fd for group in groups() for fd in (*group.doors, group._occupant)}
    for cell in waiting_cells():
        kept |= {cell._stdin, *cell._outputs, cell._control.fileno(), cell._pidfd, cell._top}
    for pool in [pool for root in roots() for pool in list(root._pools.values())]:
        kept |= set() if pool._ends is None else {pool._ends._called, *pool._ends._cells.values()}
    return {fd: path for fd, path in open_descriptors().items() if fd not in kept}


def nameless_groups() -> list[str]:
    """Directories of control groups that no engine of this process knows."""
    known = {path for group in groups() for path in group.paths.values()}
    homes = [root.zygote.groups.home for root in roots()]
    directories = {path for home in homes if isinstance(home, Home) for path in home.directories.values()}
    made = {entry.path for path in directories for entry in os.scandir(path) if entry.is_dir()}
    return sorted(made - known)
