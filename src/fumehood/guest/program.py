"""One program in a container: its streams, its lock-down, and what it used."""

from __future__ import annotations

import _socket as socket  # see the engine's zygote
import json
import os
import signal

from . import census, lockdown, rlimits, runner, wire
from .peek import peek

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from .link import Link

_CHUNK = 65536
_MAX_LEFT = 1 << 20  # a pipe holds no more
_STATUS = 3
_READY = b"r"
_FIRST_TO_GO = b"500"  # when memory is short: the program, rather than who would tell about it


class NotStarted(Exception):
    def __init__(self, step: str, error: Exception):
        number = error.errno if isinstance(error, OSError) else None
        super().__init__(json.dumps({"step": step, "errno": number or 0, "detail": str(error)[:512]}))


class Program:
    def __init__(self, link: Link, number: int, request: dict[str, Any]):
        self.number = number
        self.serves: bool = request["serves"]
        self.pid = -1
        self.has_ended = False
        self.elders: set[tuple[int, bytes]] = set()  # who lived before and may live on
        self.is_out_of_memory = False  # and was ended for it
        self.before = (0, 0, 0)  # what the counters of the container's limits showed
        self._shown_ns = self._told_ns = 0  # of CPU: by it and those it waited for; as the host knows it
        self._link = link
        self._request = request
        self._input = bytearray(request.pop("order"))
        self._free = len(self._input)  # of it, what the host does not count
        self._has_ended_input = False
        self._failure: bytes | None = None
        self._cpu_ns = self._max_rss = 0

    def start(self, places: Mapping[str, str]) -> None:
        """Forked at once; it reads its order from its standard input."""
        theirs = self._open_streams()
        try:
            self.pid = os.fork()
        except OSError as error:
            self.close()
            raise NotStarted("fork", error) from None
        finally:
            if self.pid:
                for fd in theirs:
                    os.close(fd)
        if self.pid == 0:
            _be_program(theirs, self._request, places)
        self._request = {}

    def _open_streams(self) -> list[int]:
        if self.serves:
            ours, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self.stdin, stdin = ours.detach(), given.detach()
        else:
            stdin, self.stdin = os.pipe()
        stdout, given_stdout = os.pipe()
        stderr, given_stderr = os.pipe()
        self.status, status = os.pipe()
        for fd in (self.stdin, stdout, stderr, self.status):
            os.set_blocking(fd, False)
        self.outputs = {stdout: wire.STDOUT, stderr: wire.STDERR}
        if self.serves:
            self.outputs[self.stdin] = wire.CHANNEL
        return [stdin, given_stdout, given_stderr, status]

    # --- its input

    @property
    def has_input(self) -> bool:
        return self.stdin >= 0 and bool(self._input)

    def feed(self, data: bytes) -> None:
        if self.stdin < 0:
            self._take_back(len(data))
        else:
            self._input += data
            self.write()

    def end_input(self) -> None:
        self._has_ended_input = True
        self.write()

    def write(self) -> None:
        try:
            while self._input and self.stdin >= 0:
                count = os.write(self.stdin, self._input[:_CHUNK])
                del self._input[:count]
                self._take_back(count)
        except BlockingIOError:
            return
        except OSError:  # it does not want the rest
            self._forget_input()
            if not self.serves:  # what it said last may still be in the channel
                self._close_input()
        if self._has_ended_input:
            self._close_input()

    def _forget_input(self) -> None:
        count = len(self._input)
        self._input.clear()
        self._take_back(count)

    def _take_back(self, count: int) -> None:
        free = min(count, self._free)
        self._free -= free
        if count > free:
            self._link.send(wire.TAKEN, self.number, wire.CREDIT.pack(count - free))

    def _close_input(self) -> None:
        if self.stdin >= 0:
            self._forget_input()
            stdin, self.stdin = self.stdin, -1
            if self.outputs.pop(stdin, None) is not None:
                self._link.send(wire.CHANNEL, self.number)
            os.close(stdin)

    # --- what it says

    def hear_status(self) -> None:
        """Whether it is locked: the host learns that before anything else of it."""
        if self.status < 0:
            return
        try:
            said = os.read(self.status, 4096)
        except BlockingIOError:
            return
        os.close(self.status)
        self.status = -1
        if said == _READY:
            self._link.send(wire.LOCKED, self.number)
        elif said:
            self._failure = said

    def hear(self, fd: int) -> bool:
        """Some of what it wrote; False if there is no more for now."""
        kind = self.outputs.get(fd)
        if kind is None:
            return False
        try:
            if kind == wire.CHANNEL:  # what it printed before is in the pipes; it prints no more until this is taken
                said = peek(fd, _CHUNK)
                self.hear_status()
                self._hear_rest(wire.STDOUT, wire.STDERR)
                data = os.read(fd, len(said))
            else:
                data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.hear_status()
        if data:
            self._link.send(kind, self.number, data)
            return True
        if kind == wire.CHANNEL:
            self._close_input()
        else:
            del self.outputs[fd]
            os.close(fd)
        return False

    def _hear_rest(self, *kinds: int) -> None:
        for fd, kind in list(self.outputs.items()):
            if kind in kinds:
                for _ in range(_MAX_LEFT // _CHUNK):
                    if not self.hear(fd):
                        break

    # --- its end

    def count(self, usage: resource.struct_rusage) -> None:
        """What it or an orphan of it has used."""
        self._cpu_ns += int((usage.ru_utime + usage.ru_stime) * 1e9)
        self._max_rss = max(self._max_rss, usage.ru_maxrss * 1024)

    def tell_usage(self, hits: census.Hits) -> None:
        cpu_ns, max_rss = census.used_by(self.pid)
        flags = hits.flags_since(self.before)
        used_ns = self._used_ns(self._cpu_ns + cpu_ns, hits)
        self.before = hits.count()
        used = wire.USAGE.pack(used_ns, max(self._max_rss, max_rss), flags)
        self._link.send(wire.USED, self.number, used)

    def _used_ns(self, shown_ns: int, hits: census.Hits) -> int:
        """Since its start: also by those for whom nobody waited, whose time only the container shows."""
        since_ns = max(shown_ns - self._shown_ns, hits.count()[2] - self.before[2])
        self._shown_ns = shown_ns
        self._told_ns += max(0, since_ns)
        return self._told_ns

    def tell_end(self, status: int, hits: census.Hits) -> None:
        """When nobody is left who could write; what was written is in the pipes."""
        self.hear_status()
        if self._failure is not None:
            self._link.send(wire.NOT_STARTED, self.number, self._failure)
        else:
            self._hear_rest(wire.STDOUT, wire.STDERR)
            self._hear_rest(wire.CHANNEL)
            flags = hits.flags_since(self.before) if status else 0
            if status and self.is_out_of_memory:
                flags |= wire.OUT_OF_MEMORY
            used_ns = self._used_ns(self._cpu_ns, hits)
            self._link.send(wire.EXITED, self.number, wire.EXIT.pack(status, used_ns, self._max_rss, flags))
        self.close()

    def close(self) -> None:
        for fd in {self.stdin, self.status, *self.outputs} - {-1}:
            os.close(fd)
        self.stdin = self.status = -1
        self.outputs = {}


def _be_program(streams: list[int], request: Mapping[str, Any], places: Mapping[str, str]) -> NoReturn:
    step = "streams"
    status = streams[_STATUS]
    try:
        for number, fd in enumerate(streams):
            os.dup2(fd, number, inheritable=number != _STATUS)
        status = _STATUS
        os.closerange(_STATUS + 1, 1 << 16)  # from here on nothing leads to the host
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        step = "limits"
        rlimits.apply([("core", rlimits.no_core()), *request["limits"].items()])
        step = "no_new_privileges"
        lockdown.no_new_privileges()
        if request["filter"] is not None:
            step = "seccomp"
            lockdown.install_filter(request["filter"])
        step = "visible"  # only now: a daemon of an earlier program would write into one without a filter
        lockdown.show()
        _go_first()
        os.write(status, _READY)
        os.close(status)
    except Exception as error:
        os.write(status, str(NotStarted(step, error)).encode())
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    runner.run(None, places["workspace"], places["program"], lockdown.flush_c_streams)


def _go_first() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, _FIRST_TO_GO)
    except OSError:
        pass
    finally:
        os.close(fd)
