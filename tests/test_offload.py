"""One session's results hold up no other: what they cost is bounded, and done beside the event loop."""

from __future__ import annotations

import asyncio
import os
import struct
import threading

import pytest

from fumehood import AsyncSession, bundles, edits, get_sandbox, offload
from fumehood.backends.base import Process
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.bundles import Bundles
from fumehood.engine import channel
from fumehood.engine.channel import Channel, TooMuch
from fumehood.records import cleaner
from fumehood.types import Display, Exited, Output, Receipt
from support import HANG_S

MANY = [f"token={number:08}" for number in range(20_000)]


def workers(monkeypatch, where, name):
    """The threads that call this function."""
    threads: set[int] = set()
    real = getattr(where, name)

    def watched(*arguments):
        threads.add(threading.get_ident())
        return real(*arguments)

    monkeypatch.setattr(where, name, watched)
    return threads


def ran(answer, **settings) -> int:
    """A session's run that gives this answer; the thread of its event loop."""

    async def scenario() -> int:
        async with AsyncSession(FakeBackend(replies=[answer]), store_code="always", **settings) as session:
            result = await session.run("x")
        assert result.exit_code == 0
        return threading.get_ident()

    return asyncio.run(asyncio.wait_for(scenario(), HANG_S))


def test_a_large_record_is_made_beside_the_loop(monkeypatch):
    threads = workers(monkeypatch, cleaner, "hide")
    loop = ran([Display({"application/json": MANY})])
    assert threads
    assert loop not in threads


def test_a_small_record_costs_no_thread(monkeypatch):
    threads = workers(monkeypatch, cleaner, "hide")
    assert threads == set()
    assert {ran(Reply(stdout="out", results=[{"text/plain": "1"}]))} == threads


def test_a_large_result_is_checked_beside_the_loop(monkeypatch):
    threads = workers(monkeypatch, bundles._Meter, "cleaned")
    loop = ran([Display({"application/json": MANY})])
    assert threads
    assert loop not in threads


def test_a_small_result_is_checked_in_the_loop(monkeypatch):
    threads = workers(monkeypatch, bundles._Meter, "cleaned")
    assert {ran(Reply(results=[{"text/plain": "1"}]))} == threads


def test_the_record_of_a_long_write_is_made_beside_the_loop(monkeypatch):
    threads = workers(monkeypatch, cleaner, "hide")

    async def scenario() -> int:
        async with AsyncSession(FakeBackend(), store_code="always") as session:
            await session.write("/tmp/a", "x = 1\n" * 10_000)
        return threading.get_ident()

    assert asyncio.run(scenario()) not in threads


@pytest.mark.parametrize(("size", "in_loop"), [(100, True), (100_000, False)])
def test_a_long_file_is_edited_beside_the_loop(monkeypatch, size, in_loop):
    threads = workers(monkeypatch, edits, "replace_once")

    async def scenario() -> int:
        async with AsyncSession(FakeBackend()) as session:
            await session.write("/tmp/a", "a" * size + "b")
            await session.edit("/tmp/a", "b", "c")
            assert await session.read("/tmp/a") == b"a" * size + b"c"
        return threading.get_ident()

    assert (asyncio.run(scenario()) in threads) is in_loop


def test_a_one_shot_in_a_loop_is_recorded_beside_it(monkeypatch):
    threads = workers(monkeypatch, cleaner, "hide")

    async def scenario() -> int:
        with get_sandbox(FakeBackend(replies=[Reply()]), store_code="always") as sandbox:
            await sandbox.execute_async("x = 1\n" * 10_000)
        return threading.get_ident()

    assert asyncio.run(scenario()) not in threads


def test_a_record_is_stored_also_if_its_caller_is_cancelled_meanwhile(monkeypatch):
    began, go_on, done = threading.Event(), threading.Event(), threading.Event()
    real = cleaner.hide

    def slow(*arguments):
        began.set()
        assert go_on.wait(HANG_S)
        done.set()
        return real(*arguments)

    monkeypatch.setattr(cleaner, "hide", slow)

    async def scenario() -> None:
        session = AsyncSession(FakeBackend(replies=[[Display({"application/json": MANY})]]), store_code="always")
        task = asyncio.create_task(session.run("x"))
        assert await asyncio.to_thread(began.wait, HANG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await session.close()

    asyncio.run(scenario())
    assert done.wait(HANG_S)


def test_the_loop_does_not_wait_for_a_record_that_a_thread_stores(monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    real, threads = cleaner.hide, set()

    def slow(text, *rest):
        threads.add(threading.get_ident())
        if text == MANY[0]:
            began.set()
            assert go_on.wait(HANG_S)
        return real(text, *rest)

    monkeypatch.setattr(cleaner, "hide", slow)

    async def scenario() -> int:
        large = AsyncSession(FakeBackend(replies=[[Display({"application/json": MANY})]]), store_code="always")
        small = AsyncSession(FakeBackend(replies=[Reply(stdout="out")]), store_code="always")
        task = asyncio.create_task(large.run("x"))
        assert await asyncio.to_thread(began.wait, HANG_S)
        await small.run("y")
        go_on.set()
        await task
        await asyncio.gather(large.close(), small.close())
        return threading.get_ident()

    assert asyncio.run(asyncio.wait_for(scenario(), HANG_S)) not in threads
    assert len(threads) == 2


@pytest.mark.parametrize(
    ("value", "small"),
    [
        ("x" * offload.SMALL_CHARS, True),
        ("x" * (offload.SMALL_CHARS + 1), False),
        (["x" * 1000] * 50, False),
        ([{"a": [1, 2, {"b": None}]}], True),
        (list(range(offload.SMALL_VALUES + 1)), False),
        ([[[1] * 100] * 3], False),
        ({"a" * offload.SMALL_CHARS: "b"}, False),
        (None, True),
    ],
)
def test_what_is_small(value, small):
    assert offload.is_small(value) is small


def test_work_is_done_in_a_fork_too():
    async def scenario() -> int:
        return await offload.offload(os.getpid)

    assert asyncio.run(scenario()) == os.getpid()
    child = os.fork()
    if not child:
        os._exit(0 if asyncio.run(scenario()) == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0


# A program that never falls silent


class Flood(Process):
    """Has always more to say, until another task has run."""

    receipt = Receipt("process", {})

    def __init__(self, is_enough):
        self._is_enough = is_enough
        self._left = 500_000

    async def read(self, _timeout_s=None):
        self._left -= 1
        if self._is_enough():
            return Exited(0, "ok")
        if self._left <= 0:
            return Exited(1, "error")
        return Output("stdout", b"x")

    def kill(self):
        self._left = 0

    async def close(self):
        pass


def test_a_program_that_never_falls_silent_lets_others_have_the_loop():
    others_ran: list[bool] = []

    class Flooding(FakeBackend):
        async def create(self, spec):
            sandbox = await super().create(spec)

            async def start(_command):
                asyncio.get_running_loop().call_soon(others_ran.append, True)
                return Flood(lambda: others_ran)

            sandbox.start = start
            return sandbox

    async def scenario():
        async with AsyncSession(Flooding()) as session:
            return await session.run("x", timeout=HANG_S)

    result = asyncio.run(scenario())
    assert result.exit_code == 0


def test_values_of_a_run_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(bundles, "MAX_VALUES", 100)
    kept = Bundles()
    assert kept.add({"application/json": [1] * 60})
    assert kept.add({"application/json": [1] * 60}) is None
    assert kept.add({"application/json": [1] * 20})
    assert (len(kept.kept), kept.truncated) == (2, True)


def test_an_interpreter_that_says_more_than_an_honest_one_is_not_heard_out(monkeypatch):
    monkeypatch.setattr(channel, "_MAX_FRAMES", 10)
    heard = Channel()
    heard.begin("x")
    frame = struct.pack("<I", 2) + b"{}"
    assert list(heard.hear(frame * 10)) == []
    with pytest.raises(TooMuch):
        list(heard.hear(frame))
    heard.begin("y")
    assert list(heard.hear(frame * 10)) == []
