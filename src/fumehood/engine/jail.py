"""Applies a plan: a dumb loop over named steps, one function each. The first step that fails ends it.

Runs in the zygote and in cells, never in the host process.
"""

from __future__ import annotations

import _socket as socket  # see zygote
import array
import errno
import os
import stat

from ..guest import rlimits
from . import _syscalls as sys_calls
from . import frames, landlock, sockets

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    Step = tuple[Any, ...]  # (name, *arguments), plain data: a plan crosses a process boundary

_FILES = sys_calls.MOUNT_ATTR_RDONLY | sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NODEV
_ATTRIBUTES = {
    "files": _FILES,
    "file": _FILES,
    "device": sys_calls.MOUNT_ATTR_RDONLY | sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NOEXEC,
    "proc": sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NODEV | sys_calls.MOUNT_ATTR_NOEXEC,
}
_COPIED_BYTES = 512 * 1024


class StepFailed(Exception):
    def __init__(self, step: str, error: OSError):
        super().__init__(f"{step}: {error}")
        self.step = step
        self.errno = error.errno or 0
        self.detail = str(error)


class Jail:
    """Carries what one step leaves for a later one."""

    def __init__(self) -> None:
        self._trees: list[tuple[int, str]] = []
        self._copies: list[tuple[bytes, int, str]] = []
        self.keeps_signals = False
        self.listener = -1  # by which the supervisor is asked

    def apply(self, steps: Iterable[Step]) -> None:
        for name, *arguments in steps:
            action: Callable[..., None] = getattr(self, f"step_{name}")
            try:
                action(*arguments)
            except OSError as error:
                raise StepFailed(name, error) from error

    # --- identities

    def step_map_ids(self, inside: int, uid: int, gid: int) -> None:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{inside} {uid} 1")
        _write("/proc/self/gid_map", f"{inside} {gid} 1")

    def step_become(self, uid: int, gid: int) -> None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        sys_calls.prctl(sys_calls.PR_SET_DUMPABLE, 1)  # else /proc/self stays root's and the id maps cannot be written

    def step_unshare(self, flags: int) -> None:
        sys_calls.unshare(flags)

    # --- the root, made once by the zygote

    def step_private_mounts(self) -> None:
        sys_calls.mount("none", "/", None, sys_calls.MS_REC | sys_calls.MS_PRIVATE)

    def step_open_trees(self, trees: Sequence[tuple[str, str, str]]) -> None:
        """Before the new root covers anything: a virtualenv may lie beneath the very directory it is built on."""
        for source, target, kind in trees:
            if kind == "file" and (copy := _small(source)):
                self._copies.append((*copy, target))
                continue
            tree = sys_calls.open_tree(source)
            sys_calls.set_mount_attributes(tree, "", _ATTRIBUTES[kind], recursive=True)
            self._trees.append((tree, target))

    def step_new_root(self, staging: str) -> None:
        flags = sys_calls.MS_NOSUID | sys_calls.MS_NODEV
        sys_calls.mount("root", staging, "tmpfs", flags, "size=8m,nr_inodes=4096,mode=0755")
        os.chdir(staging)

    def step_skeleton(
        self, directories: Sequence[str], links: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]
    ) -> None:
        for directory in directories:
            os.makedirs(f".{directory}", 0o755, exist_ok=True)
        for path, target in links:
            os.symlink(target, f".{path}")
        for path, text in files:
            _write(f".{path}", text, create=True)

    def step_attach_trees(self) -> None:
        here = os.getcwd()
        for tree, target in self._trees:
            sys_calls.move_mount(tree, here + target)
            os.close(tree)
        self._trees.clear()
        for data, mode, target in self._copies:
            _write(here + target, data, mode=mode)
        self._copies.clear()

    def step_show_parked(self, trees: Sequence[tuple[str, str]]) -> None:
        """What cells will find in a private directory the zygote must find there as well, to learn its packages."""
        here = os.getcwd()
        self.step_uncover([(here + source, here + target) for source, target in trees])

    def step_root_proc(self) -> None:
        """Cells may mount their own /proc only where a whole one is in view already."""
        _mount_proc(os.getcwd() + "/proc")

    def step_enter_root(self) -> None:
        sys_calls.pivot_root(".", ".")
        sys_calls.detach(".")
        os.chdir("/")
        sys_calls.set_mount_attributes(-1, "/", _ATTRIBUTES["files"], recursive=False)

    # --- the private parts of a cell

    def step_private_tree(self, size: int, inodes: int, binds: Sequence[tuple[str, str]]) -> None:
        """One sized tmpfs holds every place a program may write to, so one number bounds them all."""
        flags = sys_calls.MS_NOSUID | sys_calls.MS_NODEV
        sys_calls.mount("private", "/mnt", "tmpfs", flags, f"size={size},nr_inodes={inodes},mode=0755")
        for name, target in binds:
            os.mkdir(f"/mnt/{name}", 0o700)
            if target:
                sys_calls.mount(f"/mnt/{name}", target, None, sys_calls.MS_BIND)

    def step_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            os.mkdir(path, 0o700)

    def step_uncover(self, trees: Sequence[tuple[str, str]]) -> None:
        for source, target in trees:
            os.makedirs(target, 0o755, exist_ok=True)
            sys_calls.mount(source, target, None, sys_calls.MS_BIND | sys_calls.MS_REC)

    def step_proc(self) -> None:
        _mount_proc("/proc")

    def step_no_proc(self) -> None:
        sys_calls.mount("none", "/proc", "tmpfs", sys_calls.MS_RDONLY, "size=4k,nr_inodes=2")

    def step_bound_kernel_objects(self, limits: Sequence[tuple[str, int]]) -> None:
        """Namespaces inside would undo read-only binds; the rest is counted for the host's user as well."""
        for name, limit in limits:
            _write(f"/proc/sys/user/max_{name}", str(limit))

    def step_loopback(self) -> None:
        sys_calls.loopback_up()
        sockets.bound_buffers()

    def step_hostname(self, name: str) -> None:
        socket.sethostname(name)

    def step_show(self, directory: str, control: int) -> None:
        """To the host, before there is a program that could hold the descriptor or the way it goes; and before the
        limits: see `allow_all_open_files`."""
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, control)
        try:
            send_with(host, frames.FILES, fd)
        finally:
            host.detach()
            os.close(fd)

    # --- what the program may use

    def step_limits(self, limits: Sequence[tuple[str, int]]) -> None:
        rlimits.apply(limits)

    # --- what it may do

    def step_no_new_privileges(self) -> None:
        sys_calls.prctl(sys_calls.PR_SET_NO_NEW_PRIVS, 1)

    def step_drop_capabilities(self) -> None:
        sys_calls.drop_capabilities()

    def step_shed_capabilities(self) -> None:
        """Where there may be none to drop with: no_new_privs keeps an empty set empty."""
        try:
            sys_calls.drop_capabilities()
        except PermissionError:
            sys_calls.clear_capabilities()

    def step_dumpable(self) -> None:
        sys_calls.prctl(sys_calls.PR_SET_DUMPABLE, 1)

    def step_undumpable(self) -> None:
        sys_calls.prctl(sys_calls.PR_SET_DUMPABLE, 0)

    def step_adopt_orphans(self) -> None:
        sys_calls.prctl(sys_calls.PR_SET_CHILD_SUBREAPER, 1)

    def step_die_with_parent(self, signo: int) -> None:
        sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signo)

    def step_keep_signals_inside(self) -> None:
        """Tried on the zygote, before and after: a supervisor that kills all it can reach relies on it."""
        zygote = os.getppid()
        os.kill(zygote, 0)
        landlock.keep_signals_inside()
        try:
            os.kill(zygote, 0)
        except PermissionError:
            self.keeps_signals = True
            return
        raise OSError(errno.ENOSYS, "Landlock lets signals out")

    def step_landlock(self, readable: Sequence[str], writable: Sequence[str]) -> None:
        landlock.restrict(readable, writable)

    def step_seccomp(self, program: bytes) -> None:
        sys_calls.install_seccomp(program)

    def step_asking_seccomp(self, program: bytes) -> None:
        self.listener = sys_calls.install_seccomp(program, listens=True)


def program_may_be_seen() -> None:
    """Undo `undumpable` in the program itself: only its supervisor must stay out of its reach."""
    sys_calls.prctl(sys_calls.PR_SET_DUMPABLE, 1)


def _mount_proc(path: str) -> None:
    sys_calls.mount("proc", path, "proc", sys_calls.MS_NOSUID | sys_calls.MS_NODEV | sys_calls.MS_NOEXEC)


def _small(path: str) -> tuple[bytes, int] | None:
    """What is in it, and its mode: a copy's locks and watches are not the host's. A program stays where it lies."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o111 or status.st_size > _COPIED_BYTES:
            return None
        data = os.read(fd, _COPIED_BYTES)
        return (data, status.st_mode & 0o444) if len(data) == status.st_size else None
    finally:
        os.close(fd)


def _write(path: str, text: str | bytes, *, create: bool = False, mode: int | None = None) -> None:
    flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
    fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, text.encode() if isinstance(text, str) else text)
        if mode is not None:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def send_with(control: socket.socket, frame: bytes, *fds: int) -> None:
    control.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
