"""Reads and writes files in a tree that hostile code writes to as well.

Every step goes from one directory's descriptor to the next and follows no link, so no path that a program made leads
out of the tree. Only regular files are opened, and no more is read than was asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ..errors import FileError
from ..types import FileStat

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_ENTRIES = 50_000
_MAX_DEPTH = 64
_CHUNK = 1 << 20

_KINDS = {
    errno.ENOENT: ("missing", "does not exist; files() lists what is there"),
    errno.ENOTDIR: ("special", "goes through something that is not a directory, or through a symbolic link"),
    errno.ELOOP: ("special", "is a symbolic link, which is not followed from outside the sandbox"),
    errno.EISDIR: ("directory", "is a directory"),
    errno.ENXIO: ("special", "is not a regular file"),
    errno.ENAMETOOLONG: ("invalid", "is too long"),
    errno.ENOSPC: ("full", "does not fit: the sandbox's disk is full (SANDBOX_DISK_MB, SANDBOX_INODES)"),
    errno.EDQUOT: ("full", "does not fit: the disk quota is used up"),
    errno.EACCES: ("denied", "may not be opened: the program took the permission away"),
    errno.EPERM: ("denied", "may not be changed"),
    errno.EROFS: ("denied", "may not be written to: it is read-only"),
    errno.EBUSY: ("denied", "may not be replaced: it is in use as a mount"),
}


class Files:
    """`root` is a directory's descriptor, ours from now on; `prefixes` say which paths lead where in it."""

    def __init__(self, root: int, prefixes: dict[str, str], *, owner: int | None = None, owner_makes: bool = False):
        self._root = root
        self._prefixes = prefixes
        self._owner = owner  # whose new files are, if not ours
        self._owner_makes = owner_makes  # the file system knows nobody else
        self._device = -1

    def read(self, path: str, max_bytes: int) -> bytes:
        *parents, name = self._parts(path)
        with _our_errors(path), self._directory(parents) as directory:
            fd = os.open(name, _READ, dir_fd=directory)
            try:
                status = os.fstat(fd)
                if stat.S_ISDIR(status.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "")
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.ENXIO, "")
                data = _read(fd, max_bytes + 1)
            finally:
                os.close(fd)
        if len(data) > max_bytes:
            raise FileError(f"{path} is larger than {max_bytes:,} bytes", "too_large")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Beside it first, then renamed over it: whoever looks finds all of it or what was there before."""
        *parents, name = self._parts(path)
        with _our_errors(path), self._as_owner(), self._directory(parents, make=True) as directory:
            if _is_directory(name, directory):
                raise IsADirectoryError(errno.EISDIR, "")
            temporary = f".{os.urandom(8).hex()}.part"
            fd = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
            )
            try:
                try:
                    _write(fd, data)
                    if self._owner is not None and not self._owner_makes:
                        os.fchown(fd, self._owner, self._owner)
                finally:
                    os.close(fd)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise

    def beneath(self, path: str, *, leave_out: str | None = None) -> list[FileStat]:
        """Regular files beneath, without the directory `leave_out`; names that are no text are passed over.

        Mounts are too: a virtualenv beneath /tmp is seen there by the program as well.
        """
        found: list[FileStat] = []
        try:
            with self._directory(self._parts(path)) as directory:
                self._device = os.fstat(directory).st_dev
                self._walk(directory, path, leave_out, found, 0)
        except OSError:
            pass  # there is no such directory
        return found

    def close(self) -> None:
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    # --- inside

    def _parts(self, path: str) -> list[str]:
        for prefix, target in self._prefixes.items():
            if path == prefix or path.startswith(prefix + "/"):
                parts = [part for part in path[len(prefix) :].split("/") if part]
                if not {".", ".."} & set(parts):
                    return [target, *parts]
        raise FileError("Invalid path: must be /tmp/* or /workspace/*", "invalid")

    @contextlib.contextmanager
    def _directory(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        if self._root < 0:
            raise FileError("the sandbox is gone and its files with it", "missing")
        current = os.dup(self._root)
        try:
            for part in parts:
                try:
                    step = os.open(part, _DIRECTORY, dir_fd=current)
                except FileNotFoundError:
                    if not make:
                        raise
                    self._make(part, current)
                    step = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = step
            yield current
        finally:
            os.close(current)

    def _make(self, name: str, directory: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            return  # the program was faster
        if self._owner is not None and not self._owner_makes:
            os.chown(name, self._owner, self._owner, dir_fd=directory, follow_symlinks=False)

    @contextlib.contextmanager
    def _as_owner(self) -> Iterator[None]:
        """For a file system that knows one user only, root must make files as that user."""
        if not self._owner_makes or self._owner is None:
            yield
            return
        from ._syscalls import set_file_ids  # ctypes, which nobody but root needs here

        set_file_ids(self._owner, self._owner)
        try:
            yield
        finally:
            set_file_ids(0, 0)

    def _walk(self, directory: int, path: str, leave_out: str | None, found: list[FileStat], depth: int) -> None:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(found) >= _MAX_ENTRIES:
                        return
                    place = f"{path}/{entry.name}"
                    if not _is_text(entry.name) or place == leave_out:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            self._descend(entry.name, fd, place, leave_out, found, depth + 1)
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                        found.append(FileStat(place, status.st_size, version))
        except OSError:
            pass  # taken away while we looked
        finally:
            os.close(fd)

    def _descend(
        self, name: str, parent: int, path: str, leave_out: str | None, found: list[FileStat], depth: int
    ) -> None:
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            return
        try:
            if os.fstat(directory).st_dev == self._device:
                self._walk(directory, path, leave_out, found, depth)
        except OSError:
            pass  # unreadable, by the program's own doing
        finally:
            os.close(directory)


@contextlib.contextmanager
def _our_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind, what = _KINDS.get(error.errno or 0, ("denied", f"cannot be used: {error.strerror}"))
        raise FileError(f"{path} {what}", kind) from None


def _is_directory(name: str, directory: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _is_text(name: str) -> bool:
    return name.isprintable()  # also false for the surrogates that stand for bytes outside UTF-8


def _read(fd: int, size: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := os.read(fd, min(size, _CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
