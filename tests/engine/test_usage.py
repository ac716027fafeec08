from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fumehood.engine import usage

BURN = "import time\nwhile time.process_time() < {}: pass\n"
THEN_WAIT = "print(flush=True)\nimport time; time.sleep(3600)\n"


@pytest.mark.parametrize(
    ("program", "least", "most"),
    [
        (BURN.format(0.5), 0, 0.25),
        (f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.5)!r}])\n", 0.45, 1.5),
    ],
    ids=["its own", "of what it started and waited for"],
)
def test_the_time_of_a_tree_is_not_that_of_its_supervisor(program: str, least: float, most: float) -> None:
    """A supervisor that watches for hours must not use up the time of a run."""
    with subprocess.Popen([sys.executable, "-c", program + THEN_WAIT], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        pidfd = os.pidfd_open(supervisor.pid)
        try:
            assert least <= usage.of_tree(pidfd)[0] < most
        finally:
            os.close(pidfd)
            supervisor.kill()


@pytest.mark.parametrize("who", ["supervisor", "program"])
def test_a_supervisor_says_by_its_name_what_its_tree_shows_no_longer(who: str) -> None:
    """A program may call itself so, too, and gains nothing."""
    naming = "import ctypes; ctypes.CDLL(None).prctl(15, b'lost 300', 0, 0, 0)\n"
    code = naming if who == "supervisor" else f"import os\nif os.fork() == 0:\n    {naming}"
    code += THEN_WAIT if who == "supervisor" else "    print(flush=True)\nimport time; time.sleep(3600)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pidfd = os.pidfd_open(process.pid)
        try:
            used_s = usage.of_tree(pidfd)[0]
            assert 3.0 <= used_s < 4.0 if who == "supervisor" else used_s < 1.0
        finally:
            os.close(pidfd)
            os.killpg(process.pid, signal.SIGKILL)
