"""Adds up the memory of a tree of processes where no control group does: also what none of them maps any more.

Pages that processes share count once. Shared memory without a name counts in full: once its pages were written to,
nothing shows those that a process has let go of. So does what the kernel keeps of each mapping.
"""

from __future__ import annotations

import os
import time

from ..guest.procfs import number, read

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")
_NAMELESS = b"/dev/zero (deleted)"
_MAPPED_BY_TABLES = 512  # bytes, by each byte of page tables
_MAPPING_BYTES = 320
_MOST_MAPS = 8 << 20  # who has more of them hides some
_LOOK_S = 0.2  # mappings may grow in number, and not in size


class Memory:
    def __init__(self, disk: str | None):
        self._disk = disk  # the file system of the program's files, which are in memory too
        self._sizes: dict[str, int] = {}
        self._nameless: dict[bytes, int] = {}  # the most that each was seen to have
        self._hidden = self._looks_hidden = 0
        self._looked_at = self._look_s = 0.0  # when, and how long it took

    def exceeds(self, pids: list[int], limit: int) -> bool:
        found = list(_memories(pids))
        sizes = {place: size for place, size, _ in found}
        resident = sum(pages for _, _, pages in found)
        if self._is_to_look(sizes):
            self._looked_at = time.monotonic()
            self._sizes = sizes
            self._hidden = self._hidden_bytes(sizes)
            self._look_s = time.monotonic() - self._looked_at
        files = self._files()
        tables = sum(sizes.values()) // _MAPPED_BY_TABLES  # at most
        if files + resident + self._hidden + tables <= limit:
            return False
        return files + self._hidden + sum(map(_own_bytes, sizes)) > limit

    def _is_to_look(self, sizes: dict[str, int]) -> bool:
        """Into the maps, of which there can be many: no more than half of the time."""
        since_s = time.monotonic() - self._looked_at
        return since_s >= 2 * self._look_s and (sizes != self._sizes or since_s >= _LOOK_S)

    def _hidden_bytes(self, sizes: dict[str, int]) -> int:
        found = _mapped(sizes)
        self._looks_hidden = self._looks_hidden + 1 if found is None else 0
        if found is None:
            self._sizes = {}  # look again
            return sum(sizes.values()) if self._looks_hidden > 1 else self._hidden  # who hides its maps pays for all
        mappings, shared = found
        self._nameless = {inode: max(size, self._nameless.get(inode, 0)) for inode, size in shared.items()}
        return sum(self._nameless.values()) + mappings * _MAPPING_BYTES

    def _files(self) -> int:
        if self._disk is None:
            return 0
        space = os.statvfs(self._disk)
        return (space.f_blocks - space.f_bfree) * space.f_frsize


def nameless(pids: Iterable[int]) -> dict[bytes, int] | None:
    """Shared memory without a name that these map, by its number; None if one of them hides its maps."""
    found = _mapped(place for place, _, _ in _memories(pids))
    return None if found is None else found[1]


def _memories(pids: Iterable[int]) -> Iterator[tuple[str, int, int]]:
    """Where the memory of each is to be seen, how much it maps, and how much of that is there, in bytes."""
    for pid in pids:
        place = f"/proc/{pid}"
        if (size := _size(place)) == (0, 0):  # its first thread has ended; the memory is that of the others too
            for thread in _threads(pid):
                place = f"/proc/{pid}/task/{thread}"
                if (size := _size(place)) != (0, 0):
                    break
        if size != (0, 0):
            yield place, *size


def _size(place: str) -> tuple[int, int]:
    fields = read(f"{place}/statm").split()
    return (int(fields[0]) * _PAGE, int(fields[1]) * _PAGE) if len(fields) > 1 else (0, 0)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _mapped(places: Iterable[str]) -> tuple[int, dict[bytes, int]] | None:
    """How many mappings there are, and the shared memory without a name, by its number; None: one hides its own."""
    found: dict[bytes, int] = {}
    mappings = 0
    for place in places:
        maps = read(f"{place}/maps", _MOST_MAPS)
        if len(maps) >= _MOST_MAPS or (not maps and _size(place) != (0, 0)):  # else it ended meanwhile
            return None
        mappings += maps.count(b"\n")
        own: dict[bytes, int] = {}
        for line in maps.split(b"\n"):  # alone: a file's name may have other ends of lines in it
            if line.endswith(_NAMELESS):
                addresses, _, offset, _, inode, _ = line.split(None, 5)
                start, _, end = addresses.partition(b"-")
                own[inode] = max(own.get(inode, 0), int(offset, 16) + int(end, 16) - int(start, 16))
        found |= {inode: max(size, found.get(inode, 0)) for inode, size in own.items()}
    return mappings, found


def _own_bytes(place: str) -> int:
    """Without shared memory: it is hidden, or among the files. Who hides its maps pays in full for what it shares."""
    rollup = read(f"{place}/smaps_rollup")
    status = read(f"{place}/status")
    pages_kib = number(rollup, b"Pss:") - number(rollup, b"Pss_Shmem:") if rollup else number(status, b"VmRSS:")
    return (pages_kib + number(status, b"VmPTE:")) * 1024
