"""Has files of the host made ready for a volume: lent read-only where the program may read them, copied where not."""

from __future__ import annotations

import errno
import marshal
import os
import socket
import stat
from collections.abc import Callable, Sequence

from ..descriptors import exhausted
from ..errors import BadArgument, EngineFailed
from . import frames
from .diagnose import errno_name, fix_for
from .launch import Launched, host_executable

_ANSWER_S = 60.0
_MAX_TREES = 2
_MB = 1024 * 1024
PROGRESS_BYTES = 50 * _MB

Progress = Callable[[str], None]


def lend(
    datasets: Sequence[tuple[str, str]],
    packages: str | None,
    *,
    reader: int | None,
    disk_bytes: int,
    progress: Progress | None,
) -> list[int]:
    """Detached mounts: one with all datasets, if there are any, then that of the packages, if there are any.

    `reader`: the user who must be able to read them, where that is not us.
    """
    if not datasets and packages is None:
        return []
    sizes = {name: size_of(name, path) for name, path in datasets}
    copied = {name for name, path in datasets if reader is not None and not _may_read(path, reader)}
    copied_bytes = sum(sizes[name] for name in copied)
    if copied_bytes > disk_bytes:
        raise BadArgument(
            f"dataset {sorted(copied)[0]!r} can be read by root alone, so it must be copied, and"
            f" {copied_bytes // _MB} MB do not fit in {disk_bytes // _MB} MB:"
            " let others read it (chmod o+r), or raise SANDBOX_DISK_MB"
        )
    order = {
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "packages": packages,
        "datasets": [(name, os.path.realpath(path), name in copied) for name, path in datasets],
        "copied_bytes": copied_bytes,
    }
    mounter = Launched(host_executable(), "mounter")
    try:
        trees = _wait(mounter, marshal.dumps(order), sizes, progress)
    finally:
        mounter.end()
    if len(trees) < bool(datasets) + (packages is not None):  # they came, and we had no room for them
        for tree in trees:
            os.close(tree)
        raise EngineFailed(exhausted(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    return trees


def copy(source: str, target: str, name: str, owner: int | None, progress: Progress | None) -> None:
    """For a sandbox that cannot be lent anything."""
    size = size_of(name, source)
    done = 0
    with open(source, "rb") as reading, open(target, "xb") as writing:
        while chunk := reading.read(4 * _MB):
            writing.write(chunk)
            done += len(chunk)
            tell(progress, name, done, size)
        if owner is not None:
            os.fchown(writing.fileno(), owner, owner)


def _wait(mounter: Launched, order: bytes, sizes: dict[str, int], progress: Progress | None) -> list[int]:
    mounter.socket.settimeout(_ANSWER_S)
    try:
        mounter.socket.send(order)
        while True:
            frame, fds, _, _ = socket.recv_fds(mounter.socket, frames.MAX_FRAME, _MAX_TREES)
            kind = frame[:1]
            if kind == frames.COPIED:
                name, done = frames.parse_copied(frame)
                tell(progress, name, done, sizes.get(name, 0))
            elif kind == frames.MADE:
                return fds
            elif kind == frames.FAILED:
                failure = frames.parse_failure(frame)
                raise EngineFailed(
                    f"files could not be lent to a sandbox: {failure.step} failed with {errno_name(failure.errno)}"
                    f" ({failure.detail}); {fix_for(failure.step, failure.errno)}"
                )
            else:
                said = os.pread(mounter.messages, 2000, 0).decode("utf-8", "replace").strip()
                raise EngineFailed(f"the process that lends files to a sandbox ended{': ' + said if said else ''}")
    except frames.Garbled:
        raise EngineFailed("the process that lends files said what nobody understands; try again") from None
    except TimeoutError:
        raise EngineFailed(f"files could not be lent to a sandbox in {_ANSWER_S:.0f} s; try again") from None


def tell(progress: Progress | None, name: str, done: int, size: int) -> None:
    """How far the copy of a large dataset is."""
    if progress is not None and size > PROGRESS_BYTES:
        progress(f"copying {name}: {done // _MB} of {size // _MB} MB")


def size_of(name: str, path: str) -> int:
    """Of a dataset, which must be a regular file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadArgument(
            f"dataset {name!r}: {path} cannot be read ({error.strerror}); give a file that exists"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise BadArgument(f"dataset {name!r}: {path} is not a regular file; copy what is in it to one")
    return status.st_size


def _may_read(path: str, reader: int) -> bool:
    status = os.stat(path)
    return bool(status.st_mode & (stat.S_IRUSR if status.st_uid == reader else stat.S_IROTH))
