from __future__ import annotations

from docker_engine import docker, docker_alone, docker_host

__all__ = ["docker", "docker_alone", "docker_host"]
