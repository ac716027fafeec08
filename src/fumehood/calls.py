"""The calls of one session, one after the other: budget, policy, sandbox, execution, outputs, record."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from . import datasets as sets
from . import paths
from .backends.base import Backend, Sandbox, SandboxSpec
from .budget import Budget
from .bundles import clean
from .copies import Copies
from .errors import (
    BackendError,
    BackendUnavailable,
    CommandNotAllowed,
    EngineFailed,
    FileError,
    FumehoodError,
    SandboxLost,
    SessionEnded,
)
from .execution import new_execution_id, not_run, run_in
from .fallback import UNAVAILABLE, Spare
from .handed import Handed
from .lifetime import Keeper, Lifetime, Turn, engine_failures
from .notes import note
from .offload import is_small, offload
from .outputs import Outputs
from .planning import Plan, Planner
from .policy import check_command
from .steps import LOST_EXIT_CODE, Steps, absolute
from .streaming import Stream
from .thread_pool import aside
from .types import ExecutionResult, Receipt

if TYPE_CHECKING:
    from .config import Settings
    from .packages import Layer

T = TypeVar("T")

LOST = (
    "the sandbox of this session went away: its files and variables are lost."
    " The next call starts a fresh one; write again what it needs"
)
ASIDE_LOST = "the sandbox that this call had for its requirements went away; the session's own is as it was. Try again"
CLOSED = "fumehood: the session was closed while this ran: its files and variables are gone\n"
_log = logging.getLogger("fumehood.session")


class Calls:
    """Owns what the calls share. When nobody holds it any more, its sandbox ends."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        spare: Spare | None,
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
        self._facts = sets.Facts(datasets)
        self.requirements = requirements
        self.planner = Planner(settings)
        self.steps = Steps(settings, run_id)
        self.outputs = Outputs(Copies(absolute(settings.output_dir), session_id), io_handler)
        self.life = Lifetime(settings)
        self._turn = Turn(settings.session_busy)
        self.keeper = Keeper(settings, backend, owns_backend=owns_backend, turn=self._turn, life=self.life)
        self._spare = spare  # until it is decided
        self.keeper.is_patient = spare is None
        self._stamp: dict[str, str] | None = None  # where the spare stands in
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
                    seen = self._seen(error)
                    if seen is error:
                        raise
                    if self.life.ended is None:
                        await self.keeper.discard()
                    raise seen from error
        finally:
            self.life.leave(self.keeper.expire)

    def _seen(self, error: FumehoodError) -> FumehoodError:
        """What the caller is told."""
        if isinstance(error, SandboxLost) and self.life.ended is not None:
            return SessionEnded(self.life.ended)
        if isinstance(error, SandboxLost) and self.keeper.sandbox is not None:
            return SandboxLost(f"{LOST} ({error})")
        return error  # it never started

    async def sandbox(self, given_up: Callable[[], bool] = lambda: False, timeout_s: float | None = None) -> Sandbox:
        """`timeout_s`: that of the call which needs it, if it has one of its own."""
        if self.keeper.sandbox is not None:
            return self.keeper.sandbox
        if self.requirements and self._layer is None:
            self._layer = await self._installed(self.requirements)
        sandbox = await self._reached(lambda: self._start(given_up, timeout_s))
        try:
            with engine_failures():
                await self.outputs.begin(sandbox)
        except BaseException:
            await self.keeper.discard()
            raise
        return sandbox

    async def _start(self, given_up: Callable[[], bool], timeout_s: float | None) -> Sandbox:
        if self._layer is not None:
            self._layer = await self._fitted(self._layer, self.requirements)
        return await self.keeper.start(self._spec(self._layer, timeout_s), given_up)

    async def _fitted(self, layer: Layer, requirements: Sequence[str]) -> Layer:
        """Where the spare stands in now, it may be another that installs."""
        fits = bool(layer.requirements) == self.keeper.backend.installs
        return layer if fits else await self._installed(requirements)

    async def check(self) -> Receipt:
        receipt = await self._reached(lambda: self.keeper.backend.check())
        return receipt._replace(fallback=self._stamp)

    async def _reached(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the chosen backend gives, or else its spare: decided once, before any code has run."""
        spare, started = self._spare, time.monotonic()
        if spare is None:
            return await ask()
        try:
            spare.heed_outage()
            found = await ask()
        except UNAVAILABLE as error:
            self.life.check()
            took_s = time.monotonic() - started
            await self.keeper.move(await spare.opened(error))
            self._stamp = spare.used(error, took_s)
            self.settings, self.planner = spare.settings, Planner(spare.settings)
            self._decide()
            return await ask()
        self._decide()
        return found

    def _decide(self) -> None:
        self._spare, self.keeper.is_patient = None, True

    def _live(self, plan: Plan) -> Plan:
        """As it is where the session runs, which was not known when the first plans were made."""
        name = self.keeper.backend.name
        return plan if plan.runtime == name else self.planner.moved(plan, name)

    async def _installed(self, requirements: Sequence[str]) -> Layer:
        from .packages import Layer, ensure, wanted  # needed by few

        if self.keeper.backend.installs:
            return Layer("", (), wanted(requirements, self.settings))
        return await aside(ensure, requirements, self.settings, self._progress())

    def _spec(self, layer: Layer | None, timeout_s: float | None) -> SandboxSpec:
        sets.check(self.datasets)
        return self.planner.spec._replace(
            keeps=True,
            datasets=tuple((dataset.filename, dataset.path) for dataset in self.datasets),
            packages=None if layer is None else layer.path or None,
            requirements=() if layer is None else layer.requirements,
            progress=self._progress(),
            timeout_s=timeout_s or self.settings.timeout_sec,
        )

    def _progress(self) -> Callable[[str], None]:
        loop, outputs = asyncio.get_running_loop(), self.outputs  # not us: the sandbox may keep it
        return lambda text: _ignore(asyncio.run_coroutine_threadsafe(outputs.tell("send_progress", text), loop))

    async def execute(
        self,
        plan: Plan,
        stream: Stream | None,
        kind: str,
        trace: str | None,
        requirements: Sequence[str] = (),
        handed: Handed | None = None,
    ) -> ExecutionResult:
        async with self.turn():
            before, started = self._cancels, time.monotonic()
            if stream is not None:
                stream.started = True
            self._budget.check()
            plan = plan._replace(cancelled=lambda: self._cancels != before or _is_over(stream))
            refusal: FumehoodError | None = None
            result = self.steps.screened(plan)
            if kind == "exec":
                try:
                    check_command(plan.command.argv, self.settings.allowed_commands, plan.command.env)
                except CommandNotAllowed as error:
                    refusal, result = error, not_run(plan, "error", str(error), 126)
            if result is None:
                try:
                    if requirements:
                        result = await self._run_aside(plan, requirements, stream, handed)
                    else:
                        result = await self._run(plan, stream, handed)
                except BackendError as error:
                    refusal, result = error, not_run(plan, "error", str(self._seen(error)), LOST_EXIT_CODE)
                    result.duration = time.monotonic() - started
                    result.meta.update(self.outputs.unchanged(self.keeper.places), lost=True)
            else:
                result.meta.update(self.outputs.unchanged(self.keeper.places))
            plan = self._live(plan)
            if requirements:
                result.meta["state"] = "not_kept"
            await self._finish(result, plan, kind, trace, requirements)
            if refusal is not None:
                raise refusal
            return result

    async def _run(self, plan: Plan, stream: Stream | None, handed: Handed | None) -> ExecutionResult:
        try:
            sandbox = await self.sandbox(plan.cancelled, plan.timeout_s)
        except (EngineFailed, BackendUnavailable) as error:
            return self._skipped(plan, error)
        plan = self._cut(self._live(plan))
        with engine_failures():
            result = await run_in(sandbox, plan, stream)
            result.meta.update(await self.outputs.collect(sandbox, handed))
        if result.meta["reason"] == "cancelled" and self.life.ended is not None:
            _reword(result, plan, CLOSED)
        return result

    async def _run_aside(
        self, plan: Plan, requirements: Sequence[str], stream: Stream | None, handed: Handed | None
    ) -> ExecutionResult:
        """In a sandbox of its own: the session's was made without these packages, and gains none."""
        named = list(dict.fromkeys([*self.requirements, *requirements]))
        layer = await self._installed(named)
        outputs = self.outputs.beside()
        async with AsyncExitStack() as stack:

            async def start() -> Sandbox:
                spec = self._spec(await self._fitted(layer, named), plan.timeout_s)
                return await stack.enter_async_context(self.keeper.aside(spec, plan.cancelled))

            try:
                try:
                    sandbox = await self._reached(start)
                except (EngineFailed, BackendUnavailable) as error:
                    return self._skipped(plan, error)
                live = self._cut(self._live(plan))
                with engine_failures():
                    await outputs.begin(sandbox)
                    result = await run_in(sandbox, live, stream)
                    result.meta.update(await outputs.collect(sandbox, handed))
                    result.meta.setdefault("packages", list(layer.installed))
            except SandboxLost as error:
                if self.life.ended is not None:
                    raise
                raise EngineFailed(ASIDE_LOST) from error
        closed = result.meta["reason"] == "cancelled" and self.life.ended is not None
        _reword(result, live, CLOSED if closed else None)
        self.outputs.copied_bytes = outputs.copied_bytes
        return result

    def _skipped(self, plan: Plan, error: FumehoodError) -> ExecutionResult:
        """For a call whose sandbox did not start, if that is wanted."""
        if self.settings.start_failure != "skip":
            raise error
        _log.warning("skipped: the sandbox did not start: %s", paths.shown(str(error)))
        result = not_run(plan, "error", f"fumehood: skipped: the sandbox did not start: {error}\n")
        result.meta.update(self.outputs.unchanged(self.keeper.places), skipped=True)
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

    async def _finish(
        self, result: ExecutionResult, plan: Plan, kind: str, trace: str | None, requirements: Sequence[str]
    ) -> None:
        meta = result.meta
        meta.update(session_id=self.session_id, run_id=self.steps.run_id, step=self.steps.number + 1)
        if self._stamp is not None:
            meta["fallback"] = dict(self._stamp)
        if kind == "run":
            meta.setdefault("state", "lost" if "lost" in meta else "kept")
            meta.setdefault("results", [])
        if self._layer is not None:
            meta.setdefault("packages", list(self._layer.installed))
        out = len(result.stdout.encode("utf-8", "replace")) + len(result.stderr.encode("utf-8", "replace"))
        if self.settings.session_max_output_mb is not None:
            results = meta.get("results", ())
            out += _shown_bytes(results) if is_small(results) else await offload(_shown_bytes, results)
        # What was killed cannot be asked what it used: its time counts, or a budget could be dodged by never stopping.
        ended = meta["reason"] in ("ok", "error") and "lost" not in meta
        cpu_s = meta["usage"]["cpu_s"] or (0.0 if ended else result.duration)
        self._budget.spend(cpu_s=cpu_s, wall_s=result.duration, output_bytes=out + self.outputs.copied_bytes)
        command = plan.command.argv if kind == "exec" else None
        language = "python" if kind == "run" else ""
        await self.steps.record_in_loop(
            result,
            plan,
            language,
            kind,
            session_id=self.session_id,
            command=command,
            requirements=requirements or None,
            datasets=await self._dataset_facts() if self.steps.wants(result) else None,
            reasoning_trace=trace,
        )

    async def _dataset_facts(self) -> list[dict[str, Any]] | None:
        if not self._facts.fresh():
            await aside(self._facts.look)
        return self._facts.told(self.keeper.places.data) or None

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
            size, exit_code = 0, 0
            failure: FumehoodError | None = None
            try:
                paths.shape(path)
                sandbox = await self.sandbox()
                where = paths.checked(path, sandbox.places)
                with engine_failures():
                    size = await change(sandbox, where)
                    await self.outputs.note_written(sandbox, where)
            except FileError as error:
                failure, exit_code = error, 1
            except BackendError as error:
                failure, exit_code = error, LOST_EXIT_CODE
            self._budget.spend()
            meta: dict[str, Any] = {"execution_id": new_execution_id(), "reason": "error" if failure else "ok"}
            if exit_code == LOST_EXIT_CODE:
                meta["lost"] = True
            if self._stamp is not None:
                meta["fallback"] = dict(self._stamp)
            message = "" if failure is None else str(self._seen(failure))
            result = ExecutionResult("", message, exit_code, time.monotonic() - started, meta)
            await self.steps.record_file(
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


def _reword(result: ExecutionResult, plan: Plan, instead: str | None) -> None:
    """Say `instead` what became of the variables, or nothing about them."""
    meta = result.meta
    lost = meta["state"] == "lost" if "state" in meta else None
    what = meta["reason"], result.exit_code, plan, meta["usage"]["cpu_s"]
    said = note(*what, lost)
    if said and result.stderr.endswith(said):
        result.stderr = result.stderr.removesuffix(said) + (note(*what, None) if instead is None else instead)
    if "state" in meta:
        meta["state"] = "lost"


def _shown_bytes(results: Sequence[Mapping[str, Any]]) -> int:
    return sum(clean(bundle)[1] for bundle in results)


def _is_over(stream: Stream | None) -> bool:
    return stream is not None and (stream.left or stream.cancelled)


def _ignore(_: object) -> None:
    """For a call whose answer nobody waits for."""
