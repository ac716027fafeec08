"""Runs programs on this machine, in cells of the local engine."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

from ..config import Settings
from ..engine.launch import launch_ahead
from ..errors import BackendUnavailable, RuntimeMissing
from ..types import Command, Receipt
from .base import Backend, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from ..engine.cell import Cell
    from ..engine.engine import Engine
    from ..engine.volume import Volume

_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin")


class LocalBackend(Backend):
    name = "local"
    hands_back = True

    def __init__(self, settings: Settings):
        if not sys.platform.startswith("linux"):
            raise BackendUnavailable(
                f"the local backend needs Linux, this is {sys.platform}: run it on a Linux machine"
            )
        self._settings = settings
        self._engine: Engine | None = None
        self._leased: set[SandboxSpec] = set()
        self._lock = threading.Lock()
        self._closed = False

    def start_direct(self, spec: SandboxSpec, command: Command) -> Cell:
        _check_runtime(command)
        engine = self._loaded()
        warm_cells = self._settings.warm_cells
        if warm_cells and spec not in self._leased:
            self._lease(engine, spec)
        shows = spec.hands_back
        return engine.start(command, spec.limits, network=spec.network, warm_cells=warm_cells, shows=shows)

    def start_waiting(self, spec: SandboxSpec, command: Command) -> Cell | None:
        """The same at once, or None: then it would take its time."""
        engine, warm_cells = self._engine, self._settings.warm_cells
        if engine is None or spec not in self._leased:
            return None
        _check_runtime(command)
        shows = spec.hands_back
        return engine.start_waiting(command, spec.limits, network=spec.network, warm_cells=warm_cells, shows=shows)

    async def check(self) -> Receipt:
        settings = self._settings
        return self._loaded().check(settings.limits(), network=settings.network)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        from . import _local_async as driven  # importing asyncio costs more than a whole execution

        spec = spec._replace(timeout_s=None)  # waiting cells are for any
        if not spec.keeps:
            return driven.LocalSandbox(self.start_direct, self.start_waiting, spec)
        ready = self._take_volume(spec)
        if ready is not None:
            return driven.KeptSandbox(ready)
        return await driven.keep(functools.partial(self._open_volume, spec))

    def _take_volume(self, spec: SandboxSpec) -> Volume | None:
        """One that waits for a session without files of its own, if there is one."""
        if "fumehood.engine.volume" not in sys.modules:
            return None
        if spec.packages is not None or spec.datasets or not self._settings.warm_cells:
            return None
        return self._loaded().take_volume(spec.limits, network=spec.network)

    def _open_volume(self, spec: SandboxSpec) -> Volume:
        settings = self._settings
        if spec.packages is None:
            engine = self._loaded()
        else:  # a module imported ahead could be another version of what is to be found there
            from ..engine.engine import shared

            engine = shared(settings.isolation, settings.require)
        return engine.open_volume(
            spec.limits,
            network=spec.network,
            datasets=spec.datasets,
            packages=spec.packages,
            progress=spec.progress,
            makes_ahead=bool(settings.warm_cells),
        )

    async def close(self) -> None:
        self.close_direct()

    def close_direct(self) -> None:
        """Zygotes are shared and end with this process; cells that wait for this backend's programs go now."""
        with self._lock:
            self._closed = True
            leased, self._leased = self._leased, set()
        for spec in leased:
            self._loaded().lease(spec.limits, network=spec.network, step=-1, shows=spec.hands_back)

    def _lease(self, engine: Engine, spec: SandboxSpec) -> None:
        with self._lock:
            if self._closed or spec in self._leased:
                return
            self._leased.add(spec)
        engine.lease(spec.limits, network=spec.network, step=1, shows=spec.hands_back)

    def _loaded(self) -> Engine:
        if self._engine is None:
            if "fumehood.engine.engine" not in sys.modules:
                launch_ahead()  # the zygote's interpreter starts while we import what will drive it
            from ..engine.engine import shared

            settings = self._settings
            self._engine = shared(settings.isolation, settings.require, settings.preload)
        return self._engine


def _check_runtime(command: Command) -> None:
    program = command.argv[0]
    if program == "python" or command.script is None:
        return
    if not any(os.access(f"{directory}/{program}", os.X_OK) for directory in _PROGRAMS):
        raise RuntimeMissing(f"{program} is not installed on this machine: install it, or use another language")
