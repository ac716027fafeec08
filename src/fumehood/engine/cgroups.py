"""Memory and process limits of a whole tree, its share of the cores and its CPU time, by control groups, v1 or v2.

Moving another process into a group makes the kernel wait for every core (10 ms and more). A single thread that moves
itself in a v1 group, or is born into a v2 one, costs next to nothing: so a cell is handed the descriptors of its group
and goes there as its first deed.
"""

from __future__ import annotations

import os
import select
import time

from ..errors import EngineFailed
from ..types import Limits
from .cgroup_home import Home, Unavailable, find_home, read, remove, write

_SPARE = 16
_TRIAL = Limits(memory_bytes=256 * os.sysconf("SC_PAGE_SIZE"))
TRIAL_BYTES = 2 * _TRIAL.memory_bytes
_heeds_memory: bool | None = None  # whether its limit was seen to hold somebody back; None: not tried yet


class Group:
    """Limits for one cell at a time."""

    def __init__(self, home: Home, name: str):
        self._v2 = home.version == 2
        self.paths = {controller: f"{base}/{name}" for controller, base in home.directories.items()}
        directories = list(dict.fromkeys(self.paths.values()))
        self.doors: list[int] = []  # by which a cell enters
        self._occupant = -1
        try:
            self._open(directories)
        except BaseException:
            self.remove()
            raise
        self._spares = 0  # processes inside that wait to be used, beyond the limit
        self._limits: tuple[int, int] | None = None
        self._held = False
        self._was_cleared = False
        self._counts = (0, 0)
        self._cpu_s_taken = 0.0

    def _open(self, directories: list[str]) -> None:
        for path in directories:
            os.mkdir(path)
        if self._v2:
            wanted = [(directories[0], os.O_RDONLY | os.O_DIRECTORY), (f"{directories[0]}/cgroup.procs", os.O_WRONLY)]
        else:
            wanted = [(f"{path}/tasks", os.O_WRONLY) for path in directories]
        for path, flags in wanted:
            self.doors.append(os.open(path, flags | os.O_CLOEXEC))

    def hold(self) -> None:
        """Not free, whatever becomes of the cell that is asked for."""
        self._held = True

    def release(self) -> None:
        """What held it is gone: free with its last process."""
        self._held = False

    def occupy(self, pidfd: int) -> None:
        self._occupant = pidfd

    def is_there(self) -> bool:
        """Whether nobody has removed it under us."""
        return all(map(os.path.isdir, self.paths.values()))

    def is_free(self, wait_s: float = 0.0) -> bool:
        """Whether the last cell is gone to its last process."""
        if self._held or (self._was_cleared and self._holds_somebody()):
            return False
        if self._occupant < 0:
            return True
        poll = select.poll()
        poll.register(self._occupant, select.POLLIN)
        if not poll.poll(wait_s * 1000):
            return False
        self._forget_occupant()
        return True

    def arm(self, limits: Limits) -> None:
        wanted = (limits.memory_bytes, limits.processes + 1 + self._spares)  # the supervisor counts as well
        if wanted != self._limits:
            if "memory" in self.paths:
                self._set_memory(wanted[0])
            if "pids" in self.paths:
                write(f"{self.paths['pids']}/pids.max", str(wanted[1]))
            self._limits = wanted
        self.count_from_here()

    def make_room(self, spares: int) -> None:
        """For so many processes of ours that wait, for as long as they do."""
        if self._limits is None or "pids" not in self.paths:
            return
        memory, processes = self._limits
        self._limits = memory, processes - self._spares + spares
        self._spares = spares
        try:
            write(f"{self.paths['pids']}/pids.max", str(self._limits[1]))
        except OSError:
            pass  # removed with its zygote

    def count_from_here(self) -> None:
        self._counts = self._read_counts()

    def ran_out_of_memory(self) -> bool:
        return self._read_counts()[0] > self._counts[0]

    def hits(self) -> tuple[bool, bool]:
        """Since `arm` or `count_from_here`: whether the kernel killed for memory, and whether it refused a process."""
        kills, refusals = self._read_counts()
        return kills > self._counts[0], refusals > self._counts[1]

    def cpu_s(self) -> float:
        """Seconds of CPU that all in it have used since they were last taken: also those for whom nobody waited."""
        return max(0.0, self._read_cpu_s() - self._cpu_s_taken)

    def take_cpu_s(self) -> float:
        used_s = self.cpu_s()
        self._cpu_s_taken += used_s
        return used_s

    def has_refused_memory(self) -> bool:
        """Whether its limit has held somebody back, ever: a number in a file holds back nobody.

        So it is said, too, if nobody came in: that is not the limit's fault, and the next cell will say whose it is.
        """
        path = self.paths["memory"]
        limit, most = (_number(_try_read(f"{path}/{name}")) for name in self._memory_files())
        if self._v2 and _field(_try_read(f"{path}/memory.events"), "max"):
            return True
        # The most that was used, since not every kernel keeps its count of failures.
        return self._read_counts()[0] > 0 or most == 0 or limit // 2 < most <= limit

    def clear(self) -> None:
        """Kill all inside, for a cell that no pid namespace holds together; then it is free again."""
        self._kill()
        self._held = False
        self._spares = 0
        self._was_cleared = True

    def remove(self) -> None:
        if self._occupant >= 0:
            self.is_free(1.0)
        self._forget_occupant()
        self.let_go()
        for path in set(self.paths.values()):
            remove(path)

    def let_go(self) -> None:
        while self.doors:
            os.close(self.doors.pop())

    def _forget_occupant(self) -> None:
        occupant, self._occupant = self._occupant, -1  # in this order: Ctrl-C in between must not close it twice
        if occupant >= 0:
            os.close(occupant)

    def _holds_somebody(self) -> bool:
        """Also the dead whom nobody has waited for yet."""
        if "pids" not in self.paths:
            return False
        try:
            return read(f"{self.paths['pids']}/pids.current").strip() != "0"
        except OSError:
            return True

    def _kill(self) -> None:
        path = self.paths.get("pids") or self.paths["memory"]
        for _ in range(100):
            try:
                pids = [int(line) for line in read(f"{path}/cgroup.procs").split()]
            except OSError:
                return  # removed with its zygote, so empty
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)

    def _memory_files(self) -> tuple[str, str]:
        """Its limit, and the most that was ever used."""
        return ("memory.max", "memory.peak") if self._v2 else ("memory.limit_in_bytes", "memory.max_usage_in_bytes")

    def _set_memory(self, size: int) -> None:
        path = self.paths["memory"]
        if self._v2:
            write(f"{path}/memory.max", str(size))
            _try_write(f"{path}/memory.swap.max", "0")
            return
        _try_write(f"{path}/memory.memsw.limit_in_bytes", "-1")
        write(f"{path}/memory.limit_in_bytes", str(size))
        _try_write(f"{path}/memory.memsw.limit_in_bytes", str(size))
        _try_write(f"{path}/memory.kmem.tcp.limit_in_bytes", str(size // 4))

    def _read_cpu_s(self) -> float:
        try:
            if self._v2:
                return _field(read(f"{next(iter(self.paths.values()))}/cpu.stat"), "usage_usec") / 1e6
            if "cpuacct" in self.paths:
                return int(read(f"{self.paths['cpuacct']}/cpuacct.usage")) / 1e9
        except OSError:
            pass  # removed with its zygote
        return self._cpu_s_taken

    def _read_counts(self) -> tuple[int, int]:
        try:
            kills = refusals = 0
            if "memory" in self.paths:
                name = "memory.events" if self._v2 else "memory.oom_control"
                kills = _field(read(f"{self.paths['memory']}/{name}"), "oom_kill")
            if "pids" in self.paths:
                refusals = _field(read(f"{self.paths['pids']}/pids.events"), "max")
            return kills, refusals
        except OSError:
            return self._counts  # removed with its zygote: no more than was known


class Groups:
    """As many as cells have been alive at once, used again and again; of those of a crowd that left, some."""

    def __init__(self) -> None:
        self.home = _with_heeded(find_home())
        self._groups: list[Group] = []
        self._made = 0

    @property
    def version(self) -> int:
        return self.home.version if isinstance(self.home, Home) else 0

    def counts(self, controller: str) -> bool:
        return isinstance(self.home, Home) and controller in self.home.directories

    def free(self) -> Group | None:
        """One that nobody is in; None where there are no groups."""
        if not isinstance(self.home, Home):
            return None
        for group in list(self._groups):
            if group.is_free():
                if group.is_there():
                    group.take_cpu_s()
                    return group
                self._groups.remove(group)
                group.remove()
        self._made += 1
        try:
            group = Group(self.home, str(self._made))
        except FileNotFoundError:
            group = Group(self._new_home(self.home), str(self._made))
        self._groups.append(group)
        return group

    def _new_home(self, removed: Home) -> Home:
        """In place of one that somebody removed under us."""
        home = _with_heeded(find_home())
        if not isinstance(home, Home) or home.directories.keys() != removed.directories.keys():
            raise EngineFailed("our control groups were removed, and no others can be made: start this process again")
        removed.release()
        self.home = home
        return home

    def on_trial(self) -> Group | None:
        """For whoever wants TRIAL_BYTES, of which it allows half; None if there is nothing to try."""
        self.home = _with_heeded(self.home)  # another zygote may have been judged since we looked for it
        if not self.counts("memory") or _heeds_memory is not None:
            return None
        group = self.free()
        assert group is not None
        group.arm(_TRIAL)
        group.hold()
        return group

    def judge(self, group: Group) -> None:
        """After that trial: do without a limit that let everything pass."""
        global _heeds_memory
        _heeds_memory = group.has_refused_memory()
        group.release()
        if not _heeds_memory:
            self._groups.remove(group)
            group.remove()
            self.home = _with_heeded(self.home)

    def trim(self) -> None:
        """Each costs descriptors: keep no more idle ones than the next few cells will want."""
        if len(self._groups) <= _SPARE:
            return
        for group in [group for group in self._groups if group.is_free()][_SPARE:]:
            self._groups.remove(group)
            group.remove()

    def remove(self) -> None:
        for group in self._groups:
            group.remove()
        self._groups.clear()
        if isinstance(self.home, Home):
            for path in set(self.home.directories.values()):
                remove(path)
            self.home.release()

    def let_go(self) -> None:
        """In a forked child: only the descriptors are its own."""
        for group in self._groups:
            group.let_go()
        if isinstance(self.home, Home):
            self.home.release()


def _with_heeded(home: Home | Unavailable) -> Home | Unavailable:
    """Without a limit that is known to hold back nobody: gVisor takes one of memory, and forgets it."""
    if _heeds_memory is not False or not isinstance(home, Home) or "memory" not in home.directories:
        return home
    return home.without("memory")


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(text: str) -> int:
    """-1: there is none."""
    return int(text) if text.strip().isdecimal() else -1


def _try_read(path: str) -> str:
    try:
        return read(path)
    except OSError:
        return ""


def _try_write(path: str, text: str) -> None:
    try:
        write(path, text)
    except OSError:
        pass  # no swap accounting here
