"""A directory of records, held by a descriptor: nothing here follows a symlink that somebody planted in it."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .chain import MAX_RECORD_BYTES, NAME, Entry, unseal

if sys.platform != "win32":
    import fcntl

HEAD = ".head.json"
LOCK = ".lock"
# Only the holder of the lock writes, so each temporary file needs just one name.
PENDING = ".record.tmp"
HEAD_TEMP = ".head.tmp"

LOCK_TIMEOUT_S = 10.0
_BLOCK_BYTES = 4096


@contextmanager
def directory(path: Path, *, create: bool = False) -> Iterator[int]:
    """The directory's descriptor. Its last component may not be a symlink."""
    if create and not path.is_absolute():
        raise OSError("the working directory was deleted, and this path is relative to it")
    if sys.platform == "win32":
        raise OSError("records need directory descriptors and file locks, which this platform lacks")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        if not create:
            raise
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:  # another writer was quicker, or a dangling symlink, which open() refuses
            pass
        fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def locked(dir_fd: int, *, create: bool = True, timeout_s: float | None = None) -> Iterator[None]:
    """Be the only writer, across threads and processes. A stopped holder costs us the timeout, then TimeoutError."""
    deadline = time.monotonic() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
    flags = (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        fd = os.open(LOCK, flags, 0o600, dir_fd=dir_fd)
        try:
            _acquire(fd, deadline)
            if not _is_still(fd, LOCK, dir_fd):  # removed while we waited: others lock the new file
                continue
            try:
                yield
                return
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a child forked meanwhile holds a copy of this descriptor
        finally:
            os.close(fd)


def _acquire(fd: int, deadline: float) -> None:
    pause_s = 0.0002
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("another process holds the lock") from None
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def _is_still(fd: int, name: str, dir_fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


def exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read(dir_fd: int, name: str) -> bytes:
    """A regular file's bytes, or OSError; ValueError if it is something else or too large."""
    with _opened(dir_fd, name) as (fd, size):
        limit = MAX_RECORD_BYTES + 1024
        data = b""
        while len(data) <= limit:
            chunk = os.read(fd, min(size + 1, limit + 1))
            if not chunk:
                return data
            data += chunk
        raise ValueError(f"larger than {MAX_RECORD_BYTES} bytes")


def tail(dir_fd: int, name: str, most: int) -> bytes:
    """Its last bytes, in the same way."""
    with _opened(dir_fd, name) as (fd, size):
        return os.pread(fd, most, max(0, size - most))


@contextmanager
def _opened(dir_fd: int, name: str) -> Iterator[tuple[int, int]]:
    # O_NONBLOCK: opening a FIFO must not wait for its writer.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("not a regular file")
        yield fd, info.st_size
    finally:
        os.close(fd)


def read_entry(dir_fd: int, name: str) -> Entry:
    """A record, or the reason why not."""
    data = _read_or_reason(dir_fd, name)
    return unseal(name, data) if isinstance(data, bytes) else Entry(name, None, data)


def read_entry_with(dir_fd: int, name: str, text: bytes) -> Entry | None:
    """The same, or None if the text, as `escaped`, is nowhere in it: parsing a record costs more than reading it."""
    data = _read_or_reason(dir_fd, name)
    if not isinstance(data, bytes):
        return Entry(name, None, data)
    is_whole = data.startswith(b"{") and data.endswith(b"}\n")
    return None if is_whole and text not in data else unseal(name, data)


def escaped(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


def _read_or_reason(dir_fd: int, name: str) -> bytes | str:
    try:
        return read(dir_fd, name)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)


def write_temp(dir_fd: int, name: str, data: bytes) -> int:
    """A new private file with these bytes, complete or not there. Returns what it takes on the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    except FileExistsError:  # left by a writer that died
        os.unlink(name, dir_fd=dir_fd)
        fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            return _disk_bytes(os.fstat(fd))
    except BaseException:
        os.unlink(name, dir_fd=dir_fd)
        raise


def overwrite(dir_fd: int, name: str, data: bytes) -> bool:
    """Replace all bytes of our file by as many others, in one write; False if it is not such a file."""
    try:
        fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        # A second link could be somebody's file, planted for us to overwrite.
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_size != len(data):
            return False
        return os.pwrite(fd, data, 0) == len(data)
    finally:
        os.close(fd)


def rename(dir_fd: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def remove(dir_fd: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except OSError:
        return False
    return True


def disk_bytes(dir_fd: int, name: str) -> int:
    try:
        return _disk_bytes(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return 0


def _disk_bytes(info: os.stat_result) -> int:
    # Some file systems say only later how many blocks a file has.
    return max(info.st_blocks * 512, -(-info.st_size // _BLOCK_BYTES) * _BLOCK_BYTES)


def room(dir_fd: int, max_bytes: int) -> int:
    """What the records may take for the whole directory to take no more than `max_bytes`."""
    # A directory's own blocks are never given back on some file systems: they may not push out every record.
    own = min(os.fstat(dir_fd).st_blocks * 512, max_bytes // 2)
    return max(0, max_bytes - own - _BLOCK_BYTES)  # the head


def names(dir_fd: int) -> tuple[list[str], list[str]]:
    """The files named like records, oldest first (which is the chain's order), and what else lies here."""
    everything = os.listdir(dir_fd)
    ours = sorted(filter(NAME.fullmatch, everything))
    others = sorted({*everything}.difference(ours, (HEAD, LOCK, PENDING, HEAD_TEMP)))
    return ours, others
