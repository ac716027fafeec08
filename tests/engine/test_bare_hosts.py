"""Hosts that lack what every process is given: standard streams, or a /dev."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import IsolationUnavailable, get_sandbox
from support import HANG_S

HOST = """
import json, sys
from fumehood import FumehoodError, get_sandbox, open_session
level, told, data = sys.argv[1:]
settings = dict(isolation=level, require=level, store_code='never', timeout_sec=280)
said = []
try:
    with get_sandbox(**settings) as sandbox:
        said += [sandbox.execute('print(1)').stdout for _ in range(3)]
    with open_session(datasets={'data.csv': data}, **settings) as session:
        said.append(session.run('print(2)').stdout)
        said.append(session.exec(['echo', '3']).stdout)
except FumehoodError as error:
    said.append(f'{type(error).__name__}: {error}')
with open(told, 'w') as file:
    json.dump(said, file)
"""
SERVED = ["1\n", "1\n", "1\n", "2\n", "3\n"]
LEVELS = ("sealed", "confined", "process")


def said_by(level: str, tmp_path: Path, shell: str, *around: str) -> list[str]:
    """`shell` starts the host, which is "$@"."""
    try:
        with get_sandbox(isolation=level, require=level) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no {level} sandbox on this machine: {missing}")
    told, data = tmp_path / "told", tmp_path / "data.csv"
    data.write_text("x\n", "utf-8")
    host = [sys.executable, "-c", HOST, level, str(told), str(data)]
    done = subprocess.run([*around, "sh", "-c", shell, "sh", *host], timeout=HANG_S, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(told.read_text("utf-8"))
    return said


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("closed", ["<&-", ">&- 2>&-", "<&- >&- 2>&-"], ids=["input", "outputs", "all"])
def test_a_host_that_closed_its_standard_streams_is_served(closed: str, level: str, tmp_path: Path) -> None:
    assert said_by(level, tmp_path, f'exec "$@" {closed}') == SERVED


def in_mounts_of_its_own() -> list[str]:
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *own, "--mount"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    return unshare


@pytest.mark.parametrize("level", LEVELS)
def test_a_host_without_devices_is_told_what_is_missing(level: str, tmp_path: Path) -> None:
    unshare = in_mounts_of_its_own()
    (said,) = said_by(level, tmp_path, 'mount -t tmpfs none /dev && exec "$@"', *unshare)
    assert said.startswith("EngineFailed: /dev/null cannot be opened here (No such file or directory)")


@pytest.mark.parametrize("level", LEVELS)
def test_null_is_the_only_device_that_is_needed(level: str, tmp_path: Path) -> None:
    """The control: the same place, with it."""
    unshare = in_mounts_of_its_own()
    null = tmp_path / "null"
    null.touch()
    shell = (
        f"mount --bind /dev/null {null} && mount -t tmpfs none /dev && : > /dev/null && mount --bind {null} /dev/null"
    )
    assert said_by(level, tmp_path, f'{shell} && exec "$@"', *unshare) == SERVED
