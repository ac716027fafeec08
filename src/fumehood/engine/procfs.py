"""Whether a process of this host runs."""

from __future__ import annotations

import os

from ..guest.procfs import STATE, stat


def has_ended(pid: str) -> bool:
    """Whether it runs no more; one that its parent has not asked about yet is still listed."""
    fields = stat(pid)
    return fields[STATE] in (b"Z", b"X") if fields else not os.path.exists(f"/proc/{pid}")
