"""Everything about an execution that is decided before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from . import arguments, config
from .backends.base import SandboxSpec
from .config import Settings
from .languages import resolve
from .types import Command, Level

_KB, _MB = 1024, 1024 * 1024


def never() -> bool:
    return False


class Plan(NamedTuple):
    """One execution to be."""

    runtime: str
    spec: SandboxSpec
    command: Command
    timeout_s: float
    output_bytes: int  # kept, per stream
    output_kill_bytes: int  # read, both streams
    resource_limits: Mapping[str, Any]
    timeout_clamped: bool = False
    require: Level | None = None
    cancelled: Callable[[], bool] = never
    cut_by: str | None = None  # the setting that left this execution less time than was asked for
    execution_id: str | None = None  # where it must be known before the result


class Planner:
    """Makes plans by one set of settings. Every argument is checked here, before anything is started."""

    def __init__(self, settings: Settings) -> None:
        self.spec = SandboxSpec(settings.limits(), settings.network)
        self._settings = settings
        self._require = cast("Level | None", settings.require)
        self._resource_limits = self.spec.limits._asdict()
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def program(
        self,
        runtime: str,
        code: object,
        language: str,
        timeout: float | None,
        cancelled: Callable[[], bool] = never,
        *,
        stdin: object = None,
        args: object = (),
        env: object = None,
        files: object = None,
        keeps_state: bool = False,
    ) -> Plan:
        """Run program text."""
        limits = self.spec.limits
        chosen = resolve(language, self._settings.supported_languages)
        timeout_s, clamped = config.clamp_timeout(timeout, self._settings)
        argv, script = chosen.command(arguments.code_bytes(code, limits), arguments.arg_strings(args))
        command = Command(
            argv,
            script,
            arguments.stdin_bytes(stdin),
            arguments.env_strings(env),
            arguments.file_bytes(files, chosen.filename, limits),
            self._cpu_s(timeout_s),
            keeps_state,
        )
        return self._plan(runtime, command, timeout_s, clamped, cancelled)

    def command(
        self,
        runtime: str,
        command: object,
        timeout: float | None,
        cancelled: Callable[[], bool] = never,
        *,
        stdin: object = None,
        env: object = None,
    ) -> Plan:
        """Run a command that the sandbox finds among its own programs."""
        timeout_s, clamped = config.clamp_timeout(timeout, self._settings)
        argv = arguments.command_strings(command)
        made = Command(
            argv,
            stdin=arguments.stdin_bytes(stdin),
            env=arguments.env_strings(env),
            cpu_s=self._cpu_s(timeout_s),
        )
        return self._plan(runtime, made, timeout_s, clamped, cancelled)

    def moved(self, plan: Plan, runtime: str) -> Plan:
        """A plan that was made for another backend."""
        spec = plan.spec._replace(limits=self.spec.limits)
        return plan._replace(runtime=runtime, spec=spec, resource_limits=self._resource_limits)

    def _cpu_s(self, timeout_s: float) -> float:
        cpu_s = self.spec.limits.cpu_s
        return timeout_s * self._cores if cpu_s is None else cpu_s

    def _plan(
        self, runtime: str, command: Command, timeout_s: float, clamped: bool, cancelled: Callable[[], bool]
    ) -> Plan:
        settings = self._settings
        return Plan(
            runtime,
            self.spec,
            command,
            timeout_s,
            settings.max_output_kb * _KB,
            settings.output_kill_mb * _MB,
            self._resource_limits,
            clamped,
            self._require,
            cancelled,
        )
