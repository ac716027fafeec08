"""The host's end of one cell: feeds the program, reads what it writes, learns how it ended."""

from __future__ import annotations

import errno
import marshal
import math
import os
import select
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ..descriptors import exhausted
from ..errors import EngineFailed, SandboxLost
from ..guest.procfs import stat
from ..guest.wire import HEADER
from ..interrupts import let_through, wait_s
from ..types import Display, Exited, Output, Reason, Receipt
from . import frames, usage
from .cgroups import Group
from .diagnose import not_made
from .flags import KILL_TREE
from .passing import pass_on
from .watch import WRITABLE, Watch

if TYPE_CHECKING:
    from .files import Files

_CHUNK = PIPE_BYTES = 65536
_WANTED_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_GONE_S = 2.0
_LATE_S = 20.0  # on a busy machine
_LOOK_S = 0.05
MAX_LEFT = 1 << 20  # a pipe holds no more; who writes on is not waited for


_open: weakref.WeakSet[Cell] = weakref.WeakSet()


class Cell:
    """Made by a zygote. Serves one program."""

    receipt: Receipt
    directory: str | None = None  # the program's, where it has no root of its own
    close_later: Callable[[Cell], bool] | None = None  # whoever closes it when it has ended, if that says so
    while_it_runs: Callable[[], None] | None = None  # called once, if the program runs for longer than a moment

    def __init__(self) -> None:
        made: list[int] = []
        try:
            made += self._make_input()
            made += os.pipe2(os.O_CLOEXEC)
            made += os.pipe2(os.O_CLOEXEC)
            self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            _close_all(made)
            raise EngineFailed(exhausted(error) or str(error)) from error
        stdin_read, self._stdin, self._stdout, stdout_write, self._stderr, stderr_write = made
        self._outputs = [self._stdout, self._stderr]
        self._theirs = [stdin_read, stdout_write, stderr_write, remote.detach()]
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._pidfd = -1
        self._sealed = True
        self._group: Group | None = None
        self._pending: memoryview | None = None
        self._events: deque[Output | Display | Exited] = deque()
        self._names: dict[int, Literal["stdout", "stderr"]] = {self._stdout: "stdout", self._stderr: "stderr"}
        self._watch: Watch | None = None
        self._ended = False
        self._outlives = False  # whether processes may be left when the program has ended
        self._was_alone = False  # the program started nobody: its supervisor knows all that was used
        self._used = (0.0, 0)  # seconds of CPU and bytes, when it was killed
        self._look_at = 0.0
        self._insist_at = math.inf  # when a supervisor that was told to end must have
        self._left_orphans = False
        self._failure: frames.Failure | None = None
        self.is_ready = False
        self.shows = False
        self._top = -1
        self._files: Files | None = None
        self._lost: EngineFailed | None = None
        self._when_closed: list[Callable[[], None]] = []
        self._is_left = False  # to `close_later`
        _open.add(self)

    def _make_input(self) -> tuple[int, int]:
        """(theirs, ours)"""
        return os.pipe2(os.O_CLOEXEC)

    # --- birth, by the zygote's owner

    def hand_over_ends(self, zygote: socket.socket, order: bytes, doors: list[int]) -> None:
        pass_on(zygote, order, [*self._theirs, *doors])
        _close_all(self._theirs)

    def born(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._control.setblocking(False)

    def wait_ready(self, timeout_s: float) -> bool:
        """Locked and waiting. False: see `failure`."""
        until = time.monotonic() + timeout_s
        self._control.settimeout(wait_s(timeout_s))
        while not self.is_ready and self._failure is None:
            try:
                if not self._receive():
                    break
            except TimeoutError:
                let_through()
                if time.monotonic() >= until:
                    break
        self._control.setblocking(False)
        if not self.is_ready or self._failure is not None:
            return False
        self._begin_watch()  # now, as its caller has the time
        return True

    def is_waiting(self) -> bool:
        """Still, after `wait_ready`: it has said nothing since, and lives."""
        return self._watch is not None and not self._watch.wait(0)

    def belong(
        self,
        *,
        sealed: bool,
        group: Group | None,
        receipt: Receipt,
        is_orphan: Callable[[], bool],
        kill_orphans: Callable[[], None],
        shares_group: bool = False,
    ) -> None:
        """`is_orphan`: whether its zygote is gone, which takes a sealed cell with it.

        `kill_orphans`: what its supervisor left, if that was killed.
        """
        self._sealed = sealed
        self._group, self._shares_group = group, shares_group
        self.receipt = receipt
        self._is_orphan = is_orphan
        self._kill_orphans = kill_orphans

    def show(self, prefixes: dict[str, str], owner: int | None, top: int = -1) -> None:
        """Its program's files are to be read. `top`: where they are, unless the cell itself will say so."""
        self.shows, self._top, self._lead = True, top, (prefixes, owner)

    def when_closed(self, call: Callable[[], None]) -> None:
        self._when_closed.append(call)

    @property
    def failure(self) -> frames.Failure | None:
        return self._failure

    # --- the program

    def feed(self, order: dict[str, Any], stdin: bytes) -> None:
        """Hand over the program; what follows it in the pipe is its standard input."""
        body = marshal.dumps(order)
        data = HEADER.pack(len(body)) + body + stdin
        if len(data) > _CHUNK:
            _widen(self._stdin)
        self._pending = memoryview(data)
        self._look_at = time.monotonic() + _LOOK_S
        self._write()

    def read(self, timeout_s: float | None = None) -> Output | Display | Exited | None:
        """The next event, or None if there is none in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        watch = self._watch or self._begin_watch()
        while True:
            if self._events:
                return self._events.popleft()
            if self._lost is not None:
                raise self._lost
            if self._ended:
                return None
            let_through()
            now = time.monotonic()
            if now >= self._look_at:
                self._look(now)
            left = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - now))
            ready = watch.wait(left)
            if ready:
                self._take(ready)
            elif deadline is not None and time.monotonic() >= deadline:
                return None

    def fileno(self) -> int:
        """Readable when `read(0)` may have something: what an event loop waits for. OSError: see `Watch`."""
        return (self._watch or self._begin_watch()).fileno()

    def kill(self, *, measures: bool = True) -> None:
        """All of it, at once. `Exited` follows. `measures`: somebody will want to know what it has used."""
        if self._ended or self._pidfd < 0:
            return
        try:
            if measures and not self._outlives:
                self._used = usage.of_tree(self._pidfd)  # who is killed cannot be asked any more
        finally:
            self._outlives = True
            self._insist_at = min(self._insist_at, time.monotonic() + _GONE_S)
            self._signal(signal.SIGKILL if self._sealed else KILL_TREE)
            if not self._sealed:
                self._signal(signal.SIGCONT)  # a program there may have stopped it

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing for anybody."""
        return self._look_at == 0.0

    def end_descriptor(self) -> int:
        """Readable when its first process has ended; the caller's to close."""
        return os.dup(self._pidfd)

    def is_gone(self, wait_s: float) -> bool:
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def files(self) -> Files | None:
        """Those of a program that has ended, for as long as this is not closed; None if it was never begun."""
        if self._files is None and self._top >= 0:
            from .files import Files  # few cells show theirs

            prefixes, owner = self._lead
            self._files, self._top = Files(self._top, prefixes, owner=owner), -1
        return self._files

    @property
    def has_ended(self) -> bool:
        """To its last process."""
        return self._pidfd < 0 or (self._ended and not self._outlives)

    @property
    def closes_soon(self) -> bool:
        """Whether there is nothing to wait for and little to free, so that an event loop can close it itself."""
        if not self._sealed or not self.has_ended:
            return False
        return not self.shows or (files := self.files()) is None or files.are_few()

    def end(self) -> None:
        """All of it, and wait for that. What was written is there to be read."""
        if not self.has_ended:
            self.kill()
            if not self.is_gone(_GONE_S) and (self._is_stopped() or not self.is_gone(_LATE_S)):
                self._insist()
                self.is_gone(_GONE_S)
        if self._left_orphans:
            self._left_orphans = False
            self.is_gone(_GONE_S)  # only then are they the zygote's
            self._kill_orphans()

    def close(self) -> None:
        """At once, or in a thread of its pool where there is nothing to wait for."""
        if self._is_left:
            return
        later, self.close_later = self.close_later, None
        if later is not None and self._sealed and self.has_ended and not self.shows:
            self._call_when_closed()
            self._is_left = later(self)
        if not self._is_left:
            self.close_now()

    def close_now(self) -> None:
        if self._control.fileno() < 0:
            return
        _open.discard(self)
        self.end()
        self._let_go()
        self._release_group()
        self._call_when_closed()

    def _call_when_closed(self) -> None:
        while self._when_closed:
            self._when_closed.pop(0)()

    # --- inside

    def _signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EBADF):  # it has ended, or another thread has closed this
                raise

    def _is_stopped(self) -> bool:
        """By its program, at the levels where nothing keeps it from that."""
        return stat(usage.pid_of(self._pidfd))[:1] == [b"T"]

    def _insist_if_due(self, now: float) -> None:
        if now >= self._insist_at and (now >= self._insist_at + _LATE_S or self._is_stopped()):
            self._insist()

    def _insist(self) -> None:
        """Its supervisor does not do what it was told: without it, the zygote has to."""
        self._insist_at = math.inf
        if not self._sealed:
            self._signal(signal.SIGKILL)
            self._left_orphans = True

    def _look(self, now: float) -> None:
        """The kernel kills one process of a tree that ran out of memory; we end it all, as the limit is the tree's."""
        self._look_at = now + _LOOK_S
        self._insist_if_due(now)
        if self.while_it_runs is not None:
            self.while_it_runs()
            self.while_it_runs = None
        if self._group is not None and not self._ended and self._group.ran_out_of_memory():
            self.kill()

    def _let_go(self) -> None:
        watch, self._watch = self._watch, None  # first: a forked child must take nothing from its parent's
        if watch is not None:
            watch.close()
        _close_all(self._theirs)
        _close_all(self._outputs)
        self._close_stdin()
        self._control.close()
        if (files := self.files()) is not None:
            files.close()
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)

    def _begin_watch(self) -> Watch:
        self._watch = watch = Watch()
        for fd in (self._stdout, self._stderr, self._control.fileno()):
            watch.listen(fd)
        if self._pending is not None:
            watch.listen(self._stdin, WRITABLE)
        return watch

    def _take(self, ready: list[int]) -> None:
        control = self._control.fileno()
        for fd in ready:
            if fd == self._stdin:
                self._write()
            elif fd != control:
                self._read_stream(fd)
        if control in ready:
            self._read_control()

    def _read_control(self) -> None:
        """Its last word first: a finished program must not look like a killed one."""
        try:
            while self._receive():
                if self._ended:
                    return
        except BlockingIOError:
            return
        self._left_orphans = not self._sealed
        reason = self._reason(killed=True, flags=0)
        if reason == "signal" and not self._outlives:  # nobody whom we know of has killed it
            self._lost = self._why_lost()
        self._finish(Exited(128 + signal.SIGKILL, reason, *self._used))

    def _receive(self) -> bool:
        """One frame. False when nobody holds the other end any more."""
        try:
            frame = self._next_frame()
        except ConnectionResetError:  # it died with an order of ours unread: said once, before what it told us
            frame = self._next_frame()
        kind = frame[:1]
        if not kind:
            return False
        try:
            self._take_frame(kind, frame)
        except frames.Garbled:
            self._lost = EngineFailed("the supervisor of a sandbox said what nobody understands; try again")
            self.kill()
            return False
        return True

    def _take_frame(self, kind: bytes, frame: bytes) -> None:
        if kind == frames.READY:
            self.is_ready = True
        elif kind == frames.FAILED:
            self._failure = frames.parse_failure(frame)
        elif kind == frames.EXITED:
            self._exited(frames.parse_exit(frame))
        elif kind != frames.FILES:
            self._told(frame)

    def _next_frame(self) -> bytes:
        if not self.shows or self._top >= 0 or self._files is not None:
            return self._control.recv(frames.MAX_FRAME)
        frame, fds, _, _ = socket.recv_fds(self._control, frames.MAX_FRAME, 1)
        if fds:
            self._top = fds[0]
        return frame

    def _told(self, frame: bytes) -> None:
        """For cells that say more than how they ended."""

    def _why_lost(self) -> EngineFailed | None:
        """If its first process is gone without a word."""
        if self._sealed and self._is_orphan():
            return SandboxLost("the sandbox went away with its zygote while the program ran; try again")
        if self._failure is not None:
            return not_made(self._failure)
        if not self.is_ready:
            return EngineFailed("a sandbox ended while it was made; see `fumehood doctor`, and try again")
        return None

    def _exited(self, end: frames.Exit) -> None:
        if self._failure is not None:  # a step of the program's own process, which then ended: no program ran
            self._lost = not_made(self._failure)
        code = 128 + os.WTERMSIG(end.status) if os.WIFSIGNALED(end.status) else os.WEXITSTATUS(end.status)
        reason = self._reason(killed=os.WIFSIGNALED(end.status), flags=end.flags) if code else "ok"
        self._outlives = bool(end.flags & frames.HAD_OTHERS)
        self._was_alone = self._sealed and not self._outlives and not self._shares_group
        cpu_s, max_rss_bytes = self._used
        self._finish(Exited(code, reason, max(cpu_s, end.cpu_ns / 1e9), max(max_rss_bytes, end.max_rss_bytes)))

    def _reason(self, *, killed: bool, flags: int) -> Reason:
        for_memory, for_processes = self._group.hits() if self._group is not None else (False, False)
        if for_memory or flags & frames.MEMORY_KILL:
            return "memory"
        if for_processes or flags & frames.PROCESSES_HIT:
            return "processes"
        if flags & frames.DISK_FULL:
            return "disk"
        return "signal" if killed else "error"

    def _finish(self, exited: Exited) -> None:
        """What was written before the end is in the pipes; a daemon that holds them open must not make us wait."""
        self._read_rest(MAX_LEFT)
        if self._group is not None and not self._was_alone:
            exited = exited._replace(cpu_s=max(exited.cpu_s, self._group.take_cpu_s()))
        if not self.shows:
            self._release_group()
        if self._lost is not None:
            self._events.clear()
        else:
            self._events.append(exited)
        self._ended = True

    def _release_group(self) -> None:
        """Only now, with all that it counted read: the next cell counts from there. An unsealed cell's is cleared."""
        if self._sealed and self._group is not None and not self._shares_group:
            self._group.release()
            self._group = None

    def _read_rest(self, most: int) -> None:
        for fd in self._names:
            for _ in range(most // _CHUNK):
                if not self._read_stream(fd):
                    break

    def _read_stream(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            if self._watch is not None:
                self._watch.ignore(fd)
            return False
        self._events.append(Output(self._names[fd], data))
        return True

    def _write(self) -> None:
        pending = self._pending
        if pending is None:
            return
        try:
            while pending:
                pending = pending[os.write(self._stdin, pending) :]
        except BlockingIOError:
            self._pending = pending
            if self._watch is not None:
                self._watch.listen(self._stdin, WRITABLE)
            return
        except (BrokenPipeError, ConnectionResetError):
            pass  # it does not want the rest
        self._pending = None
        self._end_of_input()

    def _end_of_input(self) -> None:
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            stdin, self._stdin = self._stdin, -1
            if self._watch is not None:
                self._watch.ignore(stdin)
            os.close(stdin)


def _close_all(fds: list[int]) -> None:
    """Forgotten before it is closed: a process that forks in between must not close it again, as somebody else's."""
    while fds:
        os.close(fds.pop())


def _widen(pipe: int) -> None:
    import fcntl  # only for large programs

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _WANTED_PIPE_BYTES)
    except OSError:
        pass  # slower, not different


def _after_fork() -> None:
    """A forked child must not hold the streams of its parent's programs open."""
    for cell in list(_open):
        cell._let_go()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
