"""Every program can be ended, and how it ended is told by who saw it: whatever it calls itself, signals or writes."""

from __future__ import annotations

import ctypes
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from process_view import children, descendants, state

from fumehood import get_sandbox, open_session
from fumehood.engine import frames, plan, usage
from fumehood.engine.channel import Channel
from fumehood.engine.engine import Engine, shared
from fumehood.engine.flags import KILL_TREE, WAKE
from fumehood.engine.root import Root
from fumehood.engine.zygotes import SetupFailed
from fumehood.errors import EngineFailed, IsolationUnavailable, SandboxLost
from fumehood.guest import procfs
from fumehood.guest.wire import DONE, FRAME
from fumehood.types import Command, Exited, Limits, Output
from harness.attacks import EXHAUSTS, FROM_BEHIND_THE_NAME, ORDERS_BY_SOCKET, OWN_CHANNEL
from support import HANG_S, wait_until

LEVELS = ("sealed", "confined", "process")
LIMITS = Limits(memory_bytes=256 << 20, processes=64, disk_bytes=16 << 20, inodes=512)
NAMES = (
    b"VmHWM: x",
    b"VmHWM:99999999",
    b"a\nVmHWM: 9 kB",
    b"Threads: x",
    b") Z 0 (",
    b"\xff\xfe\n\\",
    b"Pid: 1\nPPid:",
)
PR_SET_NAME = 15


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    try:
        shared(request.param, None).check(LIMITS, network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    return str(request.param)


@pytest.fixture
def engine(level: str) -> Iterator[Engine]:
    """One that nobody else uses: its zygote is ended here."""
    made = Engine(level, None)
    made.check(LIMITS, network=False)
    yield made
    for root in made._roots.values():
        root.close()


def session_at(level: str, **settings: Any) -> Any:
    waits = {"timeout_sec": HANG_S, "session_idle_sec": 24 * 3600, "warm_cells": 0, **settings}
    return open_session("local", isolation=level, store_code="never", **waits)


# ---- names


def calls_itself(name: bytes) -> None:
    """The program, its threads and its children."""
    import threading

    def rename() -> None:
        assert ctypes.CDLL(None).prctl(15, name, 0, 0, 0) == 0

    rename()
    if os.fork() == 0:
        rename()
        import time

        time.sleep(3600)
    threading.Thread(target=lambda: (rename(), threading.Event().wait()), daemon=True).start()


def named(name: bytes, then: str) -> str:
    return f"import ctypes, os, time\n{inspect.getsource(calls_itself)}\ncalls_itself({name!r})\n{then}\n"


FOR_EVER = "import time\nprint('ran', flush=True)\nwhile True: time.sleep(1)"


@pytest.mark.parametrize("name", [b"VmHWM: x", b"VmHWM:99999999"])
def test_a_process_may_call_itself_what_a_careless_reader_looks_for(name: bytes) -> None:
    """The control arm: the kernel lets it, and the text stands before the line that is meant."""
    code = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_NAME}, {name!r}, 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = procfs.read(f"/proc/{process.pid}/status")
        assert status.partition(b"VmHWM:")[2].split()[0] in (b"x", b"99999999")
        assert 1000 < procfs.number(status, b"VmHWM:") < 1_000_000
        pidfd = os.pidfd_open(process.pid)
        assert 1 << 20 < usage.of_tree(pidfd)[1] < 1 << 30
        os.close(pidfd)
        process.kill()


@pytest.mark.attack(
    FROM_BEHIND_THE_NAME,
    control="test_a_process_may_call_itself_what_a_careless_reader_looks_for",
)
@pytest.mark.parametrize("name", [NAMES[0], NAMES[4]])
def test_a_program_is_timed_out_whatever_it_calls_itself(level: str, name: bytes) -> None:
    with get_sandbox(isolation=level, store_code="never", memory_mb=512, warm_cells=0) as sandbox:
        assert sandbox.execute("print('before')", timeout=HANG_S).stdout == "before\n"
        before = descendants()
        for timeout in (1, 8, 64):
            result = sandbox.execute(named(name, FOR_EVER), timeout=timeout)
            assert result.meta["timed_out"], result
            if result.stdout:
                break
        assert result.stdout == "ran\n"
        assert 0 < result.meta["usage"]["max_rss_bytes"] < 1 << 30
        assert wait_until(lambda: not descendants().keys() - before.keys()), "it runs on"


@pytest.mark.attack(
    FROM_BEHIND_THE_NAME,
    control="test_a_process_may_call_itself_what_a_careless_reader_looks_for",
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("code", [0, 5])
def test_its_end_is_told_as_it_was_whatever_it_calls_itself(level: str, name: bytes, code: int) -> None:
    with get_sandbox(isolation=level, store_code="never", memory_mb=512, warm_cells=0) as sandbox:
        result = sandbox.execute(named(name, f"import sys\nprint('ran')\nsys.exit({code})"), timeout=HANG_S)
    assert (result.stdout, result.exit_code) == ("ran\n", code), result
    assert result.meta["reason"] == ("error" if code else "ok"), result.meta
    assert 0 < result.meta["usage"]["max_rss_bytes"] < 1 << 30


@pytest.mark.attack(
    FROM_BEHIND_THE_NAME,
    control="test_a_process_may_call_itself_what_a_careless_reader_looks_for",
)
@pytest.mark.parametrize("name", [NAMES[0], NAMES[4]])
def test_a_session_ends_whatever_its_program_calls_itself(level: str, name: bytes) -> None:
    before = descendants()
    with session_at(level) as session:
        first = session.run(named(name, "print('ran')"))
        assert (first.stdout, first.exit_code, first.meta["reason"]) == ("ran\n", 0, "ok"), first
        assert 0 < first.meta["usage"]["max_rss_bytes"] < 1 << 30
        for timeout in (1, 8, 64):
            result = session.run(FOR_EVER, timeout)
            assert result.meta["timed_out"], result
            if result.stdout:
                break
        assert result.stdout == "ran\n"
        assert session.exec(["python", "-"], HANG_S, stdin=named(name, "print('too')")).stdout == "too\n"
    zygotes = {root.zygote._pid for root in shared(level, None)._roots.values()}
    assert wait_until(lambda: not descendants().keys() - before.keys() - zygotes), "it runs on"


def test_a_kill_comes_even_if_there_is_no_measuring(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = shared(level, None).start(Command(("python", "main.py"), FOR_EVER.encode()), LIMITS, network=False)

    def fails(_: int) -> tuple[float, int]:
        raise ValueError("a defect")

    monkeypatch.setattr(usage, "of_tree", fails)
    with pytest.raises(ValueError, match="a defect"):
        cell.kill()
    assert cell.is_gone(HANG_S)
    cell.close()


def test_a_kill_may_find_that_another_thread_has_closed_the_cell(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = shared(level, None).start(Command(("python", "main.py"), FOR_EVER.encode()), LIMITS, network=False)
    measured = usage.of_tree

    def closes(pidfd: int) -> tuple[float, int]:
        monkeypatch.setattr(usage, "of_tree", measured)
        closer = threading.Thread(target=cell.close)
        closer.start()
        closer.join(HANG_S)
        return measured(pidfd)

    monkeypatch.setattr(usage, "of_tree", closes)
    cell.kill()
    assert cell.is_gone(0)
    cell.close()


def test_a_tree_that_is_large_does_not_put_off_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def stat(pid: object) -> list[bytes]:
        looked.append(pid)
        return procfs.stat(pid)  # type: ignore[arg-type]

    monkeypatch.setattr(usage, "_MOST_S", 0.0)
    monkeypatch.setattr(usage, "stat", stat)
    pidfd = os.pidfd_open(os.getpid())
    assert usage.of_tree(pidfd) == (0.0, 0)
    os.close(pidfd)
    assert not looked


def test_children_of_every_thread_are_counted() -> None:
    """Not only those that the first thread started."""
    code = """
import os, threading, time
def burn():
    if os.fork() == 0:
        while time.process_time() < 0.5: pass
        os.write(1, b'\\n')
        time.sleep(3600)
    time.sleep(3600)
threading.Thread(target=burn, daemon=True).start()
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pidfd = os.pidfd_open(process.pid)
        try:
            assert usage.of_tree(pidfd)[0] >= 0.4
        finally:
            os.close(pidfd)
            for pid in descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()


# ---- sandboxes that could not be made, and supervisors that broke


def broken(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Every cell from now on is planned so."""
    for name in ("plan_sealed_cell", "plan_open_cell"):
        made = getattr(plan, name)
        monkeypatch.setattr(plan, name, lambda *a, _made=made, **k: _made(*a, **k)._replace(**changes))


REFUSED = (("unshare", 0x7FFFFFFF),)  # by the kernel


@pytest.mark.parametrize("where", ["cell_steps", "program_steps"])
def test_a_sandbox_that_could_not_be_made_is_no_death_of_the_program(
    engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = engine.open_volume(LIMITS, network=False)
    broken(monkeypatch, **{where: REFUSED})
    for root in engine._roots.values():
        root._orders.clear()
    command = Command(("python", "main.py"), b"print('ran')")
    for start in (lambda: engine.start(command, LIMITS, network=False), lambda: volume.start(command)):
        cell = start()
        with pytest.raises(EngineFailed, match=r"could not be made: unshare failed with E(INVAL|PERM)"):
            cell.read(HANG_S)
        cell.close()
    interpreter = volume.make_interpreter(Command(("python",)))
    interpreter.begin("print('ran')")
    with pytest.raises(EngineFailed, match=r"could not be made: unshare failed with E(INVAL|PERM)"):
        interpreter.read(HANG_S)
    volume.close()


def test_a_cell_that_ends_while_it_is_made_is_no_death_of_the_program(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, say, by whoever is short of memory."""
    broken(monkeypatch, cell_steps=(("die",),))
    monkeypatch.setattr(Root, "_order_for", with_death(Root._order_for))
    cell = engine.start(Command(("python", "main.py"), b"print('ran')"), LIMITS, network=False)
    with pytest.raises(EngineFailed, match="a defect in fumehood"):
        cell.read(HANG_S)
    cell.close()


def with_death(order_for: Any) -> Any:
    def order(self: Root, *args: Any) -> Any:
        self._orders.clear()
        return order_for(self, *args)

    return order


@pytest.mark.parametrize("verb", ["execute", "run", "exec"])
def test_a_caller_is_told_that_the_sandbox_could_not_be_made(
    level: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session_at(level) as session, get_sandbox(isolation=level, warm_cells=0) as sandbox:
        session.check()
        sandbox.check()
        broken(monkeypatch, program_steps=REFUSED)
        for root in shared(level, None)._roots.values():
            monkeypatch.setattr(root, "_orders", {})
            monkeypatch.setattr(root, "_plans_in_volumes", {})
        calls = {
            "execute": lambda: sandbox.execute("print('ran')", timeout=HANG_S),
            "run": lambda: session.run("print('ran')"),
            "exec": lambda: session.exec(["echo", "ran"]),
        }
        with pytest.raises(EngineFailed, match=r"could not be made: unshare failed with E(INVAL|PERM)"):
            calls[verb]()
        monkeypatch.undo()
        assert session.run("print('well')").stdout == "well\n"


def test_nothing_outlives_a_supervisor_that_broke(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Root._order

    def breaks(self: Root, *args: Any, **named: Any) -> bytes:
        import marshal

        return marshal.dumps({**marshal.loads(made(self, *args, **named)), "processes": "many"})

    before = descendants()
    leaves = "import os, time\nif os.fork() == 0:\n    os.setsid(); print('left', flush=True); time.sleep(3600)\n"
    with get_sandbox(isolation=level, store_code="never", warm_cells=0) as sandbox:
        sandbox.check()
        monkeypatch.setattr(Root, "_order", breaks)
        for root in shared(level, None)._roots.values():
            monkeypatch.setattr(root, "_orders", {})
        with pytest.raises(EngineFailed, match="a defect in fumehood: TypeError"):
            sandbox.execute(f"{leaves}time.sleep(0.2)\nraise SystemExit(3)", timeout=HANG_S)
    zygotes = {root.zygote._pid for root in shared(level, None)._roots.values()}
    assert wait_until(lambda: not descendants().keys() - before.keys() - zygotes), "it runs on"


# ---- a zygote that is told nonsense, and one that is gone


@pytest.mark.parametrize("order", [b"", b"nonsense", b"\x00" * 300])
def test_an_order_that_makes_no_sense_is_refused_and_the_next_one_obeyed(engine: Engine, order: bytes) -> None:
    zygote = next(iter(engine._roots.values())).zygote
    before = zygote._pid
    with zygote._lock:
        zygote._orders += 1
        zygote._socket.send(frames.order(zygote._orders, order))
        with pytest.raises(SetupFailed, match="order:"):
            zygote._wait_answer(zygote._orders)
    with pytest.raises(SetupFailed, match="order: KeyError"):
        zygote._ask({"unheard_of": 1}, [])
    assert engine.check(LIMITS, network=False).level
    assert next(iter(engine._roots.values())).zygote._pid == before


def test_a_cell_for_a_volume_that_was_dropped_is_refused_and_no_other_volume_is_lost() -> None:
    try:
        engine = shared("sealed", "sealed")
        engine.check(LIMITS, network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    kept, dropped = (engine.open_volume(LIMITS, network=False) for _ in range(2))
    kept.write("/workspace/a", b"kept")
    assert dropped.number is not None
    kept._root.zygote.drop_volume(dropped.number)
    with pytest.raises(EngineFailed, match="volume failed with ENOENT"):
        dropped.start(Command(("true",)))
    assert kept.read("/workspace/a", 100) == b"kept"
    cell = kept.start(Command(("cat", "/workspace/a")))
    event = cell.read(HANG_S)
    assert getattr(event, "data", None) == b"kept", event
    for volume in (kept, dropped):
        volume.close()


def test_a_volume_is_not_closed_under_a_cell_that_is_being_made(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = engine.open_volume(LIMITS, network=False)
    made, closing = volume._root.make_cell_in, threading.Event()
    closer = threading.Thread(target=lambda: (closing.set(), volume.close()))

    def while_closing(*args: Any, **named: Any) -> None:
        closer.start()
        closing.wait(HANG_S)
        made(*args, **named)

    monkeypatch.setattr(volume._root, "make_cell_in", while_closing)
    cell = volume.start(Command(("sleep", "3600")))
    closer.join(HANG_S)
    assert not closer.is_alive()
    assert cell.has_ended
    monkeypatch.undo()
    with pytest.raises(SandboxLost, match="closed"):
        volume.start(Command(("true",)))
    assert engine.check(LIMITS, network=False).level


def test_a_session_opened_after_the_zygote_died_works(level: str) -> None:
    """Also where opening one asks nothing of the zygote."""
    with session_at(level) as session:
        assert session.run("print(1)").stdout == "1\n"
        gone = [root.zygote._pid for root in shared(level, None)._roots.values()]
        for pid in gone:
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: state(pid) in ("Z", "gone"))  # type: ignore[misc]
    for _ in range(2):
        with session_at(level) as session:
            assert session.run("print(2)").stdout == "2\n"


# ---- signals to the supervisor


def fill_pending_signals() -> int:
    """Until the kernel has no room for who sent one: what comes then says that it came from number 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {60})
    count = 0
    while libc.sigqueue(os.getpid(), 60, 0) == 0:
        count += 1
    return count


def test_a_signal_for_which_there_is_no_room_seems_to_come_from_outside() -> None:
    """The control arm."""
    code = f"""
import ctypes, os, resource, signal
resource.setrlimit(resource.RLIMIT_SIGPENDING, (4, 4))
{inspect.getsource(fill_pending_signals)}
signal.pthread_sigmask(signal.SIG_BLOCK, {{44}})
count = fill_pending_signals()
os.kill(os.getpid(), 44)
print(count, signal.sigwaitinfo({{44}}).si_pid)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert said.stdout.split()[1] == "0"


@pytest.mark.attack(
    ORDERS_BY_SOCKET,
    control="test_a_signal_for_which_there_is_no_room_seems_to_come_from_outside",
)
def test_signals_from_inside_are_no_orders(level: str) -> None:
    """Thousands of every kind, told apart from the host's in no other way than that the host says more."""
    fill = f"import ctypes, os, signal, time\n{inspect.getsource(fill_pending_signals)}\n"
    numbers = (signal.SIGCHLD, WAKE)
    if level != "process":  # there, others end it
        numbers += (*DONE.values(), KILL_TREE, 34, 64)
    flood = f"""
print(fill_pending_signals() > 0, flush=True)
x = 42
for _ in range(300):
    for number in {tuple(map(int, numbers))}:
        try: os.kill(os.getppid(), number)
        except PermissionError: pass
time.sleep(0.05)
"""
    with session_at(level) as session:
        result = session.run(fill + flood)
        assert (result.stdout, result.exit_code, result.meta["reason"]) == ("True\n", 0, "ok"), result
        result = session.run("print(x)")
        assert (result.stdout, result.exit_code) == ("42\n", 0), result


def test_a_supervisor_that_dies_with_an_order_unread_is_a_death_like_any_other(engine: Engine) -> None:
    """The kernel tells the host of the order before all that was said to it."""
    volume = engine.open_volume(LIMITS, network=False)
    interpreter = volume.make_interpreter(Command(("python",)))
    interpreter.begin(FOR_EVER)
    event = interpreter.read(HANG_S)
    assert isinstance(event, Output)
    assert event.data == b"ran\n"
    interpreter._signal(signal.SIGSTOP)
    interpreter.interrupt()
    interpreter._signal(signal.SIGKILL)
    event = interpreter.read(HANG_S)
    assert isinstance(event, Exited)
    assert (event.exit_code, event.state_lost) == (128 + signal.SIGKILL, True)
    volume.close()


@pytest.mark.attack("the end of the program is the end of its run", without=EXHAUSTS)
def test_orphans_that_come_and_go_without_end_keep_no_run_from_ending(level: str) -> None:
    """Each wakes up the supervisor, which hears the host all the same."""
    chain = """
import os, time
def hop():
    while True:
        if os.fork():
            os._exit(0)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        hop()
print('ran')
"""
    with session_at(level, timeout_sec=HANG_S) as session:
        result = session.run(chain)
        assert (result.stdout, result.exit_code, result.meta["reason"]) == ("ran\n", 0, "ok"), result


# ---- words of an earlier run


WRITES_AHEAD = """
import json, os, socket, struct, threading, time
def ends(ids):
    for fd in range(3, 1100):
        try:
            if not os.readlink(f'/proc/self/fd/{fd}').startswith('socket:'): continue
        except OSError: continue
        for number in ids:
            body = json.dumps({'id': number, 'event': 'done', 'exit_code': 0, 'error': None, 'interrupted': False})
            os.write(fd, struct.pack('<I', len(body)) + body.encode())
        return True
"""


@pytest.mark.attack("each run has a number drawn by lot", control="test_an_end_with_the_right_number_is_believed")
def test_an_end_that_was_written_ahead_counts_for_nothing(level: str) -> None:
    with session_at(level) as session:
        assert session.run(f"{WRITES_AHEAD}\nprint(ends(range(1, 50)))").stdout == "True\n"
        again = session.run("stop = threading.Event()\ndef work():\n while not stop.wait(0.01): ends(range(1, 50))")
        assert again.exit_code == 0
        session.run("threading.Thread(target=work, daemon=True).start()")
        result = session.run("import time\ntime.sleep(0.3)\nprint('went on')\nraise SystemExit(5)")
        assert (result.stdout, result.exit_code, result.meta["reason"]) == ("went on\n", 5, "error"), result
        session.run("stop.set()")


def done(run: int, code: int) -> bytes:
    body = f'{{"id": {run}, "event": "done", "exit_code": {code}}}'.encode()
    return FRAME.pack(len(body)) + body


def test_an_end_with_the_right_number_is_believed() -> None:
    """The control arm: it is the number that decides."""
    channel = Channel()
    channel.begin("pass")
    assert list(channel.hear(done(channel._run + 1, 0))) == []
    assert channel.done is None
    assert list(channel.hear(done(channel._run, 0))) == [None]
    assert channel.done == 0


@pytest.mark.attack(
    "who says both that it went well and that it did not has failed",
    without=OWN_CHANNEL,
)
@pytest.mark.parametrize(("first", "second", "told"), [(0, 5, 5), (5, 0, 5), (3, 5, 3), (0, 0, 0)])
def test_who_says_both_has_failed(first: int, second: int, told: int) -> None:
    channel = Channel()
    channel.begin("pass")
    assert list(channel.hear(done(channel._run, first))) == [None]
    assert list(channel.hear(done(channel._run, second))) == []
    assert channel.done == told


def test_no_number_is_used_twice() -> None:
    channel = Channel()
    numbers = set()
    for _ in range(100):
        channel.begin("pass")
        numbers.add(channel._run)
    assert len(numbers) == 100
    assert max(numbers) > 1 << 40


def test_the_number_of_a_run_does_not_tell_that_of_the_next() -> None:
    """A run knows its own."""
    channel = Channel()
    numbers = []
    for _ in range(100):
        channel.begin("pass")
        numbers.append(channel._run)
    assert len({after - before for before, after in pairwise(numbers)}) == 99


def test_the_supervisor_has_no_child_but_the_program(level: str) -> None:
    """What the tests above take for granted."""
    cell = shared(level, None).start(Command(("python", "main.py"), FOR_EVER.encode()), LIMITS, network=False)
    assert cell.read(HANG_S) is not None
    supervisor = procfs.number(procfs.read(f"/proc/self/fdinfo/{cell._pidfd}"), b"Pid:")
    assert len(children(supervisor)) == 1
    cell.kill()
    cell.close()
