"""What watches over a program where no control group does: not misled, not held up, and right about what was used."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.engine import frames, memory, supervisor, tree
from fumehood.engine.engine import shared
from fumehood.engine.flags import KILL_TREE
from fumehood.errors import IsolationUnavailable
from fumehood.guest import procfs
from fumehood.types import Limits
from support import HANG_S, wait_until

Elsewhere = Callable[[str, str], str]
ORDER: dict[str, Any] = {
    "sealed": False,
    "disk": None,
    "watch_memory": None,
    "processes": None,
    "directory": None,
    "waits": False,
    "sockets": 0,
}
NO_GROUPS = """
import fumehood
from fumehood.engine import cgroup_home, cgroups
cgroups.find_home = lambda: cgroup_home.Unavailable('find cgroup', 2, 'as if there were none')
"""


@pytest.fixture(params=["sealed", "confined", "process"])
def level(request: pytest.FixtureRequest) -> str:
    try:
        shared(request.param, None).check(Limits(), network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    return str(request.param)


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as process:
        yield process.pid
        process.kill()


def woken_by(signo: int) -> Any:
    return types.SimpleNamespace(si_signo=signo, si_code=0, si_pid=0)


# ---- names of files


MAPS_A_FILE = """
import mmap, os, time
os.makedirs('a\\r/dev')
with open('a\\r/dev/zero (deleted)', 'wb+') as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
"""


def map_a_file(directory: Path) -> mmap.mmap:
    path = directory / "a\r" / "dev" / "zero (deleted)"
    path.parent.mkdir(parents=True)
    with path.open("wb+") as file:
        file.truncate(8192)
        return mmap.mmap(file.fileno(), 8192)


def test_a_line_of_maps_may_have_in_it_what_python_takes_for_its_end(tmp_path: Path) -> None:
    """The control arm: a careless reader finds lines that the kernel did not write."""
    with map_a_file(tmp_path):
        maps = procfs.read("/proc/self/maps")
        assert b"/dev/zero (deleted)" in maps.splitlines()
        assert memory.nameless([os.getpid()]) is not None


@pytest.mark.attack(
    "lines of /proc end where the kernel ends them",
    control="test_a_line_of_maps_may_have_in_it_what_python_takes_for_its_end",
)
def test_the_name_of_a_mapped_file_ends_no_supervisor(elsewhere: Elsewhere, public_path: Path, level: str) -> None:
    public_path.chmod(0o1777)
    code = f"""{NO_GROUPS}
with fumehood.get_sandbox(isolation={level!r}, store_code='never', warm_cells=0) as sandbox:
    result = sandbox.execute({MAPS_A_FILE + "time.sleep(0.2)" + chr(10) + "print('ran')"!r}, timeout={HANG_S})
    print(result.stdout, result.exit_code, result.meta['reason'])
"""
    assert elsewhere(code, str(public_path)) == "ran\n 0 ok\n"


# ---- a supervisor that is kept busy


def test_who_wakes_it_without_end_does_not_put_off_the_end(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of signals that wait, the lowest number comes first: an order to end would never be heard."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = supervisor.Supervisor(theirs.fileno(), child, ORDER, keeps_signals=False)
    ended: list[int] = []
    monkeypatch.setattr(supervisor, "_wait", lambda _: woken_by(signal.SIGCHLD))
    monkeypatch.setattr(made, "_report", lambda status, _, **__: ended.append(status))
    monkeypatch.setattr(made, "_reap", lambda: waits.pop() and None)
    waits = list(range(1, 1000))  # then it fails
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {KILL_TREE})
    try:
        signal.raise_signal(KILL_TREE)
        made.run()
    finally:
        signal.sigtimedwait({KILL_TREE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended == [signal.SIGKILL]
    ours.close()
    theirs.close()


REHEARSES = """
import os, signal, socket, sys
sys.path[:0] = [{source!r}]
from fumehood.engine import frames, supervisor
from fumehood.engine.flags import WAKE
signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.WATCHED)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    os._exit(3)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
made = supervisor.Supervisor(theirs.fileno(), child, {order!r}, keeps_signals=False)
{then}
"""


def rehearsing(then: str) -> str:
    """In a process of its own, whose signals are all its own."""
    source = str(Path(supervisor.__file__).parents[2])
    code = REHEARSES.format(source=source, order={**ORDER, "waits": True}, then=then)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert done.returncode == 0, done
    return done.stdout


def test_a_program_that_ends_during_the_rehearsal_is_not_forgotten() -> None:
    """The host may give it to a cell whose supervisor is late."""
    assert rehearsing("made.rehearse(); made.run(); print(frames.parse_exit(ours.recv(99)).status)") == f"{3 << 8}\n"


def test_an_order_that_comes_during_the_rehearsal_is_obeyed() -> None:
    then = """
ours.send(frames.TELL_USAGE)
os.kill(os.getpid(), WAKE)
made.rehearse()
signal.sigtimedwait({signal.SIGCHLD}, 0)  # so that nothing else would wake it up
supervisor._wait = lambda _: sys.exit(ours.recv(99)[:1] != frames.USAGE)
made.run()
"""
    assert rehearsing(then) == ""


def test_it_looks_at_a_crowd_for_half_of_the_time_at_most(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would be the last to hear of anything."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = supervisor.Supervisor(theirs.fileno(), child, {**ORDER, "watch_memory": 1 << 30}, keeps_signals=False)
    clock = [100.0]
    did: list[str] = []

    def wait(_: float | None) -> Any:
        clock[0] += 0.1
        did.append("heard")
        if len(did) > 200:
            raise EOFError
        return woken_by(signal.SIGCHLD)

    def watch() -> None:
        clock[0] += 1
        did.append("looked")

    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(supervisor, "_wait", wait)
    monkeypatch.setattr(made, "_watch", watch)
    monkeypatch.setattr(made, "_reap", lambda: None)
    with pytest.raises(EOFError):
        made.run()
    assert 5 <= did.count("looked") <= did.count("heard") / 5
    ours.close()
    theirs.close()


def test_who_asks_without_end_does_not_put_off_the_next_look(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b".")  # and nobody takes it: there is always one more question
    made = supervisor.Supervisor(-1, child, ORDER, keeps_signals=False, listener=reader)
    asked: list[None] = []

    def answer() -> None:
        asked.append(None)
        if len(asked) > 10_000_000:
            raise EOFError

    monkeypatch.setattr(made, "_answer_question", answer)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.WATCHED)
    try:
        assert made._waiting_for_questions()(0.02) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reader)
        os.close(writer)


def test_a_host_that_is_killed_while_it_is_told_something_ends_no_supervisor(child: int) -> None:
    """It would end without a hunt for what the program has started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = supervisor.Supervisor(theirs.fileno(), child, ORDER, keeps_signals=False)
    theirs.setblocking(False)
    ours.send(frames.TELL_USAGE)
    ours.close()
    with pytest.raises(BrokenPipeError):
        theirs.send(b".")  # as the kernel has it
    made._obey()
    theirs.close()


# ---- what was used


def test_the_dead_are_found_until_somebody_waits_for_them() -> None:
    """What they have used shows nowhere else."""
    with subprocess.Popen(["true"]) as process:
        assert wait_until(lambda: procfs.stat(process.pid)[:1] == [b"Z"])
        assert process.pid in tree.descendants(os.getpid(), dead=True)
        assert process.pid not in tree.descendants(os.getpid())


BURNS = """
import os, signal, sys, threading, time
def burn():
    until = time.process_time() + 0.5
    while time.process_time() < until: pass
def child():
    if os.fork() == 0:
        burn()
        os._exit(0)
def daemon(done):
    if os.fork() == 0:
        if os.fork() == 0:
            burn()
            os.write(done, b'.')
        os._exit(0)
def nobody_waits():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    child()
    try: os.wait()
    except ChildProcessError: pass
def a_thread_waits():
    thread = threading.Thread(target=lambda: (child(), os.wait()))
    thread.start()
    thread.join()
def an_orphan():
    reader, writer = os.pipe()
    daemon(writer)
    os.wait()
    os.read(reader, 1)
"""


@pytest.mark.parametrize("ends", ["well", "by time"])
def test_time_is_counted_once_whoever_waits(elsewhere: Elsewhere, public_path: Path, level: str, ends: str) -> None:
    public_path.chmod(0o1777)
    code = f"""{NO_GROUPS}
with fumehood.get_sandbox(isolation={level!r}, store_code='never', warm_cells=0) as sandbox:
    for how in ('nobody_waits', 'a_thread_waits', 'an_orphan'):
        then = "print('ran', flush=True)" + {"; time.sleep(3600)" if ends == "by time" else ""!r}
        program = {BURNS!r} + how + '();time.sleep(0.1);' + then
        for timeout in (4, 32, 256):
            result = sandbox.execute(program, timeout=timeout)
            if result.stdout: break
        used_s = result.meta['usage']['cpu_s']
        print(how, 0.15 <= used_s < 0.9 or used_s, result.meta['reason'])
"""
    reason = "timeout" if ends == "by time" else "ok"
    told = "".join(f"{how} True {reason}\n" for how in ("nobody_waits", "a_thread_waits", "an_orphan"))
    assert elsewhere(code, str(public_path)) == told
