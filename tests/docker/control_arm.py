"""Where nothing of ours holds an attack: a container of the same image with every protection of the engine off."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_api import ask, said

from escape import arms

IMAGE = "antigravity-sandbox:latest"
_HERE = "/arm"
_LIFE_S = 6 * 3600  # of a container that nobody removed
_CAPABILITIES = {
    "DAC_READ_SEARCH": 2,
    "NET_ADMIN": 12,
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "SYSLOG": 34,
}  # beyond what every container has


class ControlArm:
    """Made when it is first needed, or was lost with its engine. Each attack runs in namespaces of its own within."""

    def __init__(self, directory: Path, shown: list[str]):
        self._directory, self._shown = directory, shown
        self._address = self._identity = ""
        (directory / "arms.py").write_bytes(Path(arms.__file__).read_bytes())

    def run(self, address: str, attack: str, values: Mapping[str, Any]) -> arms.Outcome:
        nonce = secrets.token_hex(8)
        (self._directory / "job").write_text(arms.job(attack, nonce, values), encoding="utf-8")
        script = (
            f"unshare -mpfniu --mount-proc --kill-child python3 -I {_HERE}/arms.py < {_HERE}/job > {_HERE}/said 2>&1"
        )
        request = {
            "Cmd": ["sh", "-c", script],
            "Env": [f"{name}={value}" for name, value in arms.careless_environment(values).items()],
            "WorkingDir": "/",
            "AttachStdout": True,  # else nobody waits for its end
        }
        if not self._is_running(address):
            self._make(address)
        execution = ask(address, "POST", f"/containers/{self._identity}/exec", request)
        engines_word = said(address, "POST", f"/exec/{execution['Id']}/start", {"Detach": False})
        output = (self._directory / "said").read_text(encoding="utf-8", errors="replace")
        outcome = arms.read_outcome(output, nonce)
        assert outcome.ran, f"the control arm did not run: {output} {engines_word!r}"
        return outcome

    def _make(self, address: str) -> None:
        mounts = [(str(self._directory), _HERE), *((path, path) for path in self._shown)]
        host = {
            "CapAdd": sorted(_held_capabilities()),
            "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
            "MaskedPaths": [],
            "ReadonlyPaths": [],
            "DeviceCgroupRules": ["a *:* rwm"],
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                for path in ("/dev/kvm", "/dev/net/tun", "/dev/vsock")
                if os.path.exists(path)
            ],
            "NetworkMode": "none",
            "CgroupnsMode": "host",
            "AutoRemove": True,
            "Mounts": [{"Type": "bind", "Source": source, "Target": target} for source, target in mounts],
        }
        command = {"Cmd": ["sleep", str(_LIFE_S)], "User": "0", "Hostname": socket.gethostname()}
        made = ask(address, "POST", "/containers/create", {"Image": IMAGE, **command, "HostConfig": host})
        self._address, self._identity = address, made["Id"]
        ask(address, "POST", f"/containers/{self._identity}/start")

    def close(self) -> None:
        if self._identity and self._is_running(self._address):
            ask(self._address, "DELETE", f"/containers/{self._identity}?force=1")

    def _is_running(self, address: str) -> bool:
        return self._identity in {each["Id"] for each in ask(address, "GET", "/containers/json")}


def _held_capabilities() -> set[str]:
    """A machine whose root has less than all has no privileged containers."""
    status = Path("/proc/self/status").read_text()
    held = int(status.split("CapBnd:")[1].split()[0], 16)
    return {name for name, number in _CAPABILITIES.items() if held >> number & 1}
