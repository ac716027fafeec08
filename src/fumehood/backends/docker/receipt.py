"""The receipt of a container: what the engine was asked for, held against what the guest sees from the inside.

An engine repeats what it was asked for, whether or not it holds; so each line needs the word of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...errors import IsolationUnavailable
from ...types import AXES, LEVELS, Axis, Level, Receipt
from .body import HOME, SHM, TMP, USER, WORKSPACE

_MIB = 1024 * 1024
_PAGE = 4096
_BOUNDARY = ("files", "network", "processes", "ipc", "syscalls", "privileges")
_SILENT = ("runsc", "kata")  # kernels of their own, which do not show the host's locks inside
_KERNEL = ("/sys/kernel", "/sys/module")  # not every engine masks more than its own list
_OURS = (WORKSPACE, TMP, HOME, SHM)
_READ_ONLY_FIX = "the engine did not keep the root read-only: use another engine or runtime"


def write(body: Mapping[str, Any], inspect: Mapping[str, Any], inside: Mapping[str, Any]) -> Receipt:
    """`body` is what was asked for."""
    asked: Mapping[str, Any] = body["HostConfig"]
    has: Mapping[str, Any] = inspect.get("HostConfig") or {}
    runtime = runtime_of(inspect)
    is_silent = has_own_kernel(inspect)
    checked = {
        "files": _files(asked, has, inspect, inside),
        "network": _network(asked, has, inside),
        "processes": _processes(asked, has, inside, is_silent),
        "ipc": _ipc(has),
        "syscalls": _syscalls(has, inside, is_silent),
        "privileges": _privileges(has, inside, is_silent),
        "memory": _memory(asked, has, inside, is_silent),
        "cpu": _cpu(asked, has, inside, is_silent),
        "disk": _disk(inside),
    }
    axes = {
        name: checked[name]._replace(mechanism=f"hardened container ({runtime}): {checked[name].mechanism}")
        for name in AXES
    }
    levels = [axes[name].level for name in _BOUNDARY if name != "network" or asked["NetworkMode"] == "none"]
    return Receipt(_weakest(levels), axes)


def runtime_of(inspect: Mapping[str, Any]) -> str:
    name = str((inspect.get("HostConfig") or {}).get("Runtime") or inspect.get("OCIRuntime") or "runc")
    return name.removeprefix("io.containerd.").split(".v")[0]


def has_own_kernel(inspect: Mapping[str, Any]) -> bool:
    return any(name in runtime_of(inspect) for name in _SILENT)


def hold_to(require: str | None, receipt: Receipt) -> None:
    if require is None or LEVELS.index(receipt.level) >= LEVELS.index(require):
        return
    name, axis = next((name, axis) for name, axis in receipt.axes.items() if axis.step is not None)
    raise IsolationUnavailable(
        f"{require!r} isolation is required (SANDBOX_REQUIRE) and this Docker engine gives {receipt.level!r}:"
        f" {name}, {axis.mechanism}; {axis.fix}",
        step=axis.step,
        fix=axis.fix,
    )


def _weakest(levels: list[Literal["sealed", "confined", "process", "none"]]) -> Level:
    if any(level in ("none", "process") for level in levels):
        return "process"
    return "confined" if "confined" in levels else "sealed"


def _files(
    asked: Mapping[str, Any], has: Mapping[str, Any], inspect: Mapping[str, Any], inside: Mapping[str, Any]
) -> Axis:
    options = _mount(inside, "/")[1].split(",")
    if has.get("ReadonlyRootfs") is not True or "ro" not in options:
        return Axis("process", "its own root, which can be written to", step="readonly_root", fix=_READ_ONLY_FIX)
    lent = {mount["Target"] for mount in asked.get("Mounts", ())}
    others = [
        mount.get("Destination")
        for mount in inspect.get("Mounts") or ()
        if mount.get("Destination") not in lent and mount.get("Type") != "tmpfs"
    ]
    if others or has.get("Binds") or has.get("Privileged"):
        more = ", ".join(map(str, others)) or "all devices"
        return Axis("none", f"more of the host is shown: {more}", step="mounts", fix="use an image without VOLUME")
    masked = [path for path in _KERNEL if _mount(inside, path)[0]]
    return Axis("sealed", f"own read-only root, private tmpfs{', masked ' if masked else ''}{' and '.join(masked)}")


def _network(asked: Mapping[str, Any], has: Mapping[str, Any], inside: Mapping[str, Any]) -> Axis:
    if asked["NetworkMode"] != "none":
        return Axis("none", "the engine's network, as asked with network=True or DOCKER_NETWORK_ENABLED")
    interfaces = inside.get("interfaces")
    if has.get("NetworkMode") != "none" or not isinstance(interfaces, list) or set(interfaces) - {"lo"}:
        fix = "the engine gave it a network all the same: use another engine or runtime"
        return Axis("none", f"interfaces {interfaces}", step="network_none", fix=fix)
    return Axis("sealed", "own network namespace, loopback only")


def _processes(asked: Mapping[str, Any], has: Mapping[str, Any], inside: Mapping[str, Any], is_silent: bool) -> Axis:
    most = asked["PidsLimit"]
    if has.get("PidMode") not in (None, "", "private"):
        return Axis("none", "the host's processes are visible", step="pid_namespace", fix="use another engine")
    if has.get("PidsLimit") == most and (is_silent or (inside.get("cgroup") or {}).get("processes") == most):
        return Axis("sealed", f"own pid namespace; cgroup pids, at most {most}")
    fix = "the engine cannot limit processes: enable the pids controller of control groups on its machine"
    return Axis("confined", "own pid namespace; no bound on their number", step="pids_limit", fix=fix)


def _ipc(has: Mapping[str, Any]) -> Axis:
    if has.get("IpcMode") in ("none", "private", "shareable"):  # the last is Podman's word for one's own
        return Axis("sealed", "own ipc namespace, no message queues")
    return Axis("none", "ipc shared with others", step="ipc_namespace", fix="use another engine")


def _syscalls(has: Mapping[str, Any], inside: Mapping[str, Any], is_silent: bool) -> Axis:
    unconfined = any("unconfined" in option for option in has.get("SecurityOpt") or ())
    if is_silent:
        return Axis("sealed", "seccomp allow-list, on a kernel of the runtime's own")
    if inside.get("seccomp") == 2 and not unconfined:
        return Axis("sealed", "seccomp allow-list of ours, on top of the engine's profile")
    fix = "the engine runs without its seccomp profile: start it with the default one"
    return Axis("confined", "seccomp allow-list of ours alone", step="seccomp_profile", fix=fix)


def _privileges(has: Mapping[str, Any], inside: Mapping[str, Any], is_silent: bool) -> Axis:
    sets = inside.get("capabilities") or {}
    held = [name for name, value in sets.items() if value not in (0, -1)]
    dropped = has.get("CapDrop") and not has.get("CapAdd") and not has.get("Privileged")
    if held or not sets or not dropped:
        fix = "the engine did not drop all capabilities: use another engine or runtime"
        return Axis("process", f"capabilities are left: {', '.join(held)}", step="drop_capabilities", fix=fix)
    if inside.get("uid") != USER or inside.get("gid") != USER:
        return Axis("process", f"user {inside.get('uid')}", step="user", fix="use an image with this user")
    if inside.get("no_new_privs") != 1 and not is_silent:
        fix = "the engine did not set no_new_privs: use another engine or runtime"
        return Axis("confined", "no capabilities; no_new_privs by ourselves alone", step="no_new_privileges", fix=fix)
    return Axis("sealed", f"user {USER}, no capabilities, no_new_privs")


def _memory(asked: Mapping[str, Any], has: Mapping[str, Any], inside: Mapping[str, Any], is_silent: bool) -> Axis:
    most = asked["Memory"]
    mechanism = f"cgroup memory, {most // _MIB} MiB for programs and files together"
    if has.get("Memory") != most or not _shows(inside, "memory_bytes", most, is_silent):
        fix = "the engine cannot limit memory: enable the memory controller of control groups on its machine"
        return Axis("none", "no bound", step="memory_limit", fix=fix)
    if has.get("MemorySwap") != most or not _shows(inside, "memory_and_swap_bytes", most, is_silent):
        fix = "the engine cannot limit swap: start its machine's kernel with swapaccount=1, or turn swap off there"
        return Axis("confined", f"{mechanism}; swap comes on top", step="swap_limit", fix=fix)
    return Axis("sealed", f"{mechanism}, no swap")


def _cpu(asked: Mapping[str, Any], has: Mapping[str, Any], inside: Mapping[str, Any], is_silent: bool) -> Axis:
    cpus = asked["NanoCpus"] / 1e9
    seen = (inside.get("cgroup") or {}).get("cpus")
    agrees = is_silent or (isinstance(seen, (int, float)) and abs(seen - cpus) < 0.011)
    if has.get("NanoCpus") == asked["NanoCpus"] and agrees:
        return Axis("sealed", f"cgroup cpu, {cpus:g} CPUs; deadline and RLIMIT_CPU per process")
    fix = "the engine cannot limit CPUs: enable the cpu controller of control groups on its machine"
    return Axis("process", "deadline and RLIMIT_CPU per process", step="cpu_limit", fix=fix)


def _disk(inside: Mapping[str, Any]) -> Axis:
    mounts = {path: _mount(inside, path) for path in _OURS}
    unbounded = [path for path, (kind, options) in mounts.items() if kind != "tmpfs" or "size=" not in options]
    if unbounded:
        fix = "the engine ignored the size of a tmpfs: use another engine or runtime"
        return Axis("none", f"no bound on {', '.join(unbounded)}", step="tmpfs_size", fix=fix)
    if any("nr_inodes=" not in options for _, options in mounts.values()):
        fix = "this runtime does not bound the number of files on a tmpfs; memory bounds them"
        return Axis("confined", "tmpfs, size bounded; RLIMIT_FSIZE", step="tmpfs_inodes", fix=fix)
    return Axis("sealed", "tmpfs, size and inodes bounded, within the memory; RLIMIT_FSIZE")


def _shows(inside: Mapping[str, Any], name: str, value: int, is_silent: bool) -> bool:
    group = inside.get("cgroup") or {}
    if is_silent and not group.get("version"):
        return True
    seen = group.get(name)
    return isinstance(seen, int) and value - _PAGE < seen <= value  # the kernel cuts bytes to whole pages


def _mount(inside: Mapping[str, Any], path: str) -> tuple[str, str]:
    found = (inside.get("mounts") or {}).get(path)
    if isinstance(found, list) and len(found) == 2:
        return str(found[0]), str(found[1])
    return "", ""
