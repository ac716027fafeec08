"""Hosts that die, fork, end their threads or ask for much: programs are served, and none outlives its host."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process_view import alive, descendants

from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
from fumehood.types import Exited, Output
from support import HANG_S, scripted, wait_until

SEALED = {"isolation": "sealed", "require": "sealed", "store_code": "never"}


@pytest.fixture(autouse=True)
def _sealed_or_skip() -> None:
    try:
        with get_sandbox(**SEALED) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def said_by(code: str) -> str:
    """What a host of its own prints. Its threads and forks are what it is about: no warning of them."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- hosts that are killed

HOST = """
import os, signal, sys, threading, time
from fumehood import get_sandbox
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever this process was started with
code = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        break
time.sleep(3600)
'''
sandbox = get_sandbox(isolation='sealed', require='sealed', store_code='never')
def run(): sandbox.execute(code, timeout=280)
for _ in range({THREADS}): threading.Thread(target=run, daemon=True).start()
print('started', flush=True)
run() if {THREADS} == 0 else time.sleep(3600)
"""


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_host_takes_every_cell_with_it(threads: int, number: signal.Signals) -> None:  # lif11
    code = HOST.replace("{THREADS}", str(threads))
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8")
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == "started\n"
        enough = max(threads, 1) * 5  # PID 1 and four of the program, for each
        assert wait_until(lambda: len(descendants(host.pid)) >= enough), descendants(host.pid)
        doomed = {pid: seen.born for pid, seen in descendants(host.pid).items()}
        host.send_signal(number)
        assert host.wait(HANG_S) == -number
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
    assert wait_until(lambda: not alive(doomed)), f"alive without their host: {alive(doomed)}"


# ---- hosts whose threads end


def test_cells_outlive_the_thread_that_asked_first() -> None:
    """A parent-death signal follows the thread, not the process."""
    with get_sandbox(**SEALED) as sandbox:
        results = []
        for _ in range(3):
            thread = threading.Thread(target=lambda: results.append(sandbox.execute("print(1)", timeout=HANG_S)))
            thread.start()
            thread.join()
        results.append(sandbox.execute("print(1)", timeout=HANG_S))
        assert [result.stdout for result in results] == ["1\n"] * 4


FIRST_IN_A_THREAD = """
import os, threading, time
from fumehood import get_sandbox
with get_sandbox(isolation='sealed', require='sealed', store_code='never') as sandbox:
    thread = threading.Thread(target=sandbox.execute, args=('print(1)',))
    thread.start()
    thread.join()
    while str(thread.native_id) in os.listdir('/proc/self/task'): time.sleep(0.01)
    print(sandbox.execute("print('still served')", timeout=280).stdout, end='')
"""


def test_the_engine_outlives_the_thread_that_started_it() -> None:
    assert said_by(FIRST_IN_A_THREAD) == "still served\n"


# ---- hosts that fork

FORKED = """
import os, sys
from fumehood import get_sandbox
sandbox = get_sandbox(isolation='sealed', require='sealed', store_code='never', timeout_sec=280)
print(sandbox.execute("print('before')").stdout, end='', flush=True)
child = os.fork()
if child == 0:
    ok = all(sandbox.execute("print('child')").stdout == 'child\\n' for _ in range(5))
    with get_sandbox(isolation='sealed', require='sealed', store_code='never', timeout_sec=280) as other:
        ok = ok and other.execute("print('other')").stdout == 'other\\n'
    os._exit(0 if ok else 1)
mine = [sandbox.execute("print('parent')").stdout for _ in range(5)]
status = os.waitpid(child, 0)[1]
mine.append(sandbox.execute("print('parent')").stdout)
print(status, set(mine))
"""


def test_a_forked_host_works_on_both_sides() -> None:
    assert said_by(FORKED) == "before\n0 {'parent\\n'}\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_workers_can_execute(method: str) -> None:
    code = (
        f"import sys, tempfile; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import multiprocessing, pool_worker\n"
        "if __name__ == '__main__':\n"
        "    tempfile.tempdir = '/tmp'\n"  # a socket's path must be short
        "    pool_worker.work(0)\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(pool_worker.work, range(6)))\n"
    )
    assert said_by(code) == "['0\\n', '2\\n', '4\\n', '6\\n', '8\\n', '10\\n']\n"


# ---- hosts that ask for much


def test_many_at_once_are_all_served() -> None:
    with get_sandbox(**SEALED) as sandbox, ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: sandbox.execute(f"print({n})", timeout=HANG_S), range(64)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]


def test_the_last_of_many_tiny_writes_costs_the_host_no_more_than_the_first() -> None:  # out11
    def collect_s(count: int) -> float:
        sandbox, _ = scripted([*[Output("stdout", b".")] * count, Exited(0, "ok")], store_code="never")
        before = time.thread_time()
        assert sandbox.execute("").stdout.startswith("....")
        return time.thread_time() - before

    few, many = (min(collect_s(count) for _ in range(5)) for count in (4000, 32_000))
    assert many < 24 * few  # 8 times if each costs the same, 64 times if each costs as much as all before it
