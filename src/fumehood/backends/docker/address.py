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
from . import tls
from .tls import Tls

_DEFAULT, _PODMAN = "/var/run/docker.sock", "/run/podman/podman.sock"
_OWN = ("docker.sock", "podman/podman.sock")  # in the user's runtime directory: rootless engines
_DESKTOP = ("run/docker.sock", "desktop/docker.sock")  # in ~/.docker


class Address(NamedTuple):
    shown: str
    socket: str | None  # a path; the engine sees this machine's files then
    url: str
    tls: Tls | None = None

    @property
    def is_local(self) -> bool:
        return self.socket is not None


def find(settings: Settings) -> Address:
    directory = users_own("DOCKER_CONFIG", ".docker")
    if settings.docker_host is not None:
        return parse(settings.docker_host, "DOCKER_HOST", _asked_for(settings, directory))
    name = settings.docker_context or _current_context(directory)
    if name is not None and name != "default":
        return _of_context(directory, name)
    return parse(f"unix://{_usual_socket(directory)}", "the default")


def parse(text: str, origin: str, certificates: Tls | None = None) -> Address:
    """With certificates, a connection over TCP is one over TLS."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # brackets that do not match, or a port that is no number
        parts, port = urlsplit(""), None
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Address(text, parts.path, "http://docker")
    if parts.scheme in ("tcp", "http", "https") and parts.hostname:
        if parts.scheme == "https" and certificates is None:
            certificates = Tls()
        port = port or (2375 if certificates is None else 2376)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return Address(text, None, f"{'http' if certificates is None else 'https'}://{host}:{port}", certificates)
    hint = "expected unix:///path or tcp://host:port"
    if parts.scheme == "ssh" and parts.hostname:
        there = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname
        at = f"-p {port} " if port else ""
        socket = parts.path if len(parts.path) > 1 else "/var/run/docker.sock"
        hint = (
            f'forward its socket with `ssh -nNT {at}-L "$HOME/docker.sock:{socket}" {there}`'
            " and set DOCKER_HOST=unix://$HOME/docker.sock"
        )
    raise ConfigurationError(f"{origin} says {text[:200]!r}, which cannot be used from here: {hint}")


def _asked_for(settings: Settings, directory: str | None) -> Tls | None:
    is_https = (settings.docker_host or "").startswith("https:")
    if not settings.docker_tls_verify and not is_https:
        return None
    origin = None if settings.docker_cert_path is None else "DOCKER_CERT_PATH"
    return tls.found_in(settings.docker_cert_path or directory, origin)


def _usual_socket(directory: str | None) -> str:
    """The first that may be opened; else the first that is there."""
    runtime = users_own("XDG_RUNTIME_DIR", None) or f"/run/user/{os.getuid()}"
    places = [_DEFAULT, *(os.path.join(runtime, own) for own in _OWN)]
    if directory is not None:
        places += [os.path.join(directory, own) for own in _DESKTOP]
    found = [path for path in (*places, _PODMAN) if _is_socket(path)]
    return next((path for path in found if os.access(path, os.W_OK)), found[0] if found else _DEFAULT)


def _current_context(directory: str | None) -> str | None:
    name = _read(directory, "config.json").get("currentContext")
    return name if isinstance(name, str) and name else None


def _of_context(directory: str | None, name: str) -> Address:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = _read(directory, "contexts", "meta", digest, "meta.json")
    try:
        endpoint = meta["Endpoints"]["docker"]
        host, is_blind = endpoint["Host"], endpoint.get("SkipTLSVerify")
    except (KeyError, TypeError, AttributeError):
        host, is_blind = None, False
    if not isinstance(host, str):
        raise ConfigurationError(
            f"there is no Docker context {name!r} with an engine: `docker context ls` lists them; or set DOCKER_HOST"
        )
    if is_blind:
        raise ConfigurationError(
            f"the Docker context {name!r} does not check who answers (skip-tls-verify): give it its engine's ca.pem"
        )
    own = os.path.join(directory or "", "contexts", "tls", digest, "docker")
    return parse(host, f"the Docker context {name!r}", tls.found_in(own, None) if os.path.isdir(own) else None)


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
