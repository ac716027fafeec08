"""Programs that misbehave, and hosts that die. Each is a result in time, and nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import resource
import runpy
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.engine.order import program
from fumehood.errors import IsolationUnavailable
from fumehood.types import Command, Exited

SLACK_S = 5.0  # the promise is timeout + 2 s; the box is shared
GONE_S = 3.0

_corpus = runpy.run_path(str(Path(__file__).parents[1] / "escape" / "probes.py"))
PROBES = {probe["id"]: probe["code"] for probe in _corpus["PROBES"]}


def probe(name: str, **values: str) -> str:
    """The corpus's own program, with the prelude its author gave it."""
    text = _corpus["PRELUDE"] + PROBES[name]
    for key, value in {"CANARYHEX": "00", "WS": "/workspace", "OUT": "/workspace", **values}.items():
        text = text.replace("{" + key + "}", value)
    return text


# ---- what is running


def family(root: int | None = None) -> dict[int, str]:
    """Every process beneath this one, with its state."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            parents[int(entry)] = (int(parent), state)
    found: dict[int, str] = {}
    edge = {os.getpid() if root is None else root}
    while edge:
        edge = {pid for pid, (parent, _) in parents.items() if parent in edge and pid not in found}
        found |= {pid: parents[pid][1] for pid in edge}
    return found


def born(pid: int) -> str | None:
    """Tells a process from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def wait_until(holds: Callable[[], bool], seconds: float = GONE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


_warm_cells = 0


@pytest.fixture(autouse=True, params=[0, 2], ids=["cold", "warm"])
def _both_paths(request: pytest.FixtureRequest) -> Iterator[None]:
    """A cell made for the program, and one that had been waiting for it."""
    global _warm_cells
    _warm_cells = request.param
    yield
    _warm_cells = 0


def settle(sandbox: Any) -> None:
    """Until the pool is as full as it will be. The first call of all finds the level and has no pool yet."""
    warm_cells = sandbox.settings.warm_cells
    if not warm_cells:
        return
    assert sandbox.execute("print('before')", timeout=30).stdout == "before\n"
    pools = sandbox._backend._engine._roots[False]._pools
    assert wait_until(lambda: len(pools[sandbox._planner.spec.limits, False]) >= min(2, warm_cells), 20)


@contextmanager
def sealed(**settings: Any) -> Iterator[Any]:
    """A sandbox, which must leave nothing running behind its executions."""
    try:
        settings = {"warm_cells": _warm_cells, **settings}
        sandbox = get_sandbox(isolation="sealed", require="sealed", store_code="never", **settings)
        with sandbox:
            assert sandbox.execute("print('before')", timeout=30).stdout == "before\n"
            settle(sandbox)
            before = len(family())
            yield sandbox
            assert wait_until(lambda: len(family()) <= before), f"left running: {family()}"
            assert sandbox.execute("print('after')", timeout=30).stdout == "after\n"
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def suffer(code: str, *, timeout: float = 3, inputs: dict[str, Any] | None = None, **settings: Any) -> Any:
    """One execution of a bad program, timed."""
    with sealed(**settings) as sandbox:
        began = time.monotonic()
        result = sandbox.execute(code, timeout=timeout, **(inputs or {}))
        assert time.monotonic() - began < timeout + SLACK_S, result
        assert result.meta["isolation"]["level"] == "sealed"
    return result


def assert_timed_out(result: Any) -> None:
    assert (result.exit_code, result.meta["reason"], result.meta["timed_out"]) == (-1, "timeout", True), result
    assert "timed out" in result.stderr


def own_rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- RES: using everything up


def test_a_fork_bomb_is_stopped_at_the_limit() -> None:  # res01
    result = suffer(probe("res01"), timeout=20, processes=64)
    assert result.meta["reason"] == "processes", result
    assert "SANDBOX_PROCESSES" in result.stderr
    assert subprocess.run(["true"]).returncode == 0


STUBBORN_BOMB = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
print('bomb', flush=True)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
"""


def test_a_fork_bomb_that_never_gives_up_ends_with_the_deadline() -> None:
    result = suffer(STUBBORN_BOMB, timeout=2, processes=64)
    assert result.stdout.startswith("bomb\n")
    assert result.meta["reason"] in ("timeout", "processes"), result
    assert result.exit_code != 0


FORK_UNTIL_REFUSED = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        made += 1
except OSError:
    print(made)
"""


def test_a_program_may_start_as_many_processes_as_the_limit_allows() -> None:
    result = suffer(FORK_UNTIL_REFUSED, processes=50, timeout=10)
    assert 40 <= int(result.stdout) <= 50, result


def test_a_thread_bomb_is_stopped_at_the_limit() -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    result = suffer(code, timeout=5, processes=64)
    assert result.meta["reason"] == "processes", result
    assert "can't start new thread" in result.stderr


def test_a_memory_bomb_of_one_process_is_killed_for_memory() -> None:  # res03
    result = suffer(probe("res03"), memory_mb=256, timeout=20)
    assert result.meta["reason"] == "memory" or "MemoryError" in result.stderr, result
    assert "SANDBOX_MEMORY_MB" in result.stderr


MANY_EATERS = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        eaten = bytearray(100 << 20)
        for page in range(0, len(eaten), 4096): eaten[page] = 1
        time.sleep(2)
        os._exit(0)
statuses = [os.wait()[1] for _ in range(8)]
raise SystemExit(1 if any(statuses) else 0)
"""


def test_memory_is_counted_over_all_processes() -> None:
    result = suffer(MANY_EATERS, memory_mb=256, timeout=20)
    assert result.meta["reason"] == "memory", result
    assert result.exit_code != 0


def test_memory_is_watched_in_a_cell_that_is_taken_the_moment_it_is_ready() -> None:
    """The program has forked and waits before anybody looks for the first time."""
    with sealed() as sandbox:
        root = sandbox._backend._engine._roots[False]
        if root.zygote.groups.counts("memory"):
            pytest.skip("control groups count memory here")
        limits = sandbox._planner.spec.limits._replace(memory_bytes=256 << 20)
        cell = root.make_cell(limits, waits=True)
        try:
            assert cell.wait_ready(15)
            cell.feed(program(Command(("python", "main.py"), MANY_EATERS.encode()), {}), b"")
            assert wait_until(lambda: isinstance(event := cell.read(1), Exited) and event.reason == "memory", 20)
        finally:
            cell.close()


def test_memory_files_count_as_memory() -> None:  # res05
    result = suffer(probe("res05"), memory_mb=128, file_mb=512, timeout=20)
    assert result.exit_code != 0, result
    if "cgroup" in result.meta["isolation"]["memory"]["mechanism"]:
        assert result.meta["reason"] == "memory", result  # elsewhere the size of each file is what bounds it


SHARED = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor page in range(0, 1 << 30, 4096): m[page] = 1\nprint('all of it')"


def test_anonymous_shared_memory_counts_as_memory() -> None:
    result = suffer(SHARED, memory_mb=128, timeout=20)
    assert "all of it" not in result.stdout
    assert result.meta["reason"] == "memory", result


@pytest.mark.parametrize("place", ["/tmp", "/workspace", "/dev/shm", "$HOME"])
def test_a_full_disk_is_an_error_inside(place: str) -> None:  # res06
    code = probe("res06").replace("open('/tmp/f'", f"open(os.path.expandvars('{place}/f')")
    result = suffer(code, disk_mb=16, file_mb=4096, timeout=20)
    assert "No space left on device" in result.stderr, result
    assert result.meta["reason"] == "disk"
    assert "SANDBOX_DISK_MB" in result.stderr


def test_running_out_of_inodes_is_an_error_inside() -> None:  # res08
    result = suffer(probe("res08"), inodes=500, timeout=20)
    assert "No space left on device" in result.stderr, result
    assert result.meta["reason"] == "disk"


def test_running_out_of_descriptors_is_an_error_inside() -> None:  # res10
    result = suffer(probe("res10"), open_files=100, timeout=20)
    assert "Too many open files" in result.stderr
    assert (result.exit_code, result.meta["reason"]) == (1, "error")


def test_full_pipes_are_bounded() -> None:  # res11
    before = own_rss_bytes()
    result = suffer(probe("res11") + "\nprint('full', len(l))", timeout=20)
    assert result.stdout == "full 500\n" or result.exit_code == 1, result
    assert own_rss_bytes() - before < 64 << 20


def test_a_spin_in_c_with_signals_blocked_ends_with_the_deadline() -> None:  # res13
    assert_timed_out(suffer(probe("res13"), timeout=1.5))


def test_a_huge_sparse_file_is_refused() -> None:  # res15
    result = suffer(probe("res15"), timeout=10)
    assert result.exit_code != 0, result
    assert "File too large" in result.stderr or "SIGXFSZ" in result.stderr


def test_refused_calls_write_nothing_to_the_kernel_log() -> None:  # res16
    before = kernel_log_lines()
    code = probe("res16").replace("10**6", "10**5") + "\nprint(sc(272,97,0x10000000))"
    result = suffer(code, timeout=20)
    assert result.stdout == "EPERM\n", result
    if before is None:
        pytest.skip("the kernel log cannot be read by this user; that the calls were refused is checked")
    assert (kernel_log_lines() or 0) - before < 100


def kernel_log_lines() -> int | None:
    shown = subprocess.run(["dmesg"], capture_output=True, text=True)
    return len(shown.stdout.splitlines()) if shown.returncode == 0 else None


def test_inotify_used_up_inside_is_left_for_the_host() -> None:  # res18
    code = probe("res18") + "\nprint('made', len([f for f in fds if f >= 0]) > 0, flush=True)\ntime.sleep(2)"
    with sealed() as sandbox, ThreadPoolExecutor(1) as pool:
        greedy = pool.submit(sandbox.execute, code, timeout=10)
        time.sleep(1)
        watcher = subprocess.run(
            [sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).inotify_init())"],
            capture_output=True,
            text=True,
        )
        assert int(watcher.stdout) >= 0
        assert greedy.result().stdout.startswith("made True"), greedy.result()


def test_zombies_are_bounded() -> None:  # res20
    result = suffer(probe("res20"), timeout=5, processes=64)
    assert result.meta["reason"] in ("processes", "timeout"), result


ORPHANS = """
import os, time
for _ in range(500):
    child = os.fork()
    if child == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
print('reaped')
"""


def test_orphans_are_reaped_inside() -> None:
    assert suffer(ORPHANS, processes=64, timeout=30).stdout == "reaped\n"


# ---- OUT: what it writes


def test_a_flood_of_output_is_cut_and_then_killed() -> None:  # out01
    before = own_rss_bytes()
    result = suffer(probe("out01"), output_kill_mb=64, timeout=30)
    assert (result.meta["reason"], result.meta["truncated"]) == ("output", True), result.meta
    assert len(result.stdout) < 11_000
    assert "SANDBOX_OUTPUT_KILL_MB" in result.stderr
    assert own_rss_bytes() - before < 64 << 20


def test_one_line_of_a_gigabyte_leaves_the_host_flat() -> None:  # out03
    before = own_rss_bytes()
    result = suffer(probe("out03") + "\nsys.exit(3)", output_kill_mb=2048, timeout=60)
    assert (result.exit_code, result.meta["truncated"]) == (3, True), result.meta
    assert "... (output truncated)" in result.stdout
    assert len(result.stdout) < 11_000
    assert own_rss_bytes() - before < 64 << 20


def test_a_character_split_between_writes_arrives_whole() -> None:  # out05
    assert suffer(probe("out05")).stdout == "\U0001f600"


def test_escape_sequences_are_data() -> None:  # out06
    assert suffer(probe("out06")).stdout == "\x1b]52;c;aGk=\x07\x1b[2J\x1b]0;pwn\x07\n"


def test_nul_and_broken_text_make_a_result_that_is_json() -> None:  # out08
    code = "import os\nos.write(1, b'\\xff\\x00\\xed\\xa0\\x80')\nos.write(2, bytes(range(256)))"
    for result in (suffer(probe("out08")), suffer(code)):
        text = json.dumps({"stdout": result.stdout, "stderr": result.stderr})
        json.loads(text)
        text.encode()
        assert "\0" in result.stdout + result.stderr


def test_a_daemon_that_holds_stdout_does_not_delay_the_result() -> None:  # out10
    code = "import os, sys, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)\nprint('done')"
    result = suffer(code, timeout=20)
    assert (result.stdout, result.exit_code) == ("done\n", 0)
    assert result.duration < 10


def test_the_program_is_the_parent_and_its_end_is_the_end() -> None:  # out10, to the letter: the child goes on
    result = suffer(probe("out10"), timeout=2)
    assert "done" in result.stdout or result.meta["reason"] == "timeout", result


def test_millions_of_tiny_writes_stay_cheap() -> None:  # out11
    before = time.process_time()
    result = suffer(probe("out11").replace("10**7", "10**6"), timeout=30)
    assert result.meta["truncated"], result.meta
    assert result.meta["reason"] in ("ok", "timeout")
    assert time.process_time() - before < 25


def test_binary_output_is_a_result() -> None:
    result = suffer("import os\nos.write(1, os.urandom(5000))\nos.write(2, b'\\xfe' * 100)")
    assert (result.exit_code, result.meta["reason"]) == (0, "ok")
    assert result.stdout


@pytest.mark.parametrize(
    "closing", ["for fd in (0, 1, 2): os.close(fd)", "os.closerange(0, 1024)", "sys.stdout.close()"]
)
def test_closed_outputs_are_a_result(closing: str) -> None:
    result = suffer(f"import os, sys\nprint('first', flush=True)\n{closing}\nos._exit(5)")
    assert (result.stdout, result.exit_code) == ("first\n", 5)


def test_closed_outputs_and_then_silence_end_with_the_deadline() -> None:
    assert_timed_out(suffer("import os, time\nos.closerange(0, 64)\ntime.sleep(60)", timeout=1))


def test_what_was_written_before_a_hard_exit_is_kept() -> None:
    result = suffer("import os\nos.write(1, b'x' * 5000)\nos._exit(9)")
    assert (len(result.stdout), result.exit_code, result.meta["reason"]) == (5000, 9, "error")


# ---- LIFE: not ending, ending oddly


IGNORES_EVERYTHING = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: time.sleep(60)
"""


@pytest.mark.parametrize("code", [probe("lif01"), IGNORES_EVERYTHING], ids=["lif01", "everything"])
def test_ignoring_signals_does_not_help(code: str) -> None:
    result = suffer(code, timeout=1)
    assert_timed_out(result)
    assert 0.9 < result.duration < 1 + SLACK_S


def test_a_daemon_in_its_own_session_ends_with_the_program() -> None:  # lif03
    result = suffer(probe("lif03"), timeout=20)
    assert (result.stdout, result.exit_code) == ("ok\n", 0)
    assert result.duration < 10


@pytest.mark.parametrize("name", ["lif05", "lif06"])
def test_stopping_itself_or_everyone_ends_with_the_deadline(name: str) -> None:
    others = "import os, time\nif os.fork() == 0: time.sleep(60)\n"
    assert_timed_out(suffer(others + probe(name) + "\ntime.sleep(60)", timeout=1))


STOPS_ITS_CHILD = """
import os, signal, time
child = os.fork()
if child == 0: time.sleep(600)
os.kill(child, signal.SIGSTOP)
print('stopped')
"""


def test_stopping_children_ends_with_the_program() -> None:
    assert suffer(STOPS_ITS_CHILD).stdout == "stopped\n"


@pytest.mark.parametrize(
    ("statement", "exit_code", "says"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("sys.exit(256)", 0, ""),
        ("sys.exit(-1)", 255, ""),
        ("sys.exit(300)", 44, ""),
        ("os._exit(0)", 0, ""),
        ("raise SystemExit(2)", 2, ""),
    ],
)
def test_exit_codes_are_those_of_the_system(statement: str, exit_code: int, says: str) -> None:  # lif08, frg05
    result = suffer(f"import os, sys\n{statement}\nprint('not reached')")
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", says)
    assert result.meta["reason"] == ("ok" if exit_code == 0 else "error")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT, signal.SIGXCPU])
def test_death_by_a_signal_is_named(number: signal.Signals) -> None:
    result = suffer(f"import os\nos.kill(os.getpid(), {int(number)})\nimport time; time.sleep(9)")
    assert (result.exit_code, result.meta["reason"]) == (128 + number, "signal"), result
    assert number.name in result.stderr


def test_a_thread_that_never_ends_keeps_the_program_until_the_deadline() -> None:  # lif10
    result = suffer(probe("lif10") + "\nsys.stdout.flush()", timeout=1)
    assert_timed_out(result)
    assert result.stdout == "done\n"


def test_a_blocked_child_ends_with_the_deadline() -> None:  # lif13
    assert_timed_out(suffer("import os\nos.system('sleep 999')", timeout=1))


def test_nothing_is_left_for_the_next_one() -> None:  # lif15
    mark = secrets.token_hex(8)
    look = "import os\nprint([d for d, _, f in os.walk('/workspace') if '.note' in f], os.path.exists('/tmp/.note'))"
    with sealed() as sandbox:
        assert sandbox.execute(probe("lif15", CANARY=mark), timeout=10).exit_code == 0
        assert sandbox.execute(look, timeout=10).stdout == "[] False\n"


def test_cpu_time_is_bounded() -> None:
    result = suffer("while True: pass", cpu_sec=1, timeout=20)
    assert result.meta["reason"] == "signal", result
    assert "SANDBOX_CPU_SEC" in result.stderr


# ---- FORGE: lying about how it went


def test_nothing_is_read_from_what_it_prints() -> None:  # frg01, frg08
    code = probe("frg01") + "\n" + PROBES["frg08"] + "\nsys.exit(6)"
    result = suffer(code)
    assert (result.exit_code, result.meta["reason"]) == (6, "error")
    assert "<<RESULT>>" in result.stdout


def test_half_a_frame_and_then_silence_ends_with_the_deadline() -> None:  # frg08
    assert_timed_out(suffer(probe("frg08") + "\ntime.sleep(60)", timeout=1))


def test_the_frames_above_the_program_hold_no_secret() -> None:  # frg03
    code = probe("frg03") + "\nprint([f.frame.f_locals.keys() for f in inspect.stack()[:1]])"
    result = suffer(code)
    assert result.exit_code == 0, result
    for word in ("nonce", "token", "secret", "control", "key"):
        assert f"'{word}'" not in result.stdout


def test_an_object_with_a_will_of_its_own_stays_inside(tmp_path: Path) -> None:  # frg06
    trace = tmp_path / "ran"
    code = probe("frg06").replace("'id'", f"'touch {trace}'") + "\nimport pickle; os.write(1, pickle.dumps(result))"
    assert suffer(code).exit_code == 0
    assert not trace.exists()


HIDES_ITS_USE = """
import resource, time
resource.getrusage = lambda *_: None
eaten = bytearray(b'x') * (50 << 20)
end = time.process_time() + 0.5
while time.process_time() < end: pass
"""


def test_resource_usage_is_measured_outside() -> None:  # frg10
    usage = suffer(HIDES_ITS_USE, timeout=20).meta["usage"]
    assert usage["cpu_s"] > 0.3
    assert usage["max_rss_bytes"] > 40 << 20


def test_the_words_of_a_refusal_change_nothing() -> None:  # frg11
    result = suffer(probe("frg11"))
    assert (result.exit_code, result.meta["reason"]) == (1, "error")
    assert result.meta["isolation"]["level"] == "sealed"
    assert result.stderr == "bwrap: operation not permitted (sandbox)"


# ---- the host's own faults

HOST = """
import os, sys, threading, time
from fumehood import get_sandbox
code = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        break
print('up', flush=True)
time.sleep(300)
'''
sandbox = get_sandbox(isolation='sealed', require='sealed', store_code='never')
def run(): sandbox.execute(code, timeout=200)
for _ in range({THREADS}): threading.Thread(target=run, daemon=True).start()
print('started', flush=True)
run() if {THREADS} == 0 else time.sleep(300)
"""


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_host_takes_every_cell_with_it(threads: int, number: signal.Signals) -> None:  # lif11
    host = subprocess.Popen(
        [sys.executable, "-c", HOST.replace("{THREADS}", str(threads))], stdout=subprocess.PIPE, text=True
    )
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == "started\n"
        enough = max(threads, 1) * 5  # PID 1 and four of the program, for each
        assert wait_until(lambda: len(family(host.pid)) >= enough, 30), family(host.pid)
        doomed = {pid: born(pid) for pid in family(host.pid)}
    finally:
        host.send_signal(number)
        host.wait()
        host.stdout.close()

    def left() -> list[int]:
        return [pid for pid, when in doomed.items() if born(pid) == when and state(pid) != "Z"]

    assert wait_until(lambda: not left()), f"alive without their host: {left()}"


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_cells_outlive_the_thread_that_asked_first() -> None:
    """A parent-death signal follows the thread, not the process."""
    with sealed() as sandbox:
        results: list[Any] = []
        for _ in range(3):
            thread = threading.Thread(target=lambda: results.append(sandbox.execute("print(1)", timeout=20)))
            thread.start()
            thread.join()
        time.sleep(0.2)
        results.append(sandbox.execute("print(1)", timeout=20))
        assert [result.stdout for result in results] == ["1\n"] * 4


def in_a_new_thread_first() -> None:
    """For a fresh process: the first use, which starts everything, is from a thread that then ends."""
    with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
        thread = threading.Thread(target=sandbox.execute, args=("print(1)",))
        thread.start()
        thread.join()
        time.sleep(0.3)
        print(sandbox.execute("print('still served')", timeout=20).stdout, end="")


def test_the_engine_outlives_the_thread_that_started_it() -> None:
    path = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {path!r}); import test_faults; test_faults.in_a_new_thread_first()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "still served\n", shown.stderr


FORKED = """
import os, sys
from fumehood import get_sandbox
sandbox = get_sandbox(isolation='sealed', require='sealed', store_code='never')
print(sandbox.execute("print('before')").stdout, end='', flush=True)
child = os.fork()
if child == 0:
    ok = all(sandbox.execute("print('child')").stdout == 'child\\n' for _ in range(5))
    with get_sandbox(isolation='sealed', require='sealed', store_code='never') as other:
        ok = ok and other.execute("print('other')").stdout == 'other\\n'
    os._exit(0 if ok else 1)
mine = [sandbox.execute("print('parent')").stdout for _ in range(5)]
status = os.waitpid(child, 0)[1]
mine.append(sandbox.execute("print('parent')").stdout)
print(status, set(mine))
"""


def test_a_forked_host_works_on_both_sides() -> None:
    shown = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "before\n0 {'parent\\n'}\n", shown.stderr


def work(number: int) -> str:
    with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
        return str(sandbox.execute(f"print({number} * 2)", timeout=20).stdout)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_workers_can_execute(method: str) -> None:
    path = str(Path(__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {path!r})\nimport multiprocessing, test_faults\n"
        "if __name__ == '__main__':\n"
        "    test_faults.work(0)\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(test_faults.work, range(6)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert shown.stdout == "['0\\n', '2\\n', '4\\n', '6\\n', '8\\n', '10\\n']\n", shown.stderr


def test_many_at_once_are_all_served() -> None:
    with sealed() as sandbox, ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: sandbox.execute(f"print({n})", timeout=60), range(64)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]


def test_the_corpus_is_covered() -> None:
    """Every host-side probe of these groups is named in this file."""
    text = Path(__file__).read_text()
    ids = [p["id"] for p in _corpus["PROBES"] if not p["run"] and p["group"] in ("RES", "OUT", "LIFE", "FORGE")]
    assert [name for name in ids if not re.search(name, text)] == []
