"""Bounds the sockets of a cell: their buffers are memory of no process, and the kernel charges much of it to nobody.

Only a filter sees each socket before it is there. It asks the first process of the cell, which counts them. The same
goes for locks of files, for epoll instances, whose watches are counted for the host's user, and for shared memory
without a name, where no control group counts it.
"""

from __future__ import annotations

import errno
import os
import stat

from ..guest.procfs import number, read
from . import _syscalls as sys_calls
from . import tree
from .bounds import Bound

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable

_BUFFERS = (
    ("tcp_rmem", "4096 65536 131072"),  # least, usual, most of one socket
    ("tcp_wmem", "4096 16384 65536"),
    ("tcp_max_tw_buckets", "4096"),  # of those that are closed
)
_MOST_LOCKS = 8192
_MOST_EPOLLS = 256  # as many as processes, by default
_MAP_ANONYMOUS = 0x20


def bound_buffers() -> None:
    """Of the network namespace that we are in, where TCP would grow them to megabytes."""
    for name, sizes in _BUFFERS:
        try:
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                file.write(sizes)
        except OSError:
            return  # no /proc, or one that cannot be written: then there is nobody to count them either


class Doorkeeper:
    def __init__(self, most_sockets: int, most_shared: int, is_shared_gone: Callable[[], bool]):
        """`most_shared`: bytes of memory without a name, all that was ever asked for until `is_shared_gone`."""
        self._most_sockets = most_sockets
        self._most_shared = most_shared
        self._is_shared_gone = is_shared_gone
        self._shared = 0
        self._locks = Bound(_MOST_LOCKS, errno.ENOLCK, _locks)
        self._epolls = Bound(_MOST_EPOLLS, errno.EMFILE, lambda: sum(map(_epolls, tree.processes())))

    def answer(self, question: sys_calls.Question) -> int | None:
        """The errno to refuse it with; None: it may go on."""
        if question.call == "mmap":
            _, size, _, flags, fd, _ = question.arguments
            is_file = not flags & _MAP_ANONYMOUS and _is_file(question.pid, fd)
            return None if is_file else self._share(size)
        if question.call == "fcntl":
            return self._locks.ask()
        return self._epolls.ask() if question.call.startswith("epoll") else self._open()

    def _open(self) -> int | None:
        used = number(read("/proc/net/sockstat"), b"sockets: used ")
        return errno.ENOBUFS if used >= self._most_sockets else None

    def _share(self, size: int) -> int | None:
        if self._shared + size > self._most_shared and self._is_shared_gone():
            self._shared = 0
        if self._shared + size > self._most_shared:
            return errno.ENOMEM
        self._shared += size
        return None


def _locks() -> int:
    return sum(b"OFDLCK" not in line for line in read("/proc/locks").splitlines())  # those are no cell's


def _is_file(pid: int, fd: int) -> bool:
    """Rather than /dev/zero, of which a shared mapping is memory without a name."""
    try:
        return stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{fd & 0xFFFFFFFF}").st_mode)
    except OSError:
        return False


def _epolls(pid: int) -> int:
    """That it has open. Who hides it has too many."""
    if pid == os.getpid():
        return 0
    place = f"/proc/{pid}/fd"
    found = 0
    try:
        for fd in os.listdir(place):
            try:
                found += os.readlink(f"{place}/{fd}") == "anon_inode:[eventpoll]"
            except FileNotFoundError:
                pass  # closed meanwhile
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    except OSError:
        return _MOST_EPOLLS
    return found
