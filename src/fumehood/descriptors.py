"""How many file descriptors this process may open, and what to say when the kernel has no further one for us."""

from __future__ import annotations

import errno

_CAUSES = {
    errno.EMFILE: ("this process has no descriptors left", "ulimit -n 8192"),
    errno.ENFILE: ("this machine has no descriptors left", "sysctl fs.file-max"),
    errno.ETOOMANYREFS: (
        "this user has too many descriptors on their way through sockets",
        "ulimit -n 8192",
    ),
}
NO_WATCHES = (
    "no event loop can be started: this user's processes hold every epoll watch that the kernel allows them; end those"
    " that do, or raise the limit: sysctl fs.epoll.max_user_watches"
)


def exhausted(error: OSError) -> str | None:
    """The cause and what to do about it; None for any other error."""
    if error.errno not in _CAUSES:
        return None
    cause, fix = _CAUSES[error.errno]
    return f"{cause} ({error.strerror}): close sessions, or raise the limit: {fix}"


def allow(wanted: int) -> int:
    """Raise our own limit where it is lower and may be raised; how many there may be now."""
    import resource  # whoever opens few does without

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted and (hard == resource.RLIM_INFINITY or hard > soft):
        more = max(4096, 2 * wanted)
        soft = more if hard == resource.RLIM_INFINITY else min(more, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
