"""`get_sandbox()` and the one-shot sandbox it gives: check, screen, run, record."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import arguments, config, registry
from .backends.base import Backend, DirectBackend, SandboxSpec
from .config import Settings
from .errors import BackendUnavailable, BadArgument
from .execution import Plan, refused, run, run_direct
from .languages import resolve
from .types import Command, ExecutionResult, Level, Receipt

if TYPE_CHECKING:
    from .records import Store

T = TypeVar("T")

_KB, _MB = 1024, 1024 * 1024
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

    def __init__(self, settings: Settings, backend: Backend | None = None) -> None:
        self.settings = settings
        self._owns = backend is None
        self._backend = backend or registry.open_backend(settings)
        self._spec = SandboxSpec(settings.limits(), settings.network)
        self._resource_limits = self._spec.limits._asdict()
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._run_id = os.urandom(8).hex()
        self._step = 0
        self._store: Store | None = None
        self._records_dir = os.path.join(_absolute(settings.artifacts_dir), "executions")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._cancels = 0  # an execution is cancelled when this is not what it was at its start
        self._closed = False

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
        cancel: threading.Event | None = None,
    ) -> ExecutionResult:
        """Run `code` to its end or its `timeout` in seconds. Setting `cancel` from another thread ends it."""
        plan = self._plan(code, language, timeout, stdin, args, env, files, cancel)
        result = self._screened(plan)
        if result is None:
            if hasattr(self._backend, "start_direct"):
                result = run_direct(cast("DirectBackend", self._backend), plan)
            else:
                result = _portal_run(run(self._backend, plan))
        self._record(plan, language, result)
        return result

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
        cancel: threading.Event | None = None,
    ) -> ExecutionResult:
        """`execute` in the running event loop; cancelling the task kills the program."""
        plan = self._plan(code, language, timeout, stdin, args, env, files, cancel)
        result = self._screened(plan) or await run(self._backend, plan)
        self._record(plan, language, result)
        return result

    def check(self) -> Receipt:
        """Make sure that a sandbox can be had, and say what it would enforce."""
        self._ready()
        return self._wait_for(self._backend.check)

    def cancel(self) -> None:
        """End everything that runs in this sandbox now; callable from any thread."""
        self._cancels += 1

    def close(self) -> None:
        """End what runs and let go of the backend. Closing twice is fine."""
        self.cancel()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed or not self._owns or self._pid != os.getpid():
            return
        self._wait_for(self._backend.close)

    def __enter__(self) -> OneShot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if hasattr(self._backend, "start_direct"):  # such a backend has nothing to wait for in a loop
            coroutine = verb()
            try:
                coroutine.send(None)
            except StopIteration as end:
                done: T = end.value
                return done
            coroutine.close()
        return _portal_run(verb())

    def _ready(self) -> None:
        if self._closed:
            raise BackendUnavailable("this sandbox is closed; make a new one with get_sandbox()")
        if self._pid != os.getpid():  # the parent's helpers are the parent's: start our own
            self._lock, self._pid = threading.Lock(), os.getpid()
            if self._owns:
                self._backend = registry.open_backend(self.settings)

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
        settings, limits = self.settings, self._spec.limits
        chosen = resolve(language, settings.supported_languages)
        timeout_s, clamped = config.clamp_timeout(timeout, settings)
        argv, script = chosen.command(arguments.code_bytes(code, limits), arguments.arg_strings(args))
        command = Command(
            argv,
            script,
            arguments.stdin_bytes(stdin),
            arguments.env_strings(env),
            arguments.file_bytes(files, chosen.filename, limits),
            timeout_s * self._cores if limits.cpu_s is None else limits.cpu_s,
        )
        return Plan(
            self._backend.name,
            self._spec,
            command,
            timeout_s,
            settings.max_output_kb * _KB,
            settings.output_kill_mb * _MB,
            self._resource_limits,
            clamped,
            cast("Level | None", settings.require),
            self._cancelled(cancel),
        )

    def _cancelled(self, cancel: threading.Event | None) -> Callable[[], bool]:
        if cancel is not None and not hasattr(cancel, "is_set"):
            raise BadArgument(f"cancel must be a threading.Event, not {type(cancel).__name__}")
        before = self._cancels
        return lambda: self._cancels != before or (cancel is not None and cancel.is_set())

    def _screened(self, plan: Plan) -> ExecutionResult | None:
        if not self.settings.block_dangerous_imports or plan.command.argv[0] != "python":
            return None
        import logging

        from . import screen  # needs ast, and is off by default

        findings = screen.find((plan.command.script or b"").decode(), self.settings.dangerous_imports)
        if not findings:
            return None
        message = screen.message(findings)
        logging.getLogger("fumehood.screen").info("%s", message)
        return refused(plan, message, list(dict.fromkeys(found.module for found in findings)))

    def _record(self, plan: Plan, language: str, result: ExecutionResult) -> None:
        self._step += 1
        policy = self.settings.store_code
        if policy == "never" or (policy == "on_error" and result.exit_code == 0 and result.meta["reason"] == "ok"):
            return
        from pathlib import Path  # most calls store nothing

        from . import records

        if self._store is None:
            max_bytes = self.settings.store_max_mb * _MB
            self._store = records.Store(Path(self._records_dir), policy=policy, max_bytes=max_bytes)
        command = plan.command
        record = records.build(
            execution_id=result.meta["execution_id"],
            backend=plan.runtime,
            language=language,
            code=command.script or b"",
            args=command.argv[2:],
            env=command.env,
            stdin=command.stdin,
            files=command.files,
            timeout=plan.timeout_s,
            result=result,
            run_id=self._run_id,
            step=self._step,
        )
        self._store.save(record, records.failed(result))


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


def _absolute(directory: str) -> str:
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:  # the working directory is gone; the store will warn that it cannot write
        return os.path.join(os.sep, "nonexistent", directory)


def _portal_run(coroutine: Coroutine[Any, Any, T]) -> T:
    from .sync import portal  # needs asyncio, which a backend with a direct driver does not

    return portal.run(coroutine)
