"""Starts the interpreter of a zygote. Loads next to nothing: it runs while the rest of the engine is imported."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading

from ..descriptors import exhausted
from ..errors import EngineFailed
from ..threads import NO_THREAD

_BOOT = "import sys; sys.path.append({home!r}); from fumehood.engine.{module} import main; main()"
_CONTROL = 3  # see zygote
_NULL = "/dev/null"
_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
PACKAGE_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def boot(executable: str, home: str, module: str = "zygote") -> list[str]:
    """The command line of a zygote whose modules are found beneath `home`."""
    return [executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(home=home, module=module)]


def host_executable() -> str:
    return sys.executable or os.path.realpath("/proc/self/exe")


class Launched:
    """An interpreter that waits on its socket for what it shall become. Its descriptors are the owner's to close."""

    def __init__(self, executable: str, module: str = "zygote"):
        self.messages = self.pidfd = -1
        given: list[int] = []
        try:
            self.socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise EngineFailed(exhausted(error) or str(error)) from error
        try:
            self.messages = os.memfd_create("fumehood", os.MFD_CLOEXEC)  # what it says on standard error
            given.append(_beyond_targets(os.open(_NULL, os.O_RDWR | os.O_CLOEXEC)))
            given.append(_beyond_targets(os.dup(self.messages)))
            given.append(_beyond_targets(remote.detach()))
            null, messages, control = given
            self.pid = os.posix_spawn(
                executable,
                boot(executable, PACKAGE_HOME, module),
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, messages, 2),
                    (os.POSIX_SPAWN_DUP2, control, _CONTROL),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_SIGNALS,  # what the host ignores (nohup does SIGHUP) would be ignored by every program
            )
            self.pidfd = _pidfd_of(self.pid)
        except OSError as error:
            self.let_go()
            raise EngineFailed(exhausted(error) or _not_started(executable, error)) from error
        finally:
            remote.close()
            for fd in given:
                os.close(fd)

    def go_on_as(self, pid: int) -> None:
        """It has forked and ends: the other one, a child of ours as well, is what was launched."""
        try:
            before, self.pidfd = self.pidfd, _pidfd_of(pid)
        except OSError as error:
            raise EngineFailed(exhausted(error) or str(error)) from error
        self.pid = pid
        _reap(before)

    def end(self) -> None:
        pidfd, self.pidfd = self.pidfd, -1
        self.let_go()
        if pidfd >= 0:
            _send(pidfd, signal.SIGKILL)
            _reap(pidfd)

    def send(self, number: int) -> None:
        if (pidfd := self.pidfd) >= 0:
            _send(pidfd, number)

    def let_go(self) -> None:
        self.socket.close()
        messages, self.messages = self.messages, -1
        pidfd, self.pidfd = self.pidfd, -1
        for fd in (messages, pidfd):
            if fd >= 0:
                os.close(fd)


def _beyond_targets(fd: int) -> int:
    """The same, none of the numbers that they are to get: a host may have closed its standard streams."""
    if fd > _CONTROL:
        return fd
    import fcntl  # few hosts have

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CONTROL + 1)
    finally:
        os.close(fd)


def _not_started(executable: str, error: OSError) -> str:
    if error.filename == _NULL:
        return (
            f"{_NULL} cannot be opened here ({error.strerror}), and sandboxes need it: give this process a /dev that "
            "has it, for example by `mount --bind /dev` into its root"
        )
    if error.errno == errno.EAGAIN:
        return NO_THREAD
    return f"cannot start {executable}: {error.strerror}. Is this Python installed?"


def _pidfd_of(child: int) -> int:
    """By its number it may be somebody else, once it has ended: a host that ignores SIGCHLD keeps no dead children."""
    try:
        return os.pidfd_open(child)
    except OSError:
        os.kill(child, signal.SIGKILL)
        _wait(os.P_PID, child)
        raise


def _send(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass  # it is gone


def _reap(pidfd: int) -> None:
    _wait(os.P_PIDFD, pidfd)
    os.close(pidfd)


def _wait(kind: int, child: int) -> None:
    try:
        os.waitid(kind, child, os.WEXITED)
    except ChildProcessError:
        pass  # the host ignores SIGCHLD, or waits for every child itself: it has ended


_ahead: Launched | None = None
_ahead_lock = threading.Lock()  # two threads that each start one would lose one; two that take one would share it


def launch_ahead() -> None:
    """For whoever calls `launch` next."""
    global _ahead
    with _ahead_lock:
        if _ahead is None:
            _ahead = Launched(host_executable())


def launch(executable: str) -> Launched:
    global _ahead
    with _ahead_lock:
        ahead, _ahead = _ahead, None
    if ahead is not None and executable == host_executable():
        return ahead
    if ahead is not None:
        ahead.end()
    return Launched(executable)


def _after_fork() -> None:
    global _ahead, _ahead_lock
    _ahead_lock = threading.Lock()
    if _ahead is not None:
        _ahead.let_go()
        _ahead = None


os.register_at_fork(after_in_child=_after_fork)
