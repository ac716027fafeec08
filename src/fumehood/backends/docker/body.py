"""Settings and a spec become the body of the request that creates a container. Decides everything, does nothing."""

from __future__ import annotations

import time
from typing import Any

from ...config import Settings
from ...types import Limits
from ..base import SandboxSpec
from . import sweep

WORKSPACE, TMP, HOME, SHM = "/workspace", "/tmp", "/home/sandbox", "/dev/shm"
PACKAGES = "/opt/packages"
USER = 1000
PATIENCE_S = 300.0  # a guest that hears nothing of its host for so long ends itself
WAITING_S = 3600.0  # longer than that no container waits for a program
# Docker's own list, what else tells of the host's kernel, and terminals, of which all containers share a few.
MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel", "/sys/module"),
    *("/sys/power", "/dev/pts"),
)
_MIB = 1024 * 1024
_LEAST = 4 * _MIB
_BOOT = (
    "import sys; sys.path.insert(0, '/opt/fumehood'); "
    f"from fumehood.guest.container import main; main(patience_s={PATIENCE_S})"
)


def create_body(settings: Settings, spec: SandboxSpec, limits: Limits, cpus: int) -> dict[str, Any]:
    """`limits` are within the container's; `cpus` is how many the engine has, 0 if it does not say."""
    nano_cpus = int(settings.docker_cpu_limit * 1e9)
    host = {
        "NetworkMode": "bridge" if has_network(settings, spec) else "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "MaskedPaths": list(MASKED),
        "ReadonlyRootfs": True,
        "Privileged": False,
        "Tmpfs": _tmpfs(limits),
        "NanoCpus": min(nano_cpus, cpus * 10**9) if cpus else nano_cpus,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.processes + 1,  # the guest's own
        "OomKillDisable": False,
        "Ulimits": [_ulimit("core", 1), _ulimit("msgqueue", 0), _ulimit("nofile", max(1024, limits.open_files))],
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "Init": False,  # the guest is one
        "AutoRemove": False,  # how it ended is read first
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
    }
    if settings.docker_runtime is not None:
        host["Runtime"] = settings.docker_runtime
    if spec.packages is not None:
        host["Mounts"] = [{"Type": "bind", "Source": spec.packages, "Target": PACKAGES, "ReadOnly": True}]
    return {
        "Image": settings.docker_image,
        "Cmd": ["python3", "-I", "-c", _BOOT],
        "Entrypoint": [],
        "User": f"{USER}:{USER}",
        "WorkingDir": WORKSPACE,
        "Hostname": "sandbox",
        "Env": [f"{name}={value}" for name, value in environment(settings, cpus).items()],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "StopTimeout": 1,
        "Labels": {},
        "HostConfig": host,
    }


def labels(settings: Settings) -> dict[str, str]:
    """Whose it is, and when it is nobody's any more."""
    expires = time.time() + WAITING_S + settings.session_max_sec + settings.max_timeout_sec + WAITING_S
    return {**sweep.own_labels(), sweep.EXPIRES: str(int(expires))}


def has_network(settings: Settings, spec: SandboxSpec) -> bool:
    return settings.docker_network_enabled or spec.network


def program_limits(limits: Limits, *, on_linux: bool = True) -> dict[str, int]:
    """Of each program. Not the number of processes: the kernel would count this user's in all containers together."""
    common = {"file": limits.file_bytes, "memlock": 64 * 1024, "open_files": limits.open_files}
    if not on_linux:  # a kernel of the runtime's own does not know the others
        return common
    return {**common, "message_queues": 0, "nice": 0, "pending_signals": 1024, "realtime": 0}


def environment(settings: Settings, cpus: int) -> dict[str, str]:
    threads = str(max(1, min(round(settings.docker_cpu_limit), cpus or 1)))
    return {
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "LOGNAME": "sandbox",
        "MPLCONFIGDIR": f"{HOME}/.config/matplotlib",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "POLARS_MAX_THREADS": threads,
        "TMPDIR": TMP,
        "TZ": "UTC",
        "USER": "sandbox",
        "XDG_CACHE_HOME": f"{HOME}/.cache",
    }


def _tmpfs(limits: Limits) -> dict[str, str]:
    """The container's memory bounds all of them together."""
    disk, part = limits.disk_bytes, max(limits.disk_bytes // 4, _LEAST)
    own = f"mode=700,uid={USER},gid={USER}"
    return {
        WORKSPACE: f"rw,nosuid,nodev,exec,size={disk},nr_inodes={limits.inodes},{own}",
        TMP: f"rw,nosuid,nodev,exec,size={disk},nr_inodes={limits.inodes},mode=1777",
        HOME: f"rw,nosuid,nodev,exec,size={part},nr_inodes={limits.inodes},{own}",
        SHM: f"rw,nosuid,nodev,noexec,size={part},nr_inodes={limits.inodes},mode=1777",
    }


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}
