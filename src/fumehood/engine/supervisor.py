"""The first process of a cell: waits for the program, tells the host how it ended, takes the rest down with it.

At level `sealed` it is PID 1 of its own pid namespace: its end is the end of every process inside, and the kernel
shields it from signals sent there. At the other levels it adopts orphans and hunts them down itself.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # see zygote
import os
import resource
import select
import time

from ..guest.procfs import (
    SYSTEM,
    THREADS,
    USER,
    WAITED_SYSTEM,
    WAITED_USER,
    Reading,
    number,
    stat,
)
from ..guest.wire import DONE
from . import _syscalls as sys_calls
from . import frames, tree
from .flags import KILL_TREE, LOST, WAKE
from .memory import Memory, nameless
from .metadata import Metadata
from .sockets import Doorkeeper

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EXIT_CODES = {number: code for code, number in DONE.items()}
WATCHED = frozenset({signal.SIGCHLD, *_EXIT_CODES, KILL_TREE, WAKE})
_SI_USER = 0  # sent by kill(2); sigqueue and timers cannot claim it
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_TICK_S = 0.02
_IDLE_TICK_S = 0.1
_NO_PROGRAM_S = 0.0005
_HUNT_S = 1.5
_USUAL_NUMBERS = 1 << 15
_LONG_HUNT_S = 60.0  # once the host knows the end
_QUIET_LOOKS = 2  # in a row that found nobody: who is just being forked may escape the first
_REAP_S = 0.05  # then it is killed again
_REAPED_AT_ONCE = 256  # then the host is heard, however fast a program's processes come and go


class Supervisor:
    def __init__(self, control: int, child: int, order: dict[str, Any], *, keeps_signals: bool, listener: int = -1):
        """`keeps_signals`: it was seen that ours reach our descendants alone. `listener`: what its filter asks by."""
        self._control = control
        self._child = child
        self._sealed: bool = order["sealed"]
        self._disk: str | None = order["disk"]  # the file system whose filling up is the program's disk limit
        self._memory_limit: int | None = order["watch_memory"]  # bytes, where no cgroup counts them
        self._memory = Memory(self._disk)
        self._processes: int | None = order["processes"]  # where no cgroup counts them
        self._directory: str | None = order["directory"]
        self._waits: bool = order["waits"]
        self._reaches_its_own_alone = keeps_signals or os.getpid() == 1  # by `kill(-1)`, which is one step for all
        self._listener = listener
        self._answer: Callable[[sys_calls.Question], int | None]
        if self._directory is not None:
            self._answer = Metadata(self._directory).answer
        else:
            self._answer = Doorkeeper(order["sockets"], self._memory_limit or 0, self._is_shared_gone).answer
        self._newest = Reading("/proc/sys/kernel/ns_last_pid")
        self._child_status = Reading(f"/proc/{child}/status")
        self._flags = 0
        self._are_more_dead = False
        self._ticks = 0  # of CPU time that the tree shows
        self._lost_ticks = 0  # that it showed once: of those for whom nobody waited

    def rehearse(self) -> None:
        """Open and touch now what the report will touch: see the runner's."""
        self._newest.open()
        self._child_status.open()
        for _ in range(2):
            os.kill(os.getpid(), WAKE)
            signal.sigtimedwait({WAKE}, 0)  # no other: the program may have come and gone already
            self._has_others()
            frames.exited(0, *self._usage(None), self._flags)

    def run(self) -> None:
        """Until the program has ended. The caller exits.

        A signal only wakes it up, for anybody in the sandbox can send one: what the host wants is said over `control`.
        """
        os.set_blocking(self._control, False)
        self._obey()  # the rehearsal may have taken the signal for an order
        wait = _wait if self._listener < 0 else self._waiting_for_questions()
        begun = not self._waits  # a cell that waits for its program is not worth many looks
        idle_s: float | None = None
        rests_until = 0.0
        while True:
            info = wait(
                0 if self._are_more_dead else None if self._memory_limit is None else _TICK_S if begun else _IDLE_TICK_S
            )
            signo = info.si_signo if info is not None else 0
            # Looked for by itself: the kernel hands out lower numbers first, and of these a program may send many.
            if not self._sealed and (signo == KILL_TREE or signal.sigtimedwait({KILL_TREE}, 0)):
                return self._report(signal.SIGKILL, None, was_told=True)
            if self._memory_limit is not None:
                if not begun:  # it may have come, forked and gone quiet before the first of these looks
                    used_s = _cpu_s(self._child)
                    begun = self._has_others() or (idle_s is not None and used_s > idle_s + _NO_PROGRAM_S)
                    idle_s = used_s
                looked_at = time.monotonic()
                if info is None or (begun and looked_at >= rests_until):
                    self._watch()
                    rests_until = 2 * time.monotonic() - looked_at  # a crowd takes long; the dead and the host wait
            if signo == signal.SIGCHLD or self._are_more_dead:
                ended = self._reap()
                if ended is not None:
                    return self._report(*ended)
            if signo in _EXIT_CODES and info.si_code == _SI_USER and info.si_pid == self._child:
                return self._report(_EXIT_CODES[signo] << 8, None)
            if signo:
                self._obey()

    def _waiting_for_questions(self) -> Callable[[float | None], Any]:
        """Like `_wait`, and answers meanwhile what the program's filter asks."""
        signals = sys_calls.signal_descriptor(WATCHED)
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        poll.register(self._listener, select.POLLIN)

        def wait(within_s: float | None) -> Any:
            until = None if within_s is None else time.monotonic() + within_s
            while True:
                left_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
                ready = [fd for fd, _ in poll.poll(left_ms)]
                if self._listener in ready:
                    self._answer_question()
                is_time = until is not None and time.monotonic() >= until  # however many questions there are
                if signals in ready or not ready or is_time:
                    return signal.sigtimedwait(WATCHED, 0)

        return wait

    def _answer_question(self) -> None:
        try:
            question = sys_calls.receive_question(self._listener)
            refusal = self._answer(question)
            sys_calls.answer_question(self._listener, question, refusal or 0, goes_on=refusal is None)
        except OSError:
            pass  # whoever asked is gone

    def _obey(self) -> None:
        """What the host has asked for. It takes each answer before it asks again, so there is room for one."""
        while order := self._next_order():
            if order == frames.INTERRUPT:
                self._interrupt()
            elif order == frames.TELL_USAGE:
                full = frames.DISK_FULL if self._disk and _is_full(self._disk) else 0
                cpu_ns, max_rss = self._usage(None)
                if self._has_others():
                    cpu_ns += self._cpu_ns_of_others(self._tree())
                cpu_ns += self._lost_ns(cpu_ns)
                self._tell(frames.usage(cpu_ns, max_rss, full))

    def _next_order(self) -> bytes:
        try:
            return os.read(self._control, frames.MAX_FRAME)
        except OSError:
            return b""  # there is none, or nobody to give one

    def _tell(self, frame: bytes) -> bool:
        try:
            os.write(self._control, frame)
        except OSError:
            return False
        return True

    def _reap(self) -> tuple[int, resource.struct_rusage] | None:
        self._are_more_dead = False
        for _ in range(_REAPED_AT_ONCE):
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == self._child:
                return status, usage
        self._are_more_dead = True
        return None

    def give_up(self) -> None:
        """A defect of ours: nothing may run on unwatched. Where there is a pid namespace, our end is that of all."""
        if not self._sealed:
            tree.send(self._child, signal.SIGKILL)
            self._hunt()

    def _interrupt(self) -> None:
        """The program may go on afterwards; what it has started may not."""
        was_stopped = stat(self._child)[:1] == [b"T"]  # by itself: it stays so
        until = time.monotonic() + _HUNT_S
        quiet = 0
        while quiet < _QUIET_LOOKS and time.monotonic() < until:
            if self._reaches_its_own_alone:
                tree.send(-1, signal.SIGSTOP)  # nobody forks away while the rest is looked for
            quiet = 0 if tree.kill(self._others, until) else quiet + 1
        tree.send(self._child, signal.SIGINT)
        if not was_stopped:
            tree.send(self._child, signal.SIGCONT)

    def _report(self, status: int, usage: resource.struct_rusage | None, *, was_told: bool = False) -> None:
        if status and self._disk and _is_full(self._disk):
            self._flags |= frames.DISK_FULL
        # Those that were refused a fork end too, so at its end a tree that hit the limit is no longer at it.
        if status and not was_told and self._processes and self._count_tasks(self._tree()) >= self._processes // 2:
            self._flags |= frames.PROCESSES_HIT
        is_clean = self._sealed or self._hunt()  # first: to measure a large tree takes time. We have waited for all
        cpu_ns, max_rss = self._usage(usage)
        if self._has_others():
            if self._sealed:
                self._flags |= frames.HAD_OTHERS  # the host waits until all of them are gone
                if usage is None:
                    cpu_ns += self._cpu_ns_of_others(self._tree())
            cpu_ns += self._lost_ns(cpu_ns)
        if not self._tell(frames.exited(status, cpu_ns, max_rss, self._flags)):
            self._clean_up()
        os.sched_yield()  # the host first: our end, and so the end of all here, keeps this core for half a millisecond
        if not is_clean:
            self._hunt(_LONG_HUNT_S)

    def _usage(self, usage: resource.struct_rusage | None) -> tuple[int, int]:
        """Nanoseconds of CPU and bytes. `usage`: the program's, if it was waited for."""
        rest = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = rest.ru_utime + rest.ru_stime
        peak_kib = rest.ru_maxrss
        if usage is None:  # it said that it is done and is still there
            cpu_s += _cpu_s(self._child)
            peak_kib = max(peak_kib, number(self._child_status.read(), b"VmHWM:"))
        return int(cpu_s * 1e9), peak_kib * 1024

    def _has_others(self) -> bool:
        """Whether the program has started processes or threads: cheap, where there is a pid namespace."""
        return not self._sealed or self._newest.read() != b"%d\n" % self._child

    def _cpu_ns_of_others(self, pids: list[int]) -> int:
        """Of what it has started and waited for, and of what is still there. Those we have reaped are counted."""
        ticks = 0
        for pid in pids:
            if not (fields := stat(pid)):
                continue
            ticks += int(fields[WAITED_USER]) + int(fields[WAITED_SYSTEM])
            if pid != self._child:
                ticks += int(fields[USER]) + int(fields[SYSTEM])
        return ticks * 1_000_000_000 // _TICKS

    def _lost_ns(self, shown_ns: int) -> int:
        """What the watch saw and the tree shows no longer: of who ended with nobody to wait for it."""
        self._notice(shown_ns * _TICKS // 1_000_000_000)
        return self._lost_ticks * 1_000_000_000 // _TICKS

    def _shown_ticks(self, pids: list[int]) -> int:
        return (self._usage(None)[0] + self._cpu_ns_of_others(pids)) * _TICKS // 1_000_000_000

    def _notice(self, ticks: int) -> None:
        lost = max(0, self._ticks - ticks - 1)  # one for what was rounded
        self._ticks = ticks
        if lost:
            self._lost_ticks += lost
            sys_calls.set_name(LOST + b"%d" % self._lost_ticks)  # for the host, which asks nobody whom it kills

    def _clean_up(self) -> None:
        """The host is gone and cannot remove the program's directory."""
        if self._directory is not None:
            import shutil  # only ever needed here

            try:
                shutil.rmtree(self._directory, ignore_errors=True)
            except RecursionError:
                pass  # before Python 3.13; the next start sweeps what is left

    def _watch(self) -> None:
        """Add up the tree where the kernel does not do it for us."""
        pids = self._tree()
        if self._processes and self._count_tasks(pids) >= self._processes:
            self._flags |= frames.PROCESSES_HIT
        ticks = self._shown_ticks(pids)
        if ticks < self._ticks:  # somebody was waited for between two files, or by nobody
            ticks = max(ticks, self._shown_ticks(self._tree()))
        self._notice(ticks)
        if self._memory_limit and self._memory.exceeds(pids, self._memory_limit):
            self._flags |= frames.MEMORY_KILL
            tree.send(self._child, signal.SIGKILL)

    def _is_shared_gone(self) -> bool:
        return nameless(self._tree()) == {}

    def _count_tasks(self, pids: list[int]) -> int:
        return sum(int(fields[THREADS]) for fields in map(stat, pids) if fields)

    def _tree(self) -> list[int]:
        """The dead among them: what they have used shows nowhere else until somebody waits for them."""
        if self._sealed:
            return [pid for pid in tree.processes() if pid != 1]
        return tree.descendants(os.getpid(), dead=True)

    def _others(self) -> list[int]:
        if self._sealed and not tree.processes():  # a masked /proc
            return [pid for pid in tree.living(_newest_number()) if pid not in (os.getpid(), self._child)]
        return [pid for pid in tree.descendants(os.getpid()) if pid != self._child]

    def _hunt(self, within_s: float = _HUNT_S) -> bool:
        """Everything that is left. Whether the kernel knows of no child of ours any more."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self._reaches_its_own_alone:
                tree.send(-1, signal.SIGKILL)  # all at once: nobody forks out of it, and nobody else is in reach
                found = False
            else:
                found = tree.kill(lambda: tree.descendants(os.getpid()), deadline)
            if self._reap_all(min(deadline, time.monotonic() + _REAP_S)) and not found:
                return True
        return False

    def _reap_all(self, deadline: float) -> bool:
        """Until there is nobody left: a dead process that nobody has waited for still counts against the limit."""
        try:
            while time.monotonic() < deadline:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.001)
            return False
        except ChildProcessError:
            return True


def _newest_number() -> int:
    """Of a process here: one is made for it. Where numbers are few, older processes may have higher ones."""
    try:
        pid = os.fork()
    except OSError:
        return _USUAL_NUMBERS  # the next look finds room for one
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return max(pid, _USUAL_NUMBERS)


def _wait(within_s: float | None) -> Any:
    return signal.sigwaitinfo(WATCHED) if within_s is None else signal.sigtimedwait(WATCHED, within_s)


def _cpu_s(pid: int) -> float:
    """By the process's own CPU clock."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _is_full(path: str) -> bool:
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bfree * space.f_frsize < 16 * _PAGE or space.f_ffree == 0
