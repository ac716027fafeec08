"""A real server process on loopback, and clients of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")
import httpx2  # noqa: E402 - of the same extra

TOKENS = {"alice": "alice-token-0123456789", "bob": "bob-token-0123456789ab"}
START_S = 60.0
REPLY_S = 60.0


class Running:
    """One server process."""

    def __init__(self, directory: Path, *flags: str, env: dict[str, str] | None = None, tokens: Any = None) -> None:
        self.directory = directory
        file = directory / "tokens.json"
        entries = tokens if tokens is not None else [{"name": n, "token": t} for n, t in TOKENS.items()]
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "FUMEHOOD_"))}
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fumehood", "serve", "--port", "0", "--token-file", str(file), *flags],
            cwd=directory,
            env={**kept, "SANDBOX_ARTIFACTS_DIR": str(directory / "artifacts"), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, (line, self.log())
        self.url = "http://" + line.split("http://")[1].split("/")[0]

    def client(self, name: str = "alice", **kinds: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {TOKENS.get(name, name)}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=REPLY_S, **kinds)

    def log(self) -> str:
        return (self.directory / "log").read_text("utf-8", "replace")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The usual one; alice and bob may use it, and every execution is stored."""
    running = Running(tmp_path_factory.mktemp("server"), env={"SANDBOX_STORE_CODE": "always"})
    yield running
    assert running.stop() == 0


@pytest.fixture
def alice(server: Running) -> Iterator[httpx2.Client]:
    with server.client("alice") as client:
        yield client


@pytest.fixture
def bob(server: Running) -> Iterator[httpx2.Client]:
    with server.client("bob") as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts one with other flags or settings."""
    started: list[Running] = []

    def make(*flags: str, **further: Any) -> Running:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Running(directory, *flags, **further))
        return started[-1]

    yield make
    for running in started:
        running.stop()


@pytest.fixture
def session(alice: httpx2.Client) -> Iterator[str]:
    """The id of an open one of alice's."""
    found = alice.post("/sessions", json={})
    assert found.status_code == 201, found.text
    session_id: str = found.json()["session_id"]
    yield session_id
    alice.delete(f"/sessions/{session_id}")
