"""Processes that a test knows by a number of seconds that nobody else sleeps."""

from __future__ import annotations

import os
import secrets

from support import HANG_S, wait_until


def new_marker() -> str:
    """An argument for `sleep`. All have one length, so that none is part of another."""
    return f"{10**11 + secrets.randbelow(9 * 10**11)}.75"


def alive(marker: str) -> bool:
    """Whether any process of this machine has the marker on its command line."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if marker.encode() in file.read():
                    return True
        except OSError:
            continue
    return False


def is_up(marker: str, within_s: float = HANG_S) -> bool:
    return wait_until(lambda: alive(marker), within_s)  # for an instant after exec there is no command line yet


def gone(marker: str, within_s: float = HANG_S) -> bool:
    return wait_until(lambda: not alive(marker), within_s)
