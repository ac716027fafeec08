"""Starts zygotes and has them make cells. One zygote for each kind of root; they end with this process."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import threading
import weakref
from typing import Any

from ..errors import EngineFailed
from ..types import Limits
from . import frames
from .cell import Cell
from .cgroups import Group, Home, Unavailable, find_home, remove_home

_START_S = 20.0
_BORN_S = 10.0
_LINGER_S = 0.003  # a finished cell is gone in less; moving the zygote costs more
_BOOT = "import sys; sys.path.append({home!r}); from fumehood.engine.zygote import main; main()"
PACKAGE_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_alive: weakref.WeakSet[Zygote] = weakref.WeakSet()


class SetupFailed(Exception):
    """A step of the plan was refused: this level cannot be had here."""

    def __init__(self, failure: frames.Failure):
        super().__init__(f"{failure.step}: {failure.detail}")
        self.failure = failure


class ZygoteGone(Exception):
    """It ended or does not answer. Another one may do."""


class Zygote:
    def __init__(self, executable: str, blueprint: dict[str, Any]):
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self._pid = 0
        self.landlock_abi = 0
        self._seals = bool(blueprint["flags"])  # its cells are pid namespaces: the kernel clears up after them
        self.home: Home | Unavailable = find_home()
        self._socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._messages = os.memfd_create("fumehood", os.MFD_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._launcher = os.posix_spawn(
                executable,
                boot(executable, PACKAGE_HOME),
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, self._messages, 2),
                    (os.POSIX_SPAWN_DUP2, remote.fileno(), 3),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
            )
        except OSError as error:
            self._socket.close()
            os.close(self._messages)
            self._remove_groups()
            raise EngineFailed(f"cannot start {executable}: {error.strerror}. Is this Python installed?") from error
        finally:
            os.close(null)
            remote.close()
        self._pid = self._launcher
        _alive.add(self)
        try:
            self._socket.settimeout(_START_S)
            self._socket.send(marshal.dumps(blueprint))
            self._seat = self._take_seat(self._launcher)
        except BaseException:
            self.close()
            raise

    def wait_up(self) -> None:
        """Until it takes orders. Raises what kept it from that."""
        while True:
            try:
                frame = self._socket.recv(frames.MAX_FRAME)
            except TimeoutError:
                raise EngineFailed(f"the zygote did not start in {_START_S:.0f} s{self._said()}") from None
            kind = frame[:1]
            if kind == frames.PID:
                self._pid = frames.parse_pid(frame)
                os.waitpid(self._launcher, 0)
                self._launcher = self._pid
            elif kind == frames.UP:
                self.landlock_abi = frames.parse_up(frame)
                self._socket.settimeout(None)
                return
            elif kind == frames.FAILED:
                raise SetupFailed(frames.parse_failure(frame))
            elif not kind:
                raise EngineFailed(f"the zygote ended while starting{self._said()}")

    def make_cell(self, order: bytes, limits: Limits) -> tuple[Cell, Group | None]:
        """A cell that has been born; its setup goes on while the caller does."""
        cell = Cell()
        try:
            with self._lock:
                group = self._free_seat()
                if group is not None:
                    group.arm(limits)
                cell.hand_over_ends(self._socket, order)
                pidfd = cell.wait_born(_BORN_S)
                if cell.failure is not None:
                    raise SetupFailed(cell.failure)
                if group is not None:
                    group.occupy(os.dup(pidfd), until_cleared=not self._seals)
        except (OSError, TimeoutError) as error:
            cell.close()
            raise ZygoteGone(str(error)) from error
        except BaseException:
            cell.close()
            raise
        return cell, group

    @property
    def pids(self) -> frozenset[int]:
        return frozenset({self._pid, self._launcher})

    def close(self) -> None:
        """Ends every cell with it."""
        _alive.discard(self)
        with self._lock:
            if self._socket.fileno() < 0:
                return
            self._socket.close()
            os.close(self._messages)
            for pid in {self._pid, self._launcher} - {0}:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                except (ProcessLookupError, ChildProcessError, PermissionError):
                    pass
            self._remove_groups()

    def abandon(self) -> None:
        """In a forked child: it belongs to the parent. Only let go of it."""
        self._lock = threading.Lock()
        self._socket.close()
        os.close(self._messages)

    # --- inside

    def _said(self) -> str:
        text = os.pread(self._messages, 4096, 0).decode("utf-8", "replace").strip()
        return f": {text[-2000:]}" if text else ""

    def _take_seat(self, pid: int) -> Group | None:
        """While the interpreter starts: the move takes as long."""
        if not isinstance(self.home, Home):
            return None
        try:
            group = Group(self.home, str(len(self._groups)))
            self._groups.append(group)
            group.enter(pid)
        except OSError as error:
            self._remove_groups()
            self.home = Unavailable("enter a group", error.errno or 0, "see `fumehood doctor`")
            return None
        return group

    def _free_seat(self) -> Group | None:
        if self._seat is None or self._seat.is_free(_LINGER_S):
            return self._seat
        group = next((group for group in self._groups if group.is_free()), None)
        if group is None:
            assert isinstance(self.home, Home)
            group = Group(self.home, str(len(self._groups)))
            self._groups.append(group)
        group.enter(self._pid)
        self._seat = group
        return group

    def _remove_groups(self) -> None:
        for group in self._groups:
            group.remove()
        self._groups.clear()
        if isinstance(self.home, Home):
            remove_home(self.home)


def boot(executable: str, home: str) -> list[str]:
    """The command line of a zygote whose modules are found beneath `home`."""
    return [executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(home=home)]


def close_all() -> None:
    for zygote in list(_alive):
        zygote.close()


def _after_fork() -> None:
    for zygote in list(_alive):
        zygote.abandon()
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
