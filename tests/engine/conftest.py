"""Deadlines of the engine that a busy machine may reach: in these tests only a hang does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process_view import roots

from fumehood.engine import engine as engines
from support import HANG_S

PATIENCE = (
    "fumehood.engine.cell._GONE_S",
    "fumehood.engine.engine._READY_S",
    "fumehood.engine.interpreter._ENDING_S",
    "fumehood.engine.pool._READY_S",
    "fumehood.engine.zygotes._BORN_S",
    "fumehood.engine.zygotes._IMPORT_S",
    "fumehood.engine.zygotes._START_S",
    "fumehood.execution.INTERRUPT_GRACE_S",
    "fumehood.execution.KILL_GRACE_S",
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PATIENCE:
        monkeypatch.setattr(name, HANG_S)


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What earlier tests keep ready for a quiet minute is theirs."""
    monkeypatch.setattr(engines, "_engines", {})
    yield
    for root in roots():
        root.close()


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A directory with a short path that every user can read, whatever the umask: pytest's own are for one alone."""
    path = Path(tempfile.mkdtemp(prefix="test-of-fumehood-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


@pytest.fixture
def elsewhere() -> Callable[[str, str], str]:
    """Runs Python as the first process of a pid namespace of its own, which takes with it whatever is left there.

    elsewhere(code, directory for temporary files) is what it prints.
    """
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here")

    def run(code: str, tmp: str) -> str:
        done = subprocess.run(
            [*unshare, sys.executable, "-c", f"import os\nassert os.getpid() == 1\n{code}"],
            env={**os.environ, "TMPDIR": tmp},
            capture_output=True,
            encoding="utf-8",
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
