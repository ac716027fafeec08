"""A session: one sandbox, with its files and its interpreter kept from call to call."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from . import arguments, config, edits, paths
from . import datasets as sets
from .backends.base import Backend, Places, Sandbox
from .calls import Calls
from .config import Loaded, Settings
from .errors import BadArgument, FileError
from .fallback import open_chosen
from .handed import Handed
from .offload import is_small, offload
from .outputs import for_readers, listing
from .planning import Plan
from .requirements import parse
from .streaming import Stream
from .types import ExecutionResult, FileStat, Receipt

READ_BYTES = 64 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


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
        loaded = config.load({"type": name, "require": require, **settings})
        self._open(loaded, given, datasets, session_id, requirements, io_handler, run_id)

    def _open(
        self,
        loaded: Loaded,
        given: Backend | None,
        datasets: Mapping[str, str | os.PathLike[str]] | None,
        session_id: str | None,
        requirements: Sequence[str] | None,
        io_handler: object,
        run_id: str | None,
    ) -> None:
        settings, self.origins = loaded
        self.session_id = _id("session_id", session_id)
        run_id, sources, wanted = _id("run_id", run_id), sets.resolved(datasets), _requirements(requirements)
        backend, spare = open_chosen(settings) if given is None else (given, None)
        self._calls = Calls(
            settings,
            backend,
            spare,
            owns_backend=given is None,
            session_id=self.session_id,
            run_id=run_id,
            datasets=sources,
            requirements=wanted,
            io_handler=io_handler,
        )

    @property
    def settings(self) -> Settings:
        """Every setting in force; where the fallback stands in, `type` names that."""
        return self._calls.settings

    @property
    def run_id(self) -> str:
        """What its records have in common."""
        return self._calls.steps.run_id

    @property
    def places(self) -> Places:
        """Where things are, as the program sees them; the backend's own once the sandbox is made."""
        return self._calls.keeper.places

    @property
    def backend_name(self) -> str:
        """Where it runs."""
        return self._calls.keeper.backend.name

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages it was asked to have."""
        return self._calls.requirements

    @property
    def dataset_paths(self) -> tuple[str, ...]:
        """Where the program finds the datasets."""
        return tuple(self.datasets.values())

    @property
    def datasets(self) -> dict[str, str]:
        """The same, by name."""
        return {dataset.name: f"{self.places.data}/{dataset.filename}" for dataset in self._calls.datasets}

    @property
    def output_dir(self) -> str:
        """Where copies of the output files go on this machine."""
        return self._calls.outputs.directory

    @property
    def ends_in_s(self) -> float:
        """Seconds until it ends if no further call comes."""
        return self._calls.life.ends_in_s()

    @property
    def ended(self) -> bool:
        """Whether no further call is taken."""
        return self._calls.life.ended is not None

    async def run(
        self,
        code: str,
        timeout: float | None = None,
        *,
        reasoning_trace: str | None = None,
        requirements: Sequence[str] | None = None,
    ) -> ExecutionResult:
        """Run Python in the session's interpreter, which remembers; with other requirements in one of its own."""
        plan, trace = self._python(code, timeout), _trace(reasoning_trace)
        return await self._calls.execute(plan, None, "run", trace, requirements=self._others(requirements))

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
        plan = self._calls.planner.command(self.backend_name, command, timeout, stdin=stdin, env=env)
        return await self._calls.execute(plan, None, "exec", _trace(reasoning_trace))

    def stream(
        self,
        program: str | Sequence[str],
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        reasoning_trace: str | None = None,
        requirements: Sequence[str] | None = None,
        handed: Handed | None = None,
    ) -> Stream:
        """`run` of program text, or `exec` of a list, giving its events as they come; its output files go to `handed`.

        `stdin` and `env` are for a command, `requirements` for program text.
        """
        if isinstance(program, str):
            if stdin is not None or env is not None:
                raise BadArgument("stdin and env are for a command: write what program text is to read into a file")
            plan, kind, others = self._python(program, timeout), "run", self._others(requirements)
        else:
            if requirements:
                raise BadArgument("requirements are for program text: open the session with what its commands need")
            planner = self._calls.planner
            plan, kind, others = planner.command(self.backend_name, program, timeout, stdin=stdin, env=env), "exec", ()
        trace = _trace(reasoning_trace)
        call = partial(self._calls.execute, kind=kind, trace=trace, requirements=others, handed=handed)
        return Stream(plan, call)

    async def write(self, path: str, content: str | bytes, *, reasoning_trace: str | None = None) -> int:
        """Make or replace a file; the number of bytes written."""
        data = arguments.content_bytes(content)
        bound = min(self._calls.planner.spec.limits.file_bytes, self._calls.planner.spec.limits.disk_bytes)

        async def write(sandbox: Sandbox, where: str) -> int:
            if len(data) > bound:
                raise FileError(f"File too large: {len(data)} bytes, at most {bound} (SANDBOX_FILE_MB)", "too_large")
            await sandbox.write(where, data)
            return len(data)

        try:
            said = {"code": data.decode()}
        except UnicodeDecodeError:
            said = {"code": base64.b64encode(data).decode(), "encoding": "base64"}
        return await self._calls.change("write", path, write, _trace(reasoning_trace), said)

    async def edit(self, path: str, old_string: str, new_string: str, *, reasoning_trace: str | None = None) -> None:
        """Replace the one passage of a text file that reads `old_string`."""
        edits.check(old_string, new_string)

        async def edit(sandbox: Sandbox, where: str) -> int:
            before = await sandbox.read(where, edits.MAX_BYTES)
            change = partial(edits.edited, before, old_string, new_string, where)
            data = change() if is_small(before, old_string, new_string) else await offload(change)
            await sandbox.write(where, data)
            return len(data)

        await self._calls.change(
            "edit", path, edit, _trace(reasoning_trace), {"code": "", "args": (old_string, new_string)}
        )

    async def read(self, path: str, max_bytes: int = READ_BYTES) -> bytes:
        """A file's content; FileError if there is more than `max_bytes`."""
        paths.shape(path)
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise BadArgument("max_bytes must be a whole number, 0 or more")
        async with self._calls.turn():
            sandbox = await self._calls.sandbox()
            return await sandbox.read(paths.checked_directory(path, sandbox.places), max_bytes)  # it says what is one

    async def files(self, directory: str | None = None) -> list[FileStat]:
        """The regular files, or those beneath one directory; datasets are not among them."""
        return [stat for stat in await listed(self, directory) if not stat.why]

    async def check(self) -> Receipt:
        """Make the sandbox, and say what it enforces."""
        async with self._calls.turn():
            receipt = await self._calls.check()
            await self._calls.sandbox()
            return receipt

    def cancel(self) -> None:
        """End the call that runs now; callable from any thread."""
        self._calls.cancel()

    async def close(self) -> None:
        """End what runs, the sandbox and its files. Closing twice is fine."""
        await self._calls.close()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _others(self, requirements: object) -> tuple[str, ...]:
        """Those of a call, unless the session has them all."""
        wanted = _requirements(requirements)
        if not wanted:
            return ()
        own = set(parse(self.requirements)) if self.requirements else set()
        return () if own.issuperset(parse(wanted)) else wanted

    def _python(self, code: object, timeout: float | None) -> Plan:
        return self._calls.planner.program(self.backend_name, code, "python", timeout, keeps_state=True)


async def listed(session: AsyncSession, directory: str | None = None) -> list[FileStat]:
    """Its files; after them, with a `why`, what else is there, and files that cannot be asked for."""
    async with session._calls.turn():
        sandbox = await session._calls.sandbox()
        if directory is None:
            files, others = await listing(sandbox)
            found = [*files.values(), *others]
        else:
            where = paths.checked_directory(directory, sandbox.places)
            found = await sandbox.list(where)
            if where not in sandbox.places.all and all(stat.why for stat in found):
                await _check_directory(sandbox, where)
        return await for_readers(found)


def with_settings(
    settings: Settings,
    *,
    session_id: str | None = None,
    requirements: Sequence[str] | None = None,
    io_handler: object = None,
    run_id: str | None = None,
) -> AsyncSession:
    """A session whose settings are decided already: nothing is read from the environment."""
    session = AsyncSession.__new__(AsyncSession)
    session._open(Loaded(settings, {}), None, None, session_id, requirements, io_handler, run_id)
    return session


async def _check_directory(sandbox: Sandbox, where: str) -> None:
    """Where nothing is listed there may be no such directory."""
    try:
        await sandbox.read(where, 0)
    except FileError as error:
        if error.kind == "directory":
            return
        if error.kind != "too_large":
            raise
    raise FileError(f"{where} is a file: name a directory, or read it", "special")


def _id(what: str, given: object) -> str:
    if given is None:
        return os.urandom(8).hex()
    if not isinstance(given, str) or not _ID.fullmatch(given):
        raise BadArgument(
            f"{what} must be 1 to 100 letters, digits, '_', '-' or '.', not"
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
