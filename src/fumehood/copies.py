"""The directory on this machine that a session's output files are copied to.

Their names come from the program. Nothing is written but beneath the session's own directory: every part is opened
from the one above it, and no symlink is followed, wherever it came from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .paths import plain

_MAX_PART_BYTES = 200  # less than a file system's 255: a temporary name must fit as well
_MAX_BYTES = 1024
_MAX_DEPTH = 16
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Copies:
    """Writes beneath `<directory>/session_<id>`, made when the first file comes."""

    def __init__(self, directory: str, session_id: str) -> None:
        self._parent = directory
        self._name = f"session_{session_id}"
        self.directory = os.path.join(directory, self._name)

    def check(self, relative: str) -> None:
        """Raise ValueError for a name that is not safe to use here."""
        parts = relative.split("/")
        if any(part in ("", ".", "..") for part in parts) or not plain(relative) or "\\" in relative:
            raise ValueError("its name is not a plain relative one")
        if (
            len(parts) > _MAX_DEPTH
            or len(relative.encode()) > _MAX_BYTES
            or any(len(part.encode()) > _MAX_PART_BYTES for part in parts)
        ):
            raise ValueError("its name is too long")

    def save(self, relative: str, data: bytes) -> str:
        """Write one file, all of it or nothing, and return where it is."""
        self.check(relative)
        if not os.path.isabs(self._parent):
            raise ValueError(
                f"the working directory was deleted, and {self._parent} is relative to it;"
                " set SANDBOX_OUTPUT_DIR to an absolute path"
            )
        *directories, name = relative.split("/")
        try:
            os.makedirs(self._parent, exist_ok=True)
        except FileExistsError:
            raise ValueError(f"{self._parent} is not a directory; set SANDBOX_OUTPUT_DIR to one") from None
        with _opened(self._parent, follow=True) as top:
            self._save(top, [part.encode() for part in (self._name, *directories)], name.encode(), data)
        return os.path.join(self.directory, os.fsdecode(relative.encode()))  # as this machine's locale spells it

    def _save(self, above: int, directories: list[bytes], name: bytes, data: bytes) -> None:
        if not directories:
            _write(above, name, data)
            return
        with suppress(FileExistsError):
            os.mkdir(directories[0], dir_fd=above)
        with _opened(directories[0], dir_fd=above) as below:
            self._save(below, directories[1:], name, data)


@contextmanager
def _opened(path: str | bytes, dir_fd: int | None = None, *, follow: bool = False) -> Iterator[int]:
    flags = _DIRECTORY & ~getattr(os, "O_NOFOLLOW", 0) if follow else _DIRECTORY
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(dir_fd: int, name: bytes, data: bytes) -> None:
    temporary = f".{os.urandom(8).hex()}.part"
    fd = os.open(temporary, _FILE, 0o666, dir_fd=dir_fd)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)  # over a symlink, not through it
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
