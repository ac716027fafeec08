"""A sandbox is one container: for one program, or for a session's."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import marshal
import os
import threading
from typing import Any

from ...engine import lend, seccomp
from ...engine.files import our_errors, stat_of
from ...engine.order import program
from ...errors import BackendUnavailable, BadArgument, FileError, SandboxLost
from ...guest import wire
from ...guest.files import Outside, TooLarge
from ...thread_pool import aside
from ...threads import begin
from ...types import Command, FileStat, Limits
from ..base import Process, Sandbox, SandboxSpec
from . import body, client, receipt
from .container import GONE, Container
from .interpreter import Interpreter, Run
from .pool import Hub
from .process import Program

_PART = 1 << 18
_ANSWER_S = 60.0
_MAX_LISTED = 64 << 20
_SHORT = 1 << 14  # a listing that is read in less time than a thread takes
_MIB = 1024 * 1024
_READ_ONLY = 0o444


class DockerSandbox(Sandbox):
    def __init__(self, hub: Hub, container: Container, spec: SandboxSpec, limits: Limits):
        self._hub = hub
        self._container = container
        self._spec = spec
        self._limits = limits
        self._interpreter: Interpreter | None = None
        self._is_closed = False
        self._program_limits = body.program_limits(limits, on_linux=not receipt.has_own_kernel(container.inspected))
        self._filter = _filter(str(container.inside.get("machine")))

    async def lend(self) -> None:
        """The datasets, as copies."""
        sizes = {name: lend.size_of(name, path) for name, path in self._spec.datasets}
        if sum(sizes.values()) > self._limits.disk_bytes:
            raise BadArgument(
                f"datasets of {sum(sizes.values()) // _MIB} MB do not fit in a container with"
                f" {self._limits.disk_bytes // _MIB} MB for files: raise DOCKER_MEMORY_LIMIT, of which files may take"
                " half, and SANDBOX_MEMORY_MB and SANDBOX_DISK_MB"
            )
        for name, path in self._spec.datasets:
            with open(path, "rb") as file:
                answer = self._ask({"verb": "write", "path": f"{self.places.data}/{name}", "mode": _READ_ONLY})
                done = 0
                while part := await aside(file.read, 4 * _MIB):
                    await answer.add(part)
                    done += len(part)
                    lend.tell(self._spec.progress, name, done, sizes[name])
                await answer.end()
            with our_errors(f"dataset {name}"):
                await answer.wait()

    async def start(self, command: Command) -> Process:
        self._check()
        if not command.keeps_state:
            return self._begin(Program(self._container, waits=self._spec.keeps), command)
        interpreter = self._interpreter
        if interpreter is None or interpreter.is_dead:
            interpreter = self._make_interpreter(command)
        return Run(interpreter, functools.partial(self._make_interpreter, command), command)

    async def read(self, path: str, max_bytes: int) -> bytes:
        answer = self._ask({"verb": "read", "path": path, "max_bytes": max_bytes}, max_bytes)
        with our_errors(path, max_bytes):
            return await answer.wait()

    async def write(self, path: str, data: bytes) -> None:
        answer = self._ask({"verb": "write", "path": path})
        await answer.add(data)
        await answer.end()
        try:
            with our_errors(path):
                await answer.wait()
        except FileError as error:
            if error.kind == "full":
                raise FileError(
                    f"{error}; files count as the container's memory (DOCKER_MEMORY_LIMIT)", "full"
                ) from None
            raise

    async def list(self, directory: str) -> list[FileStat]:
        answer = self._ask({"verb": "list", "path": directory, "leave_out": self.places.data}, _MAX_LISTED)
        with our_errors(directory):
            lines = await answer.wait()
        return _stats(lines) if len(lines) <= _SHORT else await aside(_stats, lines)

    async def close(self) -> None:
        """The container is removed in the background: the backend's own end waits for that."""
        if not self._is_closed:
            self._is_closed = True
            self._hub.discard(self._container)

    def drop(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        hub, container = self._hub, self._container
        try:
            hub.loop.call_soon_threadsafe(hub.discard, container)
            return
        except RuntimeError:
            pass  # its loop is closed
        facts = container.client.facts
        if facts is not None:
            remove = functools.partial(client.remove_now, container.client.address, facts.version, [container.name])
            if not begin(threading.Thread(target=remove, daemon=True)):
                remove()

    # --- inside

    def _check(self) -> None:
        if self._is_closed:
            raise SandboxLost("the sandbox is closed")
        if not self._container.is_alive:
            raise SandboxLost(GONE)

    def _make_interpreter(self, command: Command) -> Interpreter:
        self._check()
        interpreter = Interpreter(self._container)
        if self._interpreter is not None:
            interpreter.replaces_untold = not self._interpreter.death_was_told
        self._begin(interpreter, command._replace(argv=("python",), script=None, stdin=b""))
        self._interpreter = interpreter
        return interpreter

    def _begin(self, started: Program, command: Command) -> Program:
        environment = {}
        if self._spec.packages is not None:
            own = command.env.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{body.PACKAGES}:{own}" if own else body.PACKAGES
            command = command._replace(env={k: v for k, v in command.env.items() if k != "PYTHONPATH"})
        order = program(command, environment, serves=started.serves)
        started.start(order, command.stdin, self._filter, self._program_limits)
        return started

    def _ask(self, request: dict[str, Any], most: int = 0) -> _Answer:
        self._check()
        return _Answer(self._container, request, most)


class _Answer:
    """To a file verb. Raises OSError as the guest met it."""

    def __init__(self, container: Container, request: dict[str, Any], most: int):
        self._link = container.link
        self._most = most
        self._body = bytearray()
        self._done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._number = self._link.open(self)
        self._link.send(wire.FILE, self._number, marshal.dumps(request, 4))

    async def add(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PART):
            self._link.send(wire.PART, self._number, view[start : start + _PART])
            await self._link.drain()

    async def end(self) -> None:
        self._link.send(wire.PART, self._number)

    async def wait(self) -> bytes:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._done
        except TimeoutError:
            raise SandboxLost(f"the container did not answer in {_ANSWER_S:g} s") from None
        finally:
            if not self._done.done() or self._done.cancelled():
                self._link.send(wire.KILL, self._number)
            self._link.forget(self._number)

    def hear(self, kind: int, payload: bytes) -> None:
        if self._done.done():
            return
        if kind == wire.BODY:
            self._body += payload
            if len(self._body) > self._most:
                self._done.set_exception(_os_error(errno.EFBIG))
        elif kind == wire.ANSWER:
            try:
                said = json.loads(payload)
                number = 0 if said["ok"] is True else int(said["errno"])
                os.strerror(number)  # which takes no number that is too large
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                number = errno.EIO
            if number:
                self._done.set_exception(_os_error(number))
            else:
                self._done.set_result(bytes(self._body))

    def gone(self) -> None:
        if not self._done.done():
            self._done.set_exception(SandboxLost(GONE))


def _os_error(number: int) -> OSError:
    kind = {errno.EFBIG: TooLarge, errno.EINVAL: Outside}.get(number, OSError)
    return kind(number, os.strerror(number))


def _stats(lines: bytes) -> list[FileStat]:
    return [_stat(line) for line in lines.splitlines()]


def _stat(line: bytes) -> FileStat:
    try:
        path, size, version, what = [*json.loads(line), ""][:4]
        str(path).encode()  # a lone surrogate could be written nowhere
        return stat_of(str(path), int(size), tuple(map(int, version)), str(what))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise SandboxLost("the container's guest broke; try again") from None


@functools.cache
def _filter(machine: str) -> bytes:
    if not seccomp.supported(machine):
        raise BackendUnavailable(f"there is no system call filter for containers on {machine!r}; use another engine")
    return seccomp.compile_filter(machine, can_open_network=True, can_watch_files=False)
