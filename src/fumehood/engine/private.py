"""The private directory of a cell that has no root of its own: levels `confined` and `process`."""

from __future__ import annotations

import os
import stat
import tempfile

from .. import in_use
from .layout import Layout

_PASSES = 1 << 16  # more than a program can nest
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_held: dict[str, int] = {}  # the descriptor that says that we use it
_left: list[str] = []  # could not be removed, for want of descriptors perhaps
_swept = 0  # by which process
_PARTS = ("workspace", "program", "tmp", "home", "bin")


def make(layout: Layout, owner: int | None) -> str:
    sweep(owner)
    if _left:
        remove(_left.pop())
    directory, _held[directory] = in_use.make(lambda: tempfile.mkdtemp(prefix=in_use.prefix()))
    try:
        for name in _PARTS:
            os.mkdir(f"{directory}/{name}", 0o700)
        if not layout.is_virtual:
            for name in ("python", "python3"):
                os.symlink(layout.executable, f"{directory}/bin/{name}")
        if owner is not None:
            for name in ("", *_PARTS):
                os.chown(f"{directory}/{name}", owner, owner)
    except BaseException:
        remove(directory)
        raise
    return directory


def sweep(owner: int | None = None) -> None:
    """Once in a process: what one of ours left behind that was killed."""
    global _swept
    if _swept == os.getpid():
        return
    _swept = os.getpid()
    in_use.sweep(tempfile.gettempdir(), remove, {os.geteuid(), os.geteuid() if owner is None else owner})


def add_session_parts(directory: str, owner: int | None) -> None:
    for name in ("data", "output"):
        path = f"{directory}/tmp/{name}"
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, owner, owner)


def remove(directory: str) -> None:
    """By descriptors alone, so that no link is followed, whoever is still at work there.

    What lies deeper is first moved up beside it: a program may nest directories deeper than we may open at once.
    """
    parent, name = os.path.split(directory)
    above = -1
    try:
        above = os.open(parent, _DIRECTORY & ~os.O_NOFOLLOW)
        if (top := _opened(name, above)) >= 0:
            try:
                _empty(top)
            finally:
                os.close(top)
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError:
        _left.append(directory)
    finally:
        if above >= 0:
            os.close(above)
        _let_go(directory)


def _let_go(directory: str) -> None:
    if (fd := _held.pop(directory, -1)) >= 0:
        os.close(fd)


def _after_fork() -> None:
    """They are the parent's, who holds them still."""
    for directory in list(_held):
        _let_go(directory)


os.register_at_fork(after_in_child=_after_fork)


def _empty(top: int) -> None:
    before: list[str] = []
    for _ in range(_PASSES):
        names = os.listdir(top)
        if not names or names == before:
            return
        before = names
        for name in names:
            if not _unlinked(name, top):
                _flatten(name, top)


def _flatten(name: str, top: int) -> None:
    """Remove the directory `name`; those in it are moved up into `top`."""
    fd = _opened(name, top)
    if fd < 0:
        return
    try:
        for inner in os.listdir(fd):
            if not _unlinked(inner, fd):
                below = _opened(inner, fd)  # to be moved it must be writable
                if below >= 0:
                    os.close(below)
                os.rename(inner, f".{os.urandom(8).hex()}", src_dir_fd=fd, dst_dir_fd=top)
        os.rmdir(name, dir_fd=top)
    except OSError:
        pass  # somebody else does the same
    finally:
        os.close(fd)


def _unlinked(name: str, directory: int) -> bool:
    """False: it is a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _opened(name: str, above: int) -> int:
    """A directory, with the rights that the program may have taken from it; -1 if there is none of that name."""
    held = -1
    try:
        held = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=above)
        place = f"/proc/self/fd/{held}"  # the very one that is held, whatever has that name by now
        if stat.S_IMODE(os.fstat(held).st_mode) & 0o700 != 0o700:
            os.chmod(place, 0o700)
        return os.open(".", _DIRECTORY, dir_fd=held)
    except OSError:
        return -1
    finally:
        if held >= 0:
            os.close(held)
