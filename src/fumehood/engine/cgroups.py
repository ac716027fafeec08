"""Memory and process limits of a whole tree by control groups, v1 or v2, where we may write them.

Moving another process into a group makes the kernel wait for every core (10 ms and more). A single thread that moves
itself in a v1 group, or is born into a v2 one, costs next to nothing: so a cell is handed the descriptors of its group
and goes there as its first deed.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import time
from typing import NamedTuple

from .. import in_use
from ..errors import EngineFailed
from ..guest.procfs import PARENT, stat
from ..types import Limits
from .diagnose import fix_for

_LEAF = "/fumehood-host"
_CONTROLLERS = ("memory", "pids")
_SPARE = 16


class Unavailable(NamedTuple):
    step: str
    errno: int
    fix: str


class Home(NamedTuple):
    """Where our groups go: one directory for each controller we got."""

    version: int
    directories: dict[str, str]  # controller: directory that we own
    missing: dict[str, Unavailable]
    held: dict[str, int]  # directory: the descriptor that keeps others from sweeping it

    def release(self) -> None:
        while self.held:
            os.close(self.held.popitem()[1])

    @property
    def mechanism(self) -> str:
        return f"cgroup v{self.version}"


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
        self._limits: tuple[int, int] | None = None
        self._held = False
        self._was_cleared = False
        self._counts = (0, 0)

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

    def occupy(self, pidfd: int, *, until_cleared: bool) -> None:
        self._occupant = pidfd
        self._held = until_cleared

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
        wanted = (limits.memory_bytes, limits.processes + 1)  # the supervisor counts as well
        if wanted != self._limits:
            if "memory" in self.paths:
                self._set_memory(wanted[0])
            if "pids" in self.paths:
                _write(f"{self.paths['pids']}/pids.max", str(wanted[1]))
            self._limits = wanted
        self.count_from_here()

    def count_from_here(self) -> None:
        self._counts = self._read_counts()

    def ran_out_of_memory(self) -> bool:
        return self._read_counts()[0] > self._counts[0]

    def hits(self) -> tuple[bool, bool]:
        """Since `arm` or `count_from_here`: whether the kernel killed for memory, and whether it refused a process."""
        kills, refusals = self._read_counts()
        return kills > self._counts[0], refusals > self._counts[1]

    def clear(self) -> None:
        """Kill all inside, for a cell that no pid namespace holds together; then it is free again."""
        self._kill()
        self._held = False
        self._was_cleared = True

    def remove(self) -> None:
        if self._occupant >= 0:
            self.is_free(1.0)
        self._forget_occupant()
        self.let_go()
        for path in set(self.paths.values()):
            _remove(path)

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
            return _read(f"{self.paths['pids']}/pids.current").strip() != "0"
        except OSError:
            return True

    def _kill(self) -> None:
        path = self.paths.get("pids") or self.paths["memory"]
        for _ in range(100):
            try:
                pids = [int(line) for line in _read(f"{path}/cgroup.procs").split()]
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

    def _set_memory(self, size: int) -> None:
        path = self.paths["memory"]
        if self._v2:
            _write(f"{path}/memory.max", str(size))
            _try_write(f"{path}/memory.swap.max", "0")
            return
        _try_write(f"{path}/memory.memsw.limit_in_bytes", "-1")
        _write(f"{path}/memory.limit_in_bytes", str(size))
        _try_write(f"{path}/memory.memsw.limit_in_bytes", str(size))

    def _read_counts(self) -> tuple[int, int]:
        try:
            kills = refusals = 0
            if "memory" in self.paths:
                name = "memory.events" if self._v2 else "memory.oom_control"
                kills = _field(_read(f"{self.paths['memory']}/{name}"), "oom_kill")
            if "pids" in self.paths:
                refusals = _field(_read(f"{self.paths['pids']}/pids.events"), "max")
            return kills, refusals
        except OSError:
            return self._counts  # removed with its zygote: no more than was known


class Groups:
    """As many as cells have been alive at once, used again and again; of those of a crowd that left, some."""

    def __init__(self) -> None:
        self.home = find_home()
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
        home = find_home()
        if not isinstance(home, Home) or home.directories.keys() != removed.directories.keys():
            raise EngineFailed("our control groups were removed, and no others can be made: start this process again")
        removed.release()
        self.home = home
        return home

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
                _remove(path)
            self.home.release()

    def let_go(self) -> None:
        """In a forked child: only the descriptors are its own."""
        for group in self._groups:
            group.let_go()
        if isinstance(self.home, Home):
            self.home.release()


def find_home() -> Home | Unavailable:
    """Make a directory for our groups beneath our own, for as many controllers as we may."""
    ours = _own_groups()
    if not ours:
        return Unavailable("find cgroup", errno.ENOENT, "mount cgroups, or accept the watch over /proc")
    version = 2 if "" in ours else 1
    directories: dict[str, str] = {}
    missing: dict[str, Unavailable] = {}
    held: dict[str, int] = {}
    name = f"{in_use.prefix()}{os.urandom(8).hex()}"
    if version == 2:
        own = ours.pop("").removesuffix(_LEAF)  # we may have stepped aside before
        ours = dict.fromkeys(_offered(own), own)
    for controller in _CONTROLLERS:
        if controller not in ours:
            missing[controller] = _missing(f"find {controller} controller", errno.ENOENT)
            continue
        own = ours[controller]
        path = f"{own}/{name}"
        try:
            in_use.sweep(own, _remove)
            if version == 2:
                _step_aside(own)
                _write(f"{own}/cgroup.subtree_control", f"+{controller}")
            if path not in held:
                held[path] = in_use.make(functools.partial(_made, path))[1]
            if version == 2:
                _write(f"{path}/cgroup.subtree_control", f"+{controller}")
            directories[controller] = path
        except OSError as error:
            missing[controller] = _missing(f"make a {controller} control group", error.errno or 0)
    if not directories:
        for path in held:
            _remove(path)
        Home(version, directories, missing, held).release()
        return missing[_CONTROLLERS[0]]
    return Home(version, directories, missing, held)


def _made(path: str) -> str:
    os.mkdir(path)
    return path


def _missing(step: str, number: int) -> Unavailable:
    return Unavailable(step, number, fix_for("control_group", number))


def _offered(own: str) -> list[str]:
    try:
        return _read(f"{own}/cgroup.controllers").split()
    except OSError:
        return []


def _step_aside(own: str) -> None:
    """v2 wants no process beside groups with controllers: go into a leaf, with all that we have started."""
    pids = _read(f"{own}/cgroup.procs").split()
    if not pids or not os.path.exists(f"{own}/cgroup.type"):  # the root of all groups may hold both
        return
    if not all(map(_is_ours, pids)):  # nor is it ours to move others
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), own)
    os.makedirs(own + _LEAF, exist_ok=True)
    for pid in pids:
        try:
            _write(f"{own}{_LEAF}/cgroup.procs", pid)
        except ProcessLookupError:
            pass


def _is_ours(pid: str) -> bool:
    """Whether that is this process, one that descends from it, or one that is gone."""
    us = str(os.getpid())
    while pid not in (us, "0"):
        fields = stat(pid)
        if not fields:
            return True
        pid = fields[PARENT].decode()
    return pid == us


def _own_groups() -> dict[str, str]:
    """Controller ("" for v2): the directory of the group that we are in."""
    try:
        memberships = _read("/proc/self/cgroup").splitlines()
        mounts = _read("/proc/self/mountinfo").splitlines()
    except OSError:
        return {}
    places: dict[str, tuple[str, str]] = {}
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        kind, _, rest = right.partition(" ")
        options = rest.rpartition(" ")[2]
        if fields[3].startswith("/.."):
            continue  # of a namespace above: what we are in has no name there
        if kind == "cgroup2":
            places.setdefault("", (fields[3], fields[4]))
        elif kind == "cgroup":
            for controller in _CONTROLLERS:
                if controller in options.split(","):
                    places[controller] = (fields[3], fields[4])
    found: dict[str, str] = {}
    for line in memberships:
        _, names, path = line.split(":", 2)
        for controller in names.split(","):
            if controller in places:
                root, mount = places[controller]
                found[controller] = (mount + _beneath(path, root)).rstrip("/")
    if "memory" in found or "pids" in found:
        found.pop("", None)  # hybrid: the controllers are on v1
    return found


def _beneath(path: str, root: str) -> str:
    if root == "/":
        return path
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""


def _remove(path: str) -> None:
    """With its groups; what the kernel still holds stays for the next sweep."""
    try:
        os.rmdir(path)  # most have no groups in them; to look for some takes a descriptor, and there may be none left
        return
    except OSError:
        pass
    try:
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
        for _ in range(50):
            try:
                os.rmdir(path)
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.01)
    except OSError:
        pass


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
        return os.fsdecode(b"".join(chunks))
    finally:
        os.close(fd)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _try_write(path: str, text: str) -> None:
    try:
        _write(path, text)
    except OSError:
        pass  # no swap accounting here
