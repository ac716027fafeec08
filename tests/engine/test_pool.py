"""Cells that wait: each serves one program, as a fresh one would, and none outlives its use."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from process_view import alive, children, descendants, processes

from fumehood import get_sandbox
from fumehood.engine import engine as engines
from fumehood.engine import pool as pools
from fumehood.engine.zygotes import Zygote
from fumehood.errors import IsolationUnavailable
from fumehood.thread_pool import Workers
from fumehood.types import Command, Output
from support import HANG_S, wait_until

AGE = "print(open('/proc/self/stat').read().rpartition(')')[2].split()[19])"


def wait_for_a_later_birth(*born: str) -> None:
    """Births are counted in hundredths of a second: until who is born now is younger than all of these."""
    ticks = os.sysconf("SC_CLK_TCK")
    assert wait_until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * ticks > max(map(int, born)) + 2)


def engine_of(sandbox: Any) -> engines.Engine:
    return sandbox._backend._engine  # type: ignore[no-any-return]


def zygote_of(sandbox: Any) -> Zygote:
    return engine_of(sandbox)._roots[False].zygote


def cells_of(sandbox: Any) -> dict[int, str]:
    """The first processes of all cells that have the same zygote."""
    return children(zygote_of(sandbox)._pid)


def pool_of(sandbox: Any) -> pools.Pool | None:
    return engine_of(sandbox)._roots[False]._pools.get((sandbox._planner.spec.limits, False))


def waiting(sandbox: Any) -> int:
    pool = pool_of(sandbox)
    return 0 if pool is None else len(pool)


def fill(sandbox: Any, count: int = 2) -> dict[int, str]:
    """Two calls make the engine and the pool. The cells' first processes, when there are so many and all wait."""
    for _ in range(2):
        assert sandbox.execute("print('up')").stdout == "up\n"
    assert wait_until(lambda: waiting(sandbox) == count), waiting(sandbox)
    assert wait_until(lambda: len(cells_of(sandbox)) == count), cells_of(sandbox)
    return cells_of(sandbox)


def open_warm(memory_mb: int, warm_cells: int = 2, **settings: Any) -> Any:
    sandbox = get_sandbox(
        isolation="sealed",
        require="sealed",
        store_code="never",
        warm_cells=warm_cells,
        memory_mb=memory_mb,
        supported_languages=("python", "bash"),
        timeout_sec=HANG_S,
        **settings,
    )
    try:
        sandbox.execute("")
    except IsolationUnavailable as missing:
        sandbox.close()
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    return sandbox


@contextmanager
def warm(memory_mb: int, warm_cells: int = 2, **settings: Any) -> Iterator[Any]:
    with open_warm(memory_mb, warm_cells, **settings) as sandbox:
        yield sandbox


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For constants that a zygote reads once."""
    mine: dict[Any, engines.Engine] = {}
    monkeypatch.setattr(engines, "_engines", mine)
    yield
    for engine in mine.values():
        for root in engine._roots.values():
            root.close()


# ---- a cell that waited


def test_a_program_runs_in_a_process_that_was_there_before_it() -> None:
    with warm(601) as sandbox:
        cells = fill(sandbox)
        programs = set(children(*cells).values())
        assert len(children(*cells)) == 2
        wait_for_a_later_birth(*programs)
        assert sandbox.execute(AGE).stdout.strip() in programs


def test_in_an_event_loop_a_waiting_cell_needs_no_thread_and_a_new_one_is_made_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    submit = Workers.submit

    def counted(workers: Workers, call: Any) -> Any:
        asked.append(call)
        return submit(workers, call)

    monkeypatch.setattr(Workers, "submit", counted)
    with warm(661) as sandbox:
        fill(sandbox)
        assert asyncio.run(sandbox.execute_async("print(1)")).stdout == "1\n"
    assert len(asked) == 0
    with warm(662, warm_cells=0) as sandbox:
        assert asyncio.run(sandbox.execute_async("print(1)")).stdout == "1\n"
    assert len(asked) == 1


def test_without_warm_cells_every_program_gets_a_new_process() -> None:
    with warm(602, warm_cells=0) as sandbox:
        sandbox.execute("")
        assert wait_until(lambda: cells_of(sandbox) == {})
        before = sandbox.execute(AGE).stdout
        wait_for_a_later_birth(before)
        assert int(sandbox.execute(AGE).stdout) > int(before)
        assert wait_until(lambda: cells_of(sandbox) == {})
        assert pool_of(sandbox) is None


LEAVES_EVERYTHING = """
import builtins, json, os, random, sys, uuid
for place in ('/tmp/left', '/workspace/left', os.path.expanduser('~/left'), '/dev/shm/left'):
    open(place, 'w').write('x')
os.environ['LEFT'] = '1'
sys.modules['left'] = json
builtins.left = 1
json.left = 1
random.seed(1)
os.chdir('/tmp')
sys.path.insert(0, '/left')
"""

LOOKS_AROUND = """
import builtins, json, os, random, sys, uuid
numbers = [random.random(), os.urandom(8).hex(), str(uuid.uuid4()), random.SystemRandom().random()]
try:
    import numpy
    numbers += [numpy.random.rand(), numpy.random.default_rng().random()]
except ImportError:
    pass
places = ('/tmp', '/workspace', os.path.expanduser('~'), '/dev/shm')
print(json.dumps({
    'numbers': numbers,
    'files': [f'{place}/{name}' for place in places for name in os.listdir(place)],
    'left': ['LEFT' in os.environ, 'left' in sys.modules, hasattr(builtins, 'left'), hasattr(json, 'left')],
    'names': sorted(globals()),
    'cwd': os.getcwd(),
    'path': '/left' in sys.path,
    'pids': sorted(int(name) for name in os.listdir('/proc') if name.isdigit()),
    'pid': os.getpid(),
}))
"""


def test_two_cells_drawn_one_after_the_other_share_nothing() -> None:
    with warm(603) as sandbox:
        fill(sandbox)
        assert sandbox.execute(LEAVES_EVERYTHING).exit_code == 0
        first, second, third = (json.loads(sandbox.execute(LOOKS_AROUND).stdout) for _ in range(3))
    numbers = [number for seen in (first, second, third) for number in seen.pop("numbers")]
    assert len(set(numbers)) == len(numbers), numbers
    assert first == second == third
    assert first["left"] == [False] * 4
    assert not [name for name in first["files"] if "left" in name]
    assert "nowhere" not in first["names"]
    assert (first["cwd"], first["path"]) == ("/workspace", False)
    assert (first["pid"], first["pids"]) == (2, [1, 2])


def test_a_waiting_cell_looks_like_a_new_one() -> None:
    """What it did while it waited does not show."""
    look = LOOKS_AROUND + "print(sorted(sys.modules), sys.argv, sys.flags, os.listdir('/proc/self/fd'))\n"
    look += "import gc; print(gc.isenabled(), os.listdir(os.path.dirname(__file__)), sorted(os.environ.items()))\n"
    with warm(604) as sandbox, warm(604, warm_cells=0) as cold:
        fill(sandbox)
        shown, fresh = (each.execute(look).stdout.split("\n", 1)[1] for each in (sandbox, cold))
    assert shown == fresh


def test_all_that_a_program_is_given_arrives_in_a_waiting_cell() -> None:
    code = "import sys, os\nprint(sys.argv[1:], os.environ['GIVEN'], sys.stdin.read(), open('a/b.txt').read())"
    given: dict[str, Any] = {"args": ["x", "y z"], "env": {"GIVEN": "é"}, "files": {"a/b.txt": "content"}}
    with warm(605) as sandbox:
        cells = fill(sandbox)
        assert sandbox.execute(code, stdin="typed", **given).stdout == "['x', 'y z'] é typed content\n"
        assert wait_until(lambda: len(alive(cells)) < 2)
        fill(sandbox)
        shown = sandbox.execute('echo "$1" "$GIVEN" "$(cat)" "$(cat a/b.txt)"', "bash", stdin="typed", **given)
        assert shown.stdout == "x é typed content\n", shown
        fill(sandbox)
        big = b"x" * (3 << 20)
        assert sandbox.execute("import sys; print(len(sys.stdin.buffer.read()))", stdin=big).stdout == f"{3 << 20}\n"
        fill(sandbox)
        assert sandbox.execute(f"'''{'y' * 500_000}'''\nprint(len(open(__file__).read()) > 500_000)").stdout == "True\n"


LIMITED = {
    "memory": ("x = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1", {}),
    "processes": ("import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(3600)", {"processes": 32}),
    "disk": ("f = open('/tmp/f', 'wb')\nwhile True: f.write(b'x' * 65536)", {"disk_mb": 8}),
    "output": ("while True: print('x' * 65536)", {"output_kill_mb": 2}),
    "timeout": ("while True: pass", {}),
}


@pytest.mark.parametrize("reason", LIMITED)
def test_limits_hold_in_a_waiting_cell(reason: str) -> None:
    code, settings = LIMITED[reason]
    with warm(160, **settings) as sandbox:
        cells = fill(sandbox)
        result = sandbox.execute(code, timeout=1 if reason == "timeout" else HANG_S)
        assert result.meta["reason"] == reason, result
        assert result.exit_code != 0
        assert wait_until(lambda: len(alive(cells)) < 2)
        assert sandbox.execute("print('next')").stdout == "next\n"


# ---- how many


def test_the_pool_grows_with_the_load_up_to_the_maximum() -> None:
    with warm(606, warm_cells=3) as sandbox:
        fill(sandbox, 2)  # one ran at a time
        most = 0
        with ThreadPoolExecutor(8) as threads:
            runs = [threads.submit(sandbox.execute, "import time; time.sleep(0.05); print(1)") for _ in range(40)]
            while not all(run.done() for run in runs):
                most = max(most, waiting(sandbox))
                time.sleep(0.005)
        assert {run.result().stdout for run in runs} == {"1\n"}
        assert most <= 3
        assert wait_until(lambda: waiting(sandbox) == 3)
        assert pool_of(sandbox)._wanted() == 3
        assert wait_until(lambda: len(cells_of(sandbox)) == 3)


def test_an_idle_pool_shrinks_to_nothing_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_QUIET_S", HANG_S)
    with warm(607, warm_cells=3) as sandbox:
        fill(sandbox, 2)
        monkeypatch.setattr(pools, "_QUIET_S", 0.05)
        pool_of(sandbox).nudge()  # it has been waiting for the longer time
        assert wait_until(lambda: waiting(sandbox) == 0)
        assert wait_until(lambda: cells_of(sandbox) == {})
        monkeypatch.setattr(pools, "_QUIET_S", HANG_S)
        fill(sandbox, 2)


# ---- whose


def test_closing_the_sandbox_ends_its_waiting_cells() -> None:
    with warm(608) as sandbox:
        cells = fill(sandbox)
        everything = cells | children(*cells)
    assert len(everything) == 4
    assert wait_until(lambda: not alive(everything)), alive(everything)


def test_closing_one_of_two_sandboxes_leaves_the_cells_of_the_other() -> None:
    with warm(609) as stays:
        with warm(609):
            cells = fill(stays)
        assert waiting(stays) == 2
        assert sorted(alive(cells)) == sorted(cells)
    assert wait_until(lambda: not alive(cells))


@pytest.mark.usefixtures("fresh_engine")
def test_closing_the_older_of_two_sandboxes_leaves_the_cells_of_the_other() -> None:
    older = open_warm(610)
    older.execute("")
    with warm(610) as stays:
        cells = fill(stays)
        older.close()
        assert waiting(stays) == 2
        assert sorted(alive(cells)) == sorted(cells)
    assert wait_until(lambda: not alive(cells))


def test_a_sandbox_with_other_limits_has_its_own_cells() -> None:
    with warm(611) as one:
        cells = fill(one)
        with warm(612) as other:
            for _ in range(2):
                other.execute("")
            assert wait_until(lambda: waiting(other) == 2)
        assert wait_until(lambda: len(cells_of(one)) == 2)
        assert sorted(alive(cells)) == sorted(cells)


# ---- when something dies


def kills_the_zygote(sandbox: Any) -> bool:
    try:
        os.kill(zygote_of(sandbox)._pid, signal.SIGKILL)
    except KeyError:
        return False  # it is being replaced just now
    return True


def test_killing_the_zygote_under_load_loses_no_request() -> None:
    """Again and again, but never before everybody was served by the new one: three in a row are given up."""
    with warm(613) as sandbox:
        fill(sandbox)
        enough = threading.Event()
        served: list[list[Any]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            while not enough.is_set():
                text = f"{number} {len(served[number])}"
                result = sandbox.execute(f"print({text!r})")
                served[number].append((result.stdout == f"{text}\n", result))

        def everybody_was_served(workers: list[Any], before: list[int]) -> bool:
            if any(worker.done() for worker in workers):
                return True  # it failed
            return False in engine_of(sandbox)._roots and all(
                len(results) > count for results, count in zip(served, before, strict=True)
            )

        with ThreadPoolExecutor(4) as threads:
            workers = [threads.submit(work, number) for number in range(4)]
            try:
                for _ in range(5):
                    before = [len(results) for results in served]
                    assert wait_until(lambda before=before: everybody_was_served(workers, before))
                    assert wait_until(lambda: kills_the_zygote(sandbox))
            finally:
                enough.set()
            for worker in workers:
                worker.result()
        assert [result for results in served for right, result in results if not right] == []


def test_a_killed_waiting_cell_is_passed_over() -> None:
    with warm(614) as sandbox:
        cells = fill(sandbox)
        for pid in cells:
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not alive(cells))
        assert sandbox.execute("print('right')").stdout == "right\n"
        fill(sandbox)


def test_a_waiting_cell_whose_program_was_killed_is_passed_over() -> None:
    with warm(615) as sandbox:
        cells = fill(sandbox)
        for pid in children(*cells):
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not alive(cells))
        assert sandbox.execute("print('right')").stdout == "right\n"


@pytest.mark.usefixtures("fresh_engine")
def test_a_zygote_that_stays_stopped_is_replaced() -> None:
    with warm(616) as sandbox:
        fill(sandbox)
        stopped = zygote_of(sandbox)
        stopped._launched.send = lambda _: None  # type: ignore[method-assign] # it is not made to go on
        os.kill(stopped._pid, signal.SIGSTOP)
        results = [sandbox.execute(f"print({number})").stdout for number in range(5)]
        assert results == [f"{number}\n" for number in range(5)]
        assert zygote_of(sandbox) is not stopped
        assert stopped._pid not in processes()


@pytest.mark.usefixtures("fresh_engine")
def test_a_zygote_that_was_late_once_does_not_mix_up_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer nobody waited for must not be taken for the next cell's: its kill would go to the wrong process."""
    monkeypatch.setattr(pools, "_RETRY_S", HANG_S)  # the refill that was refused does not come before the call
    with warm(617, warm_cells=1) as sandbox:
        fill(sandbox, 1)
        zygote = zygote_of(sandbox)
        asked = zygote._orders
        os.kill(zygote._pid, signal.SIGSTOP)
        zygote._answer_s = 0.3
        sandbox.execute("")  # takes the one that waits; its replacement is asked for in vain
        assert wait_until(lambda: zygote._orders > asked and not zygote._lock.locked())
        zygote._answer_s = HANG_S
        os.kill(zygote._pid, signal.SIGCONT)
        wait_for_an_answer(zygote)
        check_a_kill_is_the_right_ones(sandbox)
        assert zygote_of(sandbox) is zygote


def wait_for_an_answer(zygote: Zygote) -> None:
    """One that nobody has taken yet."""
    poll = select.poll()
    poll.register(zygote._socket, select.POLLIN)
    assert poll.poll(HANG_S * 1000)


def check_a_kill_is_the_right_ones(sandbox: Any) -> None:
    command = Command(("python", "main.py"), f"{AGE}\nimport sys, time; sys.stdout.flush(); time.sleep(3600)".encode())
    cell = engine_of(sandbox).start(command, sandbox._planner.spec.limits, network=False)
    try:
        said = cell.read(HANG_S)
        assert isinstance(said, Output), said
        born, cells = said.data.decode().strip(), cells_of(sandbox)
        programs = {pid: when for pid, when in children(*cells).items() if when == born}
        assert programs
        cell.kill()
        assert wait_until(lambda: not alive(programs)), "a program runs on though its cell was killed"
    finally:
        cell.close()


class Interrupted(Exception):
    pass


@pytest.mark.usefixtures("fresh_engine")
def test_an_interrupted_call_does_not_mix_up_the_cells_of_later_ones() -> None:
    """Ctrl-C may come between asking the zygote for a cell and its answer."""

    def raise_it(*_: object) -> None:
        raise Interrupted

    def interrupt(zygote: Zygote, asked: int, thread: threading.Thread) -> None:
        assert wait_until(lambda: zygote._orders > asked and state_of(thread) == "S")
        signal.pthread_kill(thread.ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with warm(618, warm_cells=0) as sandbox:
            sandbox.execute("")
            zygote = zygote_of(sandbox)
            zygote._socket.settimeout(HANG_S)  # nobody looks whether it is stopped
            os.kill(zygote._pid, signal.SIGSTOP)  # so that the answer is surely not there yet
            other = threading.Thread(target=interrupt, args=(zygote, zygote._orders, threading.current_thread()))
            other.start()
            with pytest.raises(Interrupted):
                sandbox.execute("")
            other.join()
            os.kill(zygote._pid, signal.SIGCONT)
            wait_for_an_answer(zygote)
            check_a_kill_is_the_right_ones(sandbox)
            assert zygote_of(sandbox) is zygote
    finally:
        signal.signal(signal.SIGUSR1, before)


def state_of(thread: threading.Thread) -> str:
    with open(f"/proc/self/task/{thread.native_id}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


# ---- many users of one process


def test_two_event_loops_in_two_threads_are_served() -> None:
    async def several(sandbox: Any, mark: str) -> list[str]:
        runs = [sandbox.execute_async(f"print('{mark}', {number})") for number in range(8)]
        return [result.stdout for result in await asyncio.gather(*runs)]

    with warm(619) as sandbox, ThreadPoolExecutor(2) as threads:
        fill(sandbox)
        loops = {mark: threads.submit(lambda mark=mark: asyncio.run(several(sandbox, mark))) for mark in "ab"}
        for mark, loop in loops.items():
            assert loop.result(HANG_S) == [f"{mark} {number}\n" for number in range(8)]


OPEN = """
import os, sys, time
from fumehood import get_sandbox
kind = {'isolation': 'sealed', 'require': 'sealed', 'store_code': 'never', 'timeout_sec': 280}
sandbox = get_sandbox(warm_cells=2, memory_mb=620, **kind)
def wait_full():
    while sum(map(len, sandbox._backend._engine._roots[False]._pools.values())) < 2: time.sleep(0.01)
def served(mark, times=4):
    return all(sandbox.execute(f"print('{mark}')").stdout == mark + '\\n' for _ in range(times))
assert served('first')
"""

FORKS = (
    OPEN
    + """
wait_full()
child = os.fork()
if child == 0:
    right = served('child')
    wait_full()
    print('pids', os.getpid(), flush=True)
    sys.stdin.readline()
    os._exit(0 if right else 1)
right = served('parent')
status = os.waitpid(child, 0)[1]
print(right and served('parent'), status, flush=True)
"""
)


def host(code: str) -> subprocess.Popen[str]:
    """Forking beside threads is what some of these are about: no warning of it."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8")


def tree(root: int) -> dict[int, str]:
    return {pid: seen.born for pid, seen in descendants(root).items() if seen.state != "Z"}


def sealed_or_skip() -> None:
    with warm(621, warm_cells=0):
        pass


def test_both_sides_of_a_fork_are_served_and_the_childs_cells_end_with_it() -> None:
    sealed_or_skip()
    with host(FORKS) as parent:
        assert parent.stdout is not None
        word, pid = parent.stdout.readline().split()
        assert word == "pids"
        of_child = tree(int(pid))
        assert len(of_child) >= 5, of_child  # its own zygote and two cells of two processes
        said, _ = parent.communicate("go on\n", timeout=HANG_S)
    assert said == "True 0\n"
    assert wait_until(lambda: not alive(of_child)), alive(of_child)


FORKS_OFTEN = (
    OPEN
    + """
import threading
busy = True
def work():
    while busy: served('thread', 1)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
bad = 0
for number in range(60):
    child = os.fork()
    if child == 0:
        os._exit(0 if number % 20 or served('child', 1) else 1)
    bad += os.waitpid(child, 0)[1] != 0
    time.sleep(0.01)
busy = False
for thread in threads: thread.join()
print(bad, served('parent'))
"""
)


def test_forking_at_any_moment_of_the_refill_is_safe() -> None:
    sealed_or_skip()
    with host(FORKS_OFTEN) as parent:
        said, errors = parent.communicate(timeout=HANG_S)
    assert (said, errors) == ("0 True\n", "")


def test_a_killed_host_takes_its_waiting_cells_with_it() -> None:
    sealed_or_skip()
    with host(OPEN + "wait_full()\nprint('full', flush=True)\ntime.sleep(3600)") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "full\n"
        everything = tree(owner.pid)
        assert len(everything) >= 5, everything
        owner.kill()
    assert wait_until(lambda: not alive(everything)), alive(everything)


def test_threads_that_open_and_close_sandboxes_leave_no_cells() -> None:
    def use(number: int) -> str:
        with open_warm(622) as sandbox:
            return str(sandbox.execute(f"print({number})").stdout)

    before = set(threading.enumerate())
    with warm(623, warm_cells=0) as watcher:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(use, range(24))) == [f"{number}\n" for number in range(24)]
        watcher.execute("")
        assert wait_until(lambda: cells_of(watcher) == {}), cells_of(watcher)
        assert wait_until(lambda: set(threading.enumerate()) <= before), threading.enumerate()


def test_calls_that_come_and_go_without_end_do_not_keep_a_pool_empty() -> None:
    """Each end of a program wakes the thread that refills it."""
    with open_warm(1711) as sandbox:
        fill(sandbox)
        pool = pool_of(sandbox)
        assert pool is not None
        taken = [pool.take() for _ in range(2)]  # and given back only at the end: a call goes on
        stopped = threading.Event()

        def come_and_go() -> None:
            while not stopped.wait(0.001):
                pool.nudge()

        crowd = threading.Thread(target=come_and_go)
        crowd.start()
        try:
            assert wait_until(lambda: len(pool) > 0)
        finally:
            stopped.set()
            crowd.join(HANG_S)
            for cell in taken:
                pool.done(cell)
                if cell is not None:
                    cell.close()


# ---- those who share


def test_who_requires_what_others_have_shares_their_zygote_and_their_cells() -> None:
    with (
        warm(671) as sandbox,
        get_sandbox(isolation="sealed", store_code="never", warm_cells=2, memory_mb=671) as other,
    ):
        fill(sandbox)
        assert other.execute("print(1)").stdout == "1\n"
        assert engine_of(other) is not engine_of(sandbox)
        assert zygote_of(other) is zygote_of(sandbox)
        assert pool_of(other) is pool_of(sandbox)
        assert pool_of(sandbox) is not None


def test_cells_wait_until_the_last_who_shares_them_is_gone() -> None:
    with warm(672) as sandbox:
        with get_sandbox(isolation="sealed", store_code="never", warm_cells=2, memory_mb=672) as other:
            fill(other)
            assert sandbox.execute("print(1)").stdout == "1\n"
        assert wait_until(lambda: waiting(sandbox) == 2)
        pool = pool_of(sandbox)
    assert pool is not None
    assert len(pool) == 0
    assert pool_of(sandbox) is None


def test_seconds_of_cpu_are_not_built_into_a_cell() -> None:
    with warm(673) as sandbox, open_warm(673, cpu_sec=1) as other:
        fill(sandbox)
        assert other._planner.spec.limits != sandbox._planner.spec.limits
        assert "1 s of CPU time" in other.execute("while True: pass").stderr
        assert [limits for limits, _ in engine_of(other)._roots[False]._pools if limits.memory_bytes == 673 << 20] == [
            sandbox._planner.spec.limits
        ]


def test_limits_that_differ_each_time_fill_no_memory() -> None:
    with warm(674) as sandbox:
        root, limits = engine_of(sandbox)._roots[False], sandbox._planner.spec.limits
        for number in range(500):
            other = limits._replace(inodes=1000 + number)
            root.receipt(other)
            root._order_for(other, None, waits=False, shows=False)
            engine_of(sandbox).lease(other, network=False, step=1)
            engine_of(sandbox).lease(other, network=False, step=-1)
        assert max(len(root._receipts), len(root._orders)) <= 64
        assert len(engine_of(sandbox)._users) < 64


def test_cells_that_cannot_be_made_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_RETRY_S", 0.0)
    tried = []

    def make() -> Any:
        tried.append(1)
        raise OSError("no")

    pool = pools.Pool(make, 2)
    try:
        for times in (3, 6):  # the next request begins anew
            assert pool.take() is None
            pool.done()
            assert wait_until(lambda: pool._filler is None)
            assert len(tried) == times
    finally:
        pool.close()
