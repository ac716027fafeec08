"""From what is asked and what the host has to a list of steps. Pure: nothing here touches the machine."""

from __future__ import annotations

import os.path
import signal
from typing import Any, NamedTuple

from ..types import Level, Limits
from .flags import CELL_NAMESPACES, CONTROL, KILL_TREE, NEWCGROUP, NEWNET, NEWNS, NEWPID, NEWUSER, NEWUTS, NOTHING
from .layout import Layout

Step = tuple[Any, ...]

UNPRIVILEGED_ID = 65534  # who root becomes before it makes a sandbox
INSIDE_ID = 1000
STAGING = "/tmp"
WORKSPACE, TMP, HOME, SHM = "/workspace", "/tmp", "/home/sandbox", "/dev/shm"
_PRIVATE = (("data", WORKSPACE), ("tmp", TMP), ("home", HOME), ("shm", SHM), ("program", ""))  # beneath /mnt
_PROGRAM = "/mnt/program"
OWN_INODES = 16  # what a sandbox itself puts on the private disk; the limit is what a program may add
_PRELOAD_BYTES, _PRELOAD_INODES = 64 * 1024 * 1024, 4096
_COVERED = (WORKSPACE, TMP, HOME, SHM, "/mnt", "/proc", "/var/tmp")
_PARKED = "/run/trees"
LINKS = "/run/bin"
PACKAGES = "/run/packages"
DATA, OUTPUT = f"{TMP}/data", f"{TMP}/output"
ENGINE = "/run/engine"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SKELETON_DIRECTORIES = ("/dev", SHM, "/etc", HOME, "/mnt", "/proc", LINKS, NOTHING, PACKAGES, TMP, "/var", WORKSPACE)
_SKELETON_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/var/tmp", "../tmp"),
)
_MEMORY_PER_SOCKET, _LEAST_SOCKETS = 2 << 20, 64
SOCKET_BYTES = 256 << 10  # that one may hold: see sockets
_LITTLE_USED = ("bin", "include", "share")  # of a virtualenv: an overlay of each would cost every cell
_KERNEL_OBJECTS = (("user_namespaces", 0), ("inotify_instances", 16), ("inotify_watches", 4096))
_OUT_OF_REACH: tuple[Step, ...] = (("undumpable",),)  # of others with the same user id, as which cells are born
_ETC = (
    ("/etc/passwd", f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}:sandbox:{HOME}:/bin/sh\n"),
    ("/etc/group", f"sandbox:x:{INSIDE_ID}:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
)


class Caller(NamedTuple):
    """Who we are on this host."""

    uid: int
    gid: int
    can_become: bool = True  # root of a small container may be unable to be anybody else
    no_core: int = 0  # the limit that keeps the kernel from dumping cores
    most_files: int = 1 << 30  # open ones, of a program

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    @property
    def drops(self) -> bool:
        """Whether programs run as somebody with no rights at all."""
        return self.is_root and self.can_become


class Without(NamedTuple):
    """What this host cannot give and a cell can do without."""

    proc: bool = False  # masked: then there is no /proc, rather than the host's
    bounds: bool = False  # /proc/sys cannot be written: seccomp alone refuses namespaces
    become: bool = False
    asking: bool = False  # another filter above ours asks already: then nobody counts a program's sockets


class ZygotePlan(NamedTuple):
    flags: int
    steps: tuple[Step, ...]
    uncovered: tuple[tuple[str, str], ...] = ()  # (where it is parked, where the program looks for it)
    overlaid: tuple[str, ...] = ()  # the trees of which each cell gets an overlay


class CellPlan(NamedTuple):
    flags: int
    cell_steps: tuple[Step, ...]  # by the supervisor, before the program exists
    program_steps: tuple[Step, ...]  # by the program's process, before the program is read
    workspace: str
    program: str  # the directory of the program's own text
    disk: str | None


def most_sockets(limits: Limits) -> int:
    """That a program may have open before it is refused more; as many again may be accepted from these."""
    return max(_LEAST_SOCKETS, limits.memory_bytes // _MEMORY_PER_SOCKET)


def plan_zygote(
    level: Level,
    layout: Layout,
    caller: Caller,
    *,
    resolv_conf: str = "",
    package: str | None = None,
    has_proc: bool = True,
    preloads: bool = False,
) -> ZygotePlan:
    """`package`: our own modules, for a zygote that has to start anew inside its root."""
    if level != "sealed":
        return ZygotePlan(0, (("adopt_orphans",),))  # of supervisors that were killed
    parked: dict[str, str] = {}
    trees = []
    overlaid = []
    directories = [*_SKELETON_DIRECTORIES]
    files = [*_ETC, ("/etc/resolv.conf", resolv_conf)]
    links = [*_SKELETON_LINKS]
    for path in layout.trees:
        target = _park(path, parked)
        trees.append((path, target, "file" if path in layout.files else "files"))
        if path in layout.files:
            directories.append(os.path.dirname(target))
            files.append((target, ""))
        else:
            directories.append(target)
            parent, name = os.path.split(path)
            if parent == "/" or not (path.startswith("/etc/") or name in _LITTLE_USED):
                overlaid.append(target)
    if package is not None:
        trees.append((package, f"{ENGINE}/fumehood", "files"))
        directories.append(f"{ENGINE}/fumehood")
    if not has_proc:  # to write id maps with; covered before a program is read
        trees.append(("/proc", "/proc", "proc"))
    for path in layout.devices:
        trees.append((path, path, "device"))
        files.append((path, ""))
    for path, link in layout.links:
        target = _park(path, parked)
        directories.append(os.path.dirname(target))
        links.append((target, link))
    if not layout.is_virtual:
        links += [(f"{LINKS}/{name}", layout.executable) for name in ("python", "python3")]
    uncovered = tuple((place, path) for path, place in parked.items())
    # Libraries look for a writable home, cache and shared memory when they are imported. Cells cover these.
    own_places: tuple[Step, ...] = ()
    if preloads:
        own_places = (("private_tree", _PRELOAD_BYTES, _PRELOAD_INODES, _PRIVATE), ("uncover", uncovered))
    build: tuple[Step, ...] = (
        ("hostname", "sandbox"),  # cells copy it
        ("private_mounts",),
        ("open_trees", tuple(trees)),
        ("new_root", STAGING),
        ("skeleton", tuple(directories), tuple(links), tuple(files)),
        ("attach_trees",),
        ("show_parked", uncovered),
        *((("root_proc",),) if has_proc else ()),
        ("enter_root",),
    )
    if caller.drops:
        # Built as root: the interpreter may lie beneath a directory that only root can enter. Then never root again.
        drop: tuple[Step, ...] = (
            ("become", UNPRIVILEGED_ID, UNPRIVILEGED_ID),
            ("unshare", NEWUSER | NEWNS),
            ("map_ids", UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID),
        )
        steps = build + drop + own_places + _OUT_OF_REACH
        return ZygotePlan(NEWNS | NEWPID | NEWUTS, steps, uncovered, tuple(overlaid))
    own: tuple[Step, ...] = (("map_ids", caller.uid, caller.uid, caller.gid),)
    steps = own + build + own_places + _OUT_OF_REACH
    return ZygotePlan(NEWUSER | NEWNS | NEWPID | NEWUTS, steps, uncovered, tuple(overlaid))


def plan_volume(zygote: ZygotePlan, limits: Limits) -> tuple[Step, ...]:
    """What cells that share their files find in place, rather than each making its own."""
    return (*_private_parts(zygote, limits), ("directories", (DATA, OUTPUT)))


def plan_sealed_cell(
    caller: Caller,
    zygote: ZygotePlan,
    limits: Limits,
    seccomp: bytes,
    without: Without,
    *,
    network: bool,
    counted: bool,
    asks: bool = False,
    in_volume: bool = False,
    shows: bool = False,
) -> CellPlan:
    """`asks`: its filter does, see sockets."""
    outside = (UNPRIVILEGED_ID, UNPRIVILEGED_ID) if caller.drops else (caller.uid, caller.gid)
    steps: list[Step] = [
        ("dumpable",),  # or it could not write its own maps
        ("map_ids", INSIDE_ID, *outside),
        *_OUT_OF_REACH,
        ("unshare", NEWCGROUP),  # now that it is in its group: what lies above that stays unseen
        *(() if without.bounds else (("bound_kernel_objects", _KERNEL_OBJECTS),)),
        *(() if in_volume else _private_parts(zygote, limits)),
        *((("directories", (OUTPUT,)),) if shows else ()),
    ]
    steps.append(("no_proc",) if without.proc else ("proc",))
    if not network:
        steps.append(("loopback",))
    if shows:
        steps.append(("show", TMP, CONTROL))
    steps += [
        ("limits", _rlimits(limits, caller, others=None if counted else 0)),
        ("drop_capabilities",),
        ("no_new_privileges",),
        ("asking_seccomp" if asks else "seccomp", seccomp),
    ]
    flags = CELL_NAMESPACES if network else CELL_NAMESPACES | NEWNET
    return CellPlan(flags, tuple(steps), (), WORKSPACE, _PROGRAM, "/mnt")


def _private_parts(zygote: ZygotePlan, limits: Limits) -> tuple[Step, ...]:
    own: Step = ("private_tree", limits.disk_bytes, limits.inodes + OWN_INODES, _PRIVATE)
    return (own, ("uncover", zygote.uncovered)) if zygote.uncovered else (own,)


def plan_open_cell(
    level: Level,
    caller: Caller,
    limits: Limits,
    directory: str,
    *,
    seccomp: bytes | None,
    readable: tuple[str, ...],
    drop_root: bool,
    landlock: bool,
    keeps_signals: bool,
    others: int | None,
    asks: bool = False,
) -> CellPlan:
    """`confined` and `process`: no namespaces; the locks are the program's alone, its supervisor stays outside.

    `asks`: its filter does, see metadata.
    `others`: how many processes its user has besides, where no control group counts the program's own: the kernel's
    limit is for all of them.
    """
    steps: list[Step] = []
    if caller.is_root and drop_root:
        steps.append(("become", UNPRIVILEGED_ID, UNPRIVILEGED_ID))
    steps.append(("limits", _rlimits(limits, caller, others=others)))
    if level == "confined":
        steps.append(("shed_capabilities",))
    steps.append(("no_new_privileges",))
    steps.append(("die_with_parent", int(signal.SIGKILL)))  # should its supervisor be killed
    if level == "confined" and landlock:
        steps.append(("landlock", readable, (directory, "/dev/shm", "/dev/null", "/dev/zero", "/dev/full")))
    if level == "confined" and seccomp is not None:
        steps.append(("asking_seccomp" if asks else "seccomp", seccomp))
    cell_steps: tuple[Step, ...] = (("adopt_orphans",), ("die_with_parent", KILL_TREE))
    if keeps_signals:
        cell_steps += (("no_new_privileges",), ("keep_signals_inside",))
    return CellPlan(0, cell_steps, tuple(steps), f"{directory}/workspace", f"{directory}/program", None)


def environment(layout: Layout, home: str, tmp: str, links: str, cores: int) -> dict[str, str]:
    """All that a program finds in its environment unless the caller adds to it."""
    own = os.path.dirname(layout.executable) if layout.is_virtual else links
    threads = str(cores)
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": "sandbox",
        "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PATH": f"{own}:{_SYSTEM_PATH}",
        "POLARS_MAX_THREADS": threads,
        "TMPDIR": tmp,
        "TZ": "UTC",
        "USER": "sandbox",
        "XDG_CACHE_HOME": f"{home}/.cache",
    }


def _rlimits(limits: Limits, caller: Caller, *, others: int | None) -> tuple[tuple[str, int], ...]:
    rows = [
        ("core", caller.no_core),
        ("file", limits.file_bytes),
        ("memlock", 64 * 1024),
        ("message_queues", 0),
        ("nice", 0),
        ("open_files", min(limits.open_files, caller.most_files)),
        ("pending_signals", 1024),
        ("realtime", 0),
    ]
    if others is not None:
        rows.append(("processes", limits.processes + others + 1))  # the supervisor is one
    return tuple(rows)


def _park(path: str, parked: dict[str, str]) -> str:
    """Where a tree stands in the zygote's root: at its own path, unless a private directory will cover that."""
    if not any(path == cover or path.startswith(cover + "/") for cover in _COVERED):
        return path
    parent = os.path.dirname(path)
    if parent in _COVERED:
        return parked.setdefault(path, f"{_PARKED}/{len(parked)}")
    place = parked.setdefault(parent, f"{_PARKED}/{len(parked)}")
    return f"{place}/{os.path.basename(path)}"
