"""The benchmark measures containers on a real engine. How fast anything is, is not tested here."""

from __future__ import annotations

import pytest

from fumehood.bench import containers


@pytest.mark.usefixtures("docker")
def test_containers_are_measured_beside_docker_run_with_their_flags() -> None:
    said: list[str] = []
    series = containers.measure(1, lambda *_: None, said.append)
    assert {containers.WARM, containers.COLD, containers.DOCKER_RUN} <= {item.name for item in series}, said
    assert all(len(item.seconds) == 1 for item in series)
