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
from .container import Container
from .pool import Hub, hub_for
from .sandbox import DockerSandbox

__all__ = ["DockerBackend"]

_READY_S = 10.0  # an engine that lives may take so long, however short the program's own time-out is


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
        container = await self._taken(hub, spec, limits)
        try:
            if spec.packages is not None:
                _check_python(str(container.inside.get("python")))
            sandbox = DockerSandbox(hub, container, spec, limits)
            await sandbox.lend()
        except BaseException:
            hub.discard(container)
            raise
        return sandbox

    async def _taken(self, hub: Hub, spec: SandboxSpec, limits: Limits) -> Container:
        if spec.timeout_s is None:
            return await hub.take(self._settings, spec, limits)
        wait_s = max(_READY_S, spec.timeout_s)
        try:
            async with asyncio.timeout(wait_s):
                return await hub.take(self._settings, spec, limits)
        except TimeoutError:
            hub.client.is_silent = True
            raise BackendUnavailable(
                f"the Docker engine at {hub.client.address.shown} did not give a container in {wait_s:g} s;"
                " try again, or restart Docker daemon"
            ) from None

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
