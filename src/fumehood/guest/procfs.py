"""Files of /proc and of control groups, read so that nothing a process calls itself is taken for the kernel's word."""

from __future__ import annotations

import os

_CHUNK, _MOST = 4096, 1 << 20
_MAX_DIGITS = 20  # of what fits into 64 bits
STATE, PARENT, USER, SYSTEM, WAITED_USER, WAITED_SYSTEM, THREADS, STARTED = 0, 1, 11, 12, 13, 14, 17, 19  # in `stat`


def read(path: str) -> bytes:
    """What there is of a small file; nothing of one that is gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, _CHUNK)
        while data and len(data) < _MOST and (more := os.read(fd, _CHUNK)):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)


def stat(pid: int | str) -> list[bytes]:
    """What stands behind the name in /proc/PID/stat; nothing if it is gone. The name may have anything in it."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields if len(fields) > STARTED else []


def number(text: bytes, name: bytes) -> int:
    """In the last line that begins so, or 0: a process's own name stands in the first, and is whatever it likes."""
    for line in reversed(text.split(b"\n")):
        if line.startswith(name):
            words = line[len(name) :].split(None, 1)
            return int(words[0]) if words and words[0].isdigit() and len(words[0]) <= _MAX_DIGITS else 0
    return 0
