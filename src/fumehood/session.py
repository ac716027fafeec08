"""A session: one sandbox, with its files and its interpreter kept from call to call."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from . import arguments, config, edits, paths, registry
from . import datasets as sets
from .backends.base import Backend, Places, Sandbox
from .budget import Budget
from .bundles import clean
from .copies import Copies
from .errors import (
    BackendUnavailable,
    BadArgument,
    CommandNotAllowed,
    EngineFailed,
    FileError,
    SandboxLost,
    SessionEnded,
)
from .execution import new_execution_id, not_run, run_in
from .lifetime import Keeper, Lifetime, Turn
from .outputs import Outputs, listing
from .planning import Plan, Planner
from .policy import check_command
from .steps import Steps, absolute
from .streaming import Stream
from .types import ExecutionResult, FileStat, Receipt

if TYPE_CHECKING:
    from .packages import Layer

READ_BYTES = 64 * 1024 * 1024
LOST = (
    "the sandbox of this session went away: its files and variables are lost."
    " The next call starts a fresh one; write again what it needs"
)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("fumehood.session")


class AsyncSession:
    """Files and variables kept over many calls, one at a time, in a sandbox that the first call makes."""

    def __init__(
        self,
        type: str | Backend | None = None,  # noqa: A002
        require: str | None = None,
        datasets: Mapping[str, str | os.PathLike[str]] | None = None,
        session_id: str | None = None,
        requirements: Sequence[str] | None = None,
        *,
        io_handler: object = None,
        run_id: str | None = None,
        **settings: Any,
    ) -> None:
        given = type if isinstance(type, Backend) else None
        name = None if given is not None else type
        self.settings = config.load({"type": name, "require": require, **settings}).settings
        self.session_id = _id("session_id", session_id)
        self._requirements = _requirements(requirements)
        self._datasets = sets.resolved(datasets)
        self._planner = Planner(self.settings)
        self._steps = Steps(self.settings, _id("run_id", run_id))
        self._budget = Budget(self.settings)
        self._outputs = Outputs(Copies(absolute(self.settings.output_dir), self.session_id), io_handler)
        self._layer: Layer | None = None
        self._cancels = 0  # a call is cancelled when this is not what it was at its start
        self._turn = Turn(self.settings.session_busy)
        self._life = Lifetime(self.settings)
        backend = given or registry.open_backend(self.settings)
        self._keeper = Keeper(self.settings, backend, owns_backend=given is None, turn=self._turn, life=self._life)
        weakref.finalize(self, self._keeper.drop)

    @property
    def run_id(self) -> str:
        """What its records have in common."""
        return self._steps.run_id

    @property
    def places(self) -> Places:
        """Where things are, as the program sees them; the backend's own once the sandbox is made."""
        sandbox = self._keeper.sandbox
        return Places() if sandbox is None else sandbox.places

    @property
    def backend_name(self) -> str:
        """Where it runs."""
        return self._keeper.backend.name

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages it was asked to have."""
        return self._requirements

    @property
    def dataset_paths(self) -> tuple[str, ...]:
        """Where the program finds the datasets."""
        return tuple(self.datasets.values())

    @property
    def datasets(self) -> dict[str, str]:
        """The same, by name."""
        return {dataset.name: f"{self.places.data}/{dataset.filename}" for dataset in self._datasets}

    @property
    def output_dir(self) -> str:
        """Where copies of the output files go on this machine."""
        return self._outputs.directory

    @property
    def ended(self) -> bool:
        """Whether no further call is taken."""
        return self._life.ended is not None

    async def run(
        self, code: str, timeout: float | None = None, *, reasoning_trace: str | None = None
    ) -> ExecutionResult:
        """Run Python in the session's interpreter, which remembers what earlier runs defined."""
        return await self._execute(self._python(code, timeout), "run", _trace(reasoning_trace))

    async def exec(
        self,
        command: Sequence[str],
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        reasoning_trace: str | None = None,
    ) -> ExecutionResult:
        """Run a command in the session's files, beside the interpreter."""
        plan = self._planner.command(self.backend_name, command, timeout, stdin=stdin, env=env)
        return await self._execute(plan, "exec", _trace(reasoning_trace))

    def stream(
        self, program: str | Sequence[str], timeout: float | None = None, *, reasoning_trace: str | None = None
    ) -> Stream:
        """`run` of program text, or `exec` of a list, giving its events as they come."""
        if isinstance(program, str):
            plan, kind = self._python(program, timeout), "run"
        else:
            plan, kind = self._planner.command(self.backend_name, program, timeout), "exec"
        return Stream(partial(self._execute, plan, kind, _trace(reasoning_trace)))

    async def write(self, path: str, content: str | bytes, *, reasoning_trace: str | None = None) -> int:
        """Make or replace a file; the number of bytes written."""
        data = arguments.content_bytes(content)
        bound = min(self._planner.spec.limits.file_bytes, self._planner.spec.limits.disk_bytes)
        paths.shape(path)

        async def write(sandbox: Sandbox, where: str) -> int:
            if len(data) > bound:
                raise FileError(f"File too large: {len(data)} bytes, at most {bound} (SANDBOX_FILE_MB)", "too_large")
            await sandbox.write(where, data)
            return len(data)

        try:
            said = {"code": data.decode()}
        except UnicodeDecodeError:
            said = {"code": base64.b64encode(data).decode(), "encoding": "base64"}
        return await self._change("write", path, write, _trace(reasoning_trace), said)

    async def edit(self, path: str, old_string: str, new_string: str, *, reasoning_trace: str | None = None) -> None:
        """Replace the one passage of a text file that reads `old_string`."""
        edits.check(old_string, new_string)

        async def edit(sandbox: Sandbox, where: str) -> int:
            data = edits.edited(await sandbox.read(where, edits.MAX_BYTES), old_string, new_string)
            await sandbox.write(where, data)
            return len(data)

        await self._change("edit", path, edit, _trace(reasoning_trace), {"code": "", "args": (old_string, new_string)})

    async def read(self, path: str, max_bytes: int = READ_BYTES) -> bytes:
        """A file's content; FileError if there is more than `max_bytes`."""
        paths.shape(path)
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise BadArgument("max_bytes must be a whole number, 0 or more")
        async with self._call():
            sandbox = await self._sandbox()
            return await sandbox.read(paths.checked(path, sandbox.places), max_bytes)

    async def files(self, directory: str | None = None) -> list[FileStat]:
        """The regular files, or those beneath one directory; datasets are not among them."""
        async with self._call():
            sandbox = await self._sandbox()
            if directory is None:
                found = list((await listing(sandbox)).values())
            else:
                found = await sandbox.list(paths.checked_directory(directory, sandbox.places))
            return sorted(found)

    async def check(self) -> Receipt:
        """Make the sandbox, and say what it enforces."""
        async with self._call():
            receipt = await self._keeper.backend.check()
            await self._sandbox()
            return receipt

    def cancel(self) -> None:
        """End the call that runs now; callable from any thread."""
        self._cancels += 1

    async def close(self) -> None:
        """End what runs, the sandbox and its files. Closing twice is fine."""
        self._life.end()
        self.cancel()
        await self._keeper.close()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _python(self, code: object, timeout: float | None) -> Plan:
        return self._planner.program(self.backend_name, code, "python", timeout, keeps_state=True)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """One call at a time, none after the end."""
        self._life.enter()
        try:
            async with self._turn:
                self._life.check()
                try:
                    yield
                except SandboxLost as error:
                    if self._life.ended is not None:
                        raise SessionEnded(self._life.ended) from error
                    if self._keeper.sandbox is None:  # it never started
                        raise
                    await self._keeper.discard()
                    raise SandboxLost(LOST) from error
        finally:
            self._life.leave(self._keeper.expire)

    async def _sandbox(self, given_up: Callable[[], bool] = lambda: False) -> Sandbox:
        if self._keeper.sandbox is not None:
            return self._keeper.sandbox
        sets.check(self._datasets)
        if self._requirements and self._layer is None:
            from .packages import ensure  # needed by few

            self._layer = await asyncio.to_thread(ensure, self._requirements, self.settings, self._progress())
        spec = self._planner.spec._replace(
            keeps=True,
            datasets=tuple((dataset.filename, dataset.path) for dataset in self._datasets),
            packages=None if self._layer is None else self._layer.path,
        )
        sandbox = await self._keeper.start(spec, given_up)
        await self._outputs.begin(sandbox)
        return sandbox

    def _progress(self) -> Callable[[str], None]:
        loop = asyncio.get_running_loop()
        return lambda text: _ignore(asyncio.run_coroutine_threadsafe(self._outputs.tell("send_progress", text), loop))

    async def _execute(self, plan: Plan, kind: str, trace: str | None, stream: Stream | None = None) -> ExecutionResult:
        async with self._call():
            before = self._cancels
            if stream is not None:
                stream.started = True
            self._budget.check()
            plan = plan._replace(cancelled=lambda: self._cancels != before or (stream is not None and stream.left))
            refusal: CommandNotAllowed | None = None
            result = self._steps.screened(plan)
            if kind == "exec":
                try:
                    check_command(plan.command.argv, self.settings.allowed_commands, plan.command.env)
                except CommandNotAllowed as error:
                    refusal, result = error, not_run(plan, "error", str(error), 126)
            if result is None:
                result = await self._run(plan, stream)
            else:
                result.meta.update(self._outputs.unchanged(self.places))
            self._finish(result, plan, kind, trace)
            if refusal is not None:
                raise refusal
            return result

    async def _run(self, plan: Plan, stream: Stream | None) -> ExecutionResult:
        try:
            sandbox = await self._sandbox(plan.cancelled)
        except (EngineFailed, BackendUnavailable) as error:
            if self.settings.start_failure != "skip":
                raise
            _log.warning("skipped: the sandbox did not start: %s", error)
            result = not_run(plan, "error", f"fumehood: skipped: the sandbox did not start: {error}\n")
            result.meta.update(self._outputs.unchanged(self.places), skipped=True)
            return result
        result = await run_in(sandbox, self._cut(plan), stream)
        result.meta.update(await self._outputs.collect(sandbox))
        return result

    def _cut(self, plan: Plan) -> Plan:
        """No longer than the session itself has left."""
        self._life.check()
        for left_s, setting in (
            (self._life.left_s(), "session_max_sec"),
            (self._budget.wall_left_s(), "session_max_wall_sec"),
        ):
            if left_s is not None and left_s < plan.timeout_s:
                plan = plan._replace(timeout_s=left_s, cut_by=setting)
        return plan

    def _finish(self, result: ExecutionResult, plan: Plan, kind: str, trace: str | None) -> None:
        meta = result.meta
        meta.update(session_id=self.session_id, run_id=self.run_id, step=self._steps.number + 1)
        if kind == "run":
            meta.setdefault("state", "kept")
            meta.setdefault("results", [])
        if self._layer is not None:
            meta["packages"] = list(self._layer.installed)
        out = len(result.stdout.encode("utf-8", "replace")) + len(result.stderr.encode("utf-8", "replace"))
        if self.settings.session_max_output_mb is not None:
            out += sum(clean(bundle)[1] for bundle in meta.get("results", ()))
        self._budget.spend(
            cpu_s=meta["usage"]["cpu_s"], wall_s=result.duration, output_bytes=out + self._outputs.copied_bytes
        )
        command = plan.command.argv if kind == "exec" else None
        language = "python" if kind == "run" else ""
        self._steps.record(
            result, plan, language, kind, session_id=self.session_id, command=command, reasoning_trace=trace
        )

    async def _change(
        self,
        kind: str,
        path: str,
        change: Callable[[Sandbox, str], Awaitable[int]],
        trace: str | None,
        said: Mapping[str, Any],
    ) -> int:
        async with self._call():
            self._budget.check()
            started = time.monotonic()
            size, failure = 0, None
            try:
                sandbox = await self._sandbox()
                where = paths.checked(path, sandbox.places)
                size = await change(sandbox, where)
                await self._outputs.note_written(sandbox, where)
            except FileError as error:
                failure = error
            self._budget.spend()
            meta = {"execution_id": new_execution_id(), "reason": "error" if failure else "ok"}
            result = ExecutionResult("", str(failure or ""), 1 if failure else 0, time.monotonic() - started, meta)
            self._steps.record_file(
                result,
                self.backend_name,
                kind,
                session_id=self.session_id,
                path=path,
                reasoning_trace=trace,
                **said,
            )
            if failure is not None:
                raise failure
            return size


def _id(what: str, given: object) -> str:
    if given is None:
        return os.urandom(8).hex()
    if not isinstance(given, str) or not _ID.fullmatch(given):
        raise BadArgument(
            f"{what} must be 1 to 64 letters, digits, '_' or '-', not"
            f" {ascii(given[:80]) if isinstance(given, str) else given.__class__.__name__}"
        )
    return given


def _requirements(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not all(isinstance(r, str) for r in given):
        raise BadArgument("requirements must be a list of str such as ['polars>=1']")
    return tuple(given)


def _trace(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise BadArgument(f"reasoning_trace must be a str, not {given.__class__.__name__}")
    return given


def _ignore(_: object) -> None:
    """For a call whose answer nobody waits for."""
