from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fumehood.guest.wire import BUNDLE_BYTES, FRAME, MAX_FRAME, RESULTS_BYTES, RESULTS_COUNT
from support import HANG_S


def test_variables_are_kept(worker):
    assert worker.run("x = 1").exit_code == 0
    ran = worker.run("print(x + 1)")
    assert (ran.stdout, ran.stderr, ran.displays, ran.error) == ("2\n", "", [], None)


def test_the_last_expression_is_the_last_result_and_is_not_printed(worker):
    ran = worker.run("display('first')\n6 * 7")
    assert [shown["text/plain"] for shown in ran.displays] == ["'first'", "42"]
    assert ran.stdout == ""


@pytest.mark.parametrize("code", ["1;", "1 ; # quiet", "(1,\n 2);", "None", "x = 1", "'ü'; # x", "", "# a comment"])
def test_what_is_silenced_or_nothing_is_not_shown(worker, code):
    ran = worker.run(code)
    assert (ran.exit_code, ran.displays) == (0, [])


@pytest.mark.parametrize(
    ("code", "value"), [("1 # a;", "1"), ("'a;'", "'a;'"), ("(1)", "1"), ("x = 1; x", "1"), ("'ü' 'é'", "'üé'")]
)
def test_a_semicolon_elsewhere_silences_nothing(worker, code, value):
    assert worker.run(code).value == value


def test_it_is_main(worker):
    code = "import sys\n(__name__, sys.modules['__main__'].__dict__ is globals(), '__file__' in globals())"
    assert worker.run(code).value == "('__main__', True, False)"
    assert worker.run("import pickle\nclass A: pass\npickle.loads(pickle.dumps(A())).__class__ is A").value == "True"


def test_underscores_are_the_last_three_values(worker):
    for code in ("1", "2", "None", "3"):
        worker.run(code)
    assert worker.run("print(_, __, ___)").stdout == "3 2 1\n"


def test_who_uses_the_underscore_keeps_it(worker):
    worker.run("_ = 'mine'")
    worker.run("5")
    assert worker.run("print(_)").stdout == "mine\n"


def test_tracebacks_point_into_the_code_and_show_nothing_of_ours(worker):
    worker.run("def half(x):\n    return 1 / x\n")
    ran = worker.run("\nhalf(0)")
    lines = ran.stderr.splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", '  File "<run 2>", line 2, in <module>', "    half(0)"]
    assert '  File "<run 1>", line 2, in half' in lines
    assert any(line.strip().startswith("~~^~~") for line in lines)
    assert (lines[-1], ran.exit_code, ran.error) == ("ZeroDivisionError: division by zero", 1, "ZeroDivisionError")
    assert "worker" not in ran.stderr
    assert worker.run("half(4)").value == "0.25"


def test_chained_errors_are_shown_without_our_frames(worker):
    ran = worker.run("try:\n    display(undefined)\nexcept NameError as error:\n    raise ValueError('x') from error")
    assert "direct cause" in ran.stderr
    assert ran.stderr.count("Traceback") == 2
    assert "fumehood" not in ran.stderr


def test_source_is_found_also_after_the_cache_is_cleared(worker):
    worker.run("def f():\n    return 1 / 0")
    assert worker.run("import inspect\nprint(inspect.getsource(f))").stdout == "def f():\n    return 1 / 0\n\n"
    assert "return 1 / 0" in worker.run("import linecache\nlinecache.clearcache()\nf()").stderr


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = 1\nx = = 2", 'File "<run 1>", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n'),
        ("x = 1\nreturn 5", 'File "<run 1>", line 2\n    return 5\n    ^^^^^^^^\nSyntaxError: '),
        ("if 1:\nprint()", "IndentationError: expected an indented block"),
        ("print('a')\n(yield)", "SyntaxError: 'yield' outside function"),
    ],
)
def test_a_syntax_error_points_at_its_line_and_nothing_has_run(worker, code, shown):
    ran = worker.run(code)
    assert shown in ran.stderr
    assert ran.stderr.startswith("  File")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.error in ("SyntaxError", "IndentationError")


def test_text_that_is_no_source_is_an_error_of_the_run(worker):
    assert worker.run("x = 1\0").exit_code == 1
    assert worker.run("x = '\ud800'").exit_code == 1
    assert worker.run("a\r\n=1" and "a=1\r\nb=2\rprint(a+b)").stdout == "3\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("exit(True)", 1, ""),
        ("import sys; sys.exit('no luck')", 1, "no luck\n"),
    ],
)
def test_an_exit_ends_the_run_and_not_the_session(worker, code, exit_code, stderr):
    worker.run("kept = 1")
    ran = worker.run(code)
    assert (ran.exit_code, ran.stderr, ran.error) == (exit_code, stderr, None)
    assert worker.run("kept").value == "1"


def test_top_level_await_works_on_one_loop(worker):
    assert worker.run("import asyncio\nawait asyncio.sleep(0, 7)").value == "7"
    worker.run("async def later():\n    await asyncio.sleep(0)\n    return 8")
    worker.run("task = asyncio.ensure_future(later())\nawait asyncio.sleep(0)")
    assert worker.run("await task").value == "8"
    assert worker.run("asyncio.run(later())").value == "8"
    assert worker.run("await later() + 1").value == "9"
    assert worker.run("task = asyncio.create_task(later())\nawait task").value == "8"


def test_an_error_in_an_await_begins_at_the_users_frame(worker):
    ran = worker.run("async def f():\n    raise ValueError('x')\nawait f()")
    lines = ran.stderr.splitlines()
    assert lines[1] == '  File "<run 1>", line 3, in <module>'
    assert "asyncio" not in ran.stderr


def test_future_imports_hold_for_later_runs(worker):
    worker.run("from __future__ import annotations")
    assert worker.run("def f(x: nowhere): pass\nf.__annotations__").value == "{'x': 'nowhere'}"


def test_input_is_at_its_end(worker):
    ran = worker.run("input()")
    assert ran.error == "EOFError"
    worker.run("exit()")  # which closes sys.stdin
    assert worker.run("input()").error == "EOFError"


def test_lines_are_seen_while_it_runs(worker):
    worker.send("import time\nprint('begun')\ntime.sleep(3600)")
    worker.await_output("begun")
    worker.interrupt()
    assert worker.finish().interrupted


# --- interrupts


def test_an_interrupt_ends_the_run_and_keeps_the_state(worker):
    worker.run("x = 41")
    worker.send("import time\nprint('on', flush=True)\ntime.sleep(3600)")
    worker.await_output("on")
    worker.interrupt()
    ran = worker.finish()
    assert (ran.exit_code, ran.error, ran.interrupted) == (130, "KeyboardInterrupt", True)
    assert ran.stderr.splitlines()[1:3] == ['  File "<run 2>", line 3, in <module>', "    time.sleep(3600)"]
    assert "worker" not in ran.stderr
    ran = worker.run("x + 1")
    assert (ran.value, ran.interrupted) == ("42", False)


def test_an_interrupt_ends_a_busy_loop(worker):
    worker.send("print('on')\nwhile True: pass")
    worker.await_output("on")
    worker.interrupt()
    assert worker.finish().exit_code == 130


def test_an_interrupt_ends_an_await_for_good(worker):
    worker.send(
        "import asyncio\nprint('on')\nasync def slow():\n    await asyncio.sleep(3600)\n    print('late')\nawait slow()"
    )
    worker.await_output("on")
    worker.interrupt()
    ran = worker.finish()
    assert (ran.exit_code, ran.interrupted) == (130, True)
    assert "line 4, in slow\n    await asyncio.sleep(3600)" in ran.stderr
    assert ran.stderr.rstrip().endswith("KeyboardInterrupt")
    assert worker.run("await asyncio.sleep(0.01, 1)").value == "1"


def test_an_interrupt_ends_a_repr(worker):
    worker.send("class Slow:\n  def __repr__(self):\n    print('on')\n    while True: pass\nSlow()")
    worker.await_output("on")
    worker.interrupt()
    ran = worker.finish()
    assert (ran.exit_code, ran.displays) == (130, [])
    assert "in __repr__" in ran.stderr
    assert "display" not in ran.stderr


def test_an_interrupt_between_runs_is_nobodys(worker):
    worker.run("x = 1")
    for _ in range(3):
        worker.interrupt()
    ran = worker.run("x")
    assert (ran.value, ran.interrupted, ran.exit_code) == ("1", False, 0)


def test_interrupts_at_any_moment_leave_a_worker_that_answers(worker):
    for turn in range(150):
        worker.send(f"for i in range(200): display(i)\nturn = {turn}")
        for _ in range(turn % 4):
            worker.interrupt()
        ran = worker.finish()
        assert ran.exit_code == (130 if ran.error else 0)
        assert ran.interrupted or not ran.error
    assert worker.run("turn * 0").value == "0"


def test_the_interrupt_is_restored_for_each_run(worker):
    worker.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
               "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]);")  # fmt: skip
    worker.send("print('on')\nwhile True: pass")
    worker.await_output("on")
    worker.interrupt()
    assert worker.finish().interrupted


def test_a_program_may_catch_its_interrupt(worker):
    worker.send("try:\n  print('on')\n  while True: pass\nexcept KeyboardInterrupt: print('caught')")
    worker.await_output("on")
    worker.interrupt()
    ran = worker.finish()
    assert (ran.exit_code, ran.error, ran.interrupted) == (0, None, True)
    assert "caught" in ran.stdout


# --- a confused program


def test_signals_of_the_programs_own_reach_it_only_while_it_runs(worker):
    worker.run(
        "import signal, time\nseen = []\nsignal.signal(signal.SIGUSR1, lambda *two: seen.append(1) or 1 / 0)\nNone"
    )
    os.kill(worker.process.pid, signal.SIGUSR1)
    assert worker.run("time.sleep(3600)").error == "ZeroDivisionError"
    assert worker.run("seen").value == "[1]"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.close(1); os.close(2)",
        "import os; os.closerange(0, 100)",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.detach()",
        "import sys; del sys.stdout, sys.stderr, sys.stdin",
    ],
)
def test_streams_that_were_closed_come_back(worker, code):
    worker.run(code)
    ran = worker.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize(
    "code",
    [
        "import json; json.dumps = json.loads = None",
        "import json; json.JSONEncoder.default = json.JSONEncoder.encode = None; json.encoder.encode_basestring = 5",
        "import os; os.write = os.read = os.getpid = os._exit = os.fstat = os.dup2 = None",
        "import time, sys; time.sleep = sys.exit = None",
        "import builtins as b\nfor name in 'len isinstance print compile eval type getattr'.split(): delattr(b, name)",
        "import builtins; builtins.KeyboardInterrupt = builtins.BaseException = builtins.id = 5",
        "import sys; sys.modules.clear()",
        "import sys; sys.setrecursionlimit(30)",
        "import sys; sys.path.clear(); sys.meta_path.clear()",
        "import traceback, linecache; traceback.TracebackException = linecache.cache = None",
        "import gc; gc.disable(); globals().clear()",
        "import signal; signal.signal = None",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import sys; sys.excepthook = None",
        "import threading; threading.Lock = None; import _thread; _thread.allocate_lock = None",
    ],
)
def test_a_program_that_breaks_what_it_finds_breaks_itself_alone(worker, code):
    assert worker.run(code).exit_code in (0, 1)
    assert worker.run("y = 6 * 7").exit_code == 0
    assert worker.run("y").value == "42"
    failed = worker.run("1 / 0")
    assert failed.error == "ZeroDivisionError"
    assert "ZeroDivisionError" in failed.stderr


def test_an_excepthook_of_the_programs_own_is_used(worker):
    worker.run("import sys\nsys.excepthook = lambda kind, error, trace: print('mine', kind.__name__)")
    assert worker.run("1 / 0").stdout == "mine ZeroDivisionError\n"
    worker.run("sys.excepthook = lambda *three: undefined")
    ran = worker.run("1 / 0")
    assert "Error in sys.excepthook" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f(): f()\nf()", "RecursionError"),
        ("def f(): g()\ndef g(): f()\nf()", "RecursionError"),
        ("raise MemoryError", "MemoryError"),
        ("x = bytearray(1 << 60)", "MemoryError"),
        ("class E(Exception):\n  def __str__(self): 1 / 0\nraise E", "E"),
        ("class E(Exception):\n  __str__ = __repr__ = None\nraise E", "E"),
        ("class E(BaseException): pass\nraise E", "E"),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup"),
        ("e = ValueError()\ne.__context__ = f = TypeError()\nf.__context__ = e\nraise e", "ValueError"),
        (
            "class M(type):\n  __name__ = property(lambda self: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E",
            "E",
        ),
        ("'(' * 5000", None),
        ("eval('(' * 5000)", None),
        ("-" * 100_000 + "1", None),
        ("raise ValueError('\\ud800')", "ValueError"),
    ],
)
def test_no_exception_is_fatal(worker, code, error):
    ran = worker.run(code)
    assert error is None or (ran.exit_code, ran.error) == (1, error)
    assert error is None or error in ran.stderr
    assert worker.run("1").value == "1"


def test_a_fork_that_comes_back_does_not_answer(worker):
    ran = worker.run(
        "import os\npid = os.fork()\nif not pid: raise SystemExit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert (ran.exit_code, ran.displays) == (0, [{"text/plain": "7"}])
    ran = worker.run("pid = os.fork()\nif not pid:\n  display('child')\n  1 / 0\nos.waitpid(pid, 0)[1] >> 8")
    assert (ran.exit_code, ran.displays) == (0, [{"text/plain": "1"}])
    assert "ZeroDivisionError" in ran.stderr
    assert worker.run("2").value == "2"


def test_forked_pools_work(worker):
    code = """
    import multiprocessing
    def square(x): return x * x
    with multiprocessing.get_context("fork").Pool(2) as pool: squares = pool.map(square, range(4))
    squares
    """
    assert worker.run(textwrap.dedent(code)).value == "[0, 1, 4, 9]"


def test_programs_it_starts_do_not_hold_the_channel(worker):
    worker.run("import subprocess\np = subprocess.Popen(['sleep', '3600'])")
    highest = worker.run("import os\nmax(map(int, os.listdir(f'/proc/{p.pid}/fd')))").value
    assert int(highest) < 10  # its loader may have a library open
    worker.run("p.kill(); p.wait()")


def test_threads_go_on_after_their_run_and_show_nothing_between_runs(worker):
    code = """
    import threading, time
    def work():
        while on:
            display("tick")
            time.sleep(0.001)
    on = True
    thread = threading.Thread(target=work)
    thread.start()
    """
    worker.run(textwrap.dedent(code))
    for _ in range(20):
        worker.run("time.sleep(0.005)")
    assert worker.run("on = False\nthread.join()").exit_code == 0
    assert worker.run("1").displays == [{"text/plain": "1"}]


def test_threads_that_show_at_once_do_not_mix(worker):
    code = """
    import threading
    def work(n):
        for i in range(30): display("x" * 10_000 + str(n))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads];
    """
    shown = worker.run(textwrap.dedent(code)).displays
    assert len(shown) == 120
    assert {len(bundle["text/plain"]) for bundle in shown} == {10_003}


# --- caps


def test_an_oversized_form_is_replaced_by_a_note(worker):
    code = f"class Big:\n  def _repr_html_(self): return 'x' * {MAX_FRAME}\n  def __repr__(self): return 'small'\nBig()"
    (shown,) = worker.run(code).displays
    assert shown.keys() == {"text/plain"}
    assert shown["text/plain"] == f"small\n... (text/html left out: {MAX_FRAME + 2:,} bytes are too many)"


def test_oversized_text_is_cut(worker):
    (shown,) = worker.run(f"'\\x01' * {BUNDLE_BYTES * 5}").displays
    assert shown["text/plain"].startswith("'\\x01")
    assert shown["text/plain"].endswith("bytes in all)")
    assert len(shown["text/plain"]) < BUNDLE_BYTES


def test_the_results_of_one_run_are_capped_and_the_next_has_room_again(worker):
    ran = worker.run("for i in range(20): display('x' * 1_000_000)\n'last'")
    assert 5 < len(ran.displays) <= 22
    assert sum(len(shown["text/plain"]) for shown in ran.displays) < RESULTS_BYTES
    assert any("left out" in shown["text/plain"] for shown in ran.displays)
    assert worker.run("'x' * 1_000").value == repr("x" * 1_000)


def test_the_number_of_results_is_capped_with_a_note_at_the_end(worker):
    ran = worker.run("for i in range(5000): display(i)")
    assert len(ran.displays) == RESULTS_COUNT
    assert "further results left out" in ran.value
    assert ran.displays[-2] == {"text/plain": str(RESULTS_COUNT - 2)}


# --- the process


def test_it_ends_when_nobody_asks_any_more(start):
    worker = start()
    worker.run("print('x', end='')")
    worker.socket.close()
    assert worker.process.wait(HANG_S) == 0


def test_nothing_heavy_is_imported_at_the_top():
    code = "import sys; from fumehood.guest import worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S, check=True
    )
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=True,
    )
    added = set(done.stdout.split()) - set(bare.stdout.split())
    assert not added & {
        "json",
        "ast",
        "traceback",
        "linecache",
        "base64",
        "asyncio",
        "signal",
        "re",
        "importlib.machinery",
    }


def test_it_works_when_our_modules_were_forgotten():
    code = """
    import os, sys
    from fumehood.guest import worker
    worker.import_ahead()
    serve = worker.serve
    for name in [name for name in sys.modules if name.partition(".")[0] == "fumehood"]: del sys.modules[name]
    del worker
    sys.path[:] = [entry for entry in sys.path if "fumehood" not in entry]
    serve(0, 3, lambda: None)
    """
    asked = "from IPython.display import HTML, display\ndisplay(HTML('x'))\n1/0"
    body = json.dumps({"op": "run", "id": 1, "code": asked}).encode()
    reader, writer = os.pipe()
    script = f"import os; os.dup2({writer}, 3, True)\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=FRAME.pack(len(body)) + body,
        pass_fds=[writer],
        capture_output=True,
        timeout=HANG_S,
    )
    os.close(writer)
    with open(reader, "rb") as answers:
        data = answers.read()
    assert done.returncode == 0, done.stderr
    assert b'"event":"display"' in data
    assert b'"error":"ZeroDivisionError"' in data
