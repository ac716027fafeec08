"""Adds up the memory of a tree of processes where no control group does: also what none of them maps any more.

Pages that processes share count once. Shared memory without a name counts in full: once its pages were written to,
nothing shows those that a process has let go of.
"""

from __future__ import annotations

import os

from ..guest.procfs import MOST, number, read

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_NAMELESS = b"/dev/zero (deleted)"
_MAPPED_BY_TABLES = 512  # bytes, by each byte of page tables


class Memory:
    def __init__(self, disk: str | None):
        self._disk = disk  # the file system of the program's files, which are in memory too
        self._sizes: dict[int, int] = {}
        self._nameless: dict[bytes, int] = {}  # the most that each was seen to have
        self._hidden = self._looks_hidden = 0

    def exceeds(self, pids: list[int], limit: int) -> bool:
        sizes, resident = {}, 0
        for pid in pids:
            fields = read(f"/proc/{pid}/statm").split()
            if len(fields) > 1:
                sizes[pid] = int(fields[0]) * _PAGE
                resident += int(fields[1]) * _PAGE
        if sizes != self._sizes:  # only who maps or unmaps changes what follows
            self._sizes = sizes
            self._hidden = self._hidden_bytes(sizes)
        files = self._files()
        tables = sum(sizes.values()) // _MAPPED_BY_TABLES  # at most
        if files + resident + self._hidden + tables <= limit:
            return False
        return files + self._hidden + sum(map(_own_bytes, pids)) > limit

    def _hidden_bytes(self, sizes: dict[int, int]) -> int:
        found = nameless(sizes)
        self._looks_hidden = self._looks_hidden + 1 if found is None else 0
        if found is None:
            self._sizes = {}  # look again
            return sum(sizes.values()) if self._looks_hidden > 1 else self._hidden  # who hides its maps pays for all
        self._nameless = {inode: max(size, self._nameless.get(inode, 0)) for inode, size in found.items()}
        return sum(self._nameless.values())

    def _files(self) -> int:
        if self._disk is None:
            return 0
        space = os.statvfs(self._disk)
        return (space.f_blocks - space.f_bfree) * space.f_frsize


def nameless(pids: Iterable[int]) -> dict[bytes, int] | None:
    """Shared memory without a name that these map, by its number; None if one of them hides its maps.

    That is also done by so many that the list is cut.
    """
    found: dict[bytes, int] = {}
    for pid in pids:
        maps = read(f"/proc/{pid}/maps")
        if len(maps) >= MOST or (not maps and read(f"/proc/{pid}/statm")[:2].strip(b"0 ")):  # else it ended meanwhile
            return None
        own: dict[bytes, int] = {}
        for line in maps.split(b"\n"):  # alone: a file's name may have other ends of lines in it
            if line.endswith(_NAMELESS):
                addresses, _, offset, _, inode, _ = line.split(None, 5)
                start, _, end = addresses.partition(b"-")
                own[inode] = max(own.get(inode, 0), int(offset, 16) + int(end, 16) - int(start, 16))
        found |= {inode: max(size, found.get(inode, 0)) for inode, size in own.items()}
    return found


def _own_bytes(pid: int) -> int:
    """Without shared memory: it is hidden, or among the files. Who hides its maps pays in full for what it shares."""
    rollup = read(f"/proc/{pid}/smaps_rollup")
    status = read(f"/proc/{pid}/status")
    pages_kib = number(rollup, b"Pss:") - number(rollup, b"Pss_Shmem:") if rollup else number(status, b"VmRSS:")
    return (pages_kib + number(status, b"VmPTE:")) * 1024
