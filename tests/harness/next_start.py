"""After the last test, the next start: it sweeps what processes that tests killed have left, as it does for a user.

What is still there after it is a defect, and the fence finds it (`scripts/_fenced`).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import os
from fumehood import FumehoodError, get_sandbox
for level in ("sealed", "confined"):  # groups are swept by the one, directories by the other
    try:
        with get_sandbox("local", isolation=level, store_code="never") as sandbox:
            sandbox.execute("pass")
    except FumehoodError:
        pass
engine = os.environ.get("FUMEHOOD_TEST_DOCKER")
if engine:  # whose containers outlive a process that had no time to remove them
    os.environ["DOCKER_HOST"] = engine
    try:
        with get_sandbox("docker", store_code="never") as sandbox:
            sandbox.execute("pass")
    except FumehoodError:
        pass
"""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # with xdist: once, when its workers are gone
        subprocess.run([sys.executable, "-c", START], check=False)
