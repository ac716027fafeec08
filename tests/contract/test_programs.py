"""What programs do, and what comes back."""

from __future__ import annotations

import json
import shutil

import pytest

from fumehood.execution import TRUNCATED
from marked import alive, gone, new_marker


def test_hello(box):
    result = box.run("print('hello')")
    assert (result.stdout, result.stderr, result.exit_code) == ("hello\n", "", 0)


def test_an_empty_program_is_fine(box):
    assert box.out("") == ""
    assert box.out("print(1)\n\n# the end") == "1"


EXIT_CODES = [
    ("import sys; sys.exit(0)", 0),
    ("import sys; sys.exit(1)", 1),
    ("import sys; sys.exit(3)", 3),
    ("import sys; sys.exit()", 0),
    ("import sys; sys.exit(None)", 0),
    ("import sys; sys.exit(256)", 0),
    ("import sys; sys.exit(-1)", 255),
    ("import sys; sys.exit(True)", 1),
    ("import sys; sys.exit(2**40)", 0),
    ("exit(4)", 4),
    ("raise SystemExit(9)", 9),
    ("import os; os._exit(7)", 7),
    ("1 / 0", 1),
    ("def broken(:", 1),
    ("x = '\\0'\nimport nothing_of_that_name", 1),
]
KINDS_OF_EXIT = [EXIT_CODES[at] for at in (0, 2, 6, 11, 12, 13)]  # enough where the guest is one that had them all
ALL_EXITS_ON = ("sealed-direct", "docker-direct")


@pytest.mark.parametrize("which", ["kinds", pytest.param("all", marks=pytest.mark.soak)])
def test_the_exit_code_is_the_one_python_would_give(box, which):
    for code, exit_code in EXIT_CODES if which == "all" or str(box.target) in ALL_EXITS_ON else KINDS_OF_EXIT:
        result = box.run("print('out', flush=True)\n" + code)
        assert result.exit_code == exit_code, code
        assert result.meta["reason"] == ("ok" if exit_code == 0 else "error"), code
        assert result.stdout == ("" if "broken" in code else "out\n"), code


def test_a_text_given_to_exit_goes_to_stderr(box):
    result = box.run("import sys; sys.exit('so long')")
    assert (result.exit_code, result.stderr) == (1, "so long\n")


def test_a_traceback_points_at_the_code(box):
    result = box.run("def f():\n    raise ValueError('boom')\n\nf()")
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: boom"
    assert "raise ValueError('boom')" in lines
    assert [line.split(", ", 1)[1] for line in lines if line.startswith("File")] == [
        "line 4, in <module>",
        "line 2, in f",
    ]
    assert "main.py" in lines[1]


def test_a_syntax_error_shows_the_line(box):
    result = box.run("x = 1\ny = (\n")
    assert result.exit_code == 1
    assert "SyntaxError" in result.stderr
    assert "line 2" in result.stderr


def test_nul_bytes_in_the_program_are_its_own_error(box):
    result = box.run("print(1)\0")
    assert result.exit_code == 1
    assert "null bytes" in result.stderr


def test_endless_recursion_is_an_ordinary_error(box):
    result = box.run("def f(): f()\nf()")
    assert (result.exit_code, result.meta["reason"]) == (1, "error")
    assert "RecursionError" in result.stderr


def test_a_program_that_signals_itself_ends_with_128_and_the_number(box):
    for name, number in (("SIGKILL", 9), ("SIGTERM", 15), ("SIGABRT", 6)):
        result = box.run(f"import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.{name})")
        assert (result.exit_code, result.meta["reason"]) == (128 + number, "signal"), name
        assert result.stdout == "before\n"
        assert f"killed by {name}" in result.stderr


def test_a_segmentation_fault_is_a_result(box):
    result = box.run("import ctypes; ctypes.string_at(0)")
    assert (result.exit_code, result.meta["reason"]) == (139, "signal")
    assert "killed by SIGSEGV (signal 11)" in result.stderr


def test_stdin_is_read_as_text_and_as_bytes(box):
    assert box.out("print(input(), input())", stdin="first\nsécond\n") == "first sécond"
    assert box.out("import sys; print(sys.stdin.buffer.read())", stdin=b"\xff\x00") == r"b'\xff\x00'"


def test_without_stdin_reading_finds_the_end(box):
    assert box.out("import sys; print(repr(sys.stdin.read()))") == "''"


def test_a_large_stdin_arrives_whole(box):
    assert box.out("import sys; print(len(sys.stdin.read()))", stdin="x" * 5_000_000) == "5000000"


def test_a_large_stdin_may_be_left_unread(box):
    assert box.out("print('done')", stdin="x" * 5_000_000) == "done"


def test_arguments_arrive(box):
    given = ["a b", "", "é", "-v", "--", "*"]
    assert json.loads(box.out("import json, sys; print(json.dumps(sys.argv[1:]))", args=given)) == given
    assert box.out("import os, sys; print(os.path.basename(sys.argv[0]))") == "main.py"


def test_variables_arrive(box):
    code = "import os; print(os.environ['ONE'], os.environ['TWO'], os.environ['THREE'] == '')"
    assert box.out(code, env={"ONE": "1=1", "TWO": "zwö\n", "THREE": ""}) == "1=1 zwö\n True"


def test_files_arrive_in_the_working_directory(box):
    files = {"data/deep/in.csv": "a,b\n", "blob": bytes(range(256)), "Ünïcode name": b"", "helper.py": "x = 42"}
    code = """
        import helper, os
        print(open("data/deep/in.csv").read().strip(), len(open("blob", "rb").read()), helper.x)
        print(os.path.getsize("Ünïcode name"))
        open("data/deep/in.csv", "a").write("more")
        os.rename("blob", "data/blob")
    """
    assert box.out(code, files=files) == "a,b 256 42\n0"


def test_the_program_is_an_ordinary_main_module(box):
    code = """
        import inspect, os, sys
        class Thing: pass
        def function(): return 1
        print(__name__, os.path.basename(__file__), sys.modules["__main__"].Thing is Thing, Thing.__module__)
        print(inspect.getsource(function).strip())
        print(sorted(name for name in globals() if name[:2] != "__"))
    """
    assert box.out(code).splitlines() == [
        "__main__ main.py True __main__",
        "def function(): return 1",
        "['Thing', 'function', 'inspect', 'os', 'sys']",
    ]


def test_unicode_that_is_written_in_pieces_comes_out_whole(box):
    code = """
        import sys, time
        for byte in "é😀".encode():
            sys.stdout.buffer.write(bytes([byte])); sys.stdout.buffer.flush(); time.sleep(0.01)
    """
    assert box.out(code) == "é😀"


def test_binary_output_does_no_harm(box):
    result = box.run("import sys; sys.stdout.buffer.write(bytes(range(256)))")
    assert result.exit_code == 0
    assert result.stdout.startswith("\0\1\2")
    assert "\ufffd" in result.stdout


def test_output_that_was_not_flushed_comes_out_at_the_end(box):
    result = box.run("import sys; sys.stdout.write('no newline'); sys.stderr.write('err')")
    assert (result.stdout, result.stderr) == ("no newline", "err")


def test_long_output_is_cut_and_the_program_goes_on(box):
    result = box.run("print('HEAD'); print('x' * 20_000_000); print('TAIL'); import sys; sys.exit(6)")
    assert (result.exit_code, result.meta["reason"], result.meta["truncated"]) == (6, "error", True)
    assert result.stdout.startswith("HEAD\n")
    assert result.stdout.endswith("TAIL\n")
    assert result.stdout.count(TRUNCATED) == 1
    assert len(result.stdout.replace(TRUNCATED, "")) <= 10_240


def test_each_stream_has_its_own_cap(box):
    result = box(max_output_kb=1).run("import sys; print('o' * 1023); print('e' * 5000, file=sys.stderr)")
    assert result.stdout == "o" * 1023 + "\n"
    assert TRUNCATED in result.stderr
    assert result.meta["truncated"] is True


def test_a_daemon_that_holds_stdout_does_not_hold_the_result(box):
    marker = new_marker()
    code = f"import subprocess; subprocess.Popen(['sleep', '{marker}'], start_new_session=True); print('done')"
    assert box.out(code) == "done"
    assert nothing_left(box, marker)


def test_closing_its_outputs_does_not_end_a_program(box):
    result = box.run("import os, time; print('x', flush=True); os.close(1); os.close(2); time.sleep(0.2); os._exit(5)")
    assert (result.stdout, result.exit_code) == ("x\n", 5)


def test_threads_are_waited_for_and_exit_handlers_run(box):
    code = """
        import atexit, threading, time
        atexit.register(print, "at exit")
        said = threading.Event()
        threading.Thread(target=lambda: (said.wait(), time.sleep(0.2), print("thread"))).start()
        threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
        print("main")
        said.set()
    """
    assert box.out(code) == "main\nthread\nat exit"


def test_many_threads(box):
    code = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(20) as pool: print(sum(pool.map(abs, range(-100, 0))))
    """
    assert box.out(code) == "5050"


def test_subprocesses(box):
    code = """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout)
        print(subprocess.check_output("echo $((1 + 1)) | cat", shell=True, text=True))
    """
    assert box.out(code).split() == ["42", "2"]


def test_asyncio_with_a_subprocess(box):
    code = """
        import asyncio, sys
        async def main():
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(5)", stdout=-1)
            out, _ = await process.communicate()
            await asyncio.sleep(0.01)
            print(out.decode().strip(), process.returncode)
        asyncio.run(main())
    """
    assert box.out(code) == "5 0"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(box, method):
    code = f"""
        import multiprocessing
        def square(x): return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                print(pool.map(square, range(4)))
    """
    assert box.out(code) == "[0, 1, 4, 9]"


def test_sqlite(box):
    code = """
        import sqlite3
        with sqlite3.connect("a.db") as db:
            db.execute("create table t (x)"); db.executemany("insert into t values (?)", [(1,), (2,)])
        db.close()
        print(sqlite3.connect("a.db").execute("select sum(x) from t").fetchone()[0])
    """
    assert box.out(code) == "3"


def test_a_program_may_serve_and_call_itself(box):
    code = """
        import http.server, threading, urllib.request
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers(); self.wfile.write(b"served")
            def log_message(self, *args): pass
        server = http.server.HTTPServer(("localhost", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(urllib.request.urlopen(f"http://localhost:{server.server_port}/").read().decode())
    """
    assert box.out(code) == "served"


def test_javascript(box):
    if shutil.which("node") is None:
        pytest.skip("node is not installed on this machine")
    box = box(supported_languages=["javascript"])
    code = "console.log(process.argv.slice(2), process.env.K, require('fs').readFileSync(0, 'utf8'))"
    result = box.run(code, "javascript", args=["a"], env={"K": "v"}, stdin="in")
    assert (result.exit_code, result.stdout) == (0, "[ 'a' ] v in\n"), result
    failed = box.run("console.log(1)\nthrow new Error('boom')", "js")
    assert (failed.exit_code, failed.stdout) == (1, "1\n")
    assert "Error: boom" in failed.stderr
    assert "main.js:2" in failed.stderr


def test_bash(box):
    box = box(supported_languages=["python", "bash"])
    result = box.run(
        'read line; echo "$1 $K $line"; echo err >&2; exit 3', "bash", args=["a b"], env={"K": "v"}, stdin="in\n"
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("a b v in\n", "err\n", 3)
    assert box.run("kill -9 $$", "bash").exit_code == 137
    assert box.run("python -c 'print(6 * 7)' | tr 4 x", "bash").stdout == "x2\n"


def nothing_left(box, marker: str) -> bool:
    """With the result every process is gone that had a pid namespace; elsewhere who was killed may take a moment."""
    return not alive(marker) if box.target.level == "sealed" else gone(marker)
