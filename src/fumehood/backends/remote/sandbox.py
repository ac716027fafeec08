"""Sandboxes of the server: one for a single program, or one of its sessions."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...config import Settings
from ...engine import lend
from ...errors import BackendUnavailable, BadArgument, FileError, FumehoodError, RuntimeMissing, SandboxLost
from ...languages import LANGUAGES
from ...thread_pool import aside
from ...threads import begin
from ...types import Command, FileStat, Receipt
from ..base import Process, Sandbox, SandboxSpec, keeps_nothing
from . import client as http
from . import said
from .client import Client
from .process import Cancel, RemoteProcess
from .refusals import was_refused

INSTALL_S = 900.0  # with requirements, which the server may have to fetch
_SLACK_S = 5.0  # more than the layer above allows: it ends what takes too long, and the server is behind it
_MIB = 1024 * 1024


def narrowing(spec: SandboxSpec, settings: Settings) -> dict[str, Any]:
    """What the server may give at most; it may have less."""
    limits = spec.limits
    asked: dict[str, Any] = {
        "memory_mb": max(1, limits.memory_bytes // _MIB),
        "processes": limits.processes,
        "disk_mb": max(1, limits.disk_bytes // _MIB),
        "file_mb": max(1, limits.file_bytes // _MIB),
        "open_files": limits.open_files,
        "inodes": limits.inodes,
        "output_kill_mb": settings.output_kill_mb,
    }
    if limits.cpu_s is not None:
        asked["cpu_sec"] = limits.cpu_s
    found: dict[str, Any] = {"limits": asked}
    if not spec.network:
        found["network"] = False
    if settings.require is not None:
        found["require"] = settings.require
    if spec.requirements:
        found["requirements"] = list(spec.requirements)
    return found


class _Starter(Sandbox):
    """What both have: a request becomes a process."""

    def __init__(
        self, client: Client, spec: SandboxSpec, settings: Settings, receipt: Callable[[], Awaitable[Receipt]]
    ):
        self._client, self._spec, self._settings, self._receipt = client, spec, settings, receipt

    async def _start(
        self,
        path: str,
        ask: dict[str, Any],
        cancel: Cancel,
        *,
        keeps_state: bool = False,
    ) -> RemoteProcess:
        body = json.dumps({**ask, "timeout": self._settings.max_timeout_sec + _SLACK_S}).encode()
        patience_s = INSTALL_S if self._spec.requirements else http.ANSWER_S
        response = await self._client.send("POST", path, body, accept=http.EVENTS, read_s=patience_s, runs=True)
        process = RemoteProcess(self._client, response, self._spec.limits, cancel, keeps_state=keeps_state)
        await process.begun(self._receipt, patience_s)
        return process


class RemoteSandbox(_Starter):
    """Nothing is there before its one program, and what that left comes with its result."""

    _process: RemoteProcess | None = None

    async def start(self, command: Command) -> Process:
        if command.script is None:
            ask: dict[str, Any] = {"command": list(command.argv)}
        else:
            ask = {"code": command.script.decode(), "language": _language(command), "args": list(command.argv[2:])}
        if command.files:
            ask["files"] = [{"path": name, "content_base64": _base64(data)} for name, data in command.files.items()]
        ask |= _streams(command) | narrowing(self._spec, self._settings)
        self._process = await self._start("/execute", ask, self._cancel)
        return self._process

    async def read(self, path: str, max_bytes: int) -> bytes:
        data = said.left(self._result(path)).get(path)
        if data is None or len(data) > max_bytes:
            raise FileError(f"{path} did not come back from the server", "missing")
        return data

    async def list(self, directory: str) -> list[FileStat]:
        result = self._result(directory)
        files = [FileStat(path, len(data), (0,)) for path, data in said.left(result).items()]
        return files + said.left_out(result, directory)

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()

    async def _cancel(self, handle: str) -> None:
        await self._client.ask("POST", f"/executions/{handle}/cancel")

    def _result(self, path: str) -> dict[str, Any]:
        if not self._spec.hands_back or self._process is None or self._process.result is None:
            raise keeps_nothing(path)
        return self._process.result


@contextmanager
def _ended_with_its_server() -> Iterator[None]:
    """Where nobody listens any more, no session is either."""
    try:
        yield
    except BackendUnavailable as error:
        if was_refused(error):
            raise SandboxLost(str(error)) from error
        raise


class RemoteSession(_Starter):
    """One of the server's sessions, which is ours alone."""

    _is_closed = False

    async def open(self) -> None:
        idle_s = self._settings.session_idle_sec + _SLACK_S  # our own clock is the one that counts
        ask = {**narrowing(self._spec, self._settings), "idle": idle_s}
        read_s = INSTALL_S if self._spec.requirements else http.ANSWER_S
        made = await self._client.ask("POST", "/sessions", ask, read_s=read_s)
        self.places = said.places(made)
        self._id = said.session_id(made)
        self._path = f"/sessions/{self._id}"
        try:
            await self._lend()
        except BaseException:
            await self.close()
            raise

    async def start(self, command: Command) -> Process:
        self._check()
        if command.keeps_state:
            ask: dict[str, Any] = {"code": (command.script or b"").decode()}
            with _ended_with_its_server():
                return await self._start(f"{self._path}/run", ask, self._cancel, keeps_state=True)
        if command.script is not None:
            for name, data in {**command.files, command.argv[1]: command.script}.items():
                await self.write(f"{self.places.workspace}/{name}", data)
        ask = {"command": list(command.argv), **_streams(command)}
        with _ended_with_its_server():
            return await self._start(f"{self._path}/exec", ask, self._cancel)

    async def read(self, path: str, max_bytes: int) -> bytes:
        self._check()
        if path in (self.places.workspace, self.places.tmp):
            raise FileError(f"{path} is a directory; name a file in it, files() lists them", "directory")
        params = {"path": self._sent(path)}
        with _ended_with_its_server():
            response = await self._client.send("GET", f"{self._path}/files/content", accept=http.BINARY, params=params)
        data = await self._client.content(response, max_bytes)
        if len(data) > max_bytes:
            raise FileError(f"{path} is larger than {max_bytes:,} bytes; take parts of it with exec", "too_large")
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self._send(path, data)

    async def _send(self, path: str, data: bytes | http.Upload) -> None:
        self._check()
        params = {"path": self._sent(path)}
        with _ended_with_its_server():
            response = await self._client.send(
                "PUT", f"{self._path}/files/content", data, kind=http.BINARY, params=params
            )
        await self._client.content(response, http.MAX_ANSWER)

    async def list(self, directory: str) -> list[FileStat]:
        self._check()
        try:
            with _ended_with_its_server():
                found = await self._client.ask("GET", f"{self._path}/files", directory=self._sent(directory))
        except FileError as error:
            if error.kind in ("missing", "special"):
                return []
            raise
        return await aside(said.listing, found, directory)  # as long as the program likes: not in the loop

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._client.ask("DELETE", self._path)
        except (FumehoodError, RuntimeError):  # RuntimeError: its client is closed
            pass  # it ends when it has been idle for long enough

    def drop(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        end = partial(http.end_now, self._client.address, self._id)
        # Where the process ends, nobody waits for a thread.
        if not (threading.main_thread().is_alive() and begin(threading.Thread(target=end, daemon=True))):
            end()

    # --- inside

    async def _lend(self) -> None:
        """The datasets, as copies."""
        for name, path in self._spec.datasets:
            size = lend.size_of(name, path)
            tell = partial(lend.tell, self._spec.progress, name, size=size)
            try:
                await self._send(f"{self.places.data}/{name}", http.Upload(path, size, tell))
            except (BadArgument, FileError) as error:
                fits = getattr(error, "kind", "too_large") not in ("too_large", "full")
                what = "" if fits else f" of {size // _MIB} MB does not fit on the server"
                raise BadArgument(f"dataset {name!r}{what}: {error}") from None

    async def _cancel(self, _: str) -> None:
        await self._client.ask("POST", f"{self._path}/cancel")

    def _check(self) -> None:
        if self._is_closed:
            raise SandboxLost("the sandbox is closed")

    def _sent(self, path: str) -> str:
        """As the interface names it, wherever the server has put it."""
        for place, name in ((self.places.workspace, "/workspace"), (self.places.tmp, "/tmp")):
            if path == place or path.startswith(f"{place}/"):
                return name + path[len(place) :]
        return path


def _streams(command: Command) -> dict[str, Any]:
    found: dict[str, Any] = {"env": dict(command.env)} if command.env else {}
    return {**found, "stdin_base64": _base64(command.stdin)} if command.stdin else found


def _language(command: Command) -> str:
    for language in LANGUAGES:
        if language.program == command.argv[0]:
            return language.name
    raise RuntimeMissing(f"the remote backend does not know what runs {command.argv[0]!r}")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
