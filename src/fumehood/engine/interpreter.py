"""The host's end of a cell whose interpreter serves one run after another and keeps its variables.

Requests and what a run shows go over a socket that is the cell's standard input; what it prints comes by its pipes.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from ..errors import EngineFailed
from ..guest.peek import peek
from ..guest.procfs import Reading, number
from ..types import Display, Exited, Output, Reason
from . import frames, usage
from .cell import MAX_LEFT, PIPE_BYTES, Cell
from .channel import Channel, TooMuch
from .flags import WAKE
from .watch import READABLE, WRITABLE, Watch

_LOOK_S = 0.05
_ENDING_S = 5.0  # until its supervisor tells how it ended, on a busy machine too
_CHUNK = 1 << 18
_CPU_LOOK_S = 0.2
_STOP_S = 1.0
_SIGXCPU = 128 + signal.SIGXCPU


class Interpreter(Cell):
    """Runs one request at a time: `begin`, then `read` until `Exited`. Dead when `is_dead`."""

    def __init__(self) -> None:
        super().__init__()
        self.death_was_told = False
        self.replaces_untold = False  # one whose death nobody has heard of
        self.is_running = False
        self._channel = Channel()
        self._unsent = b""
        self._cpu_ns = 0
        self._kill_at = float("inf")
        self._cpu_s: float | None = None
        self._cpu_look_at = 0.0
        self._ran_out_of_cpu = False
        self._status: Reading | None = None
        self._was_interrupted = False  # this run

    def _make_input(self) -> tuple[int, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return theirs.detach(), ours.detach()

    @property
    def is_idle(self) -> bool:
        return not self.is_running

    @property
    def is_dead(self) -> bool:
        return self._ended or self._control.fileno() < 0

    @property
    def has_begun(self) -> bool:
        """The run has reached it."""
        return self._channel.has_begun

    def begin(self, code: str, cpu_s: float | None = None) -> None:
        self._unsent += self._channel.begin(code)
        if self._group is not None:
            self._group.count_from_here()
        self.is_running, self._was_interrupted = True, False
        self._look_at = time.monotonic() + _LOOK_S
        self._cpu_s, self._cpu_look_at, self._ran_out_of_cpu = cpu_s, self._look_at + _CPU_LOOK_S, False
        self._send()

    def read(self, timeout_s: float | None = None) -> Output | Display | Exited | None:
        try:
            event = super().read(timeout_s)
        except EngineFailed:
            self.death_was_told = True
            raise
        if isinstance(event, Exited) and event.state_lost:
            self.death_was_told = True
        return event

    def interrupt(self) -> None:
        """Ask it to stop and stay; what it has started is killed."""
        if self._channel.done is None:  # else the next run would be struck
            self._was_interrupted = True  # so its end is what the supervisor says after it has obeyed
            self._order(frames.INTERRUPT)

    # --- inside

    def _end_of_input(self) -> None:
        """The order has gone; from now on it is a channel both ways."""
        self._listen(READABLE)

    def _begin_watch(self) -> Watch:
        watch = super()._begin_watch()
        if self._pending is None and self._stdin >= 0:
            watch.listen(self._stdin)
        return watch

    def _look(self, now: float) -> None:
        """Who ran out of memory is dead already; the interpreter, if it lives, keeps what it has."""
        self._look_at = now + _LOOK_S
        self._insist_if_due(now)
        if now >= self._kill_at:
            self.kill()
        elif self._cpu_s is not None and now >= self._cpu_look_at and self.is_running:
            self._cpu_look_at = now + _CPU_LOOK_S
            if self._used_s() >= self._cpu_s and not self._ran_out_of_cpu:
                self._ran_out_of_cpu = True
                self._kill_at = now + _STOP_S
                self.interrupt()

    def _used_s(self) -> float:
        """By this run."""
        by_tree = usage.of_tree(self._pidfd)[0] - self._cpu_ns / 1e9
        return by_tree if self._group is None else max(by_tree, self._group.cpu_s())

    def _order(self, frame: bytes) -> None:
        try:
            self._control.send(frame)
            signal.pidfd_send_signal(self._pidfd, WAKE)
        except OSError:
            pass  # it is gone, which shows; or so busy that it has orders enough

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # it is gone, which its supervisor will tell
        self._listen(READABLE | WRITABLE if self._unsent else READABLE)

    def _listen(self, events: int) -> None:
        if self._watch is not None and self._stdin >= 0:
            self._watch.listen(self._stdin, events)

    def _take(self, ready: list[int]) -> None:
        channel = self._stdin
        if channel in ready and self._pending is None:
            if self._unsent:
                self._send()
            self._hear()
            ready = [fd for fd in ready if fd != channel]
        super()._take(ready)

    def _hear(self) -> None:
        try:
            said = peek(self._stdin, _CHUNK)
            self._read_rest(PIPE_BYTES)  # what it printed before comes before; it prints no more until this is taken
            data = os.read(self._stdin, len(said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it ends; or it closed the channel, and then it is of no use any more
            self._close_stdin()
            self._kill_at = time.monotonic() + _ENDING_S
            return
        try:
            for shown in self._channel.hear(data):
                if shown is None and self._group is not None and self._channel.done == 0 and not self._was_interrupted:
                    self._end_run(0, "ok", self._group.take_cpu_s(), self._peak_bytes())  # no need to wake anybody
                elif shown is None:
                    self._order(frames.TELL_USAGE)
                else:
                    self._events.append(shown)
        except TooMuch:
            self._close_stdin()
            self.kill()

    def _told(self, frame: bytes) -> None:
        if frame[:1] != frames.USAGE or self._channel.done is None or not self.is_running:
            return
        if self._stdin >= 0:
            self._hear()  # whether it also says something else of its end
        code = self._channel.done
        cpu_ns, max_rss_bytes, flags = frames.parse_usage(frame)
        reason = self._reason(killed=False, flags=flags) if code else "ok"
        used_s = max(0, cpu_ns - self._cpu_ns) / 1e9
        if self._group is not None:
            used_s = max(used_s, self._group.take_cpu_s())
        self._end_run(code, reason, used_s, max_rss_bytes)
        self._cpu_ns = max(self._cpu_ns, cpu_ns)

    def _end_run(self, code: int, reason: Reason, used_s: float, max_rss_bytes: int) -> None:
        self._read_rest(MAX_LEFT)
        self._cpu_ns += int(used_s * 1e9)
        self.is_running = False
        self._kill_at = float("inf")
        if self._ran_out_of_cpu:
            code, reason = _SIGXCPU, "signal"
        self._events.append(Exited(code, reason, used_s, max_rss_bytes))

    def _peak_bytes(self) -> int:
        """Of its process alone, as its supervisor would tell. The file stays that process's, whatever its number."""
        if self._status is None:
            self._status = Reading(f"/proc/{usage.first_child(self._pidfd)}/status")
            self._status.open()
        return number(self._status.read(), b"VmHWM:") * 1024

    def _let_go(self) -> None:
        super()._let_go()
        if self._status is not None:
            self._status.close()

    def _finish(self, exited: Exited) -> None:
        cpu_s = max(0.0, exited.cpu_s - self._cpu_ns / 1e9)
        if self._ran_out_of_cpu:
            exited = exited._replace(exit_code=_SIGXCPU)
        super()._finish(exited._replace(cpu_s=cpu_s, state_lost=True))
