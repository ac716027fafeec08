"""Who is ended with a program: its own processes, and everybody only where one of them cannot be caught."""

from __future__ import annotations

import itertools
import signal

import pytest

from fumehood.guest import census

EVERYBODY = (-1, signal.SIGKILL)
INTERPRETER = 2


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that are sent by a hunter that is held up for longer than it may take."""
    found: list[tuple[int, int]] = []

    def send(pid: int, number: int) -> bool:
        found.append((pid, number))
        return True

    monkeypatch.setattr(census, "_send", send)
    monkeypatch.setattr(census, "_HUNT_S", -1.0)
    return found


def test_a_hunter_that_was_held_up_ends_those_it_caught_and_nobody_else(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([{10, 11}, {10, 11, 12}, {10, 11, 12}])
    monkeypatch.setattr(census, "_others", lambda *_: next(seen))
    assert census.kill_others([INTERPRETER])
    assert EVERYBODY not in sent
    assert {pid for pid, number in sent if number == signal.SIGKILL} == {10, 11, 12}


def test_who_cannot_be_caught_takes_everybody_along(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = itertools.count(10)
    monkeypatch.setattr(census, "_others", lambda *_: {next(fresh)})
    assert census.kill_others([INTERPRETER])
    assert sent[-1] == EVERYBODY
