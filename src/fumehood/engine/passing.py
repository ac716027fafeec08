"""Passes descriptors to a zygote."""

from __future__ import annotations

import errno
import socket


def pass_on(zygote: socket.socket, order: bytes, fds: list[int]) -> None:
    try:
        socket.send_fds(zygote, [order], fds)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        from ..guest.rlimits import allow_all_open_files  # a program of this user has many on their way

        allow_all_open_files()
        socket.send_fds(zygote, [order], fds)
