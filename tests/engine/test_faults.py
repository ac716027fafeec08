"""Programs that misbehave. Each is a result, and nothing of it is left."""

from __future__ import annotations

import json
import re
import resource
import runpy
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from process_view import descendants

from fumehood import get_sandbox
from fumehood.engine.order import program
from fumehood.errors import IsolationUnavailable
from fumehood.types import Command, Exited, Output
from harness.attacks import EXHAUSTS
from support import HANG_S, wait_until

_corpus = runpy.run_path(str(Path(__file__).parents[1] / "escape" / "probes.py"))
PROBES = {probe["id"]: probe["code"] for probe in _corpus["PROBES"]}


def probe(name: str, **values: str) -> str:
    """The corpus's own program, with the prelude its author gave it."""
    text = _corpus["PRELUDE"] + PROBES[name]
    for key, value in {"CANARYHEX": "00", "WS": "/workspace", "OUT": "/workspace", **values}.items():
        text = text.replace("{" + key + "}", value)
    return text


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
    assert sandbox.execute("print('before')", timeout=HANG_S).stdout == "before\n"
    pools = sandbox._backend._engine._roots[False]._pools
    limits = sandbox._planner.spec.limits.built_in()
    assert wait_until(lambda: len(pools[limits, False]) >= min(2, warm_cells))


@contextmanager
def sealed(**settings: Any) -> Iterator[Any]:
    """A sandbox, which must leave nothing running behind its executions."""
    try:
        settings = {"warm_cells": _warm_cells, **settings}
        sandbox = get_sandbox(isolation="sealed", require="sealed", store_code="never", **settings)
        with sandbox:
            assert sandbox.execute("print('before')", timeout=HANG_S).stdout == "before\n"
            settle(sandbox)
            before = len(descendants())
            yield sandbox
            assert wait_until(lambda: len(descendants()) <= before), f"left running: {descendants()}"
            assert sandbox.execute("print('after')", timeout=HANG_S).stdout == "after\n"
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def suffer(code: str, *, timeout: float = HANG_S, inputs: dict[str, Any] | None = None, **settings: Any) -> Any:
    """One execution of a bad program, which ends by itself or is ended for a limit."""
    with sealed(**settings) as sandbox:
        result = sandbox.execute(code, timeout=timeout, **(inputs or {}))
        assert result.meta["isolation"]["level"] == "sealed"
    return result


BEGUN = "begun"


def suffer_to_the_deadline(code: str, **settings: Any) -> Any:
    """One execution of a program that says BEGUN and never ends by itself.

    On a busy machine a short time may be over before it has said so; then it is given more.
    """
    timeout = 1.0
    while BEGUN not in (result := suffer(code, timeout=timeout, **settings)).stdout:
        assert result.meta["reason"] == "timeout", result
        timeout *= 2
        assert timeout < HANG_S, result
    assert result.duration >= timeout or result.meta["reason"] != "timeout"
    return result


def assert_timed_out(result: Any) -> None:
    assert (result.exit_code, result.meta["reason"], result.meta["timed_out"]) == (-1, "timeout", True), result
    assert "timed out" in result.stderr


def own_rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def say_begun() -> str:
    """For the start of a program that does not say it itself."""
    return f"print('{BEGUN}', flush=True)\n"


# ---- RES: using everything up


@pytest.mark.attack("processes", without=EXHAUSTS)
def test_a_fork_bomb_is_stopped_at_the_limit() -> None:  # res01
    result = suffer(probe("res01"), processes=64)
    assert result.meta["reason"] == "processes", result
    assert "SANDBOX_PROCESSES" in result.stderr
    assert subprocess.run(["true"]).returncode == 0


STUBBORN_BOMB = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
print('begun', flush=True)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
"""


@pytest.mark.attack("cpu", without=EXHAUSTS)
def test_a_fork_bomb_that_never_gives_up_ends_with_the_deadline() -> None:
    result = suffer_to_the_deadline(STUBBORN_BOMB, processes=64)
    assert result.meta["reason"] in ("timeout", "processes"), result
    assert result.exit_code != 0


FORK_UNTIL_REFUSED = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0: time.sleep(3600)
        made += 1
except OSError:
    print(made)
"""


def test_a_program_may_start_as_many_processes_as_the_limit_allows() -> None:
    result = suffer(FORK_UNTIL_REFUSED, processes=50)
    assert 40 <= int(result.stdout) <= 50, result


@pytest.mark.attack("processes", without=EXHAUSTS)
def test_a_thread_bomb_is_stopped_at_the_limit() -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
    result = suffer(code, processes=64)
    assert result.meta["reason"] == "processes", result
    assert "can't start new thread" in result.stderr


@pytest.mark.attack("memory", without=EXHAUSTS)
def test_a_memory_bomb_of_one_process_is_killed_for_memory() -> None:  # res03
    result = suffer(probe("res03"), memory_mb=256)
    assert result.meta["reason"] == "memory" or "MemoryError" in result.stderr, result
    assert "SANDBOX_MEMORY_MB" in result.stderr


MANY_EATERS = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        eaten = bytearray(100 << 20)
        for page in range(0, len(eaten), 4096): eaten[page] = 1
        time.sleep(3600)  # all of it at once
        os._exit(0)
statuses = [os.wait()[1] for _ in range(8)]
raise SystemExit(1 if any(statuses) else 0)
"""


@pytest.mark.attack("memory", without=EXHAUSTS)
def test_memory_is_counted_over_all_processes() -> None:
    result = suffer(MANY_EATERS, memory_mb=256)
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
            assert cell.wait_ready(HANG_S)
            cell.feed(program(Command(("python", "main.py"), MANY_EATERS.encode()), {}), b"")
            assert wait_until(lambda: isinstance(event := cell.read(1), Exited) and event.reason == "memory")
        finally:
            cell.close()


@pytest.mark.attack("memory", without=EXHAUSTS)
def test_memory_files_count_as_memory() -> None:  # res05
    result = suffer(probe("res05"), memory_mb=128, file_mb=512)
    assert result.exit_code != 0, result
    if "cgroup" in result.meta["isolation"]["memory"]["mechanism"]:
        assert result.meta["reason"] == "memory", result  # elsewhere the size of each file is what bounds it


SHARED = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor page in range(0, 1 << 30, 4096): m[page] = 1\nprint('all of it')"


@pytest.mark.attack("memory", without=EXHAUSTS)
def test_anonymous_shared_memory_counts_as_memory() -> None:
    result = suffer(SHARED, memory_mb=128)
    assert "all of it" not in result.stdout
    was_refused = "Cannot allocate memory" in result.stderr  # where PID 1 is asked for it
    assert result.meta["reason"] == "memory" or was_refused, result


@pytest.mark.attack("disk", without=EXHAUSTS)
@pytest.mark.parametrize("place", ["/tmp", "/workspace", "/dev/shm", "$HOME"])
def test_a_full_disk_is_an_error_inside(place: str) -> None:  # res06
    code = probe("res06").replace("open('/tmp/f'", f"open(os.path.expandvars('{place}/f')")
    result = suffer(code, disk_mb=16, file_mb=4096)
    assert "No space left on device" in result.stderr, result
    assert result.meta["reason"] == "disk"
    assert "SANDBOX_DISK_MB" in result.stderr


@pytest.mark.attack("disk", without=EXHAUSTS)
def test_running_out_of_inodes_is_an_error_inside() -> None:  # res08
    result = suffer(probe("res08"), inodes=500)
    assert "No space left on device" in result.stderr, result
    assert result.meta["reason"] == "disk"


@pytest.mark.attack("RLIMIT_NOFILE", without=EXHAUSTS)
def test_running_out_of_descriptors_is_an_error_inside() -> None:  # res10
    result = suffer(probe("res10"), open_files=100)
    assert "Too many open files" in result.stderr
    assert (result.exit_code, result.meta["reason"]) == (1, "error")


@pytest.mark.attack("memory", without=EXHAUSTS)
def test_full_pipes_are_bounded() -> None:  # res11
    before = own_rss_bytes()
    result = suffer(probe("res11") + "\nprint('full', len(l))")
    assert result.stdout == "full 500\n" or result.exit_code == 1, result
    assert own_rss_bytes() - before < 64 << 20


@pytest.mark.attack("cpu", without="it would never end")
def test_a_spin_in_c_with_signals_blocked_ends_with_the_deadline() -> None:  # res13
    assert_timed_out(suffer_to_the_deadline(say_begun() + probe("res13")))


@pytest.mark.attack("disk", without=EXHAUSTS)
def test_a_huge_sparse_file_is_refused() -> None:  # res15
    result = suffer(probe("res15"))
    assert result.exit_code != 0, result
    assert "File too large" in result.stderr or "SIGXFSZ" in result.stderr


@pytest.mark.attack("syscalls", without="it would fill the kernel's log")
def test_refused_calls_write_nothing_to_the_kernel_log() -> None:  # res16
    before = kernel_log_lines()
    code = probe("res16").replace("10**6", "10**5") + "\nprint(sc(272,97,0x10000000))"
    result = suffer(code)
    assert result.stdout == "EPERM\n", result
    if before is None:
        pytest.skip("the kernel log cannot be read by this user; that the calls were refused is checked")
    assert (kernel_log_lines() or 0) - before < 100


def kernel_log_lines() -> int | None:
    shown = subprocess.run(["dmesg"], capture_output=True, encoding="utf-8", errors="replace")
    return len(shown.stdout.splitlines()) if shown.returncode == 0 else None


@pytest.mark.attack("limits of the user namespace for what the kernel counts per user", without=EXHAUSTS)
def test_inotify_used_up_inside_is_left_for_the_host() -> None:  # res18
    code = probe("res18") + "\nprint('made', len([f for f in fds if f >= 0]) > 0, flush=True)\ntime.sleep(3600)"
    with sealed() as sandbox:
        engine, limits = sandbox._backend._engine, sandbox._planner.spec.limits
        greedy = engine.start(Command(("python", "main.py"), code.encode()), limits, network=False)
        try:
            said = greedy.read(HANG_S)
            assert isinstance(said, Output)
            assert said.data == b"made True\n"
            watcher = subprocess.run(
                [sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).inotify_init())"],
                capture_output=True,
                encoding="utf-8",
            )
            assert int(watcher.stdout) >= 0
        finally:
            greedy.close()


@pytest.mark.attack(
    "seccomp: no inotify instances", control="test_inotify_used_up_inside_is_left_for_the_host", level="confined"
)
def test_below_sealed_there_is_no_inotify_to_use_up() -> None:
    """There its instances would be those of the host's user. The control arm is the test above: `made True`."""
    code = probe("res18") + "\nprint('made', len([f for f in fds if f >= 0]), flush=True)"
    try:
        with get_sandbox(isolation="confined", store_code="never", warm_cells=0) as sandbox:
            assert sandbox.execute(code, timeout=HANG_S).stdout.endswith("made 0\n")
    except IsolationUnavailable as missing:
        pytest.skip(f"no confined sandbox on this machine: {missing}")


@pytest.mark.attack("processes", without=EXHAUSTS)
def test_zombies_are_bounded() -> None:  # res20
    result = suffer_to_the_deadline(say_begun() + probe("res20"), processes=64)
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
    assert suffer(ORPHANS, processes=64).stdout == "reaped\n"


# ---- OUT: what it writes


@pytest.mark.attack("output is read as it comes and not kept beyond the cap", without=EXHAUSTS)
def test_a_flood_of_output_is_cut_and_then_killed() -> None:  # out01
    before = own_rss_bytes()
    result = suffer(probe("out01"), output_kill_mb=64)
    assert (result.meta["reason"], result.meta["truncated"]) == ("output", True), result.meta
    assert len(result.stdout) < 11_000
    assert "SANDBOX_OUTPUT_KILL_MB" in result.stderr
    assert own_rss_bytes() - before < 64 << 20


@pytest.mark.attack("output is read as it comes and not kept beyond the cap", without=EXHAUSTS)
@pytest.mark.parametrize("megabytes", [160, pytest.param(1024, marks=pytest.mark.soak)])
def test_one_line_of_up_to_a_gigabyte_leaves_the_host_flat(megabytes: int) -> None:  # out03
    before = own_rss_bytes()
    code = probe("out03").replace("range(1024)", f"range({megabytes})")
    result = suffer(code + "\nsys.exit(3)", output_kill_mb=2048)
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


@pytest.mark.attack("processes", without="a pipe that is held open blocks any reader")
def test_a_daemon_that_holds_stdout_does_not_delay_the_result() -> None:  # out10
    code = "import os, sys, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(3600)\nprint('done')"
    result = suffer(code)
    assert (result.stdout, result.exit_code) == ("done\n", 0)


def test_the_program_is_the_parent_and_its_end_is_the_end() -> None:  # out10, to the letter: the child goes on
    result = suffer_to_the_deadline(say_begun() + probe("out10").replace("600", "3600"))
    assert "done" in result.stdout or result.meta["reason"] == "timeout", result


@pytest.mark.parametrize("exponent", [5, pytest.param(7, marks=pytest.mark.soak)])
def test_many_tiny_writes_are_a_result(exponent: int) -> None:  # out11
    before = own_rss_bytes()
    result = suffer(probe("out11").replace("10**7", f"10**{exponent}"))
    assert (result.exit_code, result.meta["reason"], result.meta["truncated"]) == (0, "ok", True), result.meta
    assert own_rss_bytes() - before < 64 << 20


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
    code = say_begun() + "import os, time\nos.closerange(0, 64)\ntime.sleep(3600)"
    assert_timed_out(suffer_to_the_deadline(code))


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
print('begun', flush=True)
while True: time.sleep(60)
"""


IGNORES_SOME = probe("lif01").replace("; time.sleep(999)", "; print('begun', flush=True); time.sleep(3600)")


@pytest.mark.attack("cpu", without="it would never end")
@pytest.mark.parametrize("code", [IGNORES_SOME, IGNORES_EVERYTHING], ids=["lif01", "everything"])
def test_ignoring_signals_does_not_help(code: str) -> None:
    assert_timed_out(suffer_to_the_deadline(code))


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
def test_a_daemon_in_its_own_session_ends_with_the_program() -> None:  # lif03
    result = suffer(probe("lif03").replace("999", "3600"))
    assert (result.stdout, result.exit_code) == ("ok\n", 0)


@pytest.mark.attack("cpu", without="it would stop the tests")
@pytest.mark.parametrize("name", ["lif05", "lif06"])
def test_stopping_itself_or_everyone_ends_with_the_deadline(name: str) -> None:
    others = "import os, time\nif os.fork() == 0: time.sleep(3600)\n"
    assert_timed_out(suffer_to_the_deadline(say_begun() + others + probe(name) + "\ntime.sleep(3600)"))


STOPS_ITS_CHILD = """
import os, signal, time
child = os.fork()
if child == 0: time.sleep(3600)
os.kill(child, signal.SIGSTOP)
print('stopped')
"""


@pytest.mark.attack("processes", without="they would stay")
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
    result = suffer(f"import os\nos.kill(os.getpid(), {int(number)})\nimport time; time.sleep(3600)")
    assert (result.exit_code, result.meta["reason"]) == (128 + number, "signal"), result
    assert number.name in result.stderr


@pytest.mark.attack("cpu", without="it would never end")
def test_a_thread_that_never_ends_keeps_the_program_until_the_deadline() -> None:  # lif10
    code = probe("lif10").replace("999", "3600").replace("'done'", f"'{BEGUN}'")
    result = suffer_to_the_deadline(code + "\nsys.stdout.flush()")
    assert_timed_out(result)
    assert result.stdout == f"{BEGUN}\n"


@pytest.mark.attack("cpu", without="it would never end")
def test_a_blocked_child_ends_with_the_deadline() -> None:  # lif13
    assert_timed_out(suffer_to_the_deadline(f"import os\nos.system('echo {BEGUN}; sleep 3600')"))


def test_nothing_is_left_for_the_next_one() -> None:  # lif15
    mark = secrets.token_hex(8)
    look = "import os\nprint([d for d, _, f in os.walk('/workspace') if '.note' in f], os.path.exists('/tmp/.note'))"
    with sealed() as sandbox:
        assert sandbox.execute(probe("lif15", CANARY=mark), timeout=HANG_S).exit_code == 0
        assert sandbox.execute(look, timeout=HANG_S).stdout == "[] False\n"


@pytest.mark.attack("cpu", without="it would never end")
def test_cpu_time_is_bounded() -> None:
    result = suffer("while True: pass", cpu_sec=1)
    assert result.meta["reason"] == "signal", result
    assert "SANDBOX_CPU_SEC" in result.stderr


# ---- FORGE: lying about how it went


@pytest.mark.attack("the host infers nothing from output", without="there is no host outside that could believe it")
def test_nothing_is_read_from_what_it_prints() -> None:  # frg01, frg08
    code = probe("frg01") + "\n" + PROBES["frg08"] + "\nsys.exit(6)"
    result = suffer(code)
    assert (result.exit_code, result.meta["reason"]) == (6, "error")
    assert "<<RESULT>>" in result.stdout


@pytest.mark.attack("the host infers nothing from output", without="there is no host outside that could believe it")
def test_half_a_frame_and_then_silence_ends_with_the_deadline() -> None:  # frg08
    assert_timed_out(suffer_to_the_deadline(say_begun() + probe("frg08") + "\ntime.sleep(3600)"))


@pytest.mark.attack(
    "the program starts with nothing of the host", without="there is no host outside that could believe it"
)
def test_the_frames_above_the_program_hold_no_secret() -> None:  # frg03
    code = probe("frg03") + "\nprint([f.frame.f_locals.keys() for f in inspect.stack()[:1]])"
    result = suffer(code)
    assert result.exit_code == 0, result
    for word in ("nonce", "token", "secret", "control", "key"):
        assert f"'{word}'" not in result.stdout


@pytest.mark.attack("nothing is unpickled on the host", without="there is no host outside that could believe it")
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


@pytest.mark.attack(
    "PID 1 and the kernel measure, not the program", without="there is no host outside that could believe it"
)
def test_resource_usage_is_measured_outside() -> None:  # frg10
    usage = suffer(HIDES_ITS_USE).meta["usage"]
    assert usage["cpu_s"] > 0.3
    assert usage["max_rss_bytes"] > 40 << 20


@pytest.mark.attack("the host infers nothing from output", without="there is no host outside that could believe it")
def test_the_words_of_a_refusal_change_nothing() -> None:  # frg11
    result = suffer(probe("frg11"))
    assert (result.exit_code, result.meta["reason"]) == (1, "error")
    assert result.meta["isolation"]["level"] == "sealed"
    assert result.stderr == "bwrap: operation not permitted (sandbox)"


def test_the_corpus_is_covered() -> None:
    """Every host-side probe of these groups is named in these files."""
    text = "".join(
        Path(__file__).with_name(name).read_text("utf-8") for name in ("test_faults.py", "test_host_faults.py")
    )
    ids = [p["id"] for p in _corpus["PROBES"] if not p["run"] and p["group"] in ("RES", "OUT", "LIFE", "FORGE")]
    assert [name for name in ids if not re.search(name, text)] == []
