"""Where control groups can be made: the directories beneath the groups that this process is in, v1 or v2."""

from __future__ import annotations

import errno
import functools
import os
import time
from typing import NamedTuple

from .. import in_use
from ..guest.procfs import PARENT, stat
from .diagnose import fix_for, is_shortage

_LEAF = "/fumehood-host"
_LIMITS = ("memory", "pids")
_UNHEEDED = "this kernel takes such limits and does not heed them, as gVisor does: bound the whole of it from outside"
_OTHERS = ("cpu", "cpuacct")  # as good as one process for the scheduler, however many there are; and their time counted


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

    def without(self, controller: str) -> Home | Unavailable:
        """That one's limits can be written, and nobody heeds them."""
        self.missing[controller] = Unavailable(f"be held back by a {controller} control group", 0, _UNHEEDED)
        path = self.directories.pop(controller)
        if self.directories.keys().isdisjoint(_LIMITS):
            _give_up(self.held)
            return self.missing[controller]
        if path not in self.directories.values():
            remove(path)
            os.close(self.held.pop(path))
        return self

    def release(self) -> None:
        while self.held:
            os.close(self.held.popitem()[1])

    @property
    def mechanism(self) -> str:
        return f"cgroup v{self.version}"


def find_home() -> Home | Unavailable:
    """Make a directory for our groups beneath our own, for as many controllers as we may.

    Raises OSError for a shortage, which is no reason to do without them.
    """
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
    for controller in _LIMITS + _OTHERS:
        if controller not in ours:
            if controller in _LIMITS:
                missing[controller] = _missing(f"find {controller} controller", errno.ENOENT)
            continue
        own = ours[controller]
        path = f"{own}/{name}"
        try:
            in_use.sweep(own, remove)
            if version == 2:
                _step_aside(own)
                write(f"{own}/cgroup.subtree_control", f"+{controller}")
            if path not in held:
                held[path] = in_use.make(functools.partial(_made, path))[1]
            if version == 2:
                write(f"{path}/cgroup.subtree_control", f"+{controller}")
            directories[controller] = path
        except OSError as error:
            if _is_passing(error):
                _give_up(held)
                raise
            if controller in _LIMITS:
                missing[controller] = _missing(f"make a {controller} control group", error.errno or 0)
    if directories.keys().isdisjoint(_LIMITS):
        _give_up(held)
        return missing[_LIMITS[0]]
    return Home(version, directories, missing, held)


def _give_up(held: dict[str, int]) -> None:
    for path in held:
        remove(path)
    while held:
        os.close(held.popitem()[1])


def _is_passing(error: OSError) -> bool:
    """A lack that the next call may not find: our groups are looked for once."""
    return is_shortage("control_group", error.errno or 0)


def _made(path: str) -> str:
    os.mkdir(path)
    return path


def _missing(step: str, number: int) -> Unavailable:
    return Unavailable(step, number, fix_for("control_group", number))


def _offered(own: str) -> list[str]:
    try:
        return read(f"{own}/cgroup.controllers").split()
    except OSError as error:
        if _is_passing(error):
            raise
        return []


def _step_aside(own: str) -> None:
    """v2 wants no process beside groups with controllers: go into a leaf, with all that we have started."""
    pids = read(f"{own}/cgroup.procs").split()
    if not pids or not os.path.exists(f"{own}/cgroup.type"):  # the root of all groups may hold both
        return
    if not all(map(_is_ours, pids)):  # nor is it ours to move others
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), own)
    os.makedirs(own + _LEAF, exist_ok=True)
    for pid in pids:
        try:
            write(f"{own}{_LEAF}/cgroup.procs", pid)
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
        memberships = _lines("/proc/self/cgroup")
        mounts = _lines("/proc/self/mountinfo")
    except OSError as error:
        if _is_passing(error):
            raise
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
            for controller in _LIMITS + _OTHERS:
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


def _lines(path: str) -> list[str]:
    """As the kernel ends them: a name may have in it what else Python takes for the end of a line."""
    return [line for line in read(path).split("\n") if line]


def _beneath(path: str, root: str) -> str:
    if root == "/":
        return path
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""


def remove(path: str) -> None:
    """With its groups; what the kernel still holds stays for the next sweep."""
    try:
        os.rmdir(path)  # most have no groups in them; to look for some takes a descriptor, and there may be none left
        return
    except OSError:
        pass
    try:
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
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


def read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
        return os.fsdecode(b"".join(chunks))
    finally:
        os.close(fd)


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
