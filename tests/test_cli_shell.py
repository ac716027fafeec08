"""The interactive session: through a pipe, and through a terminal that is a real one."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli.shell_input import Statements
from pace import GRACE_S, at_some_pace, take_signals, with_waits
from support import HANG_S, wait_until

OURS = [sys.executable, "-m", "fumehood", "shell"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SANDBOX_", "XDG_"))}
    waits = with_waits(tmp_path / "waits", [("fumehood.execution", "INTERRUPT_GRACE_S", GRACE_S)])
    own = {"HOME": str(tmp_path), "TERM": "dumb", "SANDBOX_STORE_CODE": "never", "SANDBOX_TIMEOUT_SEC": f"{HANG_S:g}"}
    return {**clean, **waits, **own}


@pytest.fixture
def piped(tmp_path: Path, environ: dict[str, str]) -> Any:
    def call(text: str | bytes, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        raw = text.encode() if isinstance(text, str) else text
        done = subprocess.run(
            [*OURS, *words],
            input=raw,
            capture_output=True,
            cwd=tmp_path,
            env={**environ, **variables},
            timeout=HANG_S,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


class Terminal:
    """Somebody who types and reads."""

    def __init__(self, *words: str, cwd: Path, environ: dict[str, str]) -> None:
        self.shown = ""
        pid, self._fd = pty.fork()
        if pid == 0:
            take_signals()
            os.chdir(cwd)
            os.execve(OURS[0], [*OURS, *words], environ)
        self.pid = pid
        self._ended: int | None = None

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str) -> str:
        """What was shown until the pattern came, which is then forgotten."""
        until = time.monotonic() + HANG_S
        while not (match := re.search(pattern, self.shown)):
            assert time.monotonic() < until, f"{pattern!r} does not come; there is\n{self.shown}"
            assert self._read(), f"it ended before {pattern!r}:\n{self.shown}"
        before, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return before

    def _read(self) -> bool:
        if select.select([self._fd], [], [], 0.5)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other side is closed
                return False
            self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
            return bool(data)
        return True

    def listens(self) -> bool:
        """Whether it sleeps: readline shows the prompt before it listens for signals."""
        with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"

    def ended(self) -> int:
        until = time.monotonic() + HANG_S
        while self._read():
            assert time.monotonic() < until, f"it does not end:\n{self.shown}"
        self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def close(self) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def typed(tmp_path: Path, environ: dict[str, str]) -> Iterator[Any]:
    opened = []

    def start(*words: str, **variables: str) -> Terminal:
        opened.append(Terminal(*words, cwd=tmp_path, environ={**environ, **variables}))
        opened[-1].wait_for(">>> ")
        return opened[-1]

    yield start
    for one in opened:
        one.close()


# --- from a pipe


def test_a_pipe_has_no_prompts_and_shows_output_and_last_expressions(piped: Any) -> None:
    done = piped("x = 40\nprint('hello')\nx + 2\n'text'\nNone\n")
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n42\n'text'\n", "", 0)


def test_blocks_need_no_empty_line_behind_them(piped: Any) -> None:
    program = (
        "def f(n):\n"
        "    if n:\n"
        "        return 'yes'\n"
        "    else:\n"
        "        return 'no'\n"
        "\n"
        "for n in (0, 1):\n"
        "    print(f(n))\n"
        "print('''a\n"
        ":quit\n"
        "!b''')\n"
        "[1,\n"
        "2,\n"
        "]\n"
        "try:\n"
        "    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    print('caught')"
    )
    done = piped(program)
    assert done.stdout == "no\nyes\na\n:quit\n!b\n[1, 2]\ncaught\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_exit_code_is_that_of_the_last_run_that_failed(piped: Any) -> None:
    assert piped("1 / 0\n!sh -c 'exit 7'\nprint(1)\n").returncode == 7
    done = piped("!sh -c 'exit 7'\n1 / 0\nprint(1)\n")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert done.stdout == "1\n"


def test_a_syntax_error_is_told_by_python_inside_and_the_next_line_runs(piped: Any) -> None:
    done = piped("x = = 1\nprint('on')\n")
    assert "SyntaxError" in done.stderr
    assert (done.stdout, done.returncode) == ("on\n", 1)


def test_what_is_not_finished_at_the_end_is_run_as_it_is(piped: Any) -> None:
    assert "SyntaxError" in piped("print('never'\n").stderr


def test_commands_run_in_the_same_files_without_a_shell(piped: Any) -> None:
    done = piped("open('a.txt', 'w').write('data')\n!cat a.txt\n!echo '*  x' $HOME\n")
    assert done.stdout == "4\ndata*  x $HOME\n"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("!nsenter -t 1", 126, "'nsenter' is not allowed"),
        ("!", 1, "! needs a command"),
        ("!echo 'x", 1, "cannot be split into words"),
        (":nosuch", 1, ":nosuch is not a command; there are :help"),
    ],
)
def test_a_line_that_cannot_be_done_is_an_error_and_the_next_one_runs(
    piped: Any, line: str, code: int, words: str
) -> None:
    done = piped(f"{line}\nprint('on')\n")
    assert words in done.stderr
    assert (done.stdout, done.returncode) == ("on\n", code)


def test_colon_commands(piped: Any, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n", "utf-8")
    done = piped(
        "x = 1\n:datasets\nprint(open('/tmp/data/sales.csv').read())\n:help\n:reset\nx\n:quit\nprint('never')\n",
        *("--dataset", "sales=sales.csv"),
    )
    assert "sales  /tmp/data/sales.csv" in done.stdout
    assert "a,b\n1,2\n" in done.stdout
    assert ":reset      end this sandbox and start a fresh one" in done.stdout
    assert "NameError" in done.stderr
    assert "never" not in done.stdout


def test_files_are_listed_with_their_size(piped: Any) -> None:
    done = piped("open('a.txt', 'w').write('x' * 1234); None\n:files\n")
    assert re.search(r"^ +1,234  /workspace/a\.txt$", done.stdout, re.MULTILINE)


def test_figures_are_saved_and_named(piped: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed here")
    done = piped("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nplt.plot([2, 1]); plt.show()\n")
    first, second = (line for line in done.stdout.splitlines() if "figure" in line)
    assert re.fullmatch(r"output/session_\w+/figure-1\.png", first), done.stdout
    assert second == first.replace("-1", "-2")
    assert (tmp_path / first).read_bytes().startswith(b"\x89PNG")


def test_files_in_the_output_directory_are_saved_and_named(piped: Any, tmp_path: Path) -> None:
    done = piped("open('/tmp/output/a.txt', 'w').write('x'); None\n")
    saved = re.search(r"saved (output/session_\w+/a\.txt)", done.stderr)
    assert saved
    assert (tmp_path / saved[1]).read_text("utf-8") == "x"


def test_a_table_is_shown_as_text(piped: Any) -> None:
    pytest.importorskip("polars", reason="polars is not installed here")
    done = piped("import polars as pl\npl.DataFrame({'name': ['ada'], 'n': [1]})\n")
    assert "ada" in done.stdout
    assert "<table" not in done.stdout


def test_a_timeout_is_said_and_the_variables_are_kept(piped: Any) -> None:
    def is_cut(timeout: float) -> bool:
        done = piped("x = 5\nimport time; time.sleep(3600)\nx\n", "--timeout", str(timeout))
        assert f"timed out after {timeout:g} s" in done.stderr
        assert done.returncode == 124
        return done.stdout == "5\n"  # else the other lines took as long, on this machine

    assert at_some_pace(is_cut)


@pytest.mark.parametrize(
    ("words", "text", "code", "says"),
    [
        (("--dataset", "x"), "", 2, "--dataset takes NAME=PATH, not 'x'"),
        (("--timeout", "0"), "", 2, "timeout must be more than 0"),
        (("--backend", "nosuch"), "", 2, "nosuch"),
        (("--backend", "fake", "--require", "sealed"), "", 126, "isolates nothing"),
        (("--nosuch",), "", 2, "unrecognized arguments"),
        (("--backend", "fake"), b"print('\xff')", 2, "not UTF-8"),
        (("--requirement", "-r x"), "1\n", 125, "options are not taken"),
    ],
)
def test_what_cannot_begin_ends_with_its_exit_code(
    piped: Any, words: tuple[str, ...], text: str | bytes, code: int, says: str
) -> None:
    done = piped(text, *words)
    assert says in done.stderr
    assert done.returncode == code


# --- at a terminal


def test_a_conversation(typed: Any) -> None:
    shell = typed()
    shell.type("x = 41\n")
    shell.wait_for(">>> ")
    shell.type("x + 1\n")
    assert "\n42\n" in shell.wait_for(">>> ")
    shell.type("for i in range(2):\n")
    shell.wait_for(r"\.\.\. ")
    shell.type("    print('i', i)\n")
    shell.wait_for(r"\.\.\. ")
    shell.type("\n")
    assert "i 0\ni 1\n" in shell.wait_for(">>> ")
    shell.type("1 / 0\n")
    assert "ZeroDivisionError" in shell.wait_for(">>> ")
    shell.type("\x04")
    assert shell.ended() == 0


def test_output_comes_while_the_program_runs_and_control_c_keeps_the_variables(typed: Any) -> None:
    shell = typed()
    shell.type("x = 7\n")
    shell.wait_for(">>> ")
    shell.type("import time; print('be' + 'gun'); time.sleep(3600)\n")
    shell.wait_for("begun\n")
    shell.type("\x03")
    assert "variables are kept" in shell.wait_for(">>> ")
    shell.type("x * 6\n")
    assert "\n42\n" in shell.wait_for(">>> ")
    shell.type(":quit\n")
    assert shell.ended() == 0


def test_control_c_at_the_prompt_drops_what_was_begun(typed: Any) -> None:
    shell = typed()
    shell.type("print('never',\n")
    shell.wait_for(r"\.\.\. ")
    assert wait_until(shell.listens)
    shell.type("\x03")
    shell.wait_for(">>> ")
    shell.type("'fresh'\n")
    assert "SyntaxError" not in shell.wait_for("\n'fresh'\n>>> ")
    shell.type("\x04")
    assert shell.ended() == 0


def test_the_history_is_kept_for_its_owner_alone(typed: Any, tmp_path: Path) -> None:
    pytest.importorskip("readline", reason="this Python has no readline")
    shell = typed()
    shell.type("'remember' + ' me'\n")
    shell.wait_for("'remember me'\n>>> ")
    shell.type(":quit\n")
    assert shell.ended() == 0
    history = tmp_path / ".local/state/fumehood/history"
    assert "'remember' + ' me'" in history.read_text("utf-8")
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.parent.stat().st_mode & 0o777 == 0o700
    shell = typed()
    shell.type("\x10\x10\n")  # Ctrl-P: the line before :quit
    shell.wait_for("\n'remember me'\n")


def test_a_hostile_program_cannot_drive_the_terminal(typed: Any) -> None:
    shell = typed()
    shell.type("print(chr(27) + ']0;title' + chr(7) + chr(0x202e)); chr(27)*2 + 'x'\n")
    shown = shell.wait_for(r"\n.*x'?\n>>> ")
    assert "\x1b]0" not in shown
    assert "\\x1b]0;title\\x07\\u202e" in shown
    shell.type("class E:\n    def __repr__(self): return chr(27) + '[2J'\n\n")
    shell.wait_for(">>> ")
    shell.type("E()\n")
    assert "\\x1b[2J" in shell.wait_for(r"2J[\s\S]*>>> ")
    assert "\x1b[2J" not in shell.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(typed: Any, number: int) -> None:
    shell = typed()
    shell.type("import time; print('be' + 'gun'); time.sleep(3600)\n")
    shell.wait_for("begun\n")
    os.kill(shell.pid, number)
    assert shell.ended() == 128 + number


# --- statements


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("x = 1\ny = 2", ["x = 1", "y = 2"]),
        ("if x:\n  1\nelse:\n  2\n\n3", ["if x:\n  1\nelse:\n  2\n", "3"]),
        ("if x:\n  1\n3", ["if x:\n  1", "3"]),
        ("@d\ndef f():\n  pass\nf()", ["@d\ndef f():\n  pass", "f()"]),
        ("with a:\n  with b:\n    c\n  d\ne", ["with a:\n  with b:\n    c\n  d", "e"]),
        ("f(1,\n2)", ["f(1,\n2)"]),
        ("'''a\nb\n'''", ["'''a\nb\n'''"]),
        ("x = \\\n1", ["x = \\\n1"]),
        ("\n\n  \nx", ["x"]),
        (")", [")"]),
        ("match x:\n  case 1:\n    a\n  case _:\n    b\nz", ["match x:\n  case 1:\n    a\n  case _:\n    b", "z"]),
        ("for x in y:\n  pass\n# note\nz", ["for x in y:\n  pass\n# note", "z"]),
        ("(" * 500, ["(" * 500]),
    ],
)
def test_lines_become_statements(text: str, statements: list[str]) -> None:
    reader = Statements()
    found = [source for line in text.split("\n") for source in reader.feed(line)]
    found += [rest] if (rest := reader.rest()) else []
    assert found == statements
