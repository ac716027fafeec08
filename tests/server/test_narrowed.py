"""Requests with limits of their own: cells wait for those that come often, and hold what was asked for."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from processes import Known, all_gone, beneath

from fumehood import config
from fumehood.engine import engine as engines
from fumehood.engine.plan import OWN_INODES
from fumehood.engine.pool import Pool
from fumehood.engine.root import Root
from fumehood.errors import IsolationUnavailable
from fumehood.handed import Handed
from fumehood.server import frequent, sandboxes, wire
from fumehood.server.options import ServerOptions
from fumehood.server.reload import InForce
from fumehood.server.sandboxes import Sandboxes, narrowed
from fumehood.server.state import Server
from fumehood.server.tokens import Token
from fumehood.types import ExecutionResult, Limits
from support import HANG_S

MIB = 1024 * 1024
ALICE, BOB, MALLORY = (Token(name, b"") for name in ("alice", "bob", "mallory"))

USES = """
import errno, os, resource, tempfile, threading
def fails(step, most):
    for number in range(most):
        try:
            step(number)
        except (OSError, RuntimeError, MemoryError) as error:
            return number, getattr(error, "errno", None)
    return most, None
here = os.environ["TMPDIR"]
"""
WRITES = "f = open(f'{here}/f', 'wb', 0)\nprint(*fails(lambda _: f.write(bytes(65536)), 400))"
OPENS = "kept = []\nprint(*fails(lambda _: kept.append(os.open('/dev/null', os.O_RDONLY)), 300))"
CREATES = "print(*fails(lambda n: os.close(os.open(f'{here}/{n}', os.O_CREAT)), 300))"
FORKS = """
import signal
def fork(_):
    if os.fork() == 0:
        signal.pause()
print(*fails(fork, 100), flush=True)
"""

# limits, the program, and what it comes to (None: it is stopped, for that reason)
ENFORCED = {
    "disk": ({"disk_mb": 3}, WRITES, (48, errno.ENOSPC), "ok"),
    "inodes": ({"inodes": 40}, CREATES, (40 + OWN_INODES, errno.ENOSPC), "ok"),
    "file": ({"file_mb": 1}, WRITES, (16, errno.EFBIG), "ok"),
    "open_files": ({"open_files": 100}, OPENS, (100, errno.EMFILE), "ok"),
    "processes": ({"processes": 12}, FORKS, (12, errno.EAGAIN), "ok"),
    "memory": ({"memory_mb": 128}, "x = bytearray(400 << 20)", None, "memory"),
    "several": ({"memory_mb": 128, "file_mb": 2, "disk_mb": 8, "cpu_sec": 100}, WRITES, (32, errno.EFBIG), "ok"),
}


class Served:
    """The part of a server that runs programs, without its HTTP."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def execute(self, token: Token, code: str = "", require: Any = None, **limits: Any) -> ExecutionResult:
        settings, cut = narrowed(self.server, wire.Narrowing(limits=wire.Limits(**limits), require=require))
        assert not cut
        with self.server.part(Sandboxes).borrowed(token, settings) as sandbox:
            return await sandbox.stream(code, handed=Handed()).whole()

    async def warm(self, token: Token = ALICE, **limits: Any) -> Pool:
        """The pool for these limits, as soon as it is as full as it gets."""
        for _ in range(2):
            await self.execute(token, **limits)
        pool = self.pool(**limits)
        assert pool is not None
        await until(lambda: len(pool) == 2)
        return pool

    def pool(self, **limits: Any) -> Pool | None:
        settings, _ = narrowed(self.server, wire.Narrowing(limits=wire.Limits(**limits)))
        return root()._pools.get((settings.limits().built_in(), True))


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not true():
            await asyncio.sleep(0.01)


def root() -> Root:
    """The one of all engines."""
    (found,) = {root for engine in engines._engines.values() for root in engine._roots.values()}
    return found


def cells() -> set[Known]:
    return beneath(root().zygote._pid) - {known for known in beneath(os.getpid()) if known.pid == root().zygote._pid}


@asynccontextmanager
async def serving(level: str = "sealed", **settings: Any) -> AsyncIterator[Served]:
    usual = {"type": "local", "isolation": level, "store_code": "never", "warm_cells": 2, "timeout_sec": HANG_S}
    server = Server(InForce(ServerOptions()), config.load({**usual, **settings}).settings)
    try:
        yield Served(server)
    finally:
        await server.close()


@pytest.fixture(autouse=True)
def _own_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mine: dict[Any, engines.Engine] = {}
    monkeypatch.setattr(engines, "_engines", mine)
    yield
    for engine in mine.values():
        for found in engine._roots.values():
            found.close()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The limits of each cell that was made while its request waited for it."""
    found, make = [], Root.make_cell

    def counted(self: Root, limits: Limits, *, waits: bool = False, shows: bool = False) -> Any:
        if not waits:
            found.append(limits)
        return make(self, limits, waits=waits, shows=shows)

    monkeypatch.setattr(Root, "make_cell", counted)
    return found


def run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def check_enforced(done: ExecutionResult, name: str) -> None:
    limits, _, counted, reason = ENFORCED[name]
    assert done.meta["reason"] == reason, done
    if counted is not None:
        reached, number = map(int, done.stdout.split())
        assert number == counted[1], done
        assert counted[0] * 3 // 4 <= reached <= counted[0]  # the program has some of it from the start
    told = done.meta["resource_limits"]
    for setting, field, unit in (
        ("memory_mb", "memory_bytes", MIB),
        ("disk_mb", "disk_bytes", MIB),
        ("file_mb", "file_bytes", MIB),
        *(("processes", "processes", 1), ("inodes", "inodes", 1), ("open_files", "open_files", 1)),
        ("cpu_sec", "cpu_s", 1),
    ):
        if setting in limits:
            assert told[field] == limits[setting] * unit
    axes = done.meta["isolation"]
    if "memory_mb" in limits:
        assert f"{limits['memory_mb']} MiB" in axes["memory"]["mechanism"]
    if "processes" in limits:
        assert f"at most {limits['processes']}" in axes["processes"]["mechanism"]


@pytest.mark.parametrize("name", ENFORCED)
def test_limits_that_come_again_find_a_cell_that_waits_and_hold_there(name: str, cold: list[Limits]) -> None:
    limits, code, _, _ = ENFORCED[name]

    async def work() -> None:
        async with serving() as served:
            pool = await served.warm(**limits)
            waiting, made = list(pool._ready), len(cold)
            assert made >= 2
            done = await served.execute(ALICE, USES + code, **limits)
            assert len(cold) == made
            assert waiting[0] not in pool._ready
            check_enforced(done, name)

    run(work())


@pytest.mark.parametrize("level", ["confined", "process"])
@pytest.mark.parametrize("name", ["file", "open_files"])
def test_where_no_cells_wait_the_same_limits_hold(name: str, level: str) -> None:
    limits, code, _, _ = ENFORCED[name]

    async def work() -> None:
        async with serving(level) as served:
            for _ in range(3):
                check_enforced(await served.execute(ALICE, USES + code, **limits), name)
            assert root()._pools == {}
            family = cells()
        assert all_gone(family)

    run(work())


@pytest.mark.parametrize("least", ["memory_mb", "processes", "disk_mb", "file_mb", "open_files", "inodes"])
def test_a_cell_that_waits_with_the_least_of_all_limits_runs_a_program(least: str, cold: list[Limits]) -> None:
    async def work() -> None:
        async with serving() as served:
            await served.warm(**{least: 1})
            made = len(cold)
            assert (await served.execute(ALICE, "print(1)", **{least: 1})).stdout == "1\n"
            assert len(cold) == made

    run(work())


@pytest.mark.parametrize(
    "asked",
    [{"cpu_sec": 7}, {"output_kb": 1}, {"output_kill_mb": 3}, {"require": "sealed"}, {"require": "process"}],
    ids=str,
)
def test_what_is_not_built_into_a_cell_takes_one_of_those_that_wait_for_all(
    asked: dict[str, Any], cold: list[Limits]
) -> None:
    async def work() -> None:
        async with serving() as served:
            pool = await served.warm()
            made = len(cold)
            done = await served.execute(BOB, "print('x' * 3000)", **asked)
            assert len(cold) == made
            assert [*root()._pools.values()] == [pool]
            assert len(done.stdout) < 2000 if "output_kb" in asked else len(done.stdout) == 3001
            if "cpu_sec" in asked:
                assert done.meta["resource_limits"]["cpu_s"] == 7
                burnt = await served.execute(BOB, "while True: pass", cpu_sec=1)
                assert "1 s of CPU time" in burnt.stderr, burnt

    run(work())


def test_limits_that_come_once_leave_nothing_that_waits() -> None:
    async def work() -> None:
        async with serving() as served:
            for number in range(12):
                await served.execute(ALICE, memory_mb=200 + number)
            assert root()._pools == {}
            await until(lambda: not cells())

    run(work())


def test_a_client_with_other_limits_each_time_gets_few_cells_and_takes_none_from_others(cold: list[Limits]) -> None:
    async def work() -> None:
        async with serving() as served:
            usual = await served.warm()
            own = await served.warm(BOB, memory_mb=500)
            waiting = [*usual._ready, *own._ready]
            for number in range(3 * sandboxes.MAX_IDLE):
                for _ in range(3):
                    await served.execute(MALLORY, memory_mb=100 + number)
                    await served.execute(MALLORY, cpu_sec=10 + number)  # these take from the usual ones
            assert served.pool() is usual
            assert served.pool(memory_mb=500) is own
            assert [*own._ready] == waiting[2:]
            assert len(root()._pools) <= 1 + frequent.MOST
            await until(lambda: len(usual) == 2)
            assert sum(map(len, root()._pools.values())) <= 2 + frequent.MOST * frequent.CELLS
            assert sum(map(len, served.server.part(Sandboxes)._kept.values())) <= 2 + 1 + sandboxes.MAX_IDLE + 1
            made = len(cold)
            await served.execute(ALICE)
            await served.execute(BOB, memory_mb=500)
            assert len(cold) == made

    run(work())


def test_other_limits_of_the_only_client_take_no_usual_cells_from_it() -> None:
    async def work() -> None:
        async with serving() as served:
            usual = await served.warm()
            waiting = [*usual._ready]
            for number in range(2 * sandboxes.MAX_IDLE):
                await served.execute(ALICE, memory_mb=100 + number)
            await asyncio.gather(*served.server.part(Sandboxes)._tasks)
            assert served.pool() is usual
            assert [*usual._ready] == waiting

    run(work())


def test_who_has_as_many_as_there_may_be_makes_room_for_another_client() -> None:
    async def work() -> None:
        async with serving() as served:
            for number in range(frequent.MOST):
                await served.warm(MALLORY, memory_mb=100 + number)
            oldest = served.pool(memory_mb=100)
            assert oldest is not None
            own = await served.warm(BOB, memory_mb=500)
            await until(lambda: served.pool(memory_mb=100) is None and len(oldest) == 0)
            assert len(own) == 2
            assert len(root()._pools) == frequent.MOST

    run(work())


def test_what_waits_goes_with_the_server() -> None:
    async def work() -> None:
        async with serving() as served:
            await served.warm()
            await served.warm(memory_mb=200)
            family = cells()
            assert len(family) >= 8
        assert root()._pools == {}
        assert all_gone(family)

    run(work())


def test_a_server_that_keeps_no_cells_keeps_none_for_anybody() -> None:
    async def work() -> None:
        async with serving(warm_cells=0) as served:
            for _ in range(4):
                await served.execute(ALICE, memory_mb=200)
                await served.execute(ALICE, cpu_sec=7)
            assert root()._pools == {}

    run(work())
