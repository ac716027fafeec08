"""How long a session lives, whose turn it is, and the one sandbox it owns.

Nothing here knows the session: timers and the finalizer hold these objects, and must not keep it alive.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from .backends.base import Backend, Places, Sandbox, SandboxSpec
from .config import Settings
from .descriptors import exhausted
from .errors import BackendUnavailable, EngineFailed, SessionBusy, SessionEnded

CLOSE_WAIT_S = 5.0  # for the call that runs; then its sandbox is closed beneath it
BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
_PATIENCE_S = 10.0  # what took longer, and longer than the call's own time-out, is not tried again

_CLOSED = "this session was closed: open another one"
_FORKED = "this session belongs to the process that opened it: open another one here"


class Lifetime:
    """The idle and the absolute clock. Both start with the first call."""

    def __init__(self, settings: Settings) -> None:
        self.ended: str | None = None  # why
        self._settings = settings
        self._pid = os.getpid()
        self._calls = 0
        self._ends_at: float | None = None
        self._idle_since: float | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def check(self) -> None:
        """Raise if it is over, whether or not a timer has said so yet."""
        now, settings = time.monotonic(), self._settings
        if self._pid != os.getpid():
            raise SessionEnded(_FORKED)
        if self.ended is None and self._ends_at is not None and now >= self._ends_at:
            self.ended = _after(settings.session_max_sec, "", "SANDBOX_SESSION_MAX_SEC")
        if self.ended is None and self._idle_since is not None and now >= self._idle_since + settings.session_idle_sec:
            self.ended = _after(settings.session_idle_sec, " without a call", "SANDBOX_SESSION_IDLE_SEC")
        if self.ended is not None:
            raise SessionEnded(self.ended)

    def enter(self) -> None:
        """A call comes: the idle clock stops."""
        self.check()
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._settings.session_max_sec
        self._calls += 1
        self._idle_since = None
        self.stop_timers()

    def leave(self, on_end: Callable[[], None]) -> None:
        """It went: unless others wait, the idle clock starts. `on_end` is called if nobody comes back in time."""
        self._calls -= 1
        if self._calls or self.ended == _CLOSED or self._ends_at is None:
            return
        now = self._idle_since = time.monotonic()
        wait_s = 0.0 if self.ended else min(self._settings.session_idle_sec, self._ends_at - now)
        self.stop_timers()
        self._timers = [asyncio.get_running_loop().call_later(max(0.0, wait_s), self._expire, on_end)]

    def left_s(self) -> float:
        """Seconds until the absolute end."""
        return self._settings.session_max_sec if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def ends_in_s(self) -> float:
        """Seconds until the end if no further call comes."""
        if self.ended is not None:
            return 0.0
        idle_s = 0.0 if self._idle_since is None else time.monotonic() - self._idle_since
        return max(0.0, min(self.left_s(), self._settings.session_idle_sec - idle_s))

    def end(self) -> None:
        self.ended = self.ended or _CLOSED
        self.stop_timers()

    def stop_timers(self) -> None:
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.cancel()

    def _expire(self, on_end: Callable[[], None]) -> None:
        try:
            self.check()
        except SessionEnded:
            on_end()
            return
        self._timers = [asyncio.get_running_loop().call_later(0.01, self._expire, on_end)]  # a clock was early


def _after(seconds: float, how: str, setting: str) -> str:
    return (
        f"this session ended after {seconds:g} s{how}; its files and variables are gone."
        f" Open another one, or raise {setting}"
    )


class Turn:
    """One call at a time; a second one waits, first come first served, or is refused."""

    def __init__(self, busy: str) -> None:
        self._refuse = busy == "refuse"
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        if self._refuse and self._lock.locked():
            raise SessionBusy(
                "this session is running another call: wait for it, cancel it, or set SANDBOX_SESSION_BUSY=queue"
            )
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    async def wait(self, timeout_s: float) -> None:
        """Until no call runs, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async with self._lock:
                    pass


@contextmanager
def engine_failures() -> Iterator[None]:
    """What the system refuses a backend is a failure of ours, of a kind that callers know."""
    try:
        yield
    except OSError as error:
        raise EngineFailed(exhausted(error) or f"the sandbox could not be used: {error}") from error


class Keeper:
    """Owns the sandbox: made when it is needed, made anew when it was lost, ended once."""

    def __init__(self, settings: Settings, backend: Backend, *, owns_backend: bool, turn: Turn, life: Lifetime) -> None:
        self.backend = backend
        self.sandbox: Sandbox | None = None
        self._aside: Sandbox | None = None  # for one call alone
        self._settings = settings
        self._owns_backend = owns_backend
        self._turn = turn
        self._life = life
        self.is_patient = True  # whether a backend that cannot be had is asked again
        self._pid = os.getpid()
        self._closing: asyncio.Task[None] | None = None

    @property
    def places(self) -> Places:
        """Of the sandbox, or where they usually are."""
        return Places() if self.sandbox is None else self.sandbox.places

    async def start(self, spec: SandboxSpec, given_up: Callable[[], bool]) -> Sandbox:
        """A new sandbox. What may pass is tried again; what will not is raised at once."""
        self.sandbox = await self._made(spec, given_up)
        return self.sandbox

    @asynccontextmanager
    async def aside(self, spec: SandboxSpec, given_up: Callable[[], bool]) -> AsyncIterator[Sandbox]:
        """A second one, for a single call."""
        self._aside = await self._made(spec, given_up)
        try:
            yield self._aside
        finally:
            await self._discard_aside()

    async def _made(self, spec: SandboxSpec, given_up: Callable[[], bool]) -> Sandbox:
        retries = self._settings.start_retries
        until = time.monotonic() + max(_PATIENCE_S, spec.timeout_s or 0)
        for attempt in range(retries + 1):
            try:
                with engine_failures():
                    sandbox = await self.backend.create(spec)
                break
            except (EngineFailed, BackendUnavailable) as error:
                if attempt == retries or given_up() or time.monotonic() > until:
                    raise
                if isinstance(error, BackendUnavailable) and not self.is_patient:
                    raise
            await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt))
            self._life.check()
        if self._life.ended is not None:  # closed meanwhile
            await sandbox.close()
            self._life.check()
        return sandbox

    async def move(self, backend: Backend) -> None:
        """To another backend, before the first sandbox."""
        before, self.backend = self.backend, backend
        if self._owns_backend:
            await before.close()

    async def discard(self) -> None:
        """The sandbox is gone: let go of what is left of it."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def _discard_aside(self) -> None:
        sandbox, self._aside = self._aside, None
        if sandbox is not None:
            await sandbox.close()

    def expire(self) -> None:
        """Called by a timer, when no call runs."""
        self.drop()
        if self._owns_backend:
            self._owns_backend = False
            self._closing = asyncio.get_running_loop().create_task(self.backend.close())

    async def close(self) -> None:
        self._life.end()
        if self._pid != os.getpid():
            return
        await self._turn.wait(CLOSE_WAIT_S)
        await self._discard_aside()
        await self.discard()
        if self._owns_backend:
            self._owns_backend = False
            await self.backend.close()

    def drop(self) -> None:
        """The same for garbage and the end of the process: at once, without an event loop."""
        self._life.end()
        sandboxes = self.sandbox, self._aside
        self.sandbox = self._aside = None
        if self._pid != os.getpid():
            return
        for sandbox in sandboxes:
            if sandbox is not None:
                sandbox.drop()
        if self._owns_backend and hasattr(self.backend, "start_direct"):  # such a one closes without waiting
            self._owns_backend = False
            closing = self.backend.close()
            with suppress(StopIteration):
                closing.send(None)
            closing.close()
