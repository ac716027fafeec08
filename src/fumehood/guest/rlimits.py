"""The limits that the kernel holds for each process. Standard library only."""

from __future__ import annotations

import resource

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_LIMIT = 1 << 30
NUMBERS = {
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "file": resource.RLIMIT_FSIZE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "message_queues": resource.RLIMIT_MSGQUEUE,
    "nice": resource.RLIMIT_NICE,
    "open_files": resource.RLIMIT_NOFILE,
    "pending_signals": resource.RLIMIT_SIGPENDING,
    "processes": resource.RLIMIT_NPROC,
    "realtime": resource.RLIMIT_RTPRIO,
}


def no_core(pattern: str = "/proc/sys/kernel/core_pattern") -> int:
    """The limit that means no core dump here: where the kernel hands them to a program of the host, 0 does not."""
    try:
        with open(pattern, "rb") as file:
            return 1 if file.read(1) == b"|" else 0
    except OSError:
        return 1


def allow_all_open_files() -> None:
    """Descriptors on their way through sockets are counted for the user, and who sends is held to its own limit: above
    that of programs, none of them can use up what is needed to make others."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open_files() -> int:
    """For a program: below our own limit by more than the one message of 253 that may go beyond the program's."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _NO_LIMIT if hard == resource.RLIM_INFINITY else max(hard - 320, hard // 2)


def apply(limits: Iterable[tuple[str, int]]) -> None:
    """No higher than they are now: that would be refused."""
    for name, value in limits:
        number = NUMBERS[name]
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(number, (value, value))
