"""Runs programs in hardened containers of a Docker engine, or of one that speaks like it."""

from __future__ import annotations

import asyncio
import os
import sys

from ...config import Settings
from ...errors import BackendUnavailable, PackageError
from ...types import Limits, Receipt
from ..base import Backend, Sandbox, SandboxSpec
from .address import Address, find
from .pool import Hub, hub_for
from .sandbox import DockerSandbox

__all__ = ["DockerBackend"]


class DockerBackend(Backend):
    name = "docker"

    def __init__(self, settings: Settings):
        self._settings = settings
        self._address: Address | None = None
        self._hubs: set[Hub] = set()
        self._pid = os.getpid()
        self._closed = False

    async def check(self) -> Receipt:
        settings = self._settings
        spec = SandboxSpec(settings.limits(), settings.network)
        hub, limits = self._hub(), settings.in_container(spec.limits)
        container = await hub.take(settings, spec, limits)
        await hub.sweep()
        hub.give_back(container, settings, spec, limits)
        return container.receipt

    async def create(self, spec: SandboxSpec) -> Sandbox:
        hub = self._hub()
        limits: Limits = self._settings.in_container(spec.limits)
        if spec.packages is not None and not hub.client.address.is_local:
            raise PackageError(
                f"requirements need a Docker engine on this machine, and {hub.client.address.shown} is not:"
                " put the packages in the image (DOCKER_IMAGE), or use SANDBOX_TYPE=local"
            )
        container = await hub.take(self._settings, spec, limits)
        try:
            if spec.packages is not None:
                _check_python(str(container.inside.get("python")))
            sandbox = DockerSandbox(hub, container, spec, limits)
            await sandbox.lend()
        except BaseException:
            hub.discard(container)
            raise
        return sandbox

    async def close(self) -> None:
        self._closed = True
        hubs, self._hubs = self._hubs, set()
        if self._pid != os.getpid():
            return
        for hub in hubs:
            if hub.is_closed or hub.loop.is_closed():
                continue
            if hub.loop is asyncio.get_running_loop():
                await hub.leave(self)
            elif hub.loop.is_running():
                leaving = asyncio.run_coroutine_threadsafe(hub.leave(self), hub.loop)
                await asyncio.wrap_future(leaving)

    def _hub(self) -> Hub:
        if self._closed:
            raise BackendUnavailable("this backend is closed; make a new sandbox")
        if self._address is None:
            self._address = find(self._settings)
        hub = hub_for(self._address)
        hub.users.add(self)
        self._hubs.add(hub)
        return hub


def _check_python(inside: str) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if inside.split(".")[:2] != here.split("."):
        raise PackageError(
            f"requirements were installed for Python {here} and the image has Python {inside}: run fumehood with that"
            " version, or put the packages in the image (DOCKER_IMAGE)"
        )
