"""What one end of a cell waits for. Nothing of it is taken from what the kernel counts per user, but for an event loop.

The programs of an ordinary user are that user's: they can hold every epoll watch it has.
"""

from __future__ import annotations

import select

READABLE, WRITABLE = select.POLLIN, select.POLLOUT  # epoll's own have the same numbers


class Watch:
    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}
        self._poll = select.poll()
        self._epoll: select.epoll | None = None

    def listen(self, fd: int, events: int = READABLE) -> None:
        """To these events from now on."""
        if self._epoll is not None:
            (self._epoll.modify if fd in self._wanted else self._epoll.register)(fd, events)
        self._poll.register(fd, events)
        self._wanted[fd] = events

    def ignore(self, fd: int) -> None:
        """Before it is closed."""
        if self._wanted.pop(fd, None) is not None:
            self._poll.unregister(fd)
            if self._epoll is not None:
                self._epoll.unregister(fd)

    def wait(self, timeout_s: float) -> list[int]:
        return [fd for fd, _ in self._poll.poll(timeout_s * 1000)]

    def fileno(self) -> int:
        """Readable when something has come. OSError: there is none to be had."""
        if self._epoll is None:
            epoll = select.epoll()
            try:
                for fd, events in self._wanted.items():
                    epoll.register(fd, events)
            except BaseException:
                epoll.close()
                raise
            self._epoll = epoll
        return self._epoll.fileno()

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
