"""Bounds the sockets of a cell: their buffers are memory of no process, and the kernel charges much of it to nobody.

Only a filter sees each socket before it is there. It asks the first process of the cell, which counts them. The same
goes for locks of files, for epoll instances, whose watches are counted for the host's user, and for shared memory
without a name, where no control group counts it.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from ..guest.procfs import number, read
from . import _syscalls as sys_calls
from . import tree

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
_LONG_S, _RESTS = 0.01, 20  # to count them; then it is not done again for so many times as long
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
    def __init__(self, listener: int, most_sockets: int, most_shared: int, is_shared_gone: Callable[[], bool]):
        """`most_shared`: bytes of memory without a name, all that was ever asked for until `is_shared_gone`."""
        self._listener = listener
        self._most_sockets = most_sockets
        self._most_shared = most_shared
        self._is_shared_gone = is_shared_gone
        self._shared = 0
        self._locks = self._epolls = 0  # at most: each may have replaced another
        self._count_again = 0.0

    def answer(self) -> None:
        """One question. Whoever asked may be gone."""
        try:
            question = sys_calls.receive_question(self._listener)
            if question.call == "mmap":
                _, size, _, flags, fd, _ = question.arguments
                is_file = not flags & _MAP_ANONYMOUS and _is_file(question.pid, fd)
                refusal = 0 if is_file else self._share(size)
            elif question.call == "fcntl":
                refusal = self._lock()
            else:
                refusal = self._wait() if question.call.startswith("epoll") else self._open()
            sys_calls.answer_question(self._listener, question, refusal, goes_on=not refusal)
        except OSError:
            pass

    def _open(self) -> int:
        used = number(read("/proc/net/sockstat"), b"sockets: used ")
        return errno.ENOBUFS if used >= self._most_sockets else 0

    def _lock(self) -> int:
        if self._locks >= _MOST_LOCKS:
            self._locks = sum(b"OFDLCK" not in line for line in read("/proc/locks").splitlines())  # those are no cell's
        if self._locks >= _MOST_LOCKS:
            return errno.ENOLCK
        self._locks += 1
        return 0

    def _wait(self) -> int:
        now, began = time.monotonic(), time.thread_time()
        if self._epolls >= _MOST_EPOLLS and now >= self._count_again:
            self._epolls = sum(map(_epolls, tree.processes()))
            if (took_s := time.thread_time() - began) > _LONG_S:
                self._count_again = now + took_s * _RESTS
        if self._epolls >= _MOST_EPOLLS:
            return errno.EMFILE
        self._epolls += 1
        return 0

    def _share(self, size: int) -> int:
        if self._shared + size > self._most_shared and self._is_shared_gone():
            self._shared = 0
        if self._shared + size > self._most_shared:
            return errno.ENOMEM
        self._shared += size
        return 0


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
