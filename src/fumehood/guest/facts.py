"""What the first process of a container sees of what holds it, told before any program runs."""

from __future__ import annotations

import os
import resource
import sys

from . import wire
from .procfs import number, read
from .rlimits import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GROUPS = "/sys/fs/cgroup"
_SETS = {"inheritable": b"CapInh:", "permitted": b"CapPrm:", "effective": b"CapEff:", "bounding": b"CapBnd:"}
_MAX_MOUNTS = 64
_UNLIMITED = 1 << 60  # version 1 of control groups has no word for it


def facts() -> dict[str, Any]:
    status = read("/proc/self/status")
    sets = {**_SETS, "ambient": b"CapAmb:"}
    return {
        "protocol": wire.PROTOCOL,
        "python": ".".join(map(str, sys.version_info[:3])),
        "machine": os.uname().machine,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(set(os.getgroups()) - {os.getgid()}),
        "no_new_privs": number(status, b"NoNewPrivs:"),
        "seccomp": number(status, b"Seccomp:"),
        "capabilities": {name: _hex_after(status, label) for name, label in sets.items()},
        "limits": {name: resource.getrlimit(number)[1] for name, number in NUMBERS.items()},
        "cgroup": _group(),
        "mounts": _mounts(),
        "interfaces": _interfaces(),
    }


def _hex_after(text: bytes, name: bytes) -> int:
    start = text.find(name)
    return int(text[start + len(name) :].split(None, 1)[0], 16) if start >= 0 else -1


def _group() -> dict[str, Any]:
    if os.path.exists(f"{_GROUPS}/cgroup.controllers"):
        memory, swap = _number("memory.max"), _number("memory.swap.max")
        quota, _, period = read(f"{_GROUPS}/cpu.max").decode().partition(" ")
        return {
            "version": 2,
            "memory_bytes": memory,
            "memory_and_swap_bytes": memory + swap if memory is not None and swap is not None else None,
            "processes": _number("pids.max"),
            "cpus": int(quota) / int(period) if quota.isdigit() else None,
        }
    quota_us, period_us = _number("cpu/cpu.cfs_quota_us"), _number("cpu/cpu.cfs_period_us")
    return {
        "version": 1 if os.path.isdir(f"{_GROUPS}/memory") else 0,
        "memory_bytes": _number("memory/memory.limit_in_bytes"),
        "memory_and_swap_bytes": _number("memory/memory.memsw.limit_in_bytes"),
        "processes": _number("pids/pids.max"),
        "cpus": quota_us / period_us if quota_us and period_us else None,
    }


def _number(name: str) -> int | None:
    text = read(f"{_GROUPS}/{name}").strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _mounts() -> dict[str, list[str]]:
    """Where: what kind, and its options with those of the file system."""
    found: dict[str, list[str]] = {}
    for line in read("/proc/self/mountinfo").decode("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind_and_options = left.split(), right.split()
        if len(fields) > 5 and len(kind_and_options) > 2 and len(found) < _MAX_MOUNTS:
            found[fields[4]] = [kind_and_options[0], f"{fields[5]},{kind_and_options[2]}"]
    return found


def _interfaces() -> list[str]:
    lines = read("/proc/self/net/dev").decode("utf-8", "replace").splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]
