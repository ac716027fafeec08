"""Ctrl-C in the middle of a call: when KeyboardInterrupt has come through, nothing of that call is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from process_view import alive, descendants, descriptors, groups, opened_since, roots

import fumehood
from fumehood import IsolationUnavailable, get_sandbox, interrupts, open_session
from fumehood.api import OneShot
from fumehood.engine import engine as engines
from fumehood.engine.cgroups import Group
from fumehood.engine.plan import Without
from fumehood.engine.root import Root
from fumehood.engine.turns import turns
from fumehood.engine.zygotes import Zygote
from fumehood.interrupts import Held, acquire, let_through
from support import HANG_S, wait_until

SOURCE = str(Path(fumehood.__file__).parent)
SETTINGS = {"store_code": "never", "timeout_sec": HANG_S}


@pytest.fixture(autouse=True)
def _sealed_or_skip() -> None:
    try:
        with get_sandbox(isolation="sealed", require="sealed") as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


@pytest.fixture(autouse=True)
def _raises() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@contextmanager
def at_line(number: int) -> Iterator[list[int]]:
    """SIGINT at the so-manieth line of ours that this thread runs; how many it ran."""
    lines = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def left(before: dict[int, str], processes: set[int]) -> dict[str, Any]:
    """Of a call: some of it ends in the background."""
    found = {
        "descriptors": opened_since(before, descriptors()),
        "processes": sorted(set(descendants()) - processes),
        "calls": [count for count in (turns._starting, turns._running) if count],
        "groups": [str(group.paths) for group in groups() if not group.is_free() and group not in _held],
    }
    return {name: what for name, what in found.items() if what}


_held: list[Group] = []


def interrupt_everywhere(call: Callable[[], object], times: int, after: Callable[[], object] = lambda: None) -> None:
    """At lines evenly spread over the call."""
    for _ in range(2):
        with at_line(0) as lines:
            call()
        after()
    _held[:] = [group for group in groups() if group._held]  # of a session that stays open
    before, processes = descriptors(), set(descendants())
    interrupted = 0
    for number in range(1, lines[0], max(1, lines[0] // times)):
        try:
            with at_line(number):
                call()
        except KeyboardInterrupt:
            interrupted += 1
        after()
        assert wait_until(lambda: not left(before, processes)), (number, left(before, processes))
    call()
    after()
    assert interrupted > times // 2


@pytest.mark.parametrize("level", ["sealed", "process"])
def test_a_call_may_be_interrupted_at_any_line(level: str) -> None:
    with get_sandbox(isolation=level, require=level, warm_cells=0, **SETTINGS) as sandbox:
        interrupt_everywhere(lambda: sandbox.execute("print(1)"), 120)
        assert sandbox.execute("print(1)").stdout == "1\n"


def test_the_first_call_of_all_may_be_interrupted_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts a zygote."""
    monkeypatch.setattr(engines, "_engines", {})
    sandboxes: list[OneShot] = []

    def end() -> None:
        sandboxes.pop().close()
        for root in roots():
            root.close()
        engines._engines.clear()
        sandboxes.append(get_sandbox(isolation="sealed", warm_cells=0, **SETTINGS))

    sandboxes.append(get_sandbox(isolation="sealed", warm_cells=0, **SETTINGS))
    interrupt_everywhere(lambda: sandboxes[0].execute(""), 60, end)
    sandboxes[0].close()


def test_a_zygote_that_is_ended_while_it_starts_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as another process, which is ours to wait for too, and of which it has just told us or is about to."""
    before = set(descendants())
    for moment in range(150):

        def interrupted(_: Zygote, after_s: float = moment * 0.0004) -> None:
            time.sleep(after_s)
            raise KeyboardInterrupt

        monkeypatch.setattr(Zygote, "wait_up", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Root("sealed", False, None, Without())
    assert set(descendants()) <= before


def test_a_call_of_a_session_may_be_interrupted_at_any_line() -> None:
    with open_session(isolation="sealed", warm_cells=0, **SETTINGS) as session:
        session.run("1")
        interrupt_everywhere(lambda: session.exec(["true"]), 60)
        assert session.run("print(1)").stdout == "1\n"


# ---- a real one

HOST = """
import json, os, signal, sys, threading, time
sys.path[:0] = {path!r}
from process_view import commands, descendants, descriptors, groups
from support import wait_until
from fumehood import get_sandbox, open_session
signal.signal(signal.SIGINT, signal.default_int_handler)
if {kind!r} == 'execute':
    host = get_sandbox(isolation='sealed', warm_cells=0, store_code='never', timeout_sec=280)
    call = host.execute
else:
    host = open_session(isolation='sealed', warm_cells=0, store_code='never', timeout_sec=280)
    call = host.run

def interrupt():
    wait_until(lambda: any('sleep' in command for command in commands(descendants())))
    os.kill(os.getpid(), signal.SIGINT)

def interrupted():
    threading.Thread(target=interrupt, daemon=True).start()
    try: call("import subprocess; subprocess.run(['sleep', '3600'])")
    except KeyboardInterrupt: return True
    return False

said = [interrupted()]  # a session's interpreter has a descriptor to be waited for from the first time that one waits
call('1')  # an interpreter that obeyed too late was replaced
wait_until(lambda: len(descendants()) == (1 if {kind!r} == 'execute' else 3))
before, processes = descriptors(), set(descendants())
said.append(interrupted())
fds = lambda: {{fd: path for fd, path in descriptors().items() if before.get(fd) != path}}
new = lambda: sorted(set(descendants()) - processes)
wait_until(lambda: not new() and not fds(), 60)
print(json.dumps([said, fds(), new(), call('print(1)').stdout]))
"""


@pytest.mark.parametrize("kind", ["execute", "run"])
def test_a_real_sigint_leaves_no_process_and_no_descriptor(kind: str) -> None:
    here = Path(__file__).parent
    code = HOST.format(path=[str(here), str(here.parent)], kind=kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[True, True], {}, [], "1\n"]


# ---- how it is held


def held(*steps: Callable[[], object]) -> int:
    """How many of them are reached before KeyboardInterrupt."""
    reached = 0
    try:
        with Held(), Held():
            for step in steps:
                step()
                reached += 1
    except KeyboardInterrupt:
        return reached
    raise AssertionError("not interrupted")


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def nothing() -> None:
    pass


def test_one_that_came_is_raised_where_it_is_let_through() -> None:
    assert held(press, nothing, let_through, nothing) == 2


def test_one_that_came_is_raised_at_the_end() -> None:
    assert held(let_through, press, nothing) == 3


def test_who_presses_again_after_a_while_is_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(press, press, nothing) == 3
    monkeypatch.setattr(interrupts, "_AGAIN_S", -1.0)
    assert held(press, press, nothing) == 1


def test_a_handler_of_the_hosts_own_is_called_and_need_not_raise() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with Held():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
            let_through()
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_an_ignored_one_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Held():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_waits_for_a_lock_is_interrupted() -> None:
    lock = threading.Lock()
    lock.acquire()
    assert held(press, lambda: acquire(lock)) == 1


def test_other_threads_raise_nothing() -> None:
    reached = []

    def other() -> None:
        with Held():
            let_through()
        reached.append(1)

    def beside() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert held(press, beside) == 2
    assert reached == [1]


def test_a_child_forked_by_another_thread_has_its_handler_back() -> None:
    code = (
        "import os, signal, threading\n"
        "from fumehood.interrupts import Held\n"
        "def fork():\n"
        "    if os.fork() == 0: os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)\n"
        "    print(os.wait()[1])\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with Held():\n"
        "    thread = threading.Thread(target=fork); thread.start(); thread.join()\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_nothing_of_a_program_outlives_an_interrupted_call() -> None:
    """The control: it is there until then."""
    with get_sandbox(isolation="sealed", warm_cells=0, **SETTINGS) as sandbox:
        sandbox.execute("")
        known, seen = set(descendants()), dict[int, str]()

        def interrupt() -> None:
            assert wait_until(lambda: len(set(descendants()) - known) >= 2)
            seen.update({pid: found.born for pid, found in descendants().items() if pid not in known})
            signal.raise_signal(signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sandbox.execute("import time; time.sleep(3600)")
        thread.join()
        assert seen
        assert wait_until(lambda: not alive(seen))
