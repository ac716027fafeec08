"""Where no thread can be started (ulimit -u), calls are served without, or refused before anything has run."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import threading
from pathlib import Path

import pytest

from fumehood import (
    AsyncSession,
    BackendUnavailable,
    EngineFailed,
    IsolationUnavailable,
    get_sandbox,
    open_session,
    sync_session,
)
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.cli.main import main
from fumehood.engine import engine, housekeeper, launch
from fumehood.engine.frames import Failure
from fumehood.sync import Portal
from fumehood.thread_pool import Workers
from fumehood.types import Display
from support import HANG_S, wait_until

LARGE = [f"{number:08}" for number in range(20_000)]


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeper, "_thread", None)
    monkeypatch.setattr(housekeeper, "_tasks", queue.SimpleQueue())
    monkeypatch.setattr(threading.Thread, "start", refused)


def check_level(level: str) -> None:
    try:
        with get_sandbox(isolation=level, require=level) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no {level} sandbox on this machine: {missing}")


@pytest.fixture(params=["sealed", "process"])
def level(request: pytest.FixtureRequest) -> str:
    check_level(request.param)
    return request.param


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("warm_cells", [0, 2])
def test_a_program_runs_without_a_thread(level: str, warm_cells: int) -> None:
    with get_sandbox(isolation=level, require=level, warm_cells=warm_cells, timeout_sec=HANG_S) as sandbox:
        assert [sandbox.execute("print(1)").stdout for _ in range(3)] == ["1\n"] * 3


@pytest.mark.usefixtures("no_threads")
def test_a_program_runs_without_a_thread_in_an_event_loop(level: str) -> None:
    async def scenario() -> list[str]:
        with get_sandbox(isolation=level, require=level, timeout_sec=HANG_S) as sandbox:
            return [(await sandbox.execute_async("print(1)")).stdout for _ in range(3)]

    assert asyncio.run(scenario()) == ["1\n"] * 3


@pytest.mark.usefixtures("no_threads")
def test_a_session_in_an_event_loop_needs_no_thread(level: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"isolation": level, "require": level, "timeout_sec": HANG_S, "artifacts_dir": str(tmp_path)}
        async with AsyncSession(store_code="always", **settings) as session:
            assert (await session.run("print(1)")).stdout == "1\n"
            assert (await session.exec(["echo", "2"])).stdout == "2\n"
            await session.write("/tmp/a.txt", "x" * 100_000 + "y")
            await session.edit("/tmp/a.txt", "y", "z")
            assert (await session.read("/tmp/a.txt"))[-1:] == b"z"
            await session.run("import time; time.sleep(3600)", timeout=0.2)
            assert (await session.run("open('b', 'w').write('c'); 1")).meta["files"]["created"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("no_threads")
def test_a_large_result_and_its_record_need_no_thread(tmp_path: Path) -> None:
    async def scenario() -> int:
        fake = FakeBackend(replies=[[Display({"application/json": LARGE})]])
        async with AsyncSession(fake, store_code="always", artifacts_dir=str(tmp_path)) as session:
            return len((await session.run("x")).meta["results"])

    assert asyncio.run(scenario()) == 1
    assert len(list(tmp_path.rglob("2*.json"))) == 1


@pytest.mark.usefixtures("no_threads")
def test_a_synchronous_session_is_refused_before_anything_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_session, "portal", Portal())
    fake = FakeBackend(replies=[Reply(stdout="1\n")])
    with pytest.raises(EngineFailed, match="ulimit -u"), open_session(fake) as session:
        session.run("x")
    assert fake.commands == []


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "docker", "docker_host": "tcp://localhost:1"},
        {"type": "remote", "remote_url": "http://localhost:1", "remote_token": "x" * 32},
    ],
    ids=["docker", "remote"],
)
def test_a_name_that_cannot_be_looked_up_without_a_thread_is_an_error_of_ours(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with monkeypatch.context() as patch:  # not to the end of the loop, which ends its threads in another one
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(BackendUnavailable, match="ulimit -u"):
                await get_sandbox(**settings).execute_async("")

    asyncio.run(scenario())


@pytest.mark.usefixtures("no_threads")
def test_the_command_line_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "print(1)"]) == 125
    assert "ulimit -u" in capsys.readouterr().err


def test_work_that_was_queued_before_a_thread_was_refused_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, began, go_on = Workers(2, "test"), threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        assert go_on.wait(HANG_S)

    calls: list[int] = []
    busy = workers.submit(wait)
    assert began.wait(HANG_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert workers.submit(lambda: calls.append(threading.get_ident())).result(0) is None
    go_on.set()
    busy.result(HANG_S)
    assert workers.submit(lambda: 5).result(HANG_S) == 5
    threads = workers._threads
    assert threads is not None
    assert wait_until(threads._work_queue.empty)
    assert calls == [threading.get_ident()]


def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    workers, go_on = Workers(1, "test"), threading.Event()
    calls: list[int] = []
    busy = workers.submit(lambda: go_on.wait(HANG_S))
    waiting = workers.submit(lambda: calls.append(1))
    assert waiting.cancel()
    go_on.set()
    assert busy.result(HANG_S)
    workers.submit(lambda: None).result(HANG_S)
    assert calls == []


# ---- processes


def test_a_zygote_that_cannot_be_started_for_want_of_processes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "posix_spawn", none_left)
    with pytest.raises(EngineFailed, match="ulimit -u"):
        launch.Launched(launch.host_executable())


def test_a_shortage_of_processes_does_not_lower_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    check_level("sealed")
    tried = []

    def proven(level: str, *_: object) -> Failure:
        tried.append(level)
        return Failure("clone", errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.setattr(engine, "_prove", proven)
    with get_sandbox() as sandbox, pytest.raises(EngineFailed, match="ulimit -u"):
        sandbox.execute("")
    assert tried == ["sealed"]
