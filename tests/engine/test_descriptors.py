"""A process that runs out of descriptors is told so, and goes on when it has some again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fumehood import IsolationUnavailable, get_sandbox

PROGRAM = """
import os, resource
from fumehood import EngineFailed, get_sandbox, open_session

with get_sandbox(isolation="sealed", store_code="never", warm_cells=0) as sandbox:
    assert sandbox.execute("print(1)").stdout == "1\\n"
    with open_session(isolation="sealed", store_code="never", start_retries=0) as session:
        session.run("x = 1")
        before = len(os.listdir("/proc/self/fd"))
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 64, limit + 64))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        refused = 0
        for spare in range(0, 14):  # wherever it fails in the making
            for _ in range(spare):
                os.close(held.pop())
            for call in (lambda: sandbox.execute("print(2)"), lambda: session.exec(["true"])):
                try:
                    call()
                except EngineFailed as error:
                    assert "ulimit -n" in str(error), error
                    refused += 1
            while True:
                try:
                    held.append(os.dup(0))
                except OSError:
                    break
        for fd in held:
            os.close(fd)
        assert sandbox.execute("print(3)").stdout == "3\\n"
        assert session.exec(["echo", "4"]).stdout == "4\\n"
        after = len(os.listdir("/proc/self/fd"))
        print(refused > 0, after <= before + 4, after - before)
"""


def test_what_failed_for_want_of_descriptors_leaves_none_behind_and_works_again() -> None:
    try:
        with get_sandbox(isolation="sealed", warm_cells=0) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.startswith("True True"), (done.stdout, done.stderr)
