"""What `fumehood serve` was told about the server itself; how programs run is in Settings."""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from typing import NamedTuple

PORT = 8080
_MIB = 1024 * 1024


class ServerOptions(NamedTuple):
    """Where it listens, who may come in, and how much at a time."""

    host: str = "127.0.0.1"
    port: int = PORT
    unix_socket: str = ""  # a path, in place of host and port
    socket_mode: int = 0o600
    tls_cert: str = ""  # files in PEM; both, or neither
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()  # name or name:port; * = any
    token: str | None = None
    token_file: str | None = None
    allow_weak: bool = False  # not loopback, and a level weaker than sealed
    workers: int = 1
    max_running: int = max(4, 2 * (os.cpu_count() or 1))
    max_queue: int = 1024
    queue_wait_s: float = 30.0
    max_sessions: int = 64
    max_connections: int = 2048
    max_unauthenticated: int = 64  # connections of one address that have shown no token
    unauthenticated_s: float = 10.0  # and how long each of them may last
    trusted_proxies: tuple[str, ...] = ()  # addresses, networks or `unix`: not bounded so, and X-Forwarded-For is read
    max_body_bytes: int = 32 * _MIB
    max_upload_bytes: int = 50 * _MIB
    max_bodies_bytes: int = 256 * _MIB  # of all requests together, of each worker
    max_header_bytes: int = 16 * 1024
    max_headers: int = 64
    max_depth: int = 16
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0  # for a client that does not read what it asked for
    idle_timeout_s: float = 15.0  # between two requests of one connection
    grace_s: float = 10.0  # for what runs, after SIGTERM
    instance: str = ""  # part of the ids of its sessions; none = at random
    peers_dir: str = ""  # where workers beside this one listen for what is theirs
    peers_socket: str = ""  # and where this one does

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return bool(self.unix_socket) or is_loopback(self.host)

    @property
    def address(self) -> str:
        """Where it listens, as a client would name it."""
        if self.unix_socket:
            return f"unix:{self.unix_socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"


# What a reload changes. The rest is fixed: where it listens, its workers, its name, and where tokens come from.
RELOADED = (
    "allowed_hosts",
    "trusted_proxies",
    "tls_cert",
    "tls_key",
    "grace_s",
    "max_running",
    "max_queue",
    "max_sessions",
    "max_connections",
    "max_unauthenticated",
    "max_bodies_bytes",
    "header_timeout_s",
    "body_timeout_s",
    "write_timeout_s",
)


def changed(now: ServerOptions, new: ServerOptions) -> ServerOptions:
    """The options in force, once `new` has been read."""
    return now._replace(**{name: getattr(new, name) for name in RELOADED})


def fixed(before: ServerOptions, after: ServerOptions) -> list[str]:
    """Which other options were changed between two readings: for those the server has to be started again."""
    names = [name for name in ServerOptions._fields if name not in RELOADED]
    return [name.replace("_", "-") for name in names if getattr(before, name) != getattr(after, name)]


@cache
def is_loopback(host: str) -> bool:
    """By address alone: a name may resolve to anything, but for localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
