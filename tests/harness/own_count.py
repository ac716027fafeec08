"""Runs each worker of an ordinary user in a user namespace of its own, where the kernel counts its processes by itself.

Below level `sealed` and without control groups the limit of processes is that of the user: a test that starts a crowd
would take them from the tests beside it (SECURITY.md, accepted leaks).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

OWN_USERS = ["unshare", "--user", "--map-current-user"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    if os.geteuid() == 0 or not shutil.which("unshare"):
        return
    if subprocess.run([*OWN_USERS, "true"], capture_output=True).returncode == 0:
        for spec in specs:
            spec.python = " ".join([*OWN_USERS, sys.executable])
