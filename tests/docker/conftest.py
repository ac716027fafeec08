from __future__ import annotations

from docker_engine import daemon, docker, docker_host

__all__ = ["daemon", "docker", "docker_host"]
