"""`get_sandbox()` and the one-shot sandbox it gives: check, screen, run, record."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import config
from .backends.base import Backend, DirectBackend, Sandbox
from .config import Settings
from .errors import BackendUnavailable, BadArgument, SandboxLost
from .execution import Visit, Watcher, not_run, run, run_direct
from .fallback import UNAVAILABLE, open_chosen
from .interrupts import held
from .paths import checked
from .planning import Plan, Planner
from .steps import LOST_EXIT_CODE, Steps
from .types import ExecutionResult, Receipt

if TYPE_CHECKING:
    from .handed import Handed
    from .streaming import Stream

T = TypeVar("T")

_MAX_SHARED = 4


def get_sandbox(
    type: str | Backend | None = None,  # noqa: A002
    require: str | None = None,
    **settings: Any,
) -> OneShot:
    """The sandbox that `type` or SANDBOX_TYPE names; `require` refuses anything weaker than that level."""
    backend = type if isinstance(type, Backend) else None
    name = None if backend is not None else type
    loaded = config.load({"type": name, "require": require, **settings})
    return OneShot(loaded.settings, backend)


class OneShot:
    """Runs each program in a fresh sandbox. Safe to use from many threads, inside an event loop and after a fork."""

    def __init__(self, settings: Settings, backend: Backend | None = None, run_id: str | None = None) -> None:
        self.settings = settings
        self._owns = backend is None
        self._backend, self._spare = open_chosen(settings) if backend is None else (backend, None)
        self._planner = Planner(settings)
        self._steps = Steps(settings, run_id)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._cancels = 0  # an execution is cancelled when this is not what it was at its start
        self._closed = False

    @held
    def execute(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        requirements: Sequence[str] | None = None,
        cancel: threading.Event | None = None,
    ) -> ExecutionResult:
        """Run `code` to its end or its `timeout` in seconds. Setting `cancel` from another thread ends it."""
        plan = self._plan(code, language, timeout, stdin, args, env, files, cancel)
        if (result := self._steps.screened(plan)) is not None:
            return self._recorded(result, plan, language)
        spare, started = self._spare, time.monotonic()
        try:
            if spare is not None:
                spare.heed_outage()
            return self._drive(self._backend, plan, language, requirements)
        except UNAVAILABLE as error:
            if spare is None or self._closed:
                raise
            took_s = 0.0 if requirements else time.monotonic() - started  # their installation is no sign
            backend = spare.backend or _portal_run(spare.opened(error))
            stamp = spare.used(error, took_s)
            return self._drive(backend, spare.plan(plan), language, requirements, stamp)

    async def execute_async(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        requirements: Sequence[str] | None = None,
        cancel: threading.Event | None = None,
    ) -> ExecutionResult:
        """`execute` in the running event loop; cancelling the task kills the program."""
        plan = self._plan(code, language, timeout, stdin, args, env, files, cancel)
        return await self._execute(plan, None, language, requirements)

    def stream(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        placed: Mapping[str, bytes] | None = None,
        requirements: Sequence[str] | None = None,
        handed: Handed | None = None,
    ) -> Stream:
        """`execute` giving its events as they come; leaving the stream kills the program.

        `placed` are files by path in the sandbox; `handed` gets what the program leaves in its output directory.
        """
        from .streaming import Stream  # needs asyncio

        plan = self._plan(code, language, timeout, stdin, args, env, files, None)
        call = partial(self._execute, language=language, requirements=requirements, placed=placed or {}, handed=handed)
        return Stream(plan, call)

    async def _execute(
        self,
        plan: Plan,
        stream: Stream | None,
        language: str,
        requirements: Sequence[str] | None,
        placed: Mapping[str, bytes] = MappingProxyType({}),
        handed: Handed | None = None,
    ) -> ExecutionResult:
        if stream is not None:
            stream.started, cancelled = True, plan.cancelled
            plan = plan._replace(cancelled=lambda: stream.left or stream.cancelled or cancelled())
        if (result := self._steps.screened(plan)) is not None:
            return await self._recorded_in_loop(result, plan, language)
        visits = {"before": _placing(placed) if placed else None, "after": None if handed is None else _handing(handed)}
        drive = partial(self._drive_async, requirements=requirements, watcher=stream, visits=visits)
        spare, started = self._spare, time.monotonic()
        try:
            if spare is not None:
                spare.heed_outage()
            return await drive(self._backend, plan, language)
        except UNAVAILABLE as error:
            if spare is None or self._closed:
                raise
            took_s = 0.0 if requirements else time.monotonic() - started  # their installation is no sign
            backend = spare.backend or await spare.opened(error)
            stamp = spare.used(error, took_s)
            return await drive(backend, spare.plan(plan), language, stamp=stamp)

    @held
    def check(self) -> Receipt:
        """Make sure that a sandbox can be had, and say what it would enforce."""
        self._ready()
        spare, started = self._spare, time.monotonic()
        try:
            if spare is not None:
                spare.heed_outage()
            return _wait_for(self._backend, self._backend.check)
        except UNAVAILABLE as error:
            if spare is None:
                raise
            took_s = time.monotonic() - started
            backend = spare.backend or _portal_run(spare.opened(error))
            stamp = spare.used(error, took_s)
            return _wait_for(backend, backend.check)._replace(fallback=stamp)

    def cancel(self) -> None:
        """End everything that runs in this sandbox now; callable from any thread."""
        self._cancels += 1

    @held
    def close(self) -> None:
        """End what runs and let go of the backend. Closing twice is fine."""
        self.cancel()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed or not self._owns or self._pid != os.getpid():
            return
        _wait_for(self._backend, self._backend.close)
        if self._spare is not None and self._spare.backend is not None:
            _wait_for(self._spare.backend, self._spare.close)

    def __enter__(self) -> OneShot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> None:
        if self._closed:
            raise BackendUnavailable("this sandbox is closed; make a new one with get_sandbox()")
        if self._pid != os.getpid():  # the parent's helpers are the parent's: start our own
            self._lock, self._pid = threading.Lock(), os.getpid()
            if self._owns:
                self._backend, self._spare = open_chosen(self.settings)

    def _plan(
        self,
        code: object,
        language: str,
        timeout: float | None,
        stdin: object,
        args: object,
        env: object,
        files: object,
        cancel: threading.Event | None,
    ) -> Plan:
        self._ready()
        return self._planner.program(
            self._backend.name,
            code,
            language,
            timeout,
            self._cancelled(cancel),
            stdin=stdin,
            args=args,
            env=env,
            files=files,
        )

    def _cancelled(self, cancel: threading.Event | None) -> Callable[[], bool]:
        if cancel is not None and not hasattr(cancel, "is_set"):
            raise BadArgument(f"cancel must be a threading.Event, not {type(cancel).__name__}")
        before = self._cancels
        return lambda: self._cancels != before or (cancel is not None and cancel.is_set())

    def _drive(
        self,
        backend: Backend,
        plan: Plan,
        language: str,
        requirements: Sequence[str] | None,
        stamp: dict[str, str] | None = None,
    ) -> ExecutionResult:
        try:
            if requirements:
                result = _portal_run(self._run_with(backend, plan, requirements))
            elif hasattr(backend, "start_direct"):
                result = run_direct(cast("DirectBackend", backend), plan)
            else:
                result = _portal_run(run(backend, plan))
        except SandboxLost as error:
            self._recorded(_lost(plan, error), plan, language, stamp)
            raise
        return self._recorded(result, plan, language, stamp)

    async def _drive_async(
        self,
        backend: Backend,
        plan: Plan,
        language: str,
        *,
        requirements: Sequence[str] | None,
        watcher: Watcher | None,
        visits: Mapping[str, Visit | None],
        stamp: dict[str, str] | None = None,
    ) -> ExecutionResult:
        try:
            if visits["before"] is not None:
                plan = plan._replace(spec=plan.spec._replace(keeps=True))
            elif visits["after"] is not None:
                hands_back = backend.hands_back
                plan = plan._replace(spec=plan.spec._replace(hands_back=hands_back, keeps=not hands_back))
            if requirements:
                result = await self._run_with(backend, plan, requirements, watcher, visits)
            else:
                result = await run(backend, plan, watcher, **visits)
        except SandboxLost as error:
            await self._recorded_in_loop(_lost(plan, error), plan, language, stamp)
            raise
        return await self._recorded_in_loop(result, plan, language, stamp)

    def _recorded(
        self, result: ExecutionResult, plan: Plan, language: str, stamp: dict[str, str] | None = None
    ) -> ExecutionResult:
        if stamp is not None:
            result.meta["fallback"] = stamp
        self._steps.record(result, plan, language)
        return result

    async def _recorded_in_loop(
        self, result: ExecutionResult, plan: Plan, language: str, stamp: dict[str, str] | None = None
    ) -> ExecutionResult:
        if stamp is not None:
            result.meta["fallback"] = stamp
        await self._steps.record_in_loop(result, plan, language)
        return result

    async def _run_with(
        self,
        backend: Backend,
        plan: Plan,
        requirements: Sequence[str],
        watcher: Watcher | None = None,
        visits: Mapping[str, Visit | None] = MappingProxyType({}),
    ) -> ExecutionResult:
        from .packages import ensure, wanted  # needed by few calls
        from .thread_pool import aside

        if backend.installs:
            plan = plan._replace(spec=plan.spec._replace(requirements=wanted(requirements, self.settings)))
            return await run(backend, plan, watcher, **visits)
        layer = await aside(ensure, requirements, self.settings)
        plan = plan._replace(spec=plan.spec._replace(keeps=True, hands_back=False, packages=layer.path))
        result = await run(backend, plan, watcher, **visits)
        result.meta["packages"] = list(layer.installed)
        return result


def _lost(plan: Plan, error: SandboxLost) -> ExecutionResult:
    result = not_run(plan, "error", str(error), LOST_EXIT_CODE)
    result.meta["lost"] = True
    return result


def _placing(files: Mapping[str, bytes]) -> Visit:
    async def place(sandbox: Sandbox) -> None:
        for path, data in files.items():
            await sandbox.write(checked(path, sandbox.places), data)

    return place


def _handing(handed: Handed) -> Visit:
    async def hand_over(sandbox: Sandbox) -> None:
        from .outputs import in_order  # needs asyncio

        handed.clear()  # of a run whose sandbox was lost
        await handed.take(sandbox, await in_order(await sandbox.list(sandbox.places.output)))

    return hand_over


_shared: dict[Settings, list[Any]] = {}  # settings → [sandbox, borrowers]
_shared_lock = threading.Lock()
_shared_pid = 0


@contextmanager
def shared_sandbox() -> Iterator[OneShot]:
    """A sandbox for the settings in force now, kept for the next call with the same ones."""
    settings = config.load().settings
    _start_sharing()
    with _shared_lock:
        entry = _shared.pop(settings, None) or [OneShot(settings), 0]
        _shared[settings] = entry  # newest last
        entry[1] += 1
        idle = [key for key, (_, borrowers) in _shared.items() if not borrowers]
        evicted = [_shared.pop(key)[0] for key in idle[: max(0, len(_shared) - _MAX_SHARED)]]
    for sandbox in evicted:
        sandbox.close()
    try:
        yield entry[0]
    finally:
        with _shared_lock:
            entry[1] -= 1


def _start_sharing() -> None:
    global _shared_lock, _shared_pid
    if _shared_pid == os.getpid():
        return
    if _shared_pid == 0:
        atexit.register(_close_shared)
    else:  # after a fork: the lock may be held by a thread that is not here
        _shared_lock = threading.Lock()
    _shared_pid = os.getpid()


def _close_shared() -> None:
    for sandbox, _ in _shared.values():
        sandbox.close()
    _shared.clear()


def _wait_for(backend: Backend, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if hasattr(backend, "start_direct"):  # such a backend has nothing to wait for in a loop
        coroutine = verb()
        try:
            coroutine.send(None)
        except StopIteration as end:
            done: T = end.value
            return done
        coroutine.close()
    return _portal_run(verb())


def _portal_run(coroutine: Coroutine[Any, Any, T]) -> T:
    from .sync import portal  # needs asyncio, which a backend with a direct driver does not

    return portal.run(coroutine)
