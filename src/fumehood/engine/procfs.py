"""Files of /proc, read in one go."""

from __future__ import annotations

import os


def read(path: str, size: int = 4096) -> bytes:
    """What is there; nothing if it is gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def has_ended(pid: str) -> bool:
    """Whether it runs no more; one that its parent has not asked about yet is still listed."""
    state = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
    return state[0] in (b"Z", b"X") if state else not os.path.exists(f"/proc/{pid}")
