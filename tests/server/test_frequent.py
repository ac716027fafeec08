"""Whose limits have cells that wait: those that come again, of everybody alike, and never many."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from fumehood.server.frequent import MOST, Frequent, Kind


class Asked:
    """A `Frequent` at a time that the test sets, and what it has dropped."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.dropped: list[Kind] = []
        self.frequent = Frequent(self.dropped.append, lambda: self.now)

    def __call__(self, owner: str, what: Hashable, times: int = 1) -> bool:
        return [self.frequent.is_kept(owner, what) for _ in range(times)][-1]

    def kept_of(self, owner: str) -> list[Hashable]:
        return [what for holder, what in self.frequent._kept if holder == owner]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_what_is_asked_for_again_is_kept(asked: Asked) -> None:
    assert [asked("alice", "small") for _ in range(3)] == [False, True, True]
    assert not asked("alice", "large")


def test_what_comes_again_only_much_later_is_not(asked: Asked) -> None:
    for _ in range(4):
        assert not asked("alice", "small")
        asked.now += 61
    assert not asked("alice", "small")
    assert asked("alice", "small")


def test_what_one_owner_asks_for_tells_nothing_to_another(asked: Asked) -> None:
    assert asked("alice", "small", 2)
    assert not asked("bob", "small")


def test_of_an_owner_who_asks_for_other_limits_each_time_nothing_is_kept(asked: Asked) -> None:
    for _ in range(2):
        for number in range(1000):
            assert not asked("mallory", number)
    assert len(asked.frequent._seen["mallory"]) < 20
    assert not asked("alice", "small")
    assert asked("alice", "small")  # the others' were not forgotten for them


def test_there_are_never_more_than_a_few(asked: Asked) -> None:
    for number in range(100):
        asked("mallory", number, 3)
        asked("trent", number, 3)
    assert len(asked.frequent._kept) == MOST


def test_who_has_many_gets_no_more_while_they_are_in_use(asked: Asked) -> None:
    for number in range(MOST):
        assert asked("alice", number, 2)
    assert not asked("alice", "another", 10)
    assert asked.dropped == []


def test_what_nobody_asks_for_any_more_makes_room(asked: Asked) -> None:
    for number in range(MOST):
        asked("alice", number, 2)
    asked.now += 61
    for number in range(1, MOST):
        asked("alice", number)
    assert asked("bob", "small", 2)
    assert asked.dropped == [("alice", 0)]


def test_who_has_the_most_makes_room_for_who_has_fewer_until_they_have_as_many(asked: Asked) -> None:
    for number in range(MOST):
        asked("mallory", number, 2)
    for number in range(MOST):
        asked("alice", number, 2)
        for kept in asked.kept_of("mallory"):
            asked("mallory", kept)
    assert (len(asked.kept_of("mallory")), asked.kept_of("alice")) == (MOST // 2, [*range(MOST // 2)])
    assert asked.dropped == [("mallory", number) for number in range(MOST // 2)]
    for number in range(100, 200):
        asked("mallory", number, 3)
    assert asked.kept_of("alice") == [*range(MOST // 2)]
