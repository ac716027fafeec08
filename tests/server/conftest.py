"""A real server process on loopback, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")
import httpx2

from running import Running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The usual one; those of TOKENS may use it, and every execution is stored."""
    settings = {"SANDBOX_STORE_CODE": "always"}
    running = Running(tmp_path_factory.mktemp("server"), env=settings, is_measured=True, is_patient=True)
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
def dave(server: Running) -> Iterator[httpx2.Client]:
    """Of a token with which nothing else runs."""
    with server.client("dave") as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts one with other flags or settings."""
    started: list[Running] = []

    def make(*flags: str, **further: Any) -> Running:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Running(directory, *flags, **{"is_patient": True, **further}))
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
