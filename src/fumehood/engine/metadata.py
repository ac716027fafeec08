"""Changes modes and times for a program at level `confined`, of files in its own directory alone.

Landlock fences contents: a program that has its user's id could change the modes of all files of that user, and seccomp
sees no paths. So its filter asks its supervisor, which finds the file, looks where it lies, and does it itself.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._syscalls import Question

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100 & 0xFFFFFFFF, 0x100, 0x1000
_UTIME_NOW, _UTIME_OMIT = 0x3FFFFFFF, 0x3FFFFFFE
_MAX_PATH = 4096
_UNCHANGED = 0xFFFFFFFF
_SET_IDS = 0o6000
_OWN = ((b"/proc/self/", b""), (b"/proc/thread-self/", b""), (b"/dev/fd/", b"fd/"))  # where it means itself, not us


class Metadata:
    def __init__(self, directory: str):
        self._beneath = f"{os.path.realpath(directory)}/"

    def answer(self, question: Question) -> int:
        """Do it. The errno, if that is refused."""
        try:
            getattr(self, f"_{question.call}")(question.pid, *question.arguments)
            return 0
        except OSError as error:
            return error.errno or errno.EPERM
        except (OverflowError, ValueError):
            return errno.EINVAL  # an address or a path that cannot be

    # --- the calls, with their own arguments

    def _chmod(self, pid: int, path: int, mode: int, *_: int) -> None:
        self._change(self._named(pid, _AT_FDCWD, path), _mode(mode))

    def _fchmod(self, pid: int, fd: int, mode: int, *_: int) -> None:
        self._change(self._open(pid, fd), _mode(mode))

    def _fchmodat(self, pid: int, directory: int, path: int, mode: int, *_: int) -> None:
        self._change(self._named(pid, directory, path), _mode(mode))

    def _chown(self, pid: int, path: int, user: int, group: int, *_: int) -> None:
        self._change(self._named(pid, _AT_FDCWD, path), _owner(user, group))

    def _lchown(self, pid: int, path: int, user: int, group: int, *_: int) -> None:
        self._change(self._named(pid, _AT_FDCWD, path, _AT_SYMLINK_NOFOLLOW), _owner(user, group))

    def _fchown(self, pid: int, fd: int, user: int, group: int, *_: int) -> None:
        self._change(self._open(pid, fd), _owner(user, group))

    def _fchownat(self, pid: int, directory: int, path: int, user: int, group: int, flags: int, *_: int) -> None:
        self._change(self._named(pid, directory, path, flags), _owner(user, group))

    def _utimensat(self, pid: int, directory: int, path: int, times: int, flags: int, *_: int) -> None:
        fd = self._named(pid, directory, path, flags) if path else self._open(pid, directory)
        self._change(fd, _times(_memory(pid, times, 32) if times else b""))

    # --- the file

    def _named(self, pid: int, directory: int, address: int, flags: int = 0) -> int:
        path = _memory(pid, address, _MAX_PATH).partition(b"\0")[0]
        if not path:
            if not flags & _AT_EMPTY_PATH:
                raise FileNotFoundError(errno.ENOENT, "no path")
            return self._open(pid, directory)
        for place, beneath in _OWN:
            if path.startswith(place):
                path = b"/proc/%d/%s%s" % (pid, beneath, path[len(place) :])
        wanted = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & _AT_SYMLINK_NOFOLLOW else 0)
        start = "cwd" if directory & 0xFFFFFFFF == _AT_FDCWD else f"fd/{directory & 0xFFFFFFFF}"
        base = os.open(f"/proc/{pid}/{start}", os.O_PATH | os.O_CLOEXEC)
        try:
            return os.open(path, wanted, dir_fd=base)
        except OSError:
            whole = os.path.normpath(os.path.join(os.readlink(f"/proc/self/fd/{base}"), os.fsdecode(path)))
            if not whole.startswith(self._beneath):
                raise PermissionError(errno.EPERM, "what is outside is not told") from None
            raise
        finally:
            os.close(base)

    def _open(self, pid: int, fd: int) -> int:
        return os.open(f"/proc/{pid}/fd/{fd & 0xFFFFFFFF}", os.O_PATH | os.O_CLOEXEC)

    def _change(self, fd: int, change: Callable[[str, os.stat_result], None]) -> None:
        """Of that file, whatever its name leads to by now."""
        name = f"/proc/self/fd/{fd}"
        try:
            status = os.fstat(fd)
            if status.st_uid != os.getuid() or not os.readlink(name).startswith(self._beneath):
                raise PermissionError(errno.EPERM, "not in the program's directory")
            change(name, status)
        finally:
            os.close(fd)


def _memory(pid: int, address: int, size: int) -> bytes:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    finally:
        os.close(fd)


def _mode(mode: int) -> Callable[[str, os.stat_result], None]:
    def change(name: str, status: os.stat_result) -> None:
        if mode & _SET_IDS and status.st_uid == 0:
            raise PermissionError(errno.EPERM, "what runs as root")
        os.chmod(name, mode & 0o7777)

    return change


def _owner(user: int, group: int) -> Callable[[str, os.stat_result], None]:
    def change(_: str, status: os.stat_result) -> None:
        if user & 0xFFFFFFFF not in (_UNCHANGED, status.st_uid) or group & 0xFFFFFFFF not in (
            _UNCHANGED,
            status.st_gid,
        ):
            raise PermissionError(errno.EPERM, "nobody else's")

    return change


def _times(data: bytes) -> Callable[[str, os.stat_result], None]:
    """`data`: two struct timespec, or nothing for now."""

    def change(name: str, status: os.stat_result) -> None:
        now = time.time_ns()
        wanted = []
        for at, old in ((0, status.st_atime_ns), (16, status.st_mtime_ns)):
            seconds = int.from_bytes(data[at : at + 8], "little", signed=True)
            nanoseconds = int.from_bytes(data[at + 8 : at + 16], "little") if data else _UTIME_NOW
            special = {_UTIME_NOW: now, _UTIME_OMIT: old}
            wanted.append(special.get(nanoseconds, seconds * 1_000_000_000 + nanoseconds))
        os.utime(name, ns=(wanted[0], wanted[1]))

    return change
