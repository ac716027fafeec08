from __future__ import annotations

from collections.abc import Iterable

import pytest

from docker_engine import daemon, docker, docker_host
from support import HANG_S

__all__ = ["daemon", "docker", "docker_host"]

# How long fumehood waits for an engine before it gives up. Tests of the waiting itself set their own.
WAITS = (
    *("client.ANSWER_S", "client._PING_S", "client._LAST_S", "client._COMING_S", "client.ALIVE_S"),
    *("_READY_S", "container._MAKE_S", "container._FATE_S", "pool._CLOSE_S", "sandbox._ANSWER_S"),
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long on a busy machine does not fail."""
    for name in WAITS:
        monkeypatch.setattr(f"fumehood.backends.docker.{name}", HANG_S)
    monkeypatch.setenv("SANDBOX_TIMEOUT_SEC", str(HANG_S))


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Who waits for an engine that one test at a time has, or for an image to be built, is not hung."""
    for item in items:
        if {"daemon", "podman", "image"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(func_only=True))
