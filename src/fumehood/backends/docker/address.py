"""Where the engine is: as said, else where the docker command would look."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ...config import Settings, users_own
from ...errors import ConfigurationError

_DEFAULT = "/var/run/docker.sock"
_OWN = ("docker.sock", "podman/podman.sock")  # in the user's runtime directory: rootless engines


class Address(NamedTuple):
    shown: str
    socket: str | None  # a path; the engine sees this machine's files then
    url: str

    @property
    def is_local(self) -> bool:
        return self.socket is not None


def find(settings: Settings) -> Address:
    if settings.docker_host is not None:
        return parse(settings.docker_host, "DOCKER_HOST")
    directory = users_own("DOCKER_CONFIG", ".docker")
    name = settings.docker_context or _current_context(directory)
    if name is not None and name != "default":
        return parse(_endpoint(directory, name), f"the Docker context {name!r}")
    runtime = users_own("XDG_RUNTIME_DIR", None)
    places = [_DEFAULT, *(os.path.join(runtime, own) for own in _OWN if runtime is not None)]
    found = next((path for path in places if _is_socket(path)), _DEFAULT)
    return parse(f"unix://{found}", "the default")


def parse(text: str, origin: str) -> Address:
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Address(text, parts.path, "http://docker")
    if parts.scheme in ("tcp", "http", "https") and parts.hostname:
        scheme = "https" if parts.scheme == "https" else "http"
        try:
            port = parts.port or (2376 if scheme == "https" else 2375)
        except ValueError:
            port = 0
        if port:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return Address(text, None, f"{scheme}://{host}:{port}")
    hint = "; forward its socket to this machine (ssh -L) and name that one" if parts.scheme == "ssh" else ""
    raise ConfigurationError(
        f"{origin} says {text[:200]!r}, which is no engine that can be used: expected unix:///path or tcp://host:port{hint}"
    )


def _current_context(directory: str | None) -> str | None:
    name = _read(directory, "config.json").get("currentContext")
    return name if isinstance(name, str) and name else None


def _endpoint(directory: str | None, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = _read(directory, "contexts", "meta", digest, "meta.json")
    try:
        host = meta["Endpoints"]["docker"]["Host"]
    except (KeyError, TypeError):
        host = None
    if not isinstance(host, str):
        raise ConfigurationError(
            f"there is no Docker context {name!r} with an engine: `docker context ls` lists them; or set DOCKER_HOST"
        )
    return host


def _read(directory: str | None, *parts: str) -> dict[str, Any]:
    if directory is None:
        return {}
    try:
        with open(os.path.join(directory, *parts), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
