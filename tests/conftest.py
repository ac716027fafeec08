from __future__ import annotations

import ast
import fcntl
import functools
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest_plugins = [
    "harness.order",
    "harness.skips",
    "harness.evidence",
    "harness.next_start",
    "harness.attacks",
    "harness.own_count",
]

if sys.version_info < (3, 12):  # where two threads that parse at once may both get a SystemError, pytest among them
    _parse, _one_at_a_time = ast.parse, threading.RLock()

    @functools.wraps(_parse)
    def _parse_alone(*args, **named):
        with _one_at_a_time:
            return _parse(*args, **named)

    ast.parse = _parse_alone


def pytest_collection_finish() -> None:
    """The tests themselves are never garbage: a collection that one of them asks for need not look at them all."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may enter, which `tmp_path` is not: programs that root starts may be another."""
    with tempfile.TemporaryDirectory(prefix="open-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def few_descriptors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For processes that may open few: they may pass none on while others of their user have as many on their way."""
    with _descriptors_in_flight(tmp_path_factory, fcntl.LOCK_SH):
        yield


@pytest.fixture
def many_descriptors_in_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For who has that many: never beside a test with `few_descriptors`, in whichever worker."""
    with _descriptors_in_flight(tmp_path_factory, fcntl.LOCK_EX):
        yield


@contextmanager
def _descriptors_in_flight(tmp_path_factory: pytest.TempPathFactory, how: int) -> Iterator[None]:
    with open(tmp_path_factory.getbasetemp().parent / "in-flight.lock", "w") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture(autouse=True)
def no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Every test starts from the defaults, in an empty directory that its records may go to."""
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "DOCKER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
