"""The calls of one session, one after the other: budget, policy, sandbox, execution, outputs, record."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from . import datasets as sets
from . import paths
from .backends.base import Backend, Sandbox
from .budget import Budget
from .bundles import clean
from .copies import Copies
from .errors import BackendUnavailable, CommandNotAllowed, EngineFailed, FileError, SandboxLost, SessionEnded
from .execution import new_execution_id, not_run, run_in
from .lifetime import Keeper, Lifetime, Turn, engine_failures
from .outputs import Outputs
from .planning import Plan, Planner
from .policy import check_command
from .steps import Steps, absolute
from .streaming import Stream
from .types import ExecutionResult

if TYPE_CHECKING:
    from .config import Settings
    from .packages import Layer

LOST = (
    "the sandbox of this session went away: its files and variables are lost."
    " The next call starts a fresh one; write again what it needs"
)
_log = logging.getLogger("fumehood.session")


class Calls:
    """Owns what the calls share. When nobody holds it any more, its sandbox ends."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        *,
        owns_backend: bool,
        session_id: str,
        run_id: str,
        datasets: tuple[sets.Dataset, ...],
        requirements: tuple[str, ...],
        io_handler: object,
    ) -> None:
        self.settings = settings
        self.session_id = session_id
        self.datasets = datasets
        self.requirements = requirements
        self.planner = Planner(settings)
        self.steps = Steps(settings, run_id)
        self.outputs = Outputs(Copies(absolute(settings.output_dir), session_id), io_handler)
        self.life = Lifetime(settings)
        self._turn = Turn(settings.session_busy)
        self.keeper = Keeper(settings, backend, owns_backend=owns_backend, turn=self._turn, life=self.life)
        self._budget = Budget(settings)
        self._layer: Layer | None = None
        self._cancels = 0  # a call is cancelled when this is not what it was at its start
        weakref.finalize(self, self.keeper.drop)

    def cancel(self) -> None:
        self._cancels += 1

    async def close(self) -> None:
        self.life.end()
        self.cancel()
        await self.keeper.close()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One call at a time, none after the end."""
        self.life.enter()
        try:
            async with self._turn:
                self.life.check()
                try:
                    with engine_failures():
                        yield
                except SandboxLost as error:
                    if self.life.ended is not None:
                        raise SessionEnded(self.life.ended) from error
                    if self.keeper.sandbox is None:  # it never started
                        raise
                    await self.keeper.discard()
                    raise SandboxLost(LOST) from error
        finally:
            self.life.leave(self.keeper.expire)

    async def sandbox(self, given_up: Callable[[], bool] = lambda: False) -> Sandbox:
        if self.keeper.sandbox is not None:
            return self.keeper.sandbox
        sets.check(self.datasets)
        if self.requirements and self._layer is None:
            from .packages import ensure  # needed by few

            self._layer = await asyncio.to_thread(ensure, self.requirements, self.settings, self._progress())
        spec = self.planner.spec._replace(
            keeps=True,
            datasets=tuple((dataset.filename, dataset.path) for dataset in self.datasets),
            packages=None if self._layer is None else self._layer.path,
            progress=self._progress(),
        )
        sandbox = await self.keeper.start(spec, given_up)
        try:
            with engine_failures():
                await self.outputs.begin(sandbox)
        except BaseException:
            await self.keeper.discard()
            raise
        return sandbox

    def _progress(self) -> Callable[[str], None]:
        loop, outputs = asyncio.get_running_loop(), self.outputs  # not us: the sandbox may keep it
        return lambda text: _ignore(asyncio.run_coroutine_threadsafe(outputs.tell("send_progress", text), loop))

    async def execute(self, plan: Plan, kind: str, trace: str | None, stream: Stream | None = None) -> ExecutionResult:
        async with self.turn():
            before = self._cancels
            if stream is not None:
                stream.started = True
            self._budget.check()
            plan = plan._replace(cancelled=lambda: self._cancels != before or (stream is not None and stream.left))
            refusal: CommandNotAllowed | None = None
            result = self.steps.screened(plan)
            if kind == "exec":
                try:
                    check_command(plan.command.argv, self.settings.allowed_commands, plan.command.env)
                except CommandNotAllowed as error:
                    refusal, result = error, not_run(plan, "error", str(error), 126)
            if result is None:
                result = await self._run(plan, stream)
            else:
                result.meta.update(self.outputs.unchanged(self.keeper.places))
            self._finish(result, plan, kind, trace)
            if refusal is not None:
                raise refusal
            return result

    async def _run(self, plan: Plan, stream: Stream | None) -> ExecutionResult:
        try:
            sandbox = await self.sandbox(plan.cancelled)
        except (EngineFailed, BackendUnavailable) as error:
            if self.settings.start_failure != "skip":
                raise
            _log.warning("skipped: the sandbox did not start: %s", error)
            result = not_run(plan, "error", f"fumehood: skipped: the sandbox did not start: {error}\n")
            result.meta.update(self.outputs.unchanged(self.keeper.places), skipped=True)
            return result
        with engine_failures():
            result = await run_in(sandbox, self._cut(plan), stream)
            result.meta.update(await self.outputs.collect(sandbox))
        return result

    def _cut(self, plan: Plan) -> Plan:
        """No longer than the session itself has left."""
        self.life.check()
        for left_s, setting in (
            (self.life.left_s(), "session_max_sec"),
            (self._budget.wall_left_s(), "session_max_wall_sec"),
        ):
            if left_s is not None and left_s < plan.timeout_s:
                plan = plan._replace(timeout_s=left_s, cut_by=setting)
        return plan

    def _finish(self, result: ExecutionResult, plan: Plan, kind: str, trace: str | None) -> None:
        meta = result.meta
        meta.update(session_id=self.session_id, run_id=self.steps.run_id, step=self.steps.number + 1)
        if kind == "run":
            meta.setdefault("state", "kept")
            meta.setdefault("results", [])
        if self._layer is not None:
            meta["packages"] = list(self._layer.installed)
        out = len(result.stdout.encode("utf-8", "replace")) + len(result.stderr.encode("utf-8", "replace"))
        if self.settings.session_max_output_mb is not None:
            out += sum(clean(bundle)[1] for bundle in meta.get("results", ()))
        # What was killed cannot be asked what it used: its time counts, or a budget could be dodged by never stopping.
        cpu_s = meta["usage"]["cpu_s"] or (result.duration if meta["reason"] not in ("ok", "error") else 0.0)
        self._budget.spend(cpu_s=cpu_s, wall_s=result.duration, output_bytes=out + self.outputs.copied_bytes)
        command = plan.command.argv if kind == "exec" else None
        language = "python" if kind == "run" else ""
        self.steps.record(
            result, plan, language, kind, session_id=self.session_id, command=command, reasoning_trace=trace
        )

    async def change(
        self,
        kind: str,
        path: str,
        change: Callable[[Sandbox, str], Awaitable[int]],
        trace: str | None,
        said: Mapping[str, Any],
    ) -> int:
        async with self.turn():
            self._budget.check()
            started = time.monotonic()
            size, failure = 0, None
            try:
                paths.shape(path)
                sandbox = await self.sandbox()
                where = paths.checked(path, sandbox.places)
                size = await change(sandbox, where)
                await self.outputs.note_written(sandbox, where)
            except FileError as error:
                failure = error
            self._budget.spend()
            meta = {"execution_id": new_execution_id(), "reason": "error" if failure else "ok"}
            result = ExecutionResult("", str(failure or ""), 1 if failure else 0, time.monotonic() - started, meta)
            self.steps.record_file(
                result,
                self.keeper.backend.name,
                kind,
                session_id=self.session_id,
                path=os.fspath(path),
                reasoning_trace=trace,
                **said,
            )
            if failure is not None:
                raise failure
            return size


def _ignore(_: object) -> None:
    """For a call whose answer nobody waits for."""
