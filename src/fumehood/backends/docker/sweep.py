"""Containers that a crashed owner left: found by their labels, and never anybody else's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

from .client import Client, Refused

OWNER, NAMESPACE, EXPIRES = "io.fumehood.owner", "io.fumehood.namespace", "io.fumehood.expires"


async def sweep(client: Client, is_known: Callable[[str], bool]) -> None:
    """Remove what is ours to remove; `is_known` says whether this process still cares for one of its own."""
    filters = json.dumps({"label": [OWNER]})
    for container in await client.ask("GET", "/containers/json", all="1", filters=filters):
        labels = container.get("Labels") or {}
        is_lost = labels.get(OWNER) == own_labels()[OWNER] and not any(map(is_known, container.get("Names") or ()))
        if is_lost or is_left_over(labels):
            try:
                await client.ask("DELETE", f"/containers/{container['Id']}", force="1", v="1")
            except Refused:
                pass  # somebody else was faster


def own_labels() -> dict[str, str]:
    return {OWNER: f"{_boot()}:{os.getpid()}:{_started(os.getpid())}", NAMESPACE: _namespace()}


def is_left_over(labels: Mapping[str, str]) -> bool:
    """Its owner is dead; or nobody here can tell, and its time is over."""
    boot, _, rest = labels.get(OWNER, "").partition(":")
    pid, _, started = rest.partition(":")
    is_of_here = boot and boot == _boot() and labels.get(NAMESPACE) == _namespace()  # elsewhere its pid is another's
    if is_of_here and pid.isdigit() and started.isdigit():
        return not _lives(int(pid), started)
    expires = labels.get(EXPIRES, "")
    return expires.isdigit() and time.time() > int(expires)


def _lives(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # of another user
    return _started(pid) in (started, "")


def _started(pid: int) -> str:
    """In clock ticks since the machine's start, 0 once it has ended; nothing where /proc does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "0" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
