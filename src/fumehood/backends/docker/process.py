"""Programs in a container, as their events come out of its link."""

from __future__ import annotations

import asyncio
import errno
import json
import marshal
import os
from collections import deque
from typing import Any

from ...errors import EngineFailed, SandboxLost
from ...guest import wire
from ...one_line import one_line
from ...types import Exited, Output, Reason
from .._base_async import happens
from ..base import Event, Process
from .container import KILLED, LOST, Container

_ORDER = 1 << 19  # bytes of an order that go with the request to start
_CONTAINER_GRACE_S = 3.0  # how long a killed program may take to end before its container is killed
_CLOSE_S = 3.5
_STREAMS = {wire.STDOUT: "stdout", wire.STDERR: "stderr"}


class Program(Process):
    """Its first bytes of input are the order, the rest is its own."""

    serves = False

    def __init__(self, container: Container, *, waits: bool):
        self.receipt = container.receipt
        self.has_ended = False
        self._container = container
        self._link = container.link
        self._waits = waits  # whether what it leaves must be gone when it is closed
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._ended = asyncio.Event()
        self._pending = memoryview(b"")
        self._window = wire.WINDOW
        self._ends_input = False
        self._is_killed = self._is_closed = self._is_gone = False
        self._failure: EngineFailed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._number = self._link.open(self)

    def start(self, order: dict[str, Any], stdin: bytes, seccomp: bytes, limits: dict[str, int]) -> None:
        body = marshal.dumps(order)
        data = memoryview(wire.HEADER.pack(len(body)) + body + stdin)
        request = {"order": bytes(data[:_ORDER]), "serves": self.serves, "filter": seccomp, "limits": limits}
        self._link.send(wire.START, self._number, marshal.dumps(request, 4))
        self._ends_input = not self.serves
        self._feed(data[_ORDER:])

    async def read(self, timeout_s: float | None = None) -> Event | None:
        if not self._events and not self._is_gone and self._failure is None:
            self._woken.clear()
            if not await happens(self._woken, timeout_s):
                return None
        if self._events:
            event = self._events.popleft()
            if isinstance(event, Output):
                self._link.release(len(event.data))
            return event
        if self._failure is not None:
            raise self._failure
        if self._is_gone and not self.has_ended:
            return await self._end_with_container()
        return None

    def kill(self) -> None:
        if self.has_ended or self._is_gone:
            return
        self._is_killed = True
        self._link.send(wire.KILL, self._number)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CONTAINER_GRACE_S, self._kill_container)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for event in self._events:
            if isinstance(event, Output):
                self._link.release(len(event.data))
        self._events.clear()
        if self.has_ended or self._is_gone:
            return
        self.kill()
        if self._waits:
            await happens(self._ended, _CLOSE_S)

    # --- what the link tells

    def hear(self, kind: int, payload: bytes) -> None:
        if kind in _STREAMS:
            if payload and not self._is_closed:
                self._link.hold(len(payload))
                self._tell(Output("stdout" if kind == wire.STDOUT else "stderr", payload))
        elif kind == wire.TAKEN:
            self._window += wire.CREDIT.unpack(payload)[0]
            self._feed(self._pending)
        elif kind == wire.EXITED:
            status, cpu_ns, max_rss, flags = wire.EXIT.unpack(payload)
            self._end(self._exited(status, cpu_ns, max_rss, flags))
        elif kind == wire.NOT_STARTED:
            self._not_started(payload)
        elif kind == wire.CHANNEL:
            self._hear_channel(payload)
        elif kind == wire.USED:
            self._hear_usage(*wire.USAGE.unpack(payload))

    def gone(self) -> None:
        self._is_gone = True
        self._stop_timer()
        self._ended.set()
        self._woken.set()

    # --- inside

    def _hear_channel(self, payload: bytes) -> None:
        """For programs that serve."""

    def _hear_usage(self, cpu_ns: int, max_rss: int, flags: int) -> None:
        """For programs that were asked."""

    def _exited(self, status: int, cpu_ns: int, max_rss: int, flags: int) -> Exited:
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        reason = reason_of(flags, killed=os.WIFSIGNALED(status)) if code else "ok"
        return Exited(code, reason, cpu_ns / 1e9, max_rss)

    def _not_started(self, payload: bytes) -> None:
        try:
            said = json.loads(payload)
            step, number, detail = str(said["step"]), int(said["errno"]), str(said["detail"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            step, number, detail = "start", 0, ""
        if step == "fork" and number in (errno.EAGAIN, errno.ENOMEM):
            self._end(Exited(1, "processes" if number == errno.EAGAIN else "memory"))
            return
        name = errno.errorcode.get(number, str(number))
        self._failure = EngineFailed(
            f"a program could not be locked in its container: {one_line(f'{step} failed with {name} {detail}'[:500])}"
        )
        self._close_number()

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._woken.set()

    def _end(self, exited: Exited) -> None:
        self.has_ended = True
        self._tell(exited)
        self._close_number()

    def _close_number(self) -> None:
        self._stop_timer()
        self._link.forget(self._number)
        self._ended.set()
        self._woken.set()

    async def _end_with_container(self) -> Event:
        fate = await self._container.fate()
        if fate != "memory" and not self._is_killed:
            raise SandboxLost(LOST[fate])
        self.has_ended = True
        return Exited(KILLED, "memory" if fate == "memory" else "signal", state_lost=True)

    def _feed(self, data: memoryview) -> None:
        """No more than the guest has room for."""
        while data and self._window > 0:
            part = data[: min(self._window, wire.MAX_DATA)]
            self._link.send(wire.INPUT, self._number, part)
            self._window -= len(part)
            data = data[len(part) :]
        self._pending = data
        if not data and self._ends_input:
            self._ends_input = False
            self._link.send(wire.END_INPUT, self._number)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _kill_container(self) -> None:
        self._killing = asyncio.ensure_future(self._container.kill())


def reason_of(flags: int, *, killed: bool) -> Reason:
    if flags & wire.OUT_OF_MEMORY:
        return "memory"
    if flags & wire.OUT_OF_PROCESSES:
        return "processes"
    if flags & wire.DISK_FULL:
        return "disk"
    return "signal" if killed else "error"
