"""Sessions: what is kept from call to call, what is not, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fumehood import AsyncSession, errors
from fumehood.execution import TRUNCATED
from fumehood.types import Display, Exited, Output
from marked import alive, gone, is_up, new_marker
from pace import at_some_pace, timed_out
from support import HANG_S, wait_until

from .conftest import SESSION_TARGETS, Kept, Target

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(params=SESSION_TARGETS, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


def in_the_background(marker: str) -> str:
    return f"import subprocess; child = subprocess.Popen(['sleep', '{marker}'], start_new_session=True)"


# ---- what is kept


def test_variables_imports_and_functions_are_kept(session: Kept) -> None:
    session.out("import math as m\nx = 20\ndef double(n): return 2 * n")
    assert session.out("print(double(x) + m.floor(2.5))") == "42"


def test_files_and_the_working_directory_are_kept(session: Kept) -> None:
    session.out("import os; os.mkdir('sub'); os.chdir('sub'); open('a', 'w').write('kept');")
    assert session.out("print(open('a').read(), os.path.basename(os.getcwd()))") == "kept sub"
    assert session.read("/workspace/sub/a") == b"kept"


def test_files_outlive_the_interpreter(session: Kept) -> None:
    session.out("open('a', 'w').write('kept');")
    session.run("import os; os._exit(1)")
    assert session.out("print(open('a').read())") == "kept"


def test_two_sessions_have_nothing_in_common(session: Kept) -> None:
    other = session(session_id="other")
    session.out("x = 1; open('a', 'w').write('mine');")
    result = other.run("import os; print(os.path.exists('a')); x")
    assert (result.stdout, "NameError" in result.stderr) == ("False\n", True)


# ---- values


LAST_EXPRESSIONS: list[tuple[str, list[str]]] = [
    ("1 + 1", ["2"]),
    ("x = 1", []),
    ("None", []),
    ("5;", []),
    ("display('a')\n'b'", ["a", "'b'"]),
    ("if True:\n    7", []),
    ("# nothing", []),
]


def test_the_last_expression_is_a_result(session: Kept) -> None:
    for code, results in LAST_EXPRESSIONS:
        result = session.run(code)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", ""), code
        shown = [bundle["text/plain"] for bundle in result.meta["results"]]
        assert [text.strip("'") for text in shown] == [text.strip("'") for text in results], code


def test_a_rich_value_comes_in_all_its_forms(session: Kept) -> None:
    code = f"""
        class Rich:
            def __repr__(self): return 'plain'
            def _repr_html_(self): return '<b>html</b>'
            def _repr_svg_(self): return '<svg/>'
            def _repr_json_(self): return {{'a': 1}}
            def _repr_png_(self): return {PNG!r}
        Rich()
    """
    (bundle,) = session.run(code).meta["results"]
    assert (bundle["text/plain"], bundle["text/html"], bundle["image/svg+xml"]) == ("plain", "<b>html</b>", "<svg/>")
    assert bundle["application/json"] == {"a": 1}
    assert base64.b64decode(bundle["image/png"]) == PNG


def test_a_form_that_has_no_mime_type_is_dropped_and_counted(session: Kept) -> None:
    code = (
        "display({'\\x1b]0;title\\x07/x': '1', 'text/html': '<b>'}, raw=True)\ndisplay({'text/\\x7f': '2'}, raw=True)"
    )
    meta = session.run(code).meta
    assert meta["results"] == [{"text/html": "<b>"}]
    assert meta["results_dropped"] == 2


def test_a_figure_comes_back_without_being_shown(session: Kept) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    code = "import matplotlib.pyplot as plt\nfigure = plt.figure(figsize=(1, 1)); plt.plot([1, 2]);"
    result = session(memory_mb=2048).run(code)
    assert (result.exit_code, result.stderr) == (0, "")
    (image,) = [bundle["image/png"] for bundle in result.meta["results"] if "image/png" in bundle]
    assert base64.b64decode(image).startswith(PNG)


def test_a_value_that_cannot_be_shown_is_named(session: Kept) -> None:
    result = session.run("class Bad:\n    def __repr__(self): raise ValueError('no repr')\nBad()")
    assert "ValueError" in result.meta["results"][0]["text/plain"]
    assert session.out("print('alive')") == "alive"


def test_tracebacks_point_into_the_submitted_code(session: Kept) -> None:
    session.out("def broken():\n    # a comment\n    raise ValueError('here')")
    result = session.run("a = 1\nbroken()")
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (1, "error", "kept")
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert "broken()" in lines
    assert "raise ValueError('here')" in lines
    assert lines[-1] == "ValueError: here"
    assert "fumehood" not in result.stderr
    assert "line 2, in <module>" in result.stderr
    assert "line 3, in broken" in result.stderr


def test_a_syntax_error_shows_the_line(session: Kept) -> None:
    result = session.run("x = 1\nx = = 2")
    assert result.exit_code == 1
    assert "x = = 2" in result.stderr
    assert "line 2" in result.stderr
    assert "NameError" in session.run("x").stderr


# ---- stopped


def test_a_time_out_interrupts_and_keeps_the_state(session: Kept) -> None:
    session.out("x = 41")
    code = "y = x + 1\nprint('began')\nimport time\nwhile True: time.sleep(0.01)"
    result, _ = timed_out(lambda timeout: session.run(code, timeout), "began")
    assert (result.stdout, result.meta["state"]) == ("began\n", "kept")
    assert session.out("print(y)") == "42"


def test_a_busy_loop_is_interrupted_too(session: Kept) -> None:
    session.out("x = 42")
    result, _ = timed_out(lambda timeout: session.run("print('began')\nwhile True: pass", timeout), "began")
    assert result.meta["state"] == "kept"
    assert session.out("print(x)") == "42"


STUBBORN = {
    "ignores": "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(0.01)",
    "blocks": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(0.01)",
    "catches": "while True:\n    try:\n        while True: time.sleep(0.01)\n    except BaseException: pass",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "deep in C": "sum(range(10**12))",
}


@pytest.mark.usefixtures("hurried")
def test_a_run_that_does_not_stop_loses_its_variables_and_not_its_files(session: Kept) -> None:
    session.out("open('a', 'w').write('kept');")
    for name, code in STUBBORN.items():

        def run(timeout: float, code: str = code) -> Any:
            session.out("import os, signal, time\nx = 1")
            return session.run("print('began', flush=True)\n" + code, timeout)

        result, _ = timed_out(run, "began")
        assert result.meta["state"] == "lost", name
        assert "variables" in result.stderr
        assert session.out("print(open('a').read(), 'x' in globals())") == "kept False", name


def test_a_run_that_ends_its_interpreter(session: Kept) -> None:
    session.out("x = 1")
    result = session.run("import os; print('last', flush=True); os._exit(3)")
    assert (result.stdout, result.exit_code, result.meta["state"]) == ("last\n", 3, "lost")
    assert "NameError" in session.run("x").stderr


def test_exit_is_an_exit_code_and_keeps_the_state(session: Kept) -> None:
    result = session.run("x = 1\nraise SystemExit(4)")
    assert (result.exit_code, result.stderr, result.meta["state"]) == (4, "", "kept")
    assert session.out("print(x)") == "1"


def test_a_crash_of_the_interpreter(session: Kept) -> None:
    result = session.run("x = 1\nimport ctypes; ctypes.string_at(0)")
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (139, "signal", "lost")
    assert "SIGSEGV" in result.stderr
    assert "NameError" in session.run("x").stderr


def test_the_memory_limit(session: Kept) -> None:
    small = session(memory_mb=150)
    small.out("open('a', 'w').write('kept');")
    result = small.run("""
        import time
        keep = []
        for _ in range(600): keep.append(bytearray(b"x" * 1024 * 1024))
        time.sleep(3600)  # where a process watches and not the kernel, it may come late
    """)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (137, "memory", "lost")
    assert "SANDBOX_MEMORY_MB" in result.stderr
    assert small.out("print(open('a').read())") == "kept"


def test_an_interpreter_that_died_between_two_runs_is_replaced_and_that_is_told(session: Kept) -> None:
    name = f"dying-{os.urandom(4).hex()}"
    session.out(f"""
        import ctypes, os, threading, time
        x = 1
        ctypes.CDLL(None).prctl(15, {name.encode()!r})  # PR_SET_NAME: to be known by, from outside
        threading.Thread(target=lambda: (time.sleep(0.2), os._exit(9))).start();
    """)
    assert wait_until(lambda: not has_the_name(name))
    result = session.run("print('ran')")
    assert (result.stdout, result.exit_code, result.meta["state"]) == ("ran\n", 0, "lost")
    assert "variables" in result.stderr
    assert session.run("print('again')").meta["state"] == "kept"


def has_the_name(name: str) -> bool:
    """Whether anybody who lives has it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                before, _, after = file.read().rpartition(")")
        except OSError:
            continue
        if before.partition("(")[2] == name and after.split()[0] not in "ZX":
            return True
    return False


def test_the_memory_limit_counts_for_runs_and_commands_together(session: Kept) -> None:
    small = session(memory_mb=300)
    greedy = "keep = bytearray(b'x') * (180 << 20)"
    small.out(greedy)
    meta = small.exec(["python", "-c", greedy], HANG_S).meta
    if session.target.level != "fake" and "cgroup" not in meta["isolation"]["memory"]["mechanism"]:
        pytest.skip("without control groups each command and its children are counted for themselves")
    assert meta["reason"] == "memory"


def test_long_output_is_cut_and_the_state_kept(session: Kept) -> None:
    result = session.run("import sys; x = 1; print('a' * 30_000); print('b' * 30_000, file=sys.stderr)")
    assert (result.exit_code, result.meta["state"]) == (0, "kept")
    assert TRUNCATED in result.stdout
    assert TRUNCATED in result.stderr
    assert (result.meta["stdout_truncated"], result.meta["stderr_truncated"]) == (True, True)
    assert not session.run("x").meta["stdout_truncated"]


def test_too_much_output_ends_the_run(session: Kept) -> None:
    small = session(output_kill_mb=4)
    result = small.run("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (137, "output", "lost")
    assert small.out("print('again')") == "again"


def test_cancel_from_another_thread_keeps_the_state_and_the_session(session: Kept) -> None:
    marker = new_marker()
    session.out("x = 42")
    code = f"print('up', flush=True); import subprocess; subprocess.run(['sleep', '{marker}'])"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, code)
        wait_until(lambda: alive(marker) or running.done())
        session.cancel()
        result = running.result()
    assert (result.meta["reason"], result.exit_code, result.meta["state"]) == ("cancelled", 130, "kept"), result
    assert result.stdout == "up\n"
    assert gone(marker)
    assert session.out("print(x)") == "42"


# ---- commands beside the interpreter


def test_commands_and_runs_see_the_same_files(session: Kept) -> None:
    session.out("open('a', 'w').write('by run');")
    assert session.exec(["cat", "a"]).stdout == "by run"
    assert session.exec(["sh", "-c", "printf 'by exec' > b"]).exit_code == 0
    assert session.out("print(open('b').read())") == "by exec"
    session.write("/tmp/c", "by the caller")
    assert session.exec(["cat", session.path("/tmp/c")]).stdout == "by the caller"


def test_the_exit_code_of_a_command_is_its_own(session: Kept) -> None:
    assert session.exec(["sh", "-c", "exit 7"]).exit_code == 7


def test_a_command_that_does_not_exist_says_so(session: Kept) -> None:
    result = session(allowed_commands="*").exec(["no-such-program"])
    assert result.exit_code == 127
    assert "no-such-program" in result.stderr


def test_stdin_and_env_of_a_command(session: Kept) -> None:
    result = session.exec(["sh", "-c", 'echo "$GIVEN"; cat'], stdin=b"in\xff\n", env={"GIVEN": "ein Wört"})
    assert result.stdout == "ein Wört\nin�\n"
    assert session.exec(["cat"]).stdout == ""


def test_nothing_of_the_host_s_environment_reaches_a_session(session: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING_SECRET", "hush")
    shown = session.out("import os; print(dict(os.environ))") + session.exec(["env"]).stdout
    assert "PATH" in shown
    assert "hush" not in shown


def test_a_command_s_time_out_ends_its_tree_and_leaves_the_variables_alone(session: Kept) -> None:
    marker, kept = new_marker(), new_marker()
    session.out("x = 42\n" + in_the_background(kept))
    command = ["sh", "-c", f"sleep {marker} & setsid sleep {marker} & echo up; sleep {marker}"]
    timed_out(lambda timeout: session.exec(command, timeout), "up")
    assert gone(marker)
    assert is_up(kept)
    assert session.out("print(x, child.poll())") == "42 None"


def test_a_command_leaves_nothing_running(session: Kept) -> None:
    marker = new_marker()
    assert session.exec(["sh", "-c", f"setsid sleep {marker} > /dev/null 2>&1 & echo up"]).stdout == "up\n"
    assert gone(marker)


# ---- streams


def test_output_arrives_while_it_runs(session: Kept) -> None:
    seen, result = session.watch("import time; print('one', flush=True); time.sleep(3600)", leave_after=1)
    assert seen == [Output("stdout", b"one\n")]
    assert (result.stdout, result.meta["reason"]) == ("one\n", "cancelled")


def test_all_that_a_run_prints_and_shows_is_in_its_stream_and_in_its_result(session: Kept) -> None:
    seen, result = session.watch("print('one', flush=True); print('two'); 'value'")
    assert b"".join(event.data for event in seen if isinstance(event, Output)) == b"one\ntwo\n"
    assert isinstance(seen[-1], Exited)
    assert [event.data["text/plain"] for event in seen if isinstance(event, Display)] == ["'value'"]
    assert result.stdout == "one\ntwo\n"
    assert (result.exit_code, result.meta["results"][0]["text/plain"]) == (0, "'value'")


def test_what_is_printed_and_what_is_shown_arrive_in_their_order(session: Kept) -> None:
    session.out("class Large:\n    def _repr_html_(self): return 'x' * 30_000")
    seen, _ = session.watch("for i in range(10):\n    print(i)\n    display(Large())")
    assert [type(event) for event in seen] == [Output, Display] * 10 + [Exited]
    assert [event.data for event in seen[:-1:2]] == [b"%d\n" % i for i in range(10)]


def test_the_output_of_a_command_arrives_while_it_runs(session: Kept) -> None:
    seen, result = session.watch(["sh", "-c", "echo one; sleep 3600"], leave_after=1)
    assert seen == [Output("stdout", b"one\n")]
    assert (result.stdout, result.meta["reason"]) == ("one\n", "cancelled")
    seen, result = session.watch(["sh", "-c", "echo one; echo two"])
    assert b"".join(event.data for event in seen if isinstance(event, Output)) == b"one\ntwo\n"
    assert (result.stdout, result.exit_code) == ("one\ntwo\n", 0)


def test_leaving_a_stream_early_stops_the_run_and_keeps_the_state(session: Kept) -> None:
    marker = new_marker()
    session.out("x = 42")
    code = f"print('up', flush=True); import subprocess; subprocess.run(['sleep', '{marker}'])"
    seen, result = session.watch(code, leave_after=1)
    assert seen == [Output("stdout", b"up\n")]
    assert (result.meta["reason"], result.meta["state"]) == ("cancelled", "kept")
    assert gone(marker)
    assert session.out("print(x)") == "42"


def test_leaving_the_stream_of_a_command_ends_its_tree(session: Kept) -> None:
    marker = new_marker()
    seen, _ = session.watch(["sh", "-c", f"setsid sleep {marker} & echo up; sleep {marker}"], leave_after=1)
    assert seen == [Output("stdout", b"up\n")]
    assert gone(marker)


def test_a_slow_reader_gets_everything(session: Kept) -> None:
    code = "import sys\nfor n in range(200): sys.stdout.write(f'{n:05d}' * 20_000)"
    total = 0

    async def slowly() -> int:
        total = 0
        async with session.session.stream(code, HANG_S) as stream:
            async for event in stream:
                if isinstance(event, Output):
                    total += len(event.data)
                    await asyncio.sleep(0.001)
        return total

    if session.target.driver == "async":
        total = session.wait_for(slowly())
    else:
        with session.stream(code, HANG_S) as stream:
            for event in stream:
                total += len(event.data) if isinstance(event, Output) else 0
    assert total == 200 * 5 * 20_000


# ---- one call at a time


def test_a_second_call_waits(session: Kept) -> None:
    session.out("n = []")
    with ThreadPoolExecutor(6) as pool:
        code = "n.append(1); import time; time.sleep(0.05); assert n.pop() == 1 and not n; print('alone')"
        results = list(pool.map(session.run, [code] * 12))
    assert [(result.stdout, result.stderr) for result in results] == [("alone\n", "")] * 12


def test_a_second_call_is_refused_where_that_is_the_choice(session: Kept) -> None:
    marker = new_marker()
    strict = session(session_busy="refuse")
    strict.out("")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(strict.run, f"import subprocess; print('up'); subprocess.run(['sleep', '{marker}'])")
        wait_until(lambda: alive(marker) or first.done())
        for refused in (lambda: strict.run("1"), lambda: strict.exec(["echo"]), lambda: strict.write("/tmp/a", "")):
            with pytest.raises(errors.SessionBusy):
                refused()
        assert not first.done()
        strict.cancel()
        assert (first.result().stdout, first.result().meta["reason"]) == ("up\n", "cancelled")
    assert strict.out("print('free')") == "free"


# ---- the end


def started(session: Kept, marker: str) -> str:
    session.out(in_the_background(marker))
    assert is_up(marker)
    return session.places.workspace


def started_and_told(marker: str) -> str:
    """The same for a session that may end before anybody else looks: prints whether it runs, and where."""
    return f"{in_the_background(marker)}; import os; print(child.poll() is None, os.getcwd())"


def test_close_ends_everything_and_twice_is_fine(session: Kept) -> None:
    marker = new_marker()
    workspace = started(session, marker)
    session.close()
    assert gone(marker)
    assert workspace == "/workspace" or not os.path.exists(workspace)
    session.close()
    assert session.ended
    for call in (lambda: session.run("1"), lambda: session.exec(["echo"]), lambda: session.files()):
        with pytest.raises(errors.SessionEnded, match="closed"):
            call()


def test_close_while_a_run_goes_on_ends_it(session: Kept) -> None:
    marker = new_marker()
    session.out("")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, f"import subprocess; subprocess.run(['sleep', '{marker}'])")
        assert is_up(marker)
        session.close()
        try:
            assert running.result().meta["reason"] == "cancelled"
        except errors.SessionEnded:
            pass
    assert gone(marker)


def test_the_context_manager_closes(session: Kept) -> None:
    marker = new_marker()

    async def scenario() -> None:
        async with session.session as inside:
            assert (await inside.run(in_the_background(marker))).exit_code == 0
            assert is_up(marker)

    if session.target.driver == "async":
        session.wait_for(scenario())
    else:
        with session.session as inside:
            assert inside.run(in_the_background(marker)).exit_code == 0
            assert is_up(marker)
    assert gone(marker)
    assert session.ended


def test_garbage_ends_everything(session: Kept) -> None:
    marker = new_marker()
    dropped = session(session_id="dropped")
    workspace = started(dropped, marker)
    session.opened.remove(dropped)
    del dropped
    gc.collect()
    assert gone(marker)
    assert workspace == "/workspace" or wait_until(lambda: not os.path.exists(workspace))


def test_an_idle_session_ends(session: Kept) -> None:
    marker = new_marker()
    idle = session(session_idle_sec=0.7)
    is_running, workspace = idle.out(started_and_told(marker)).split()
    assert is_running == "True"
    assert gone(marker)
    assert workspace == "/workspace" or wait_until(lambda: not os.path.exists(workspace))
    assert wait_until(lambda: idle.ended)
    with pytest.raises(errors.SessionEnded, match="SANDBOX_SESSION_IDLE_SEC"):
        idle.run("1")


def test_a_session_that_is_used_is_not_idle(session: Kept) -> None:
    """Where a pause was longer than meant, since the machine is busy, it is tried again with longer ones."""

    def used(idle_s: float) -> bool:
        idle = session(session_idle_sec=idle_s)
        try:
            idle.out("x = 42")
            for _ in range(4):
                time.sleep(0.4 * idle_s)
                idle.out("x += 1")
            assert idle.out(f"import time; time.sleep({1.3 * idle_s}); print(x)") == "46"
            assert idle.out("print(x)") == "46"
            return True
        except errors.SessionEnded:
            return False

    assert at_some_pace(used)


def test_a_session_has_an_end_whatever_happens(session: Kept) -> None:
    """Where it came before the second call, since the machine is busy, it is tried again with a later one."""
    session.check()  # the engine is up

    def cut(max_s: float) -> bool:
        marker = new_marker()
        short = session(session_max_sec=max_s)
        try:
            result = short.run(started_and_told(marker))
            if result.meta["reason"] == "timeout":
                return False
            assert result.stdout.split()[0] == "True", result
            result = short.run("import time; time.sleep(3600)")
        except errors.SessionEnded:
            return False
        assert (result.meta["reason"], result.exit_code) == ("timeout", -1)
        assert "SANDBOX_SESSION_MAX_SEC" in result.stderr
        assert result.duration <= max_s + HANG_S / 2  # not what the call itself would have been given
        assert gone(marker)
        with pytest.raises(errors.SessionEnded, match="SANDBOX_SESSION_MAX_SEC"):
            short.run("1")
        return True

    assert at_some_pace(cut, 3.0 if session.target.level == "docker" else 0.4)


HOST = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from marked import is_up
from fumehood import AsyncSession, open_session
code = {code!r}
if {driver!r} == "direct":
    session = open_session(**{settings!r})
    result = session.run(code, {timeout!r})
else:
    session = AsyncSession(**{settings!r})
    async def scenario():
        return await session.run(code, {timeout!r})
    result = asyncio.run(scenario())
assert result.exit_code == 0, result
print(is_up({marker!r}, {within_s!r}), session.places.workspace, flush=True)
how = sys.argv[1]
if how == "waits":
    sys.stdin.read()
if how == "raises":
    raise RuntimeError
"""


def host_program(session: Kept, marker: str, tmp_path: Path, within_s: float) -> list[str]:
    settings = {"store_code": "never", **session.target.settings}
    text = HOST.format(
        settings=settings,
        code=in_the_background(marker),
        driver=session.target.driver,
        marker=marker,
        tests=str(Path(__file__).parents[1]),
        timeout=HANG_S,
        within_s=within_s,
    )
    (tmp_path / "host.py").write_text(text, "utf-8")  # in a file, so that the marker is on no other command line
    return [sys.executable, str(tmp_path / "host.py")]


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_the_end_of_the_process_ends_everything(session: Kept, tmp_path: Path, how: str, within_s: float) -> None:
    marker = new_marker()
    program = [*host_program(session, marker, tmp_path, within_s), how]
    done = subprocess.run(program, capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert done.returncode == (how == "raises"), done.stderr
    assert done.stderr == "" or how == "raises"
    was_alive, workspace = done.stdout.split()
    assert was_alive == "True"
    assert gone(marker)
    assert workspace == "/workspace" or wait_until(lambda: not os.path.exists(workspace))


def test_the_death_of_the_process_ends_everything(session: Kept, tmp_path: Path, within_s: float) -> None:
    marker = new_marker()
    program = [*host_program(session, marker, tmp_path, within_s), "waits"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as host:
        assert host.stdout is not None
        was_alive, workspace = host.stdout.readline().split()
        assert was_alive == "True"
        host.send_signal(signal.SIGKILL)
    assert gone(marker, within_s)
    assert workspace == "/workspace" or wait_until(lambda: not os.path.exists(workspace))


FORKER = """
import asyncio, os, signal, sys
from fumehood import AsyncSession, open_session, errors
settings, direct, how = {settings!r}, {driver!r} == "direct", sys.argv[1]
session = (open_session if direct else AsyncSession)(**settings)
loop = asyncio.new_event_loop()
call = (lambda answer: answer) if direct else loop.run_until_complete
call(session.run("x = 42", {timeout!r}))
if os.fork() == 0:
    signal.alarm(int({timeout!r}))
    if not direct:
        own = asyncio.new_event_loop()
        call = own.run_until_complete
    for attempt in (lambda: session.run("1"), lambda: session.write("/tmp/a", ""), lambda: session.files()):
        try:
            call(attempt())
            print("it worked")
        except errors.SessionEnded as error:
            print("belongs to the process" in str(error))
    call(session.close())
    with open_session(**settings) as own:
        print(own.run("print('own')", {timeout!r}).stdout.strip())
    sys.stdout.flush()
    if how == "_exit" or not direct:  # a loop that a child closes is closed for its parent too
        os._exit(0)
    del session
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
print(call(session.run("print(x)", {timeout!r})).stdout.strip(), flush=True)
call(session.close())
"""


@pytest.mark.parametrize("how", ["_exit", "exit"])
def test_a_session_belongs_to_the_process_that_made_it(session: Kept, how: str) -> None:
    settings = {"store_code": "never", **session.target.settings}
    program = FORKER.format(settings=settings, driver=session.target.driver, timeout=HANG_S)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, how], capture_output=True, encoding="utf-8", timeout=HANG_S
    )
    assert done.stdout.split() == ["True", "True", "True", "own", "child", "0", "42"], done


# ---- given up


async def becomes(is_true: bool, marker: str) -> bool:
    """Whether somebody has the marker after all, or nobody; the loop goes on meanwhile."""
    return await asyncio.to_thread(wait_until, lambda: alive(marker) == is_true)


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.soak)])
def test_calls_that_are_given_up_at_any_moment_leave_nothing(session: Kept, rounds: int) -> None:
    marker = new_marker()

    async def scenario() -> None:
        async with AsyncSession(store_code="never", **session.target.settings) as kept:
            await kept.run("1", HANG_S)
            for number in range(rounds):
                task = asyncio.create_task(kept.exec(["sleep", marker], timeout=HANG_S))
                if number == rounds - 1:
                    assert await becomes(True, marker)
                else:
                    await asyncio.sleep(number % 30 * 0.0008)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert (await kept.run("6 * 7", HANG_S)).meta["results"] == [{"text/plain": "42"}]
            assert await becomes(False, marker)

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_run_that_is_given_up_does_not_strike_the_next(session: Kept, rounds: int) -> None:
    async def scenario() -> None:
        async with AsyncSession(store_code="never", **session.target.settings) as kept:
            await kept.run("k = 1", HANG_S)
            for number in range(rounds):
                task = asyncio.create_task(kept.run("for i in range(3000): pass", HANG_S))
                await asyncio.sleep((number % 12) * 0.0001)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                result = await kept.run("k", HANG_S)
                assert (result.stderr, result.meta["state"]) == ("", "kept")
                assert result.meta["results"] == [{"text/plain": "1"}]

    asyncio.run(scenario())


def test_a_run_that_is_given_up_may_take_a_while_to_stop(session: Kept) -> None:
    code = """
import time
try:
    print("up", flush=True)
    time.sleep(3600)
except KeyboardInterrupt:
    time.sleep(0.5)
    stopped = 1
    raise
"""

    async def follow(kept: AsyncSession, up: asyncio.Event) -> None:
        async with kept.stream(code, HANG_S) as stream:
            async for _ in stream:
                up.set()

    async def scenario() -> None:
        async with AsyncSession(store_code="never", **session.target.settings) as kept:
            up = asyncio.Event()
            task = asyncio.create_task(follow(kept, up))
            await asyncio.wait_for(up.wait(), HANG_S)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            result = await kept.run("stopped", HANG_S)
            assert (result.stderr, result.meta["results"]) == ("", [{"text/plain": "1"}])

    asyncio.run(scenario())


# ---- budgets


def test_the_budget_of_cpu_time(session: Kept) -> None:
    frugal = session(session_max_cpu_sec=0.3)
    frugal.run("import time\nwhile time.process_time() < 0.5: pass")
    with pytest.raises(errors.BudgetExceeded, match="SANDBOX_SESSION_MAX_CPU_SEC"):
        frugal.run("1")


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("verb", ["run", "exec"])
def test_the_budget_of_cpu_time_is_not_dodged_by_who_must_be_killed(session: Kept, verb: str) -> None:
    frugal = session(session_max_cpu_sec=0.3)
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"

    def spend() -> None:
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:  # how much it gets in half a second is the machine's to say
            result = frugal.run(code, 0.5) if verb == "run" else frugal.exec(["python", "-c", code], 0.5)
            assert result.meta["reason"] == "timeout"

    with pytest.raises(errors.BudgetExceeded, match="SANDBOX_SESSION_MAX_CPU_SEC"):
        spend()


SPIN = "import time\nwhile time.process_time() < 0.3: pass"


def test_cpu_time_counts_what_a_run_has_started(session: Kept) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    assert 0.2 < session.run(code).meta["usage"]["cpu_s"] < 60
    assert min(session.run("1").meta["usage"]["cpu_s"] for _ in range(3)) < 0.2


def test_cpu_time_counts_those_for_whom_nobody_waits(session: Kept) -> None:
    """Where a parent ignores its children's end, the kernel adds their time to nobody's."""
    code = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        begun = time.process_time()
        while time.process_time() < begun + 0.3: pass
        os._exit(0)
try: os.wait()
except ChildProcessError: pass
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
"""
    assert session.run(code).meta["usage"]["cpu_s"] > 0.2
    assert session.exec(["python", "-c", code]).meta["usage"]["cpu_s"] > 0.2
    assert min(session.run("1").meta["usage"]["cpu_s"] for _ in range(3)) < 0.2


def test_the_limit_of_cpu_time_holds_for_a_run_and_keeps_its_variables(session: Kept) -> None:
    limited = session(cpu_sec=1)
    limited.run("x = 1")
    result = limited.run("while True: pass")
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (152, "signal", "kept")
    assert "SANDBOX_CPU_SEC" in result.stderr
    after = limited.run("x")
    assert after.meta["results"] == [{"text/plain": "1"}], after


def test_the_budget_of_running_time_cuts_and_then_refuses(session: Kept) -> None:
    frugal = session(session_max_wall_sec=1)
    result = frugal.run("import time; time.sleep(3600)")
    assert result.meta["reason"] == "timeout"
    assert "timed out after 1 s" in result.stderr
    with pytest.raises(errors.BudgetExceeded, match="SANDBOX_SESSION_MAX_WALL_SEC"):
        frugal.run("1")


def test_the_budget_of_output(session: Kept) -> None:
    frugal = session(session_max_output_mb=1, max_output_kb=700)
    for _ in range(2):
        assert frugal.run("print('x' * 600 * 1024)").exit_code == 0
    with pytest.raises(errors.BudgetExceeded, match="SANDBOX_SESSION_MAX_OUTPUT_MB"):
        frugal.run("1")


# ---- files


def test_a_program_may_change_and_delete_what_was_written_for_it(session: Kept) -> None:
    session.write("/workspace/d/a", "1")
    session.write("/tmp/b", "1")
    session.out(
        f"import os; open('d/a', 'a').write('2'); os.rename('d/a', 'd/c'); os.remove({session.path('/tmp/b')!r})"
    )
    assert [Path(file.path).name for file in session.files()] == ["c"]
    assert session.read("/workspace/d/c") == b"12"


def kind_of(call: Any) -> str:
    with pytest.raises(errors.FileError) as caught:
        call()
    return caught.value.kind


def test_links_that_the_program_planted_are_not_followed(session: Kept, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret", "utf-8")
    session.out(f"""
        import os
        os.symlink({str(tmp_path / "outside" / "secret")!r}, 'file')
        os.symlink({str(tmp_path / "outside")!r}, 'directory')
        os.symlink('/etc/passwd', 'passwd')
        os.symlink('loop', 'loop')
        open('own', 'w').write('own')
        os.symlink('own', 'to_own')
        print('planted')
    """)
    for name in ("file", "directory/secret", "passwd", "loop", "to_own", "directory/new/deeper"):
        assert kind_of(lambda name=name: session.read(f"/workspace/{name}")) == "special", name
        assert kind_of(lambda name=name: session.edit(f"/workspace/{name}", "secret", "x")) == "special", name
    for name in ("directory/secret", "directory/new"):
        assert kind_of(lambda name=name: session.write(f"/workspace/{name}", "x")) == "special", name
    session.write("/workspace/file", "over it, not through it")
    assert session.read("/workspace/file") == b"over it, not through it"
    assert (tmp_path / "outside" / "secret").read_text("utf-8") == "secret"
    assert os.listdir(tmp_path / "outside") == ["secret"]
    assert session.read("/workspace/own") == b"own"


def test_what_is_no_file_is_not_read(session: Kept) -> None:
    session.out(
        "import os, socket; os.mkfifo('fifo'); os.mkdir('d'); s = socket.socket(socket.AF_UNIX); s.bind('sock')"
    )
    for name, kind in (("fifo", "special"), ("sock", "special"), ("d", "directory")):
        assert kind_of(lambda name=name: session.read(f"/workspace/{name}")) == kind, name
        assert kind_of(lambda name=name: session.edit(f"/workspace/{name}", "a", "b")) == kind, name
    assert kind_of(lambda: session.write("/workspace/d", "x")) == "directory"
    assert kind_of(lambda: session.write("/workspace/fifo/x", "x")) == "special"
    assert session.out("import stat; print(stat.S_ISFIFO(os.stat('fifo').st_mode), os.path.isdir('d'))") == "True True"


def test_a_disk_filled_by_the_program_is_told_to_both(session: Kept) -> None:
    small = session(disk_mb=4)
    result = small.run("with open('big', 'wb') as file:\n    for _ in range(64): file.write(b'x' * 262144)")
    assert (result.meta["reason"], result.meta["state"]) == ("disk", "kept")
    assert "SANDBOX_DISK_MB" in result.stderr
    assert kind_of(lambda: small.write("/tmp/a", b"x" * 1_000_000)) == "full"
    small.out("import os; os.remove('big')")
    assert small.write("/tmp/a", b"x" * 1_000_000) == 1_000_000


def test_no_more_files_than_inodes(session: Kept) -> None:
    small = session(inodes=100)
    result = small.run("for number in range(1000): open(f'{number}', 'w').close()")
    assert (result.meta["reason"], result.exit_code) == ("disk", 1)
    assert kind_of(lambda: small.write("/tmp/one/more/here", "x")) == "full"


# ---- datasets


def test_a_dataset_is_there_and_stays_as_it_is(session: Kept, tmp_path: Path) -> None:
    source = tmp_path / "Sales 2024.csv"
    source.write_text("a,b\n1,2\n", "utf-8")
    source.chmod(0o644)
    with_data = session(datasets={"sales/2024": source, "sales 2024": source})
    with_data.check()
    paths = with_data.dataset_paths
    assert len(set(paths)) == 2
    assert all(path.startswith(with_data.path("/tmp/data/")) for path in paths)
    assert with_data.out(f"for path in {paths!r}: print(open(path).read())").split() == ["a,b", "1,2"] * 2
    assert with_data.read("/tmp/data/" + os.path.basename(paths[0])) == b"a,b\n1,2\n"
    assert with_data.files() == []
    with_data.run(f"open({paths[0]!r}, 'a').write('3,4')")
    with_data.run(f"import os; os.remove({paths[1]!r})")
    assert source.read_text("utf-8") == "a,b\n1,2\n"


def test_a_dataset_that_only_its_owner_may_read_is_there_too(session: Kept, tmp_path: Path) -> None:
    source = tmp_path / "own.csv"
    source.write_text("mine", "utf-8")
    source.chmod(0o600)
    with_data = session(datasets={"own": source})
    with_data.check()
    assert with_data.out(f"print(open({with_data.dataset_paths[0]!r}).read())") == "mine"


# ---- what a call leaves behind


def test_created_changed_and_deleted_files_are_named(session: Kept) -> None:
    first = session.run("for name in 'abc': open(name, 'w').write(name)")
    workspace = session.places.workspace
    assert first.meta["files"] == {"created": [f"{workspace}/{n}" for n in "abc"], "changed": [], "deleted": []}
    second = session.run("import os; open('a', 'w').write('A'); os.remove('b'); open('d', 'w').close()")
    assert second.meta["files"] == {
        "created": [f"{workspace}/d"],
        "changed": [f"{workspace}/a"],
        "deleted": [f"{workspace}/b"],
    }
    session.write("/workspace/e", "by the caller")
    third = session.exec(["sh", "-c", "mv c f"])
    assert third.meta["files"] == {"created": [f"{workspace}/f"], "changed": [], "deleted": [f"{workspace}/c"]}
    assert session.run("1").meta["files"] == {"created": [], "changed": [], "deleted": []}


def output(session: Kept) -> Path:
    return Path(session.output_dir)


def test_outputs_come_back_and_only_changed_ones_again(session: Kept) -> None:
    there = session.path("/tmp/output")
    result = session.run(f"""
        import os; os.chdir({there!r}); os.makedirs('deep/er')
        for name in ('a.csv', 'b.json', 'deep/er/c.txt'): open(name, 'w').write(name);
    """)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.meta["output_files"] == ["a.csv", "b.json", "deep/er/c.txt"]
    assert result.meta["total_output_files"] == 3
    local = output(session)
    assert local.name == "session_x"
    assert (local / "deep" / "er" / "c.txt").read_text("utf-8") == "deep/er/c.txt"
    before = {name: (local / name).stat() for name in ("a.csv", "b.json")}
    result = session.run("open('b.json', 'w').write('again')")
    assert result.meta["output_files"] == ["b.json", "a.csv", "deep/er/c.txt"]
    assert (local / "b.json").read_text("utf-8") == "again"
    after = (local / "a.csv").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before["a.csv"].st_ino, before["a.csv"].st_mtime_ns)
    assert (local / "b.json").stat().st_ino != before["b.json"].st_ino
    assert session.run("os.remove('a.csv')").meta["output_files"] == ["b.json", "deep/er/c.txt"]
    assert (local / "a.csv").read_text("utf-8") == "a.csv"  # what came back is the caller's


def test_models_and_raw_binaries_are_listed_and_left(session: Kept) -> None:
    there = session.path("/tmp/output")
    names = ["m.bin", "m.h5", "m.JOBLIB", "m.npy", "m.npz", "m.onnx", "m.pickle", "m.pkl", "m.pt", "m.pth", "z.txt"]
    result = session.run(f"for name in {names!r}: open({there!r} + '/' + name, 'wb').write(b'x')")
    assert sorted(result.meta["output_files"]) == sorted(names)
    assert os.listdir(output(session)) == ["z.txt"]


def test_twenty_outputs_are_listed_and_the_rest_counted(session: Kept) -> None:
    there = session.path("/tmp/output")
    result = session.run(f"for n in range(25): open(f'{there}/{{n:02}}.txt', 'w').write(str(n))")
    assert len(result.meta["output_files"]) == 20
    assert result.meta["total_output_files"] == 25
    assert len(os.listdir(output(session))) == 20
    session.run("1")
    assert len(os.listdir(output(session))) == 25


class Handler:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def send_visualization(self, path: str) -> None:
        self.shown.append(path)
        raise RuntimeError("a handler's failure is its own")


def test_images_are_shown_to_the_handler(session: Kept) -> None:
    handler = Handler()
    shown = session(io_handler=handler)
    there = shown.path("/tmp/output")
    names = ["a.png", "b.JPG", "c.jpeg", "d.svg", "e.txt"]
    assert shown.run(f"for name in {names!r}: open({there!r} + '/' + name, 'w').write('x')").exit_code == 0
    assert handler.shown == [str(output(shown) / name) for name in names[:-1]]
    shown.run("1")
    assert len(handler.shown) == 4


def test_what_is_no_regular_file_does_not_come_back(session: Kept, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_text("secret", "utf-8")
    there = session.path("/tmp/output")
    result = session.run(f"""
        import os; os.chdir({there!r})
        os.symlink({str(tmp_path / "secret.png")!r}, 'link.png')
        os.symlink('/etc/passwd', 'passwd.txt')
        os.mkfifo('fifo.png'); os.mkdir('directory.png')
        os.symlink({str(tmp_path)!r}, 'linked')
        os.symlink('/', 'root')
        open('good.png', 'w').write('good')
        print('planted')
    """)
    assert result.stdout == "planted\n"
    assert result.meta["output_files"] == ["good.png"]
    assert os.listdir(output(session)) == ["good.png"]
    link, pipe = "a symbolic link, which is never followed", "a named pipe"
    kinds = {"fifo.png": pipe, "link.png": link, "linked": link, "passwd.txt": link, "root": link}
    expected = [f"{there}/{name} was not copied: {why}" for name, why in kinds.items()]
    assert result.meta["output_warnings"] == expected
    assert "output_warnings" not in session.run("1").meta


def test_links_on_this_side_are_not_followed(session: Kept, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("precious", "utf-8")
    local = output(session)
    local.mkdir(parents=True)
    (local / "a.txt").symlink_to(other / "a.txt")
    (local / "sub").symlink_to(other)
    there = session.path("/tmp/output")
    result = session.run(f"""
        import os; os.mkdir({there!r} + '/sub')
        for name in ('a.txt', 'sub/a.txt'): open({there!r} + '/' + name, 'w').write('from inside')
    """)
    assert result.exit_code == 0
    assert (other / "a.txt").read_text("utf-8") == "precious"
    assert (local / "a.txt").read_text("utf-8") == "from inside"
    assert not (local / "a.txt").is_symlink()
    assert any("sub/a.txt" in warning for warning in result.meta["output_warnings"])


def test_a_linked_session_directory_is_not_followed(session: Kept, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    output(session).parent.mkdir()
    output(session).symlink_to(other)
    there = session.path("/tmp/output")
    result = session.run(f"open({there!r} + '/a.txt', 'w').write('x')")
    assert (result.exit_code, result.meta["output_files"]) == (0, ["a.txt"])
    assert os.listdir(other) == []
    assert result.meta["output_warnings"]


def test_odd_names_come_back_escaped_or_not_at_all(session: Kept) -> None:
    there = session.path("/tmp/output")
    result = session.run(f"""
        import os
        odd = b'new\\nline.txt', b'esc\\x1b[2J.txt', b'not-utf8-\\xff.txt', b'back\\\\slash.txt'
        for name in (*odd, b'fine w\\xc3\\xb6rt.txt'):
            open(os.fsencode({there!r}) + b'/' + name, 'w').write('x')
        print('made')
    """)
    assert result.stdout == "made\n"
    assert all(name.isprintable() for name in result.meta["output_files"])
    assert os.listdir(os.fsencode(output(session))) == ["fine wört.txt".encode()]


def test_a_handler_of_output_does_not_change_the_mode_of_files(session: Kept) -> None:
    there = session.path("/tmp/output")
    session.run(f"import os; open({there!r} + '/a.sh', 'w').write('x'); os.chmod({there!r} + '/a.sh', 0o6777)")
    mode = stat.S_IMODE((output(session) / "a.sh").stat().st_mode)
    assert mode & 0o6111 == 0
