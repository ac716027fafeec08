"""The gate and the quotas by themselves: whose turn it is, who is refused, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")

from fumehood.server import quotas
from fumehood.server.gate import Gate
from fumehood.server.options import ServerOptions
from fumehood.server.problems import Problem
from fumehood.server.quotas import Quotas
from fumehood.server.tokens import Token
from support import HANG_S


class _Runs:
    """Executions that each last until they are let go."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.order, self.refused = gate, list[str](), list[tuple[str, str]]()
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def ask(self, *names: str, **quota: int) -> None:
        """`a1` is one of the owner `a`."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks.add(asyncio.create_task(self._run(name, Token(name[0], name.encode(), **quota))))
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        for _ in range(5):  # turns of the loop, not time
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        """In the order in which they began."""
        for name in self.order:  # which grows meanwhile
            await self.end(name)
        await asyncio.gather(*self._tasks)

    async def _run(self, name: str, token: Token) -> None:
        try:
            async with self.gate.execution(token):
                self.order.append(name)
                await self._ends[name].wait()
        except Problem as problem:
            self.refused.append((name, problem.code))


def _played(options: ServerOptions, play: Callable[[_Runs], Awaitable[None]]) -> _Runs:
    async def whole() -> _Runs:
        runs = _Runs(Gate(options._replace(queue_wait_s=HANG_S)))
        await play(runs)
        await runs.end_all()
        assert (runs.gate.running, runs.gate.queued, +runs.gate.running_of) == (0, 0, {})
        return runs

    return asyncio.run(whole())


def test_owners_take_turns() -> None:
    async def play(runs: _Runs) -> None:
        await runs.ask("a1", "a2", "a3", "a4", "b1", "b2", "c1")

    runs = _played(ServerOptions(max_running=1), play)
    assert runs.order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_an_owner_leaves_a_place_to_the_others_and_waits() -> None:
    async def play(runs: _Runs) -> None:
        await runs.ask("a1", "a2", "a3", "a4", "a5")
        assert (runs.order, runs.gate.queued_of("a")) == (["a1", "a2", "a3"], 2)
        await runs.ask("b1")
        assert runs.order[-1] == "b1"
        await runs.end("b1")
        assert runs.gate.running == 3  # the free place is not for a fourth of the same

    assert _played(ServerOptions(max_running=4), play).refused == []


def test_a_written_quota_is_refused_at_once_and_may_be_all_places() -> None:
    async def play(runs: _Runs) -> None:
        await runs.ask("a1", "a2", "a3", max_concurrent=2)
        assert (runs.order, runs.refused) == (["a1", "a2"], [("a3", "too_many")])

    _played(ServerOptions(max_running=2), play)


def test_in_a_full_queue_the_owner_with_the_most_gives_way() -> None:
    async def play(runs: _Runs) -> None:
        await runs.ask("a0", "a1", "a2", "a3", "a4")
        await runs.ask("a5")
        await runs.ask("b1", "b2", "b3")
        for _ in range(5):
            await asyncio.sleep(0)

    runs = _played(ServerOptions(max_running=1, max_queue=4), play)
    assert {name for name, _ in runs.refused} == {"a5", "a4", "a3", "b3"}
    assert {code for _, code in runs.refused} == {"unavailable"}
    assert runs.order == ["a0", "a1", "b1", "a2", "b2"]


def test_who_leaves_the_queue_takes_no_place_with_it() -> None:
    async def whole() -> None:
        gate = Gate(ServerOptions(max_running=1, queue_wait_s=HANG_S))

        async def wait() -> None:
            async with gate.execution(Token("b", b"b")):
                raise AssertionError

        async with gate.execution(Token("a", b"a")):
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            assert gate.queued == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert gate.queued == 0
        assert gate.running == 0

    asyncio.run(whole())


def test_the_wait_is_told() -> None:
    async def whole() -> list[tuple[str, bool]]:
        gate, told = Gate(ServerOptions(max_running=1, queue_wait_s=HANG_S)), list[tuple[str, bool]]()
        gate.entered = lambda token, queued_s: told.append((token.name, queued_s > 0))

        async def run() -> None:
            async with gate.execution(Token("b", b"b")) as queued_s:
                assert queued_s > 0

        async with gate.execution(Token("a", b"a")) as queued_s:
            assert queued_s == 0
            waiting = asyncio.create_task(run())
            await asyncio.sleep(0)
        await waiting
        return told

    assert asyncio.run(whole()) == [("a", False), ("b", True)]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("most", [1, 3, 1_000_000])
def test_requests_of_any_minute_are_counted(
    most: int, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.1]
    monkeypatch.setattr(quotas.time, "monotonic", lambda: now[0])
    token = Token("a", b"a", per_minute=most)
    workers = [Quotas(str(tmp_path)), Quotas(str(tmp_path))] if is_shared else [Quotas()] * 2
    few = min(most, 3)
    assert [workers[number % 2].wait_s(token) for number in range(few)] == [0.0] * few
    narrower = token._replace(per_minute=few)  # what was counted stays, whatever the quota becomes
    assert 59 < workers[0].wait_s(narrower) <= 60.25
    now[0] += 59.99
    assert 0 < workers[1].wait_s(narrower) <= 0.26
    now[0] += 0.26
    assert workers[1].wait_s(narrower) == 0.0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5000


def test_the_wait_is_until_as_many_are_over_as_have_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(quotas.time, "monotonic", lambda: now[0])
    counted = Quotas()
    for _ in range(4):
        assert counted.wait_s(Token("a", b"a", per_minute=4)) == 0.0
        now[0] += 10
    wait_s = counted.wait_s(Token("a", b"a", per_minute=2))
    now[0] += wait_s
    assert 0 < wait_s < 60
    assert counted.wait_s(Token("a", b"a", per_minute=2)) == 0.0
