"""How many a program may have of what its supervisor is asked for."""

from __future__ import annotations

import errno
import time

import pytest

from fumehood.engine.bounds import Bound


def test_it_looks_only_when_as_many_were_asked_for_as_there_may_be() -> None:
    looks: list[int] = []
    bound = Bound(3, errno.EAGAIN, lambda: looks.append(1) or 2)  # one is gone each time
    assert [bound.ask() for _ in range(3)] == [None] * 3
    assert not looks
    assert [bound.ask() for _ in range(2)] == [None] * 2
    assert len(looks) == 2


def test_no_more_than_there_may_be() -> None:
    there = [0]

    def ask() -> int | None:
        if (said := bound.ask()) is None:
            there[0] += 1
        return said

    bound = Bound(5, errno.EAGAIN, lambda: there[0])
    assert [ask() for _ in range(7)] == [None] * 5 + [errno.EAGAIN] * 2
    there[0] = 4
    assert [ask() for _ in range(2)] == [None, errno.EAGAIN]


def test_who_asks_without_end_is_not_counted_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    looks: list[int] = []

    def count() -> int:
        looks.append(1)
        clock[0] += 1.0  # there are very many
        return 7

    bound = Bound(7, errno.EAGAIN, count)
    assert [bound.ask() for _ in range(7)] == [None] * 7
    assert [bound.ask() for _ in range(50)] == [errno.EAGAIN] * 50
    assert len(looks) == 1
    clock[0] += 30
    assert bound.ask() == errno.EAGAIN
    assert len(looks) == 2


def test_nobody_is_refused_for_want_of_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes long, and there is never more than one at a time."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])

    def count() -> int:
        clock[0] += 1.0
        return 1

    bound = Bound(2, errno.EAGAIN, count)
    assert [bound.ask() for _ in range(50)] == [None] * 50
