"""The contract of a backend. Deadlines, output caps, records and retries are written once, above it.

A backend makes sandboxes; a sandbox starts a command; a process gives `Output` events and then one `Exited`.
`read(timeout_s)` gives None when nothing happened in that time. `kill()` ends the whole tree and returns at once;
`Exited` follows. `interrupt()` asks a run that keeps state to stop and keep it.
Everything is a context manager's worth of `close()`: idempotent, never raises.

A sandbox whose spec `keeps` serves many commands, which share its files; those that keep state share one interpreter.
Its file verbs take absolute paths as the program sees them, checked by the caller, and raise FileError.

A backend that can be driven without an event loop also has `start_direct`; its process has the same verbs, blocking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..errors import BackendUnavailable
from ..types import Command, Display, Exited, FileStat, Limits, Output, Receipt

Event = Output | Display | Exited


class SandboxSpec(NamedTuple):
    """What a sandbox should be like."""

    limits: Limits = Limits()
    network: bool = False
    keeps: bool = False  # files and state, until it is closed
    hands_back: bool = False  # keeps nothing, but what its one program left can be listed and read
    datasets: tuple[tuple[str, str], ...] = ()  # (file name in the data directory, path on this machine)
    packages: str | None = None  # a directory on this machine that the program's Python finds first
    requirements: tuple[str, ...] = ()  # of a backend that `installs`: what it is to find instead
    progress: Callable[[str], None] | None = None  # told about copies that take their time
    timeout_s: float | None = None  # of its one program: an engine that makes nothing for as long hangs


class Places(NamedTuple):
    """Where things are, as the program sees them."""

    workspace: str = "/workspace"
    tmp: str = "/tmp"

    @property
    def data(self) -> str:
        return f"{self.tmp}/data"

    @property
    def output(self) -> str:
        return f"{self.tmp}/output"

    @property
    def all(self) -> tuple[str, ...]:
        return self.workspace, self.tmp, self.data, self.output


class Ran(NamedTuple):
    """What became of an order where others had a say in it."""

    limits: Limits
    timeout_s: float | None = None  # where it was not the caller's that struck
    meta: Mapping[str, Any] = MappingProxyType({})


class Process(ABC):
    receipt: Receipt  # valid from the moment `start` returned
    began_anew: bool = False  # a run whose interpreter took the place of one that died between runs
    ran: Ran | None = None  # known with `Exited`; None where it ran as it was ordered

    @abstractmethod
    async def read(self, timeout_s: float | None = None) -> Event | None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def interrupt(self) -> None:
        self.kill()

    @abstractmethod
    async def close(self) -> None: ...


def keeps_nothing(path: str, *_: object) -> BackendUnavailable:
    return BackendUnavailable(
        f"{path} is not to be had: this backend keeps no files from one command to the next, as a session needs;"
        " set SANDBOX_TYPE=local"
    )


class Sandbox(ABC):
    places: Places = Places()

    @abstractmethod
    async def start(self, command: Command) -> Process: ...

    async def read(self, path: str, max_bytes: int) -> bytes:
        """A regular file's content; FileError `too_large` if there is more than `max_bytes`."""
        raise keeps_nothing(path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, with the directories it needs; all of it or nothing."""
        raise keeps_nothing(path, data)

    async def list(self, directory: str) -> list[FileStat]:
        """Regular files beneath, at any depth, without the data directory; a missing directory has none.

        With a `why`: what is no regular file, and directories that were not looked into.
        """
        raise keeps_nothing(directory)

    @abstractmethod
    async def close(self) -> None: ...

    def drop(self) -> None:  # noqa: B027 - a sandbox for one command has nothing to drop
        """`close` for garbage: at once, without an event loop."""


class Backend(ABC):
    name: str
    installs: bool = False  # whether it has requirements installed where it runs; else they are installed here
    hands_back: bool = False  # whether it knows such a spec; else a sandbox that keeps does the same, and costs more

    @abstractmethod
    async def check(self) -> Receipt:
        """Make sure that a sandbox can be had, and say what it would enforce. Raises one of our errors."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    @abstractmethod
    async def close(self) -> None: ...


class DirectProcess(Protocol):
    receipt: Receipt

    def read(self, timeout_s: float | None = None) -> Event | None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class DirectBackend(Protocol):
    def start_direct(self, spec: SandboxSpec, command: Command) -> DirectProcess: ...
