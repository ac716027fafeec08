"""Files of /proc and of control groups, read so that nothing a process calls itself is taken for the kernel's word."""

from __future__ import annotations

import os

_CHUNK = 4096
_MOST = 1 << 20
_MAX_DIGITS = 20  # of what fits into 64 bits
STATE, PARENT, USER, SYSTEM, WAITED_USER, WAITED_SYSTEM, THREADS, STARTED = 0, 1, 11, 12, 13, 14, 17, 19  # in `stat`


def read(path: str, most: int = _MOST) -> bytes:
    """What there is of a small file; nothing of one that is gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, _CHUNK)
        if not data or not (more := os.read(fd, _CHUNK)):
            return data
        parts, size = [data], len(data)
        while more:
            parts.append(more)
            size += len(more)
            more = os.read(fd, _CHUNK) if size < most else b""
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


class Reading:
    """A file that is read again and again: once it is `open`, in one call. One that is gone reads as empty."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # it is opened for each

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def read(self) -> bytes:
        if self._fd < 0:
            return read(self._path)
        try:
            return os.pread(self._fd, _CHUNK, 0)
        except OSError:
            return b""


def stat(pid: int | str) -> list[bytes]:
    """What stands behind the name in /proc/PID/stat; nothing if it is gone. The name may have anything in it."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields if len(fields) > STARTED else []


def number(text: bytes, name: bytes) -> int:
    """In the last line that begins so, or 0: a process's own name stands in the first, and is whatever it likes."""
    start = (b"\n" + text).rfind(b"\n" + name)
    if start < 0:
        return 0
    words = text[start + len(name) :].partition(b"\n")[0].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() and len(words[0]) <= _MAX_DIGITS else 0
