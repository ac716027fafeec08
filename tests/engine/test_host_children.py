"""Hosts that keep no dead children: they ignore SIGCHLD, or wait for every child themselves. All works there, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import IsolationUnavailable, get_sandbox
from support import HANG_S

IGNORES = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
"""
WAITS_FOR_ALL = """
import os, signal
def wait_for_all(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal(signal.SIGCHLD, wait_for_all)
"""
EXECUTE = """
from fumehood import get_sandbox
from fumehood.engine.zygotes import close_all
settings = dict(isolation=level, require=level, store_code='never', timeout_sec=280)
for _ in range(2):
    with get_sandbox(**settings) as sandbox:
        for _ in range(3): print(sandbox.execute('print(1)').stdout, end='')
    close_all()
"""
SESSION = """
from fumehood import open_session
settings = dict(isolation=level, require=level, store_code='never', timeout_sec=280)
with open_session(datasets={'data.csv': data}, **settings) as session:
    print(session.run("print(open('/tmp/data/data.csv').read())").stdout.strip())
    print(session.exec(['sh', '-c', 'echo 1; exit 5']).exit_code)
"""


def said_by(host: str, code: str, level: str, data: Path) -> str:
    try:
        with get_sandbox(isolation=level, require=level) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no {level} sandbox on this machine: {missing}")
    data.write_text("1\n", "utf-8")
    program = f"{host}level, data = {level!r}, {str(data)!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("level", ["sealed", "confined", "process"])
@pytest.mark.parametrize("host", [IGNORES, WAITS_FOR_ALL], ids=["ignores", "waits"])
def test_programs_are_run_where_dead_children_are_not_kept(host: str, level: str, tmp_path: Path) -> None:
    assert said_by(host, EXECUTE, level, tmp_path / "data.csv") == "1\n" * 6


@pytest.mark.parametrize("host", [IGNORES, WAITS_FOR_ALL], ids=["ignores", "waits"])
def test_sessions_are_served_where_dead_children_are_not_kept(host: str, tmp_path: Path) -> None:
    assert said_by(host, SESSION, "sealed", tmp_path / "data.csv") == "1\n5\n"


INHERITED = [sys.executable, "-m", "fumehood", "run", "-c", "print(1)"]


def test_the_command_line_may_be_started_with_sigchld_ignored() -> None:
    code = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({INHERITED[0]!r}, {INHERITED})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
