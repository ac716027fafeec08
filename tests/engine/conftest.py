"""Deadlines of the engine that a busy machine may reach: in these tests only a hang does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
def public_path() -> Iterator[Path]:
    """A directory with a short path that every user can read, whatever the umask: pytest's own are for one alone."""
    path = Path(tempfile.mkdtemp(prefix="test-of-fumehood-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)
