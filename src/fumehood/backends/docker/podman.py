"""What Podman wants to be asked in other words."""

from __future__ import annotations

from typing import Any

_UNKNOWN = ("nr_inodes=", "gid=")
_OPENED = ("/run", "/var/tmp")  # with a read-only root, and without a bound
_CLOSED = "ro,nosuid,nodev,noexec,size=4096,mode=555,notmpcopyup"


def reworded(request: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to create a container."""
    host = request["HostConfig"]
    tmpfs = {path: _options(options) for path, options in host["Tmpfs"].items()} | dict.fromkeys(_OPENED, _CLOSED)
    return {**request, "HostConfig": {**host, "Tmpfs": tmpfs, "IpcMode": "private"}}


def _options(options: str) -> str:
    kept = [option for option in options.split(",") if not option.startswith(_UNKNOWN)]
    return ",".join("U" if option.startswith("uid=") else option for option in kept) + ",notmpcopyup"
