"""One execution: the deadline, the output budget, cancellation, and how the end becomes an `ExecutionResult`.

`_follow` holds every rule and does no waiting of its own: it yields how long to wait and is sent what happened.
`run_direct` and `run_in` drive it, without and with an event loop.
A run that keeps state is interrupted before it is killed, so that its variables outlive a time-out.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from .backends.base import Backend, DirectBackend, Event, Process, Ran, Sandbox
from .errors import BackendUnavailable, IsolationUnavailable, SandboxLost
from .planning import Plan
from .types import LEVELS, TIMEOUT_EXIT_CODE, Display, ExecutionResult, Exited, Output, Reason, Receipt

if TYPE_CHECKING:
    from .bundles import Bundles

TRUNCATED = "... (output truncated)"
INTERRUPT_GRACE_S = 1.0  # how long an interrupted run may take to stop before its interpreter is killed
KILL_GRACE_S = 2.0  # how long a killed tree may take to be gone before we report without it
POLL_S = 0.05  # how often a running execution looks whether it was cancelled
BUSY_S = 0.005  # how long a program that never falls silent may keep the event loop
_KILLED = 128 + signal.SIGKILL
_INTERRUPTED = 128 + signal.SIGINT
_ATTEMPTS = 3
_FIRST = nullcontext()


class Watcher(Protocol):
    """Sees the events of an execution as they come."""

    def begin(self, receipt: Receipt) -> None:
        """The program has been started."""

    def full(self) -> bool:
        """Whether to read no further for now: whoever looks at the events has fallen behind."""

    def see(self, event: Event, size: int) -> None:
        """`size` in bytes, of what is kept."""

    @property
    def has_seen(self) -> bool:
        """Whether anything was shown: what has been seen once is not run again."""


class Visit(Protocol):
    """Something to do in the sandbox before or after the program runs."""

    async def __call__(self, sandbox: Sandbox) -> None: ...


class _Killable(Protocol):
    receipt: Receipt

    def kill(self) -> None: ...


_Following = Generator[float, Event | None, ExecutionResult]


def run_direct(backend: DirectBackend, plan: Plan) -> ExecutionResult:
    """Run one execution in this thread, without an event loop."""
    started = time.monotonic()
    lost: SandboxLost | None = None
    for attempt in range(_ATTEMPTS):
        with _FIRST if lost is None else _after(lost):
            process = backend.start_direct(plan.spec, plan.command)
        try:
            hold_to(plan.require, process.receipt)
            bundles = _new_bundles() if plan.command.keeps_state else None
            following = _follow(plan, process, started, bundles)
            wait_s = next(following)
            read, send = process.read, following.send
            while True:
                event = read(wait_s)
                if bundles is not None and isinstance(event, Display):
                    bundles.add(event.data)
                wait_s = send(event)
        except StopIteration as end:
            result: ExecutionResult = end.value
            return result
        except SandboxLost as error:
            if not _may_run_again(plan, attempt):
                raise
            lost = error
        finally:
            process.close()
    raise AssertionError("unreachable")


async def run(
    backend: Backend,
    plan: Plan,
    watcher: Watcher | None = None,
    *,
    before: Visit | None = None,
    after: Visit | None = None,
) -> ExecutionResult:
    """Run one execution in a sandbox of its own."""
    started = time.monotonic()
    lost: SandboxLost | None = None
    for attempt in range(_ATTEMPTS):
        with _after(lost):
            sandbox = await backend.create(plan.spec._replace(timeout_s=plan.timeout_s))
        try:
            with _after(lost):  # some backends learn only here that they cannot be had
                if before is not None:
                    await before(sandbox)
                result = await run_in(sandbox, plan, watcher, started=started)
            if after is not None:
                await after(sandbox)
            return result
        except SandboxLost as error:
            if not _may_run_again(plan, attempt) or (watcher is not None and watcher.has_seen):
                raise
            lost = error
        finally:
            await sandbox.close()
    raise AssertionError("unreachable")


async def run_in(
    sandbox: Sandbox, plan: Plan, watcher: Watcher | None = None, *, started: float | None = None
) -> ExecutionResult:
    """Run one execution in this sandbox, in the running event loop."""
    started = time.monotonic() if started is None else started
    process = await sandbox.start(plan.command)
    event: Event | None = None
    try:
        hold_to(plan.require, process.receipt)
        if watcher is not None:
            watcher.begin(process.receipt)
        bundles = _new_bundles() if plan.command.keeps_state else None
        following = _follow(plan, process, started, bundles)
        if bundles is None and watcher is not None:
            bundles = _new_bundles()
        last_nap = time.monotonic()
        deadline = last_nap + plan.timeout_s
        while True:
            try:
                wait_s = following.send(event)
            except StopIteration as end:
                result: ExecutionResult = end.value
                return result
            if time.monotonic() - last_nap > BUSY_S:  # what is there already is read without waiting
                await _nap(0)
                last_nap = time.monotonic()
            if watcher is not None and watcher.full() and not plan.cancelled() and time.monotonic() < deadline:
                await _nap(wait_s)
                event = None
                continue
            event = await process.read(wait_s)
            if isinstance(event, Output):
                if watcher is not None:
                    watcher.see(event, len(event.data))
            elif isinstance(event, Display) and bundles is not None:
                before = bundles.size
                kept = await _kept(bundles, event)
                if watcher is not None and kept is not None:
                    watcher.see(Display(kept), bundles.size - before)
    except BaseException as error:
        if plan.command.keeps_state and not isinstance(event, Exited) and _is_cancellation(error):
            event = await _interrupted(process)
        raise
    finally:
        if not isinstance(event, Exited):
            process.kill()  # a cancelled task must not wait for the program
        await process.close()


async def _kept(bundles: Bundles, event: Display) -> dict[str, Any] | None:
    from .offload import is_small, offload  # for runs that show something

    if is_small(event.data):
        return bundles.add(event.data)
    return await offload(bundles.add, event.data)


async def _nap(wait_s: float) -> None:
    import asyncio  # those who drive without a loop never load it

    await asyncio.sleep(wait_s)


def _is_cancellation(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, asyncio.CancelledError)


async def _interrupted(process: Process) -> Event | None:
    """The caller gave up: stop the run and keep its state, if it stops in time."""
    process.interrupt()
    until = time.monotonic() + INTERRUPT_GRACE_S
    while (left_s := until - time.monotonic()) > 0:
        event = await process.read(min(left_s, POLL_S))
        if isinstance(event, Exited):
            return event
    return None


def _may_run_again(plan: Plan, attempt: int) -> bool:
    """What ran without a network left no trace outside its sandbox, and that is gone."""
    return not plan.spec.network and attempt + 1 < _ATTEMPTS


@contextmanager
def _after(lost: SandboxLost | None) -> Iterator[None]:
    """Where the program has run once already, a backend that cannot be had is no longer one that was not there."""
    try:
        yield
    except BackendUnavailable as error:
        if lost is None:
            raise
        raise SandboxLost(f"{lost}; it cannot be run again: {error}") from error


def not_run(plan: Plan, reason: Reason, message: str, exit_code: int = 1) -> ExecutionResult:
    """The result of what was turned away: nothing ran, so nothing was enforced."""
    return ExecutionResult("", message, exit_code, 0.0, _meta(reason, plan, {"level": "none"}))


def new_execution_id() -> str:
    """Sorts by time, unique across processes and forks."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(5).hex()}"


def _follow(plan: Plan, process: _Killable, started: float, bundles: Bundles | None) -> _Following:
    """`bundles` is filled by whoever drives it; None for what keeps no state."""
    stdout, stderr = Capture(plan.output_bytes), Capture(plan.output_bytes)
    deadline = time.monotonic() + plan.timeout_s
    room = plan.output_kill_bytes
    cause: Reason | None = None
    exited: Exited | None = None
    killed = False
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
                killed = bundles is None or cause == "output"
                deadline = now + _stop(process, killed)
        elif now >= deadline:
            if killed:
                break
            killed = True
            deadline = now + _stop(process, killed)
        event = yield min(deadline - now, POLL_S)
        if event is None:
            continue
        if isinstance(event, Output):
            room -= len(event.data)
            (stdout if event.stream == "stdout" else stderr).add(event.data)
        elif isinstance(event, Exited):
            exited = event
            break
    ran: Ran | None = getattr(process, "ran", None)
    if ran is not None:
        plan = _as_it_ran(plan, ran)
    result = _result(plan, process.receipt, stdout, stderr, cause, exited, started, bundles, killed)
    if ran is not None:
        result.meta.update(ran.meta)
    if bundles is not None and getattr(process, "began_anew", False):
        _say_begun_anew(result)
    return result


def _as_it_ran(plan: Plan, ran: Ran) -> Plan:
    """What a result says of limits is what held."""
    return plan._replace(
        spec=plan.spec._replace(limits=ran.limits),
        resource_limits=ran.limits._asdict(),
        timeout_s=plan.timeout_s if ran.timeout_s is None else ran.timeout_s,
    )


def _say_begun_anew(result: ExecutionResult) -> None:
    from .notes import BEGUN_ANEW  # rare

    result.meta["state"], result.meta["began_anew"] = "lost", True
    result.stderr = f"{BEGUN_ANEW}{result.stderr}"


def _stop(process: _Killable, kill: bool) -> float:
    """Begin to end the program; how many seconds that may take."""
    if kill or not isinstance(process, Process):
        process.kill()
        return KILL_GRACE_S
    process.interrupt()
    return INTERRUPT_GRACE_S


def _new_bundles() -> Bundles:
    from .bundles import Bundles  # for runs that keep state alone

    return Bundles()


def _result(
    plan: Plan,
    receipt: Receipt,
    stdout: Capture,
    stderr: Capture,
    cause: Reason | None,
    exited: Exited | None,
    started: float,
    bundles: Bundles | None,
    killed: bool,
) -> ExecutionResult:
    ended = exited or Exited(_KILLED, "signal")
    reason = cause or ended.reason
    lost = killed or ended.state_lost or exited is None
    if cause is None:
        exit_code = ended.exit_code
    elif cause == "timeout":
        exit_code = TIMEOUT_EXIT_CODE
    else:
        exit_code = _KILLED if lost else _INTERRUPTED
    errors = stderr.text()
    if reason not in ("ok", "error") or (lost and bundles is not None):
        from .notes import note  # most executions need none

        line_end = "" if not errors or errors.endswith("\n") else "\n"
        errors = f"{errors}{line_end}{note(reason, exit_code, plan, ended.cpu_s, None if bundles is None else lost)}"
    meta = _meta(reason, plan, receipt.as_dict())
    meta["stdout_truncated"], meta["stderr_truncated"] = stdout.truncated, stderr.truncated
    meta["truncated"] = stdout.truncated or stderr.truncated
    meta["usage"] = {"cpu_s": ended.cpu_s, "max_rss_bytes": ended.max_rss_bytes}
    if bundles is not None:
        meta["state"] = "lost" if lost else "kept"
        meta["results"] = bundles.kept
        if bundles.truncated:
            meta["results_truncated"] = True
        if bundles.dropped:
            meta["results_dropped"] = bundles.dropped
    return ExecutionResult(stdout.text(), errors, exit_code, time.monotonic() - started, meta)


def _meta(reason: Reason, plan: Plan, isolation: dict[str, Any]) -> dict[str, Any]:
    return {
        "execution_id": plan.execution_id or new_execution_id(),
        "runtime": plan.runtime,
        "reason": reason,
        "truncated": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "timed_out": reason == "timeout",
        "blocked_imports": [],
        "resource_limits": {**plan.resource_limits, "cpu_s": plan.command.cpu_s},
        "isolation": isolation,
        "usage": {"cpu_s": 0.0, "max_rss_bytes": 0},
        "timeout": plan.timeout_s,
        "timeout_clamped": plan.timeout_clamped,
    }


def hold_to(require: str | None, receipt: Receipt) -> None:
    """The last word on `require`, whatever the backend thought of it."""
    if require is not None and LEVELS.index(receipt.level) < LEVELS.index(require):
        raise IsolationUnavailable(
            f"{require!r} isolation is required (SANDBOX_REQUIRE) and this backend gives {receipt.level!r};"
            " run `fumehood doctor` to see why, or require less",
            step="receipt",
        )
    memory = receipt.axes.get("memory")
    if require == "sealed" and memory is not None and memory.level == "none":
        raise IsolationUnavailable(
            f"{require!r} isolation is required (SANDBOX_REQUIRE) and nothing bounds memory here: {memory.mechanism};"
            f" {memory.fix or 'see `fumehood doctor`'}",
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
    head = head[: line_end + 1] if line_end >= 0 else whole_characters(head)
    line_start = tail.find(b"\n", 0, len(tail) // 4)
    if line_start >= 0:
        return head, tail[line_start:]
    skip = 0
    while skip < min(3, len(tail)) and tail[skip] & 0xC0 == 0x80:
        skip += 1
    return head, tail[skip:]


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character whose rest was cut off."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data
