"""The interpreter of a session in a container, and one run in it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from ...engine.channel import Channel, TooMuch
from ...guest import wire
from ...types import Command, Exited
from ..base import Event, Process
from .container import Container
from .process import Program, reason_of

_ENDING_S = 0.5
_LOOK_S = 0.25
_STOP_S = 1.0
_SIGXCPU = 128 + signal.SIGXCPU


class Interpreter(Program):
    """Runs one request at a time: `begin`, then `read` until `Exited`. Its end says that the state is lost."""

    serves = True

    def __init__(self, container: Container):
        super().__init__(container, waits=True)
        self.is_running = False
        self.death_was_told = False
        self.replaces_untold = False  # one whose death nobody has heard of
        self._channel = Channel()
        self._cpu_ns = 0
        self._cpu_s: float | None = None
        self._ran_out_of_cpu = False
        self._flags = 0
        self._asked: list[bool] = []  # whether each question about usage was one of this run
        self._looker: asyncio.TimerHandle | None = None
        self._ender: asyncio.TimerHandle | None = None

    @property
    def is_dead(self) -> bool:
        return self.has_ended or self._is_gone or self._is_closed or self._failure is not None

    @property
    def has_begun(self) -> bool:
        return self._channel.has_begun

    def begin(self, code: str, cpu_s: float | None) -> None:
        request = self._channel.begin(code)
        self.is_running, self._cpu_s, self._ran_out_of_cpu, self._flags = True, cpu_s, False, 0
        self._ask_usage(of_run=False)  # what hit a limit before is not this run's
        self._feed(memoryview(bytes(self._pending) + request))
        if cpu_s is not None:
            self._looker = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    async def read(self, timeout_s: float | None = None) -> Event | None:
        event = await super().read(timeout_s)
        if isinstance(event, Exited) and event.state_lost:
            self.death_was_told = True
        return event

    def interrupt(self) -> None:
        """Ask it to stop and stay; what it has started is killed."""
        if self._channel.done is None:  # else the next run would be struck
            self._link.send(wire.INTERRUPT, self._number)

    # --- inside

    def _hear_channel(self, payload: bytes) -> None:
        if not payload:  # it ends; or it closed the channel, and then it is of no use any more
            self._end_in(_ENDING_S)
            return
        try:
            for shown in self._channel.hear(payload):
                if shown is None:
                    self._ask_usage(of_run=True)
                else:
                    self._tell(shown)
        except TooMuch:
            self.kill()

    def _ask_usage(self, *, of_run: bool) -> None:
        self._asked.append(of_run)
        self._link.send(wire.TELL_USAGE, self._number)

    def _hear_usage(self, cpu_ns: int, max_rss: int, flags: int) -> None:
        if not self._asked or not self._asked.pop(0) or not self.is_running:
            return
        self._flags |= flags
        code = self._channel.done
        used_s = max(0, cpu_ns - self._cpu_ns) / 1e9
        if code is None or any(self._asked):
            if self._cpu_s is not None and used_s >= self._cpu_s and not self._ran_out_of_cpu:
                self._ran_out_of_cpu = True
                self.interrupt()
                self._end_in(_STOP_S)
            return
        self._cpu_ns = cpu_ns
        self._stop_run()
        reason = reason_of(self._flags, killed=False) if code else "ok"
        if self._ran_out_of_cpu:
            code, reason = _SIGXCPU, "signal"
        self._tell(Exited(code, reason, used_s, max_rss))

    def _exited(self, status: int, cpu_ns: int, max_rss: int, flags: int) -> Exited:
        self._stop_run()
        flags |= self._flags  # what an earlier answer told of this run is not told again
        exited = super()._exited(status, max(0, cpu_ns - self._cpu_ns), max_rss, flags)
        if self._ran_out_of_cpu:
            exited = exited._replace(exit_code=_SIGXCPU)
        return exited._replace(state_lost=True)

    def _look(self) -> None:
        if self.is_running and not self.is_dead:
            if self._channel.done is None and True not in self._asked:
                self._ask_usage(of_run=True)
            self._looker = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _end_in(self, seconds: float) -> None:
        if self._ender is None:
            self._ender = asyncio.get_running_loop().call_later(seconds, self.kill)

    def _stop_run(self) -> None:
        self.is_running = False
        for timer in (self._looker, self._ender):
            if timer is not None:
                timer.cancel()
        self._looker = self._ender = None


class Run(Process):
    """One run in an interpreter that outlives it."""

    def __init__(self, interpreter: Interpreter, make: Callable[[], Interpreter], command: Command):
        self.receipt = interpreter.receipt
        self._make = make
        self._command = command
        self._may_begin_again = True
        self._begin(interpreter)

    def _begin(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self.began_anew = interpreter.replaces_untold
        interpreter.replaces_untold = False
        interpreter.begin((self._command.script or b"").decode(), self._command.cpu_s)

    async def read(self, timeout_s: float | None = None) -> Event | None:
        event = await self._interpreter.read(timeout_s)
        if isinstance(event, Exited) and event.state_lost and self._may_begin_again and not self._interpreter.has_begun:
            # It was dying when the run came, and never saw it.
            self._may_begin_again = False
            self._interpreter.death_was_told = False
            self._begin(self._make())
            return None
        return event

    def kill(self) -> None:
        self._may_begin_again = False
        if self._interpreter.is_running:
            self._interpreter.kill()

    def interrupt(self) -> None:
        self._may_begin_again = False
        if self._interpreter.is_running:
            self._interpreter.interrupt()

    async def close(self) -> None:
        """Nobody will read the rest of a run that was left before its end: it goes, and its interpreter with it."""
        if self._interpreter.is_running or self._interpreter.is_dead:
            await self._interpreter.close()
