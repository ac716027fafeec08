"""Directories of ours that a killed process leaves behind: which are in use, and which the next process may sweep.

Whoever uses one holds a lock on it, which the kernel takes from the dead. A process number would not tell: another
fumehood may share the place from a pid namespace of its own, where our number is nobody's or somebody else's.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection

_PREFIX = "fumehood-"
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def prefix() -> str:
    """How the name of a directory that may be swept begins: for whoever looks, with the number of its process."""
    return f"{_PREFIX}{os.getpid()}-"


def hold(path: str) -> int:
    """A descriptor: the directory is in use for as long as it is open here.

    FileNotFoundError if another process swept the directory before it was held: make another one.
    """
    fd = os.open(path, _OPENED)
    try:
        if _is_locked(fd) or not _is_at(path, fd):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make(make_one: Callable[[], str]) -> tuple[str, int]:
    """A directory and the descriptor that holds it."""
    while True:
        path = make_one()
        try:
            return path, hold(path)
        except FileNotFoundError:
            continue
        except BaseException:
            os.rmdir(path)
            raise


def sweep(parent: str, remove: Callable[[str], None], owners: Collection[int] = ()) -> None:
    """Remove what nobody holds; of these users alone, if any are given."""
    try:
        names = os.listdir(parent)
    except OSError:
        return  # not ours to look
    for name in names:
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX).partition("-")[0].isdigit():
            try:
                _remove_unless_held(f"{parent}/{name}", remove, owners)
            except OSError:
                pass  # gone, no directory, or not ours to open


def _remove_unless_held(path: str, remove: Callable[[str], None], owners: Collection[int]) -> None:
    fd = os.open(path, _OPENED)
    try:
        if not owners or os.fstat(fd).st_uid in owners:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """By whoever sweeps it. Where directories cannot be locked nobody can, and nothing is swept."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
