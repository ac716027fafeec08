"""The contract of a backend. Deadlines, output caps, records and retries are written once, above it.

A backend makes sandboxes; a sandbox starts a command; a process gives `Output` events and then one `Exited`.
`read(timeout_s)` gives None when nothing happened in that time. `kill()` ends the whole tree and returns at once;
`Exited` follows. Everything is a context manager's worth of `close()`: idempotent, never raises.

A backend that can be driven without an event loop also has `start_direct`; its process has the same verbs, blocking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from ..types import Command, Exited, Limits, Output, Receipt


class SandboxSpec(NamedTuple):
    """What a sandbox should be like."""

    limits: Limits = Limits()
    network: bool = False


class Process(ABC):
    receipt: Receipt  # valid from the moment `start` returned

    @abstractmethod
    async def read(self, timeout_s: float | None = None) -> Output | Exited | None: ...

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class Sandbox(ABC):
    @abstractmethod
    async def start(self, command: Command) -> Process: ...

    @abstractmethod
    async def close(self) -> None: ...


class Backend(ABC):
    name: str

    @abstractmethod
    async def check(self) -> Receipt:
        """Make sure that a sandbox can be had, and say what it would enforce. Raises one of our errors."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    @abstractmethod
    async def close(self) -> None: ...


class DirectProcess(Protocol):
    receipt: Receipt

    def read(self, timeout_s: float | None = None) -> Output | Exited | None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class DirectBackend(Protocol):
    def start_direct(self, spec: SandboxSpec, command: Command) -> DirectProcess: ...
