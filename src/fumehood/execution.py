"""One execution: the deadline, the output budget, cancellation, and how the end becomes an `ExecutionResult`.

`_follow` holds every rule and does no waiting of its own: it yields how long to wait and is sent what happened.
`run_direct` and `run` drive it, without and with an event loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol

from .backends.base import Backend, DirectBackend, Sandbox, SandboxSpec
from .errors import IsolationUnavailable, SandboxLost
from .types import LEVELS, TIMEOUT_EXIT_CODE, Command, ExecutionResult, Exited, Level, Output, Reason, Receipt

TRUNCATED = "... (output truncated)"
KILL_GRACE_S = 2.0  # how long a killed tree may take to be gone before we report without it
POLL_S = 0.05  # how often a running execution looks whether it was cancelled
_KILLED = 128 + signal.SIGKILL
_ATTEMPTS = 3
_MB = 1024 * 1024


class Plan(NamedTuple):
    """Everything about one execution that is decided before it starts."""

    runtime: str
    spec: SandboxSpec
    command: Command
    timeout_s: float
    output_bytes: int  # kept, per stream
    output_kill_bytes: int  # read, both streams
    resource_limits: Mapping[str, Any]
    timeout_clamped: bool = False
    require: Level | None = None
    cancelled: Callable[[], bool] = lambda: False


class _Killable(Protocol):
    receipt: Receipt

    def kill(self) -> None: ...


_Following = Generator[float, Output | Exited | None, ExecutionResult]


def run_direct(backend: DirectBackend, plan: Plan) -> ExecutionResult:
    """Run one execution in this thread, without an event loop."""
    started = time.monotonic()
    for attempt in range(_ATTEMPTS):
        process = backend.start_direct(plan.spec, plan.command)
        try:
            _hold_to(plan.require, process.receipt)
            following = _follow(plan, process, started)
            wait_s = next(following)
            read, send = process.read, following.send
            while True:
                wait_s = send(read(wait_s))
        except StopIteration as end:
            result: ExecutionResult = end.value
            return result
        except SandboxLost:
            if not _may_run_again(plan, attempt):
                raise
        finally:
            process.close()
    raise AssertionError("unreachable")


async def run(backend: Backend, plan: Plan) -> ExecutionResult:
    """Run one execution in the running event loop."""
    started = time.monotonic()
    for attempt in range(_ATTEMPTS):
        sandbox = await backend.create(plan.spec)
        try:
            return await _run_in(sandbox, plan, started)
        except SandboxLost:
            if not _may_run_again(plan, attempt):
                raise
        finally:
            await sandbox.close()
    raise AssertionError("unreachable")


async def _run_in(sandbox: Sandbox, plan: Plan, started: float) -> ExecutionResult:
    process = await sandbox.start(plan.command)
    try:
        _hold_to(plan.require, process.receipt)
        following = _follow(plan, process, started)
        event: Output | Exited | None = None
        while True:
            try:
                wait_s = following.send(event)
            except StopIteration as end:
                result: ExecutionResult = end.value
                return result
            event = await process.read(wait_s)
    finally:
        process.kill()  # a cancelled task must not wait for the program
        await process.close()


def _may_run_again(plan: Plan, attempt: int) -> bool:
    """What ran without a network left no trace outside its sandbox, and that is gone."""
    return not plan.spec.network and attempt + 1 < _ATTEMPTS


def refused(plan: Plan, message: str, blocked_imports: list[str]) -> ExecutionResult:
    """The result of code that the import screen turned away: nothing ran, so nothing was enforced."""
    meta = _meta("blocked_import", plan, {"level": "none"})
    meta["blocked_imports"] = blocked_imports
    return ExecutionResult("", message, 1, 0.0, meta)


def new_execution_id() -> str:
    """Sorts by time, unique across processes and forks."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(5).hex()}"


def _follow(plan: Plan, process: _Killable, started: float) -> _Following:
    stdout, stderr = Capture(plan.output_bytes), Capture(plan.output_bytes)
    deadline = time.monotonic() + plan.timeout_s
    room = plan.output_kill_bytes
    cause: Reason | None = None
    exited: Exited | None = None
    while True:
        now = time.monotonic()
        if cause is None:
            if plan.cancelled():
                cause = "cancelled"
            elif room < 0:
                cause = "output"
            elif now >= deadline:
                cause = "timeout"
            if cause is not None:
                process.kill()
                deadline = now + KILL_GRACE_S
        elif now >= deadline:
            break
        event = yield min(deadline - now, POLL_S)
        if event is None:
            continue
        if isinstance(event, Exited):
            exited = event
            break
        room -= len(event.data)
        (stdout if event.stream == "stdout" else stderr).add(event.data)
    return _result(plan, process.receipt, stdout, stderr, cause, exited, started)


def _result(
    plan: Plan,
    receipt: Receipt,
    stdout: Capture,
    stderr: Capture,
    cause: Reason | None,
    exited: Exited | None,
    started: float,
) -> ExecutionResult:
    ended = exited or Exited(_KILLED, "signal")
    reason = cause or ended.reason
    exit_code = ended.exit_code if cause is None else TIMEOUT_EXIT_CODE if cause == "timeout" else _KILLED
    errors = stderr.text()
    if reason not in ("ok", "error"):
        line_end = "" if not errors or errors.endswith("\n") else "\n"
        errors = f"{errors}{line_end}fumehood: {_note(reason, exit_code, plan, ended.cpu_s)}\n"
    meta = _meta(reason, plan, receipt.as_dict())
    meta["truncated"] = stdout.truncated or stderr.truncated
    meta["usage"] = {"cpu_s": ended.cpu_s, "max_rss_bytes": ended.max_rss_bytes}
    return ExecutionResult(stdout.text(), errors, exit_code, time.monotonic() - started, meta)


def _meta(reason: Reason, plan: Plan, isolation: dict[str, Any]) -> dict[str, Any]:
    return {
        "execution_id": new_execution_id(),
        "runtime": plan.runtime,
        "reason": reason,
        "truncated": False,
        "timed_out": reason == "timeout",
        "blocked_imports": [],
        "resource_limits": {**plan.resource_limits, "cpu_s": plan.command.cpu_s},
        "isolation": isolation,
        "usage": {"cpu_s": 0.0, "max_rss_bytes": 0},
        "timeout": plan.timeout_s,
        "timeout_clamped": plan.timeout_clamped,
    }


def _note(reason: Reason, exit_code: int, plan: Plan, cpu_s: float) -> str:
    limits = plan.spec.limits
    if reason == "timeout":
        return (
            f"Execution timed out after {plan.timeout_s:g} s and was killed; do less per call, or give a longer timeout"
            " (default SANDBOX_TIMEOUT_SEC, ceiling SANDBOX_MAX_TIMEOUT_SEC)"
        )
    if reason == "memory":
        return (
            f"killed by the memory limit of {limits.memory_bytes // _MB} MB for all its processes;"
            " use less, or raise SANDBOX_MEMORY_MB"
        )
    if reason == "processes":
        return (
            f"stopped at the limit of {limits.processes} processes and threads; start fewer, or raise SANDBOX_PROCESSES"
        )
    if reason == "disk":
        return (
            f"stopped at a disk limit: {limits.disk_bytes // _MB} MB in all (SANDBOX_DISK_MB),"
            f" {limits.inodes} files (SANDBOX_INODES), {limits.file_bytes // _MB} MB per file (SANDBOX_FILE_MB);"
            " write less, or raise the setting"
        )
    if reason == "output":
        return (
            f"killed after more than {plan.output_kill_bytes // _MB} MB of output;"
            " print less, or raise SANDBOX_OUTPUT_KILL_MB"
        )
    if reason == "cancelled":
        return "cancelled by the caller and killed"
    return _signal_note(exit_code - 128, plan, cpu_s)


def _signal_note(number: int, plan: Plan, cpu_s: float) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a signal"
    hint = ""
    allowed_s = plan.command.cpu_s
    if name == "SIGXCPU" or (name == "SIGKILL" and allowed_s and cpu_s >= allowed_s):
        hint = f"; it may use {allowed_s or 0:g} s of CPU time per process, raise SANDBOX_CPU_SEC"
    elif name == "SIGXFSZ":
        hint = f"; a file went past {plan.spec.limits.file_bytes // _MB} MB, raise SANDBOX_FILE_MB"
    elif name == "SIGSYS":
        hint = "; it made a system call that the sandbox does not allow"
    return f"killed by {name} (signal {number}){hint}"


def _hold_to(require: Level | None, receipt: Receipt) -> None:
    """The last word on `require`, whatever the backend thought of it."""
    if require is not None and LEVELS.index(receipt.level) < LEVELS.index(require):
        raise IsolationUnavailable(
            f"{require!r} isolation is required (SANDBOX_REQUIRE) and this backend gives {receipt.level!r};"
            " run `fumehood doctor` to see why, or require less",
            step="receipt",
        )


class Capture:
    """Keeps the head and the tail of a stream within `cap` bytes, however much is written."""

    __slots__ = ("_cap", "_head", "_tail", "truncated")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        if not self.truncated:
            self._head += data
            if len(self._head) <= self._cap:
                return
            self.truncated = True
            data = bytes(self._head[self._cap - self._cap // 2 :])
            del self._head[self._cap - self._cap // 2 :]
        keep = self._cap // 2
        self._tail += data[-keep:] if keep else b""
        if len(self._tail) > 2 * keep:  # trimmed rarely, so that small writes stay cheap
            del self._tail[:-keep]

    def text(self) -> str:
        if not self.truncated:
            return self._head.decode("utf-8", "replace")
        head, tail = _cut(bytes(self._head), bytes(self._tail[-(self._cap // 2) :] if self._cap > 1 else b""))
        return head.decode("utf-8", "replace") + TRUNCATED + tail.decode("utf-8", "replace")


def shorten(text: str, cap: int) -> str:
    """`text` within `cap` bytes of UTF-8, head and tail kept, marked where it was cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= cap:
        return data.decode()
    half = cap // 2
    head, tail = _cut(data[: cap - half], data[len(data) - half :])
    return head.decode("utf-8", "replace") + TRUNCATED + tail.decode("utf-8", "replace")


def _cut(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """Move the cut to line ends where one is near, and never leave half a character."""
    line_end = head.rfind(b"\n", max(0, len(head) - len(head) // 4))
    head = head[: line_end + 1] if line_end >= 0 else _whole_characters(head)
    line_start = tail.find(b"\n", 0, len(tail) // 4)
    if line_start >= 0:
        return head, tail[line_start:]
    skip = 0
    while skip < min(3, len(tail)) and tail[skip] & 0xC0 == 0x80:
        skip += 1
    return head, tail[skip:]


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character whose rest was cut off."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data
