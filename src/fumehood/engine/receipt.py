"""Writes the receipt from what was done: each line names the mechanism that a step of the plan has put in place."""

from __future__ import annotations

from typing import NamedTuple

from ..types import AXES, Axis, Level, Limits, Receipt
from .cgroup_home import Home, Unavailable
from .diagnose import errno_name, fix_for
from .frames import Failure
from .plan import SOCKET_BYTES, most_sockets

_NO_METADATA = "contents only: modes, times and attributes of the user's own files can be changed"


class Enforced(NamedTuple):
    """What the steps that succeeded amount to."""

    level: Level
    network: bool
    seccomp: bool
    landlock: int  # ABI, 0 for none
    own_proc: bool
    counts_sockets: bool
    fences_metadata: bool
    became_unprivileged: bool
    is_root: bool
    groups: Home | Unavailable
    failure: Failure | None = None  # why no stronger level
    fix: str | None = None


def write(enforced: Enforced, limits: Limits) -> Receipt:
    axes = _sealed_axes(enforced) if enforced.level == "sealed" else _open_axes(enforced)
    axes["memory"] = _memory(enforced, limits)
    axes["processes"] = _processes(enforced, limits, axes["processes"])
    axes["cpu"] = _cpu(enforced)
    return Receipt(enforced.level, {name: _explain(axes[name], enforced) for name in AXES})


def _explain(axis: Axis, enforced: Enforced) -> Axis:
    """Where a whole level is missing, every weaker axis says which step failed."""
    if enforced.failure is None or axis.step is not None or axis.level == "sealed":
        return axis
    return axis._replace(step=enforced.failure.step, errno=errno_name(enforced.failure.errno), fix=enforced.fix)


def _sealed_axes(enforced: Enforced) -> dict[str, Axis]:
    network = Axis("sealed", "own network namespace, loopback only")
    if enforced.network:
        network = Axis("none", "the host's network, as asked with network=True")
    proc = "own /proc" if enforced.own_proc else "no /proc"
    return {
        "files": Axis("sealed", "own root: read-only binds of the interpreter and the system, private tmpfs"),
        "network": network,
        "processes": Axis("sealed", f"own pid namespace, {proc}"),
        "ipc": Axis("sealed", "own ipc namespace" + ("" if enforced.network else " and network namespace")),
        "syscalls": Axis("sealed", "seccomp allow-list"),
        "privileges": Axis("sealed", "own user namespace, no capabilities, no_new_privs"),
        "disk": Axis("sealed", "one tmpfs, size and inodes bounded; RLIMIT_FSIZE"),
    }


def _open_axes(enforced: Enforced) -> dict[str, Axis]:
    confined = enforced.level == "confined"
    files = Axis("none", "private working directory only; the host's files are visible")
    if confined and not enforced.landlock:
        files = files._replace(step="landlock", errno="ENOSYS", fix=fix_for("landlock", 0))
    if enforced.landlock:
        files = Axis("confined", f"Landlock ABI {enforced.landlock}: interpreter and system read-only, own directory")
        if not enforced.fences_metadata:
            files = files._replace(mechanism=f"{files.mechanism}; {_NO_METADATA}")
    network = Axis("none", "the host's network")
    if enforced.seccomp and not enforced.network:
        network = Axis("confined", "seccomp: local sockets only")
    scoped = "; abstract sockets scoped by Landlock" if enforced.landlock >= 6 else ""
    identity = "unprivileged user"
    if enforced.is_root and not enforced.became_unprivileged:
        identity = "root without capabilities" if confined else "root"
    return {
        "files": files,
        "network": network,
        "processes": Axis("process", "own session, orphans adopted and killed"),
        "ipc": Axis("none", "the host's System V and POSIX objects and UNIX sockets" + scoped),
        "syscalls": Axis("confined", "seccomp allow-list") if enforced.seccomp else Axis("none", "every system call"),
        "privileges": Axis("confined" if confined else "process", f"{identity}, no_new_privs"),
        "disk": Axis("process", "RLIMIT_FSIZE for each file; no bound on their number"),
    }


def _memory(enforced: Enforced, limits: Limits) -> Axis:
    mib = limits.memory_bytes // (1024 * 1024)
    groups = enforced.groups
    strongest: Level = "sealed" if enforced.level == "sealed" else "confined"
    if isinstance(groups, Home) and "memory" in groups.directories:
        return Axis(strongest, f"{groups.mechanism}, {mib} MiB for the whole tree{_buffers(enforced, limits)}")
    reason = groups.missing["memory"] if isinstance(groups, Home) else groups
    watched = enforced.own_proc or enforced.level != "sealed"
    return Axis(
        "process" if watched else "none",
        f"watch over the tree every 20 ms, {mib} MiB{_buffers(enforced, limits)}"
        if watched
        else "no control group, and no /proc to watch it by",
        step=reason.step,
        errno=errno_name(reason.errno),
        fix=reason.fix if watched else fix_for("proc", reason.errno),
    )


def _buffers(enforced: Enforced, limits: Limits) -> str:
    if enforced.counts_sockets:
        return f"; socket buffers beside, up to {2 * most_sockets(limits) * SOCKET_BYTES >> 20} MiB"
    return "; socket buffers are not counted" if enforced.level == "sealed" else ""


def _cpu(enforced: Enforced) -> Axis:
    mechanism = "deadline and RLIMIT_CPU per process"
    if isinstance(enforced.groups, Home) and "cpu" in enforced.groups.directories:
        mechanism += f"; {enforced.groups.mechanism}, one share of the cores"
    return Axis("sealed" if enforced.level == "sealed" else "process", mechanism)


def _processes(enforced: Enforced, limits: Limits, axis: Axis) -> Axis:
    groups = enforced.groups
    if isinstance(groups, Home) and "pids" in groups.directories:
        return axis._replace(mechanism=f"{axis.mechanism}; {groups.mechanism}, at most {limits.processes}")
    if enforced.level == "sealed":
        return axis._replace(mechanism=f"{axis.mechanism}; RLIMIT_NPROC, at most {limits.processes}")
    reason = groups.missing["pids"] if isinstance(groups, Home) else groups
    bound = f"RLIMIT_NPROC, at most {limits.processes} more of this user"
    if enforced.is_root and not enforced.became_unprivileged:
        bound = "no bound on their number"  # the kernel's limit does not hold for root
    axis = axis._replace(mechanism=f"{axis.mechanism}; {bound}")
    return axis._replace(step=reason.step, errno=errno_name(reason.errno), fix=reason.fix)
