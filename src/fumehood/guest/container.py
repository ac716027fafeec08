"""The first process of a container: starts programs for its host, passes on what they write, tells how they ended.

It shares its user id with hostile code. So it is out of reach of ptrace and /proc, the kernel shields it from signals
sent inside, and no program inherits a descriptor that leads to the host.
"""

from __future__ import annotations

import fcntl
import gc
import json
import marshal
import os
import select
import signal
import sys
import time

from . import census, facts, lockdown, wire, worker
from .files import Tree
from .link import Garbage, HostGone, Link
from .program import NotStarted, Program
from .verbs import Verbs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_HIGH = 100  # for what leads to the host
_NOT_FIRST, _GARBAGE = 2, 3
_LOOK_S = 0.1
_GONE_S = 1.0


def main(
    workspace: str = "/workspace", tmp: str = "/tmp", home: str = "/home/sandbox", patience_s: float = float("inf")
) -> NoReturn:
    """Until the host is gone: at the end of input, or when nothing was heard of it for so long."""
    if os.getpid() != 1:
        os.write(2, b"fumehood: not the first process of its container (is it started with an init?)\n")
        os._exit(_NOT_FIRST)
    lockdown.hide()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as for any other signal: the kernel drops what is sent from inside
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # programs unblock it
    link = Link(_move(0), _move(1))
    os.umask(0o022)
    for directory in (f"{home}/.program", f"{tmp}/data", f"{tmp}/output"):
        os.makedirs(directory, 0o700, exist_ok=True)
    prefixes = {path: os.path.realpath(path)[1:] for path in (workspace, tmp)}
    if os.path.realpath("/mnt/data") == os.path.realpath(workspace):
        prefixes["/mnt/data"] = prefixes[workspace]
    tree = Tree(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), prefixes)
    hits = census.Hits((workspace, tmp, home, "/dev/shm"))
    link.send(wire.HELLO, 0, json.dumps(facts.facts()).encode())
    _prepare()
    container = Container(link, Verbs(tree, link), hits, {"workspace": workspace, "program": f"{home}/.program"})
    try:
        container.run(patience_s)
    except HostGone:
        os._exit(0)  # and the kernel ends all others
    except Garbage:
        os._exit(_GARBAGE)


def _move(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd)
    os.close(null)
    return moved


def _prepare() -> None:
    """What every program would pay for."""
    worker.import_ahead()
    sys.path.pop(0)  # where our own modules came from: the program finds none of them
    for name in [name for name in sys.modules if name.partition(".")[0] == "fumehood"]:
        del sys.modules[name]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a killed program's lines are kept
    gc.collect()
    gc.freeze()


class Container:
    def __init__(self, link: Link, verbs: Verbs, hits: census.Hits, places: dict[str, str]):
        self._link = link
        self._verbs = verbs
        self._hits = hits
        self._places = places
        self._programs: dict[int, Program] = {}
        self._ended: list[tuple[Program, int]] = []
        self._woken, waker = os.pipe()
        for fd in (self._woken, waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, patience_s: float) -> NoReturn:
        gone_at = time.monotonic() + patience_s
        while True:
            self._link.flush()
            ready = self._wait(gone_at - time.monotonic())
            if time.monotonic() > gone_at and self._link.read_fd not in ready:
                raise HostGone  # an engine that is killed leaves us without an end of input
            if self._link.read_fd in ready:
                gone_at = time.monotonic() + patience_s
                for kind, number, payload in self._link.receive():
                    self._handle(kind, number, payload)
            for program in list(self._programs.values()):
                self._serve(program, ready)
            if self._verbs.is_answering and self._link.has_room:
                self._verbs.go_on()
            if self._woken in ready:
                _empty(self._woken)
                self._reap()
            self._bury()

    def _wait(self, most_s: float) -> set[int]:
        poll = select.poll()
        poll.register(self._link.read_fd, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if self._link.has_unsent:
            poll.register(self._link.write_fd, select.POLLOUT)
        has_room = self._link.has_room
        timeout_s = 0.0 if self._verbs.is_answering and has_room else max(0.0, most_s)
        for program in self._programs.values():
            if program.status >= 0:
                poll.register(program.status, select.POLLIN)
            for fd in program.outputs if has_room else ():
                poll.register(fd, select.POLLIN)
            if program.has_input:
                poll.register(program.stdin, select.POLLOUT | (select.POLLIN if program.serves and has_room else 0))
            if not program.serves:
                timeout_s = min(timeout_s, _LOOK_S)
        return {fd for fd, _ in poll.poll(None if timeout_s == float("inf") else timeout_s * 1000)}

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        program = self._programs.get(number)
        if kind == wire.START:
            self._start(number, _request(payload, order=bytes, serves=bool, filter=(bytes, type(None)), limits=dict))
        elif kind == wire.FILE:
            self._verbs.ask(number, _request(payload, verb=str, path=str))
        elif kind == wire.PART:
            self._verbs.add(number, payload)
        elif program is None:
            if kind == wire.KILL:
                self._verbs.drop(number)
        elif kind == wire.INPUT:
            program.feed(payload)
        elif kind == wire.END_INPUT:
            program.end_input()
        elif kind == wire.KILL:
            os.kill(program.pid, signal.SIGKILL)
        elif kind == wire.INTERRUPT:
            census.kill_others([other.pid for other in self._programs.values() if other is not program], program.pid)
            os.kill(program.pid, signal.SIGINT)
        else:
            program.tell_usage(self._hits)

    def _start(self, number: int, request: dict[str, Any]) -> None:
        if number in self._programs:
            raise Garbage
        program = Program(self._link, number, request)
        program.before = self._hits.count()
        if not _is_alone():
            program.elders = census.identities()
        try:
            program.start(self._places)
        except NotStarted as failure:
            self._link.send(wire.NOT_STARTED, number, str(failure).encode())
        else:
            self._programs[number] = program

    def _serve(self, program: Program, ready: set[int]) -> None:
        if program.status in ready:
            program.hear_status()
        if program.has_input and program.stdin in ready:
            program.write()
        if self._link.has_room:
            for fd in list(program.outputs):
                if fd in ready:
                    program.hear(fd)
        if not program.serves and self._hits.count()[0] > program.before[0]:
            program.is_out_of_memory = True
            os.kill(program.pid, signal.SIGKILL)  # the kernel took one process; the limit is for all of them

    def _reap(self) -> None:
        by_pid = {program.pid: program for program in self._programs.values() if not program.has_ended}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            program = by_pid.get(pid)
            if program is not None:
                program.has_ended = True
                self._ended.append((program, status))
            blamed = program or next(reversed(self._programs.values()), None)
            if blamed is not None:
                blamed.count(usage)

    def _bury(self) -> None:
        while self._ended:
            program, status = self._ended.pop(0)
            deadline = time.monotonic() + _GONE_S
            while not _is_alone():
                roots = [other.pid for other in self._programs.values() if not other.has_ended]
                if not census.kill_others(roots, elders=program.elders):
                    break
                self._reap()
                if time.monotonic() > deadline:
                    break
                time.sleep(0.0005)
            self._reap()
            program.tell_end(status, self._hits)
            del self._programs[program.number]
            for other in self._programs.values():
                other.before = self._hits.count()  # what hit a limit was this one


def _request(payload: bytes, **kinds: Any) -> dict[str, Any]:
    try:
        request = marshal.loads(payload)
    except (ValueError, EOFError, TypeError):
        raise Garbage from None
    if not isinstance(request, dict) or not all(isinstance(request.get(name, ...), kinds[name]) for name in kinds):
        raise Garbage
    return request


def _is_alone() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
