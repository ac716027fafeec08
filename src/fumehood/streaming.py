"""The events of one execution as they come. Leaving early ends it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from .backends.base import Event
from .errors import SessionError
from .execution import new_execution_id
from .planning import Plan
from .types import ExecutionResult, Exited, Receipt

BACKLOG_BYTES = 4 * 1024 * 1024  # unread by the caller; past it the program has to wait


class Stream:
    """Gives Output, Display and one Exited; then `result` is there. An async context manager and iterator."""

    def __init__(self, plan: Plan, drive: Callable[[Plan, Stream], Coroutine[Any, Any, ExecutionResult]]) -> None:
        self.execution_id = new_execution_id()
        self.left = False
        self.cancelled = False  # by one who waits for the result
        self.started = False
        self.has_seen = False
        self.receipt: Receipt | None = None  # of what was started
        self._drive = partial(drive, plan._replace(execution_id=self.execution_id))
        self._events: deque[tuple[Event, int]] = deque()
        self._more = asyncio.Event()
        self._begun = asyncio.Event()
        self._backlog = 0
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._result: ExecutionResult | None = None
        self._told = False
        self._is_heard = True

    @property
    def result(self) -> ExecutionResult:
        """The whole, after the last event."""
        if self._result is None:
            raise SessionError("the result is there after the last event: read the stream to its end")
        return self._result

    async def __aenter__(self) -> Stream:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drive(self))
            self._task.add_done_callback(lambda _: self._end())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.left = True
        task = self._task
        if task is None:
            return
        if not self.started:
            task.cancel()
        try:
            if not task.done():
                await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._result = task.result()
        elif kind is None and not self._told:
            raise error

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        if self._task is None:
            raise SessionError(
                "a stream is a context manager: `with session.stream(...) as events`,"
                " or `async with` of an AsyncSession"
            )
        while True:
            if self._events:
                event, size = self._events.popleft()
                self._backlog -= size
                return event
            if self._task.done():
                break
            self._more.clear()
            await self._more.wait()
        if self._told:
            raise StopAsyncIteration
        self._told = True
        self._result = self._task.result()
        return _ending(self._result)

    async def whole(self) -> ExecutionResult:
        """The result alone, sooner: nobody is woken for its events. Leaving ends it, as it ends a stream."""
        self._is_heard = False
        async with self:
            if self._task is not None:
                await asyncio.wait([self._task])
        return self.result

    def cancel(self) -> None:
        """End it; the rest of its events and its result follow."""
        self.cancelled = True

    async def begun(self) -> None:
        """Until the program runs; raises what kept it from that."""
        await self._begun.wait()
        if self._task is not None and self._task.done():
            self._task.result()

    def begin(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self._begun.set()

    def _end(self) -> None:
        self._begun.set()
        self._more.set()

    def full(self) -> bool:
        return self._backlog > BACKLOG_BYTES and not self.left

    def see(self, event: Event, size: int) -> None:
        self.has_seen = True
        if self.left or not self._is_heard:
            return
        self._events.append((event, size))
        self._backlog += size
        self._more.set()


def _ending(result: ExecutionResult) -> Exited:
    meta = result.meta
    usage = meta["usage"]
    return Exited(result.exit_code, meta["reason"], usage["cpu_s"], usage["max_rss_bytes"], meta.get("state") == "lost")
