"""The host in a tree that hostile code writes to as well: the guest's file verbs, with an owner and our own errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from contextvars import ContextVar

from ..descriptors import exhausted
from ..errors import EngineFailed, FileError
from ..guest.files import Gone, Outside, TooLarge, TooMany, Tree
from ..passed_over import OTHER, WHYS
from ..types import FileStat

_at_most: ContextVar[int | None] = ContextVar("entries that a listing may look at", default=None)
_FEW_BYTES, _FEW_INODES = 1 << 20, 200
_KINDS = {
    errno.ENOENT: ("missing", "does not exist; files() lists what is there"),
    errno.ENOTDIR: ("special", "goes through a file or a symbolic link; name the file itself"),
    errno.ELOOP: ("special", "is a symbolic link, which is not followed from outside; name the file itself"),
    errno.EISDIR: ("directory", "is a directory; name a file in it, files() lists them"),
    errno.ENXIO: ("special", "is not a regular file; what is in it can be had with exec alone"),
    errno.ENAMETOOLONG: ("invalid", "is too long"),
    errno.ENOSPC: ("full", "does not fit: the sandbox's disk is full (SANDBOX_DISK_MB, SANDBOX_INODES)"),
    errno.EDQUOT: ("full", "does not fit: the disk quota is used up"),
    errno.EACCES: ("denied", "may not be opened: the program took the permission away"),
    errno.EPERM: ("denied", "may not be changed"),
    errno.EROFS: ("denied", "may not be written to: it is read-only"),
    errno.EBUSY: ("denied", "may not be replaced: it is in use as a mount"),
}


class ManyFiles(Exception):
    """There is more to look at than `listing_at_most` allows."""


class Files:
    """`root` is a directory's descriptor, ours from now on; `prefixes` say which paths lead where in it."""

    def __init__(self, root: int, prefixes: dict[str, str], *, owner: int | None = None):
        self._owner = owner  # as whom to go there, if not as ourselves
        self._tree = Tree(root, prefixes)

    def read(self, path: str, max_bytes: int) -> bytes:
        with our_errors(path, max_bytes), self._as_owner():
            return self._tree.read(path, max_bytes)

    def write(self, path: str, data: bytes) -> None:
        """All of it or nothing."""
        with our_errors(path), self._as_owner():
            self._tree.write(path, data)

    def beneath(self, path: str, *, leave_out: str | None = None) -> list[FileStat]:
        """Regular files beneath, without the directory `leave_out`; with a `why`, what else is there."""
        with our_errors(path), self._as_owner():
            try:
                return [stat_of(*found) for found in self._tree.beneath(path, leave_out, _at_most.get())]
            except TooMany:
                raise ManyFiles from None

    def has_nothing(self, path: str) -> bool:
        """Whether there is not one entry, which is soon seen however many there are."""
        with our_errors(path), self._as_owner():
            return self._tree.has_nothing(path)

    def are_few(self) -> bool:
        """In number and in size, of all that is on their file system."""
        used_bytes, used_inodes = self._tree.used()
        return used_bytes <= _FEW_BYTES and used_inodes <= _FEW_INODES

    def close(self) -> None:
        self._tree.close()

    # --- inside

    @contextlib.contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Root can read what the program may not, and a file system of one user knows nobody else: so be that user."""
        if self._owner is None:
            yield
            return
        from ._syscalls import set_file_ids  # ctypes, which nobody but root needs here

        set_file_ids(self._owner, self._owner)
        try:
            yield
        finally:
            set_file_ids(0, 0)


def stat_of(path: str, size: int, version: tuple[int, ...], what: str) -> FileStat:
    """`what` it is, for whatever cannot be read, may be a guest's word."""
    return FileStat(path, size, version, WHYS.get(what, OTHER))


@contextlib.contextmanager
def listing_at_most(entries: int) -> Iterator[None]:
    """Within it, `beneath` raises ManyFiles rather than look at more: whoever has no time lists elsewhere."""
    token = _at_most.set(entries)
    try:
        yield
    finally:
        _at_most.reset(token)


@contextlib.contextmanager
def our_errors(path: str, max_bytes: int = 0) -> Iterator[None]:
    """What the kernel or the guest says becomes FileError."""
    try:
        yield
    except Outside:
        raise FileError("Invalid path: must be /tmp/* or /workspace/*", "invalid") from None
    except Gone:
        raise FileError("the sandbox is gone and its files with it", "missing") from None
    except TooLarge:
        raise FileError(f"{path} is larger than {max_bytes:,} bytes; take parts of it with exec", "too_large") from None
    except OSError as error:
        said = exhausted(error)
        if said is not None:
            raise EngineFailed(said) from None
        kind, what = _KINDS.get(error.errno or 0, ("denied", f"cannot be used: {error.strerror}"))
        raise FileError(f"{path} {what}", kind) from None
