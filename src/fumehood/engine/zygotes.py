"""Starts zygotes and has them make cells. One zygote for each kind of root; they end with this process."""

from __future__ import annotations

import errno
import marshal
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..descriptors import exhausted
from ..errors import EngineFailed
from ..guest.procfs import stat
from ..interrupts import acquire, let_through
from ..types import Limits
from . import frames
from .cell import Cell
from .cgroups import TRIAL_BYTES, Group, Groups
from .diagnose import fix_for
from .flags import KILL_TREE
from .launch import launch
from .passing import pass_on

_START_S = 60.0  # only a hang takes so long, on a busy machine too
_BORN_S = 60.0
_LOOK_S = 0.5  # how long it may be silent before we look whether it was stopped
_ENDING_S = 0.5
_LEAVE_S = 5.0  # only who is stopped takes so long
_EXITING = 0x4  # PF_EXITING of the kernel, in /proc/PID/stat
_IMPORT_S = 60.0

_alive: weakref.WeakSet[Zygote] = weakref.WeakSet()


class SetupFailed(Exception):
    """A step of the plan was refused: this level cannot be had here."""

    def __init__(self, failure: frames.Failure):
        super().__init__(f"{failure.step}: {failure.detail}")
        self.failure = failure


class PreloadFailed(Exception):
    """A module to be imported ahead ends or hangs whoever imports it."""

    def __init__(self, module: str, why: str):
        super().__init__(f"{module}: {why}")
        self.module = module
        self.why = why


class ZygoteGone(Exception):
    """It ended or does not answer. Another one may do."""


class Zygote:
    def __init__(self, executable: str):
        self._lock = threading.Lock()
        self._launched = launch(executable)
        self._socket = self._launched.socket
        try:
            self.groups = Groups()
        except OSError as error:
            self._launched.end()
            raise EngineFailed(
                f"no control groups could be made: {error.strerror}; {fix_for('', error.errno or 0)}"
            ) from error
        self._will_go_on = False  # as another process, whose number it will tell
        self._seals = False  # its cells are pid namespaces: the kernel clears up after them
        self.landlock_abi = 0
        self.not_imported: dict[str, str] = {}
        self._answer_s = _BORN_S
        self._orders = 0
        self._unanswered: dict[int, Group | None] = {}
        _alive.add(self)

    def become(self, blueprint: dict[str, Any]) -> None:
        """Tell it what to build; `wait_up` tells how that went."""
        self._seals = self._will_go_on = bool(blueprint["flags"])
        self._socket.settimeout(_LOOK_S)
        try:
            self._socket.send(marshal.dumps(blueprint))
        except OSError:
            raise EngineFailed(f"the zygote ended while starting{self._said()}") from None

    def wait_up(self) -> None:
        """Until it takes orders. Raises what kept it from that."""
        importing: str | None = None
        while True:
            try:
                frame, _ = self._next(_START_S if importing is None else _IMPORT_S)
            except TimeoutError:
                if importing is not None:
                    raise PreloadFailed(importing, f"its import did not end in {_IMPORT_S:.0f} s") from None
                raise EngineFailed(f"the zygote did not start in {_START_S:.0f} s{self._said()}") from None
            except OSError:
                frame = b""
            kind = frame[:1]
            if kind == frames.IMPORTING:
                importing = frames.parse_name(frame)
            elif kind == frames.NOT_IMPORTED:
                name, why = frames.parse_not_imported(frame)
                self.not_imported[name] = why
            elif kind == frames.PID:
                self._go_on(frame)
            elif kind == frames.UP:
                self.landlock_abi = frames.parse_up(frame)
                return
            elif kind == frames.FAILED:
                raise SetupFailed(frames.parse_failure(frame))
            elif not kind and importing is not None:
                raise PreloadFailed(importing, self.not_imported.get(importing, "its import ended the interpreter"))
            elif not kind:
                raise EngineFailed(f"the zygote ended while starting{self._said()}")

    def try_groups(self) -> bool:
        """Whether they still count what they seemed to: once in a process, somebody meets a limit of memory."""
        counted = self.groups.counts("memory")
        with self._taken():
            group = self.groups.on_trial()
        if group is None:  # another zygote has tried it, perhaps a moment ago
            return self.groups.counts("memory") == counted
        order = {"meet_limit": TRIAL_BYTES, "flags": 0, "groups": self.groups.version}
        fds = self._ask(order, group.doors)
        if not fds:
            raise EngineFailed(exhausted(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        (pidfd,) = fds
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(_BORN_S * 1000):
                raise EngineFailed("whoever tried the limit of a control group did not end")
        finally:
            os.close(pidfd)
        with self._taken():
            self.groups.judge(group)
        return self.groups.counts("memory") == counted

    def check(self) -> None:
        """That it is there, without asking it anything."""
        poll = select.poll()
        if self._socket.fileno() >= 0:
            poll.register(self._socket, 0)
            if not poll.poll(0):
                return
        raise ZygoteGone("it has ended")

    def take_group(self, limits: Limits) -> Group | None:
        """One for a volume, whose cells share it until its owner clears it."""
        with self._lock:
            group = self.groups.free()
            if group is not None:
                group.arm(limits)
                group.hold()
            return group

    def give_back(self, group: Group) -> None:
        group.clear()
        with self._lock:
            self.groups.trim()

    def make_volume(self, order: dict[str, Any], trees: list[int]) -> int:
        """A descriptor of its root. `trees` are detached mounts to be attached there."""
        fds = self._ask(order, trees)
        if not fds:
            raise EngineFailed(exhausted(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        return fds[0]

    def drop_volume(self, number: int) -> None:
        self._ask({"drop_volume": number}, [])

    def kill_orphans(self) -> None:
        """What a killed supervisor has left, at the levels without a pid namespace."""
        try:
            self._ask({"kill_orphans": True}, [])
        except (ZygoteGone, EngineFailed, SetupFailed):
            pass  # its own end is that of its cells

    def make_cell(
        self, order: bytes, limits: Limits, cell: Cell, shared: Group | None = None, *, is_shared: bool = False
    ) -> Group | None:
        """Have `cell` born; its setup goes on while the caller does. `shared`: the group of its volume.

        Its group is nobody else's until the cell has read what it counted and the files that it shows are gone.
        """
        group = shared
        try:
            with self._taken():
                group = shared if is_shared else self.groups.free()
                if group is not None:
                    group.arm(limits)
                    group.hold()
                self._orders += 1
                self._unanswered[self._orders] = None if is_shared else group
                doors = group.doors if group is not None else []
                cell.hand_over_ends(self._socket, frames.order(self._orders, order), doors)
                pidfd = self._wait_born(self._orders)
                cell.born(pidfd)
                if group is not None and not is_shared:
                    group.occupy(os.dup(pidfd))
        except OSError as error:
            cell.close()
            said = exhausted(error)
            if said is None:
                if group is not None and not is_shared:
                    group.release()  # its cell, if there was one, ends with the zygote
                raise ZygoteGone(str(error)) from error
            if group is not None and not is_shared:
                group.clear()
            raise EngineFailed(said) from error  # ours, not the zygote's
        except BaseException:
            cell.close()
            raise
        return group

    def is_gone(self) -> bool:
        """Whether it has ended, or is about to: its cells go first."""
        poll = select.poll()
        if (pidfd := self._launched.pidfd) >= 0:
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(_ENDING_S * 1000) and self._launched.pidfd >= 0:  # nobody has closed it meanwhile
                return self._is_exiting()
        return True

    def close(self) -> None:
        """Ends every cell with it."""
        _alive.discard(self)
        with self._lock:
            if self._socket.fileno() < 0:
                return
            self._take_leave()
            self._launched.end()
            self.groups.remove()

    def abandon(self) -> None:
        """In a forked child: it belongs to the parent. Only let go of it."""
        self._lock = threading.Lock()
        self._launched.let_go()
        self.groups.let_go()

    # --- inside

    @property
    def _pid(self) -> int:
        return self._launched.pid

    @contextmanager
    def _taken(self) -> Iterator[None]:
        """It does one thing at a time, and may take long over it."""
        acquire(self._lock)
        try:
            yield
        finally:
            self._lock.release()

    def _is_exiting(self) -> bool:
        """Whether it waits for the end of its last cells, which takes long where the machine is busy."""
        fields = stat(self._pid)
        return bool(fields) and bool(int(fields[6]) & _EXITING)

    def _take_leave(self) -> None:
        """If it goes on as another process, that is the one to be ended.

        Killed before it has told the other's number, it would leave us a child that we do not know.
        """
        try:
            self._socket.settimeout(_LEAVE_S if self._will_go_on else 0)
            while (frame := self._socket.recv(frames.MAX_FRAME)) and frame[:1] != frames.FAILED:
                if frame[:1] == frames.PID:
                    self._go_on(frame)
                    self._socket.settimeout(0)
        except (OSError, EngineFailed):
            pass

    def _go_on(self, frame: bytes) -> None:
        self._will_go_on = False
        self._launched.go_on_as(frames.parse_pid(frame))

    def _ask(self, order: dict[str, Any], fds: list[int]) -> list[int]:
        try:
            with self._taken():
                self._orders += 1
                pass_on(self._socket, frames.order(self._orders, marshal.dumps(order)), fds)
                return self._wait_answer(self._orders)
        except OSError as error:
            said = exhausted(error)
            if said is None:
                raise ZygoteGone(str(error)) from error
            raise EngineFailed(said) from error

    def _wait_born(self, order: int) -> int:
        fds = self._wait_answer(order)
        if not fds:  # it came, and we had no room for it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fds[0]

    def _wait_answer(self, order: int) -> list[int]:
        while True:
            data, fds = self._next(self._answer_s)
            number, frame = frames.parse_answer(data)
            if not data:
                raise ConnectionResetError("the zygote went away")
            group = self._unanswered.pop(number, None)
            if number != order:
                self._bury(group, fds)
                continue
            if frame[:1] == frames.FAILED:
                if group is not None:
                    group.clear()
                raise SetupFailed(frames.parse_failure(frame))
            return fds

    def _next(self, wait_s: float) -> tuple[bytes, list[int]]:
        """What it says next. One that somebody has stopped is made to go on, once: else it is replaced."""
        until = time.monotonic() + wait_s
        was_stopped = False
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, frames.MAX_FRAME, 1)
                return data, fds
            except TimeoutError:
                let_through()
                is_stopped = stat(self._pid)[:1] == [b"T"]
                if time.monotonic() >= until or (is_stopped and was_stopped):
                    raise
            if is_stopped:
                was_stopped = True
                self._launched.send(signal.SIGCONT)

    def _bury(self, group: Group | None, fds: list[int]) -> None:
        """A cell, or a volume, whose caller was interrupted before it was made."""
        for pidfd in fds:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL if self._seals else KILL_TREE)
            except OSError:
                pass
            if group is not None:
                group.occupy(os.dup(pidfd))
                group.release()
            os.close(pidfd)

    def _said(self) -> str:
        text = os.pread(self._launched.messages, 4096, 0).decode("utf-8", "replace").strip()
        return f": {text[-2000:]}" if text else ""


def close_all() -> None:
    for zygote in list(_alive):
        zygote.close()


def _after_fork() -> None:
    for zygote in list(_alive):
        zygote.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
