"""The shapes every layer shares. Data only.

Named tuples but for the public result: making a dataclass costs ten times as much, and every process pays at its first
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

Level = Literal["process", "confined", "sealed"]
LEVELS: tuple[Level, ...] = ("process", "confined", "sealed")  # weakest first

Reason = Literal[
    "ok", "error", "timeout", "signal", "memory", "processes", "disk", "output", "blocked_import", "cancelled"
]

AXES = ("files", "network", "processes", "ipc", "syscalls", "privileges", "memory", "cpu", "disk")

TIMEOUT_EXIT_CODE = -1


@dataclass(slots=True)
class ExecutionResult:
    """What came out of one execution, the same from every backend."""

    stdout: str
    stderr: str
    exit_code: int  # 0 success, -1 timeout, 1 error, 128+n killed by signal n, otherwise the program's own
    duration: float  # seconds, host monotonic clock
    meta: dict[str, Any] = field(default_factory=dict)


class Limits(NamedTuple):
    """What one execution may use. The whole process tree counts."""

    memory_bytes: int = 1024 * 1024 * 1024
    cpu_s: float | None = None  # None: timeout times cores
    processes: int = 256  # threads count
    open_files: int = 1024
    file_bytes: int = 256 * 1024 * 1024
    disk_bytes: int = 512 * 1024 * 1024
    inodes: int = 16384

    def built_in(self) -> Limits:
        """What a sandbox is made with. Seconds of CPU come with the program."""
        return self._replace(cpu_s=None)


class Command(NamedTuple):
    """One program to run: `argv`, or program text that `argv[0]` runs from the file named in `argv[1]`."""

    argv: tuple[str, ...]
    script: bytes | None = None
    stdin: bytes = b""
    env: Mapping[str, str] = MappingProxyType({})
    files: Mapping[str, bytes] = MappingProxyType({})  # relative to the working directory
    cpu_s: float | None = None  # seconds of CPU per process, a backstop behind the deadline
    keeps_state: bool = False  # `script` runs in the sandbox's one interpreter, which remembers its variables


class Output(NamedTuple):
    """Bytes that the program wrote."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Display(NamedTuple):
    """Something to look at from a run that keeps state: one value in several forms, by MIME type.

    Text is str, images are base64 str, JSON is any JSON value.
    """

    data: Mapping[str, Any]


class Exited(NamedTuple):
    """How the program ended, as the host saw it. Exactly one per process, always the last event."""

    exit_code: int  # the program's own, or 128+n
    reason: Reason  # ok, error, signal, memory, processes, disk; the layer above adds timeout, output, cancelled
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    state_lost: bool = False  # of a run that keeps state: the interpreter and its variables are gone


class FileStat(NamedTuple):
    """One regular file in a sandbox; with a `why`, something that is there and cannot be read."""

    path: str  # as the program sees it
    size: int
    version: tuple[int, ...]  # differs when the content may have changed
    why: str = ""


class Axis(NamedTuple):
    """One line of a receipt: how far one axis is isolated, by what, and why not further."""

    level: Literal["sealed", "confined", "process", "none"]
    mechanism: str
    step: str | None = None  # the step that failed, where this is weaker than asked
    errno: str | None = None
    fix: str | None = None

    def as_dict(self) -> dict[str, str]:
        if self.step is None and self.errno is None and self.fix is None:
            return {"level": self.level, "mechanism": self.mechanism}
        pairs = (
            ("level", self.level),
            ("mechanism", self.mechanism),
            ("step", self.step),
            ("errno", self.errno),
            ("fix", self.fix),
        )
        return {name: value for name, value in pairs if value is not None}


class Receipt(NamedTuple):
    """What was enforced, found by doing it."""

    level: Level
    axes: Mapping[str, Axis]
    fallback: Mapping[str, str] | None = None  # `from`, `to` and `reason`, where this is not of the backend chosen

    def as_dict(self) -> dict[str, Any]:
        return {"level": self.level, **{name: axis.as_dict() for name, axis in self.axes.items()}}


class CodeSandbox(Protocol):
    """What `get_sandbox()` gives."""

    def execute(self, code: str, language: str = "python", timeout: float | None = None) -> ExecutionResult: ...
