"""The fixtures of tests that need a Docker engine."""

from __future__ import annotations

import fcntl
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SERVICES = Path(__file__).parents[1] / "scripts" / "services"
_IMAGE = "antigravity-sandbox:latest"


@pytest.fixture(scope="session")
def docker_host() -> str:
    """The address of the tests' own engine, with the runner image in it: these tests end and restart what they find.

    It is started on purpose, not by a test: `scripts/services image`; `scripts/services stop` ends it.
    """
    address = _address()
    status = _get(address, f"/images/{_IMAGE}/json")
    if status is None:
        pytest.skip("no Docker engine of the tests' own runs here: sudo scripts/services image")
    if status == 403:
        pytest.skip("only root may use the tests' Docker engine")
    if status != 200:
        pytest.skip("the tests' Docker engine has no runner image: sudo scripts/services image")
    return address


@pytest.fixture
def docker(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same, and in the environment, where a user would say it; nobody ends it meanwhile."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    with _turn(docker_host, alone=False):
        yield docker_host


@pytest.fixture
def docker_alone(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """An engine that may be ended: no other test uses it meanwhile."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    with _turn(docker_host, alone=True):
        daemon = Daemon(Path(docker_host.removeprefix("unix://")).parent)
        yield daemon
        daemon.start()


class Daemon:
    def __init__(self, directory: Path) -> None:
        self._pid_file = directory / "docker.pid"

    def kill(self) -> None:
        pid = int(self._pid_file.read_text())
        assert str(self._pid_file.parent) in Path(f"/proc/{pid}/cmdline").read_text()
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}/fd").exists():
            time.sleep(0.01)

    def start(self) -> None:
        subprocess.run([_SERVICES, "start"], check=True, capture_output=True, timeout=100)


@contextmanager
def _turn(address: str, *, alone: bool) -> Iterator[None]:
    """Many at a time, or one alone, over all processes; who wants to be alone is not overtaken."""
    top = Path(address.removeprefix("unix://")).parent.parent
    with open(top / "tests-gate", "w") as gate, open(top / "tests-turn", "w") as turn:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _address() -> str:
    said = subprocess.run([_SERVICES, "env"], check=True, capture_output=True, text=True, timeout=30).stdout
    return said.strip().removeprefix("export DOCKER_HOST=")


def _get(address: str, path: str) -> int | None:
    """The status of an answer; 403 where the socket may not be opened, None where nobody answers."""
    connection = http.client.HTTPConnection("docker", timeout=10)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(10)
        try:
            connection.sock.connect(address.removeprefix("unix://"))
            connection.request("GET", path)
            return connection.getresponse().status
        except PermissionError:
            return 403
        except (OSError, http.client.HTTPException):
            return None
