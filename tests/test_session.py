"""The rules of a session, against the fake backend. What programs really do is tested with the real ones."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fumehood
from fumehood import (
    AsyncSession,
    BackendUnavailable,
    BadArgument,
    BudgetExceeded,
    CommandNotAllowed,
    EngineFailed,
    FileError,
    IsolationUnavailable,
    SandboxLost,
    SessionBusy,
    SessionEnded,
    SessionError,
    lifetime,
    open_session,
)
from fumehood.backends.base import Sandbox
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.packages import Layer
from fumehood.types import Display, Exited, Output
from pace import at_some_pace, timed_out
from support import HANG_S, wait_until


def opened(*answers, **settings):
    """A synchronous session and the backend beneath; without answers the program text comes back."""
    fake = FakeBackend(replies=answers or None)
    return open_session(fake, **settings), fake


def when_it_runs(fake, call):
    """Another thread makes that call as soon as a program runs."""
    thread = threading.Thread(target=lambda: wait_until(lambda: fake.processes) and call(), daemon=True)
    thread.start()
    return thread


async def running(fake):
    while not fake.processes:
        await asyncio.sleep(0.01)


def gated(is_open, *events):
    """A program that waits until it is told to go on."""
    while not is_open():
        yield 0.01
    yield from events


def records() -> list[dict]:
    directory = Path("artifacts/executions")
    paths = sorted(directory.glob("[0-9]*.json")) if directory.exists() else []
    found = [json.loads(path.read_text("utf-8")) for path in paths]
    return sorted(found, key=lambda record: record["step"])


# The sandbox


def test_the_sandbox_is_made_by_the_first_call_and_kept():
    session, fake = opened()
    assert fake.sandboxes == []
    session.run("x = 1")
    session.exec(["ls"])
    session.write("/tmp/a", "x")
    assert len(fake.sandboxes) == 1
    assert fake.sandboxes[0].spec.keeps
    session.close()
    assert fake.sandboxes[0].closed


def test_run_keeps_state_and_exec_runs_beside_it():
    session, fake = opened()
    session.run("x = 1")
    session.exec(["ls", "-l"], stdin="in", env={"K": "v"})
    run, beside = fake.commands
    assert (run.keeps_state, run.script) == (True, b"x = 1")
    assert (beside.keeps_state, beside.script, beside.argv) == (False, None, ("ls", "-l"))
    assert (beside.stdin, beside.env) == (b"in", {"K": "v"})


def test_what_was_displayed_is_in_the_results():
    session, _ = opened(Reply("out", results=[{"text/plain": "1"}, {"image/png": "aGk=", "text/plain": "<fig>"}]))
    result = session.run("x")
    assert result.meta["results"] == [{"text/plain": "1"}, {"image/png": "aGk=", "text/plain": "<fig>"}]
    assert (result.stdout, result.meta["state"]) == ("out", "kept")


def test_every_result_says_what_it_belongs_to():
    with open_session("fake", session_id="s-1", run_id="r_1") as session:
        first, second = session.run("a"), session.exec(["ls"])
    assert [result.meta["step"] for result in (first, second)] == [1, 2]
    assert {result.meta["session_id"] for result in (first, second)} == {"s-1"}
    assert {result.meta["run_id"] for result in (first, second)} == {"r_1"}
    for meta in (first.meta, second.meta):
        json.dumps(meta)
        assert meta["files"] == {"created": [], "changed": [], "deleted": []}
        assert (meta["output_files"], meta["total_output_files"]) == ([], 0)
    assert "results" not in second.meta


def test_files_of_a_run_are_reported_and_its_outputs_copied():
    def leave(_):
        fake.sandboxes[0].files.update({"/workspace/a": b"1", "/tmp/output/p.png": b"png"})
        return Reply()

    fake = FakeBackend(replies=leave)
    session = open_session(fake)
    meta = session.run("x").meta
    assert meta["files"]["created"] == ["/tmp/output/p.png", "/workspace/a"]
    assert meta["output_files"] == ["p.png"]
    assert Path(meta["copied_files"][0]).read_bytes() == b"png"
    assert meta["copied_files"][0] == os.path.join(session.output_dir, "p.png")
    assert session.output_dir == os.path.abspath(f"output/session_{session.session_id}")


def test_check_makes_the_sandbox_and_gives_the_receipt():
    session, fake = opened()
    assert session.check().level == "process"
    assert len(fake.sandboxes) == 1


def test_datasets_go_to_the_data_directory(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("a\n", "utf-8")
    session, fake = opened(datasets={"my sales": source})
    assert session.datasets == {"my sales": "/tmp/data/my_sales.csv"}
    assert session.dataset_paths == ("/tmp/data/my_sales.csv",)
    session.run("x")
    assert fake.sandboxes[0].spec.datasets == (("my_sales.csv", str(source)),)


def test_a_dataset_that_vanished_is_a_bad_argument_when_the_sandbox_is_made(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("a\n", "utf-8")
    session, fake = opened(datasets={"d": source})
    source.unlink()
    with pytest.raises(BadArgument, match=r"dataset 'd': .* does not exist"):
        session.run("x")
    assert fake.sandboxes == []


def test_a_backend_that_was_handed_in_is_left_open_and_another_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(FakeBackend, "close", lambda self: _note(closed, self))
    session, _ = opened()
    session.run("x")
    session.close()
    assert closed == []
    with open_session("fake") as session:
        session.run("x")
    assert len(closed) == 1


async def _note(seen: list, what: object) -> None:
    seen.append(what)


# Bad input


@pytest.mark.parametrize("session_id", ["", "a b", "../up", "a/b", "x" * 101, "ü", "a\n", 5, b"a"])
def test_a_bad_session_id_is_refused(session_id):
    with pytest.raises(BadArgument, match="session_id must be"):
        open_session("fake", session_id=session_id)


def test_the_default_session_id_is_sixteen_hex_digits():
    ids = {open_session("fake").session_id for _ in range(5)}
    assert len(ids) == 5
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in ids)


@pytest.mark.parametrize("requirements", ["polars", [5], {"polars"}, 5])
def test_bad_requirements_are_refused(requirements):
    with pytest.raises(BadArgument, match="requirements must be a list"):
        open_session("fake", requirements=requirements)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ls -l", r"command must be a list such as \['ls','-l'\], not a string: split it, or use \['sh','-c', …\]"),
        (b"ls", "command must be a list"),
        (None, "command must be a list"),
        ({"ls"}, "command must be a list"),
        ([], "command is empty"),
        ([""], r"command\[0\] is empty"),
        (["  "], r"command\[0\] is empty"),
        (["ls", 5], r"command\[1\] must be a str"),
        (["ls", "a\0b"], r"command\[1\] must not contain NUL"),
        (["l\0s"], r"command\[0\] must not contain NUL"),
        (["ls", "\ud800"], r"command\[1\] .*lone surrogate"),
        (["ls", "x" * 131_072], r"command\[1\] is longer"),
    ],
)
def test_a_bad_command_is_refused_before_anything_is_made(command, message):
    session, fake = opened()
    with pytest.raises(BadArgument, match=message):
        session.exec(command)
    if not isinstance(command, str):
        with pytest.raises(BadArgument, match=message):
            session.stream(command)
    assert fake.sandboxes == []


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5"])
def test_a_bad_timeout_is_refused(timeout):
    session, fake = opened()
    for call in (lambda: session.run("x", timeout), lambda: session.exec(["ls"], timeout)):
        with pytest.raises(BadArgument, match="timeout"):
            call()
    assert fake.sandboxes == []


def test_bad_code_trace_content_and_sizes_are_refused():
    session, fake = opened()
    calls = {
        "code must be a str": lambda: session.run(5),
        "reasoning_trace": lambda: session.run("x", reasoning_trace=5),
        "content must be str or bytes": lambda: session.write("/tmp/a", 5),
        "lone surrogate": lambda: session.write("/tmp/a", "\ud800"),
        "max_bytes": lambda: session.read("/tmp/a", -1),
        "old_string must be a str": lambda: session.edit("/tmp/a", 5, "x"),
    }
    for message, call in calls.items():
        with pytest.raises(BadArgument, match=message):
            call()
    assert fake.sandboxes == []


# Files


def test_files_are_written_read_edited_and_listed():
    session, _ = opened()
    assert session.write("/workspace/a.py", "x = 'ü'\r\n") == 10
    session.edit("/mnt/data/a.py", "x", "y")
    assert session.read("/workspace/a.py") == "y = 'ü'\r\n".encode()
    session.write("/tmp/b/c", b"\0\xff")
    assert [stat.path for stat in session.files()] == ["/tmp/b/c", "/workspace/a.py"]
    assert [stat.path for stat in session.files("/workspace")] == ["/workspace/a.py"]
    with pytest.raises(FileError, match="/tmp/none does not exist"):
        session.files("/tmp/none")


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "d" * 256, "d/" * 600 + "x"])
def test_what_read_refuses_is_not_listed_and_is_a_file_all_the_same(name):
    session, fake = opened()
    session.write("/workspace/a", "")
    path = f"/workspace/{name}"
    fake.sandboxes[0].files[path] = b""
    assert len(session.run("x").meta["files"]["created"]) == 1
    for directory in (None, "/workspace"):
        assert [stat.path for stat in session.files(directory)] == ["/workspace/a"]
    with pytest.raises(FileError) as caught:
        session.read(path)
    assert caught.value.kind == "invalid"


def test_what_the_caller_wrote_is_not_reported_as_the_programs():
    session, _ = opened()
    session.write("/tmp/a", "1")
    assert session.run("x").meta["files"] == {"created": [], "changed": [], "deleted": []}


@pytest.mark.parametrize("path", ["/home/bad.py", "/tmp/../etc/passwd", "/tmp/a\0", "/tmp/a\nb", "tmp/a", "/"])
def test_a_bad_path_changes_nothing(path):
    session, fake = opened()
    for call in (
        lambda: session.write(path, "x"),
        lambda: session.read(path),
        lambda: session.edit(path, "a", "b"),
        lambda: session.files(f"{path}/.."),
    ):
        with pytest.raises(FileError, match="Invalid path: must be /tmp/\\* or /workspace/\\*"):
            call()
    assert all(sandbox.files == {} for sandbox in fake.sandboxes)


def test_file_errors_say_their_kind_and_change_nothing(tmp_path):
    (tmp_path / "d.csv").write_text("a", "utf-8")
    session, fake = opened(disk_mb=6, datasets={"d": tmp_path / "d.csv"})
    session.write("/tmp/dir/text", "abc abc")
    session.write("/tmp/binary", b"\xff\xfe")
    session.write("/tmp/big", bytes(5 * 1024 * 1024))
    fake.sandboxes[0].specials.add("/tmp/link")
    before = dict(fake.sandboxes[0].files)
    for kind, call in (
        ("missing", lambda: session.read("/tmp/none")),
        ("missing", lambda: session.edit("/tmp/none", "a", "b")),
        ("directory", lambda: session.read("/tmp/dir")),
        ("directory", lambda: session.write("/tmp/dir", "x")),
        ("special", lambda: session.read("/tmp/link")),
        ("special", lambda: session.write("/tmp/link", "x")),
        ("special", lambda: session.write("/tmp/binary/below", "x")),
        ("too_large", lambda: session.read("/tmp/big", 5)),
        ("too_large", lambda: session.write("/tmp/huge", bytes(6 * 1024 * 1024 + 1))),
        ("full", lambda: session.write("/tmp/more", bytes(2 * 1024 * 1024))),
        ("denied", lambda: session.write("/tmp/data/d.csv", "x")),
        ("not_text", lambda: session.edit("/tmp/binary", "a", "b")),
        ("not_unique", lambda: session.edit("/tmp/dir/text", "abc", "b")),
        ("no_match", lambda: session.edit("/tmp/dir/text", "xyz", "b")),
        ("no_match", lambda: session.edit("/tmp/dir/text", "", "b")),
    ):
        with pytest.raises(FileError) as caught:
            call()
        assert caught.value.kind == kind
        assert fake.sandboxes[0].files == before


def test_an_edit_of_a_file_over_five_megabytes_is_refused():
    session, _ = opened()
    session.write("/tmp/a", "x" + "y" * 5_242_880)
    with pytest.raises(FileError) as caught:
        session.edit("/tmp/a", "x", "")
    assert caught.value.kind == "too_large"


# Time-outs, cancellation


def test_a_time_out_interrupts_and_keeps_the_state():
    answers = {b"x": Reply("so far", after_s=3600), b"y": Reply("next")}
    fake = FakeBackend(replies=lambda command: answers[command.script])
    session = open_session(fake)
    result, _ = timed_out(lambda timeout: session.run("x", timeout), "so far")
    assert (result.stdout, result.meta["state"]) == ("so far", "kept")
    assert "its variables are kept" in result.stderr
    assert {process.interrupts for process in fake.processes} == {1}
    assert session.run("y").stdout == "next"


def test_cancel_from_another_thread_ends_this_call_and_no_other():
    session, fake = opened(Reply(after_s=3600), Reply("next"))
    session.check()
    session.cancel()  # nothing runs: nothing is cancelled
    canceller = when_it_runs(fake, session.cancel)
    result = session.run("x")
    canceller.join()
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (130, "cancelled", "kept")
    assert fake.processes[0].interrupts == 1
    assert session.run("y").stdout == "next"


def test_cancel_of_a_command_kills_it():
    session, fake = opened(Reply(after_s=3600))
    canceller = when_it_runs(fake, session.cancel)
    result = session.exec(["sleep", "3600"])
    canceller.join()
    assert (result.exit_code, result.meta["reason"]) == (137, "cancelled")
    assert "state" not in result.meta
    assert fake.processes[0].interrupts == 0


def test_a_cancelled_task_interrupts_the_run_and_frees_the_session():
    async def scenario():
        fake = FakeBackend(replies=[Reply(after_s=3600), Reply("next")])
        async with AsyncSession(fake) as session:
            task = asyncio.create_task(session.run("x"))
            await running(fake)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert fake.processes[0].interrupts == 1
            return (await session.run("y")).stdout

    assert asyncio.run(scenario()) == "next"


# One call at a time


def test_a_second_call_waits_for_its_turn():
    async def scenario():
        answers = [Reply(str(number), after_s=0.05) for number in range(5)]
        async with AsyncSession(FakeBackend(replies=answers)) as session:
            results = await asyncio.gather(*(session.run(str(number)) for number in range(5)))
            assert [result.meta["step"] for result in results] == [1, 2, 3, 4, 5]
            return [result.stdout for result in results]

    assert asyncio.run(scenario()) == ["0", "1", "2", "3", "4"]


def test_or_is_refused_if_the_setting_says_so():
    async def scenario():
        done = asyncio.Event()
        fake = FakeBackend(replies=[gated(done.is_set), Reply()])
        async with AsyncSession(fake, session_busy="refuse") as session:
            first = asyncio.create_task(session.run("a", HANG_S))
            await running(fake)
            for call in (session.run("b"), session.read("/tmp/a"), session.write("/tmp/a", "x"), session.exec(["ls"])):
                with pytest.raises(SessionBusy, match="SANDBOX_SESSION_BUSY"):
                    await call
            done.set()
            assert (await first).exit_code == 0
            assert (await session.run("c")).exit_code == 0

    asyncio.run(scenario())


def test_many_threads_share_one_session():
    session, _ = opened()
    outcomes: list[str] = []
    threads = [threading.Thread(target=lambda n=n: outcomes.append(session.run(f"p{n}").stdout)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(outcomes) == sorted(f"p{n}" for n in range(16))


def test_the_synchronous_session_works_inside_a_running_loop():
    async def scenario():
        with open_session("fake") as session:
            return session.run("hello").stdout

    assert asyncio.run(scenario()) == "hello"


# The end


def test_a_closed_session_says_so_and_closes_again():
    session, _ = opened()
    with session:
        session.run("x")
    session.close()
    assert session.ended
    for call in (lambda: session.run("x"), lambda: session.read("/tmp/a"), session.check):
        with pytest.raises(SessionEnded, match="closed: open another"):
            call()


def test_closing_ends_what_runs_and_what_waits():
    async def scenario():
        fake = FakeBackend(replies=[Reply("so far", after_s=3600)])
        session = AsyncSession(fake)
        first = asyncio.create_task(session.run("a"))
        waiting = asyncio.create_task(session.run("b"))
        await running(fake)
        await session.close()
        ended = await first
        assert (ended.meta["reason"], ended.meta["state"]) == ("cancelled", "lost")
        assert ended.stderr == "fumehood: the session was closed while this ran: its files and variables are gone\n"
        with pytest.raises(SessionEnded):
            await waiting
        assert fake.sandboxes[0].closed

    asyncio.run(scenario())


def test_an_idle_session_ends_and_names_the_setting():
    session, fake = opened(session_idle_sec=0.2)
    session.run("x")
    assert wait_until(lambda: fake.sandboxes[0].closed)
    with pytest.raises(SessionEnded, match=r"0\.2 s without a call.*SANDBOX_SESSION_IDLE_SEC"):
        session.run("y")


def test_calls_keep_it_from_being_idle_and_a_long_one_is_not_cut():
    def goes_on(idle_s):
        long = Reply("2", after_s=1.5 * idle_s)
        session, fake = opened(Reply("1"), long, Reply("3"), Reply("4"), Reply("5"), session_idle_sec=idle_s)
        try:
            for expected in ("1", "2", "3", "4", "5"):
                assert session.run("x", HANG_S).stdout == expected
                time.sleep(0.3 * idle_s)
        except SessionEnded:
            return False  # a pause was longer than meant
        return not fake.sandboxes[0].closed

    assert at_some_pace(goes_on)


def test_the_absolute_limit_cuts_the_running_call_and_ends_the_session():
    def is_cut(max_s):
        session, fake = opened(Reply(after_s=3600), session_max_sec=max_s)
        try:
            result = session.run("x", HANG_S)
        except SessionEnded:
            return False  # it was over before the program began
        assert (result.exit_code, result.meta["reason"]) == (-1, "timeout")
        assert "SANDBOX_SESSION_MAX_SEC" in result.stderr
        with pytest.raises(SessionEnded, match="SANDBOX_SESSION_MAX_SEC"):
            session.run("y")
        return wait_until(lambda: fake.sandboxes[0].closed)

    assert at_some_pace(is_cut)


def test_the_absolute_limit_ends_a_session_between_calls():
    def ends(max_s):
        session, fake = opened(session_max_sec=max_s)
        try:
            if session.run("x").meta["reason"] != "ok":
                return False  # it was over before the call was
        except SessionEnded:
            return False
        return wait_until(lambda: fake.sandboxes[0].closed)

    assert at_some_pace(ends)


def test_a_dropped_session_ends_its_sandbox():
    session, fake = opened()
    session.run("x")
    sandbox = fake.sandboxes[0]
    del session
    gc.collect()
    assert sandbox.dropped


def test_a_dropped_async_session_ends_its_sandbox_while_its_loop_runs():
    async def scenario():
        fake = FakeBackend()
        session = AsyncSession(fake)
        await session.run("x")
        del session
        gc.collect()
        return fake.sandboxes[0].dropped

    assert asyncio.run(scenario())


def test_a_process_that_exits_ends_its_sandboxes(tmp_path):
    program = f"""
from fumehood import open_session
from fumehood.backends.fake import FakeBackend, FakeSandbox
FakeSandbox.drop = lambda self: open({str(tmp_path / "dropped")!r}, "w").close()
session = open_session(FakeBackend())
session.run("x")
"""
    subprocess.run([sys.executable, "-c", program], timeout=HANG_S, check=True)
    assert (tmp_path / "dropped").exists()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_may_not_use_nor_end_its_parents_session():
    session, fake = opened()
    session.run("x")
    child = os.fork()
    if child == 0:
        try:
            session.run("y")
        except SessionEnded as error:
            session.close()
            os._exit(0 if "process that opened it" in str(error) and not fake.sandboxes[0].closed else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.run("z").stdout == "z"


def test_ctrl_c_cancels_the_run_and_the_session_goes_on():
    program = """
import os, signal, sys, threading, time
from fumehood import open_session
from fumehood.backends.fake import FakeBackend, Reply
signal.signal(signal.SIGINT, signal.default_int_handler)
fake = FakeBackend(replies=[Reply(after_s=3600), Reply("next")])
session = open_session(fake)
session.check()
main = threading.get_ident()
def interrupt():
    while not fake.processes or sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    session.run("x")
except KeyboardInterrupt:
    next = session.run("y").stdout
    print(fake.processes[0].interrupts, next)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=HANG_S, check=True
    )
    assert done.stdout == "1 next\n"


# Start failures, lost sandboxes


@pytest.fixture
def soon(monkeypatch):
    """What failed is tried again without a pause to speak of."""
    monkeypatch.setattr(lifetime, "BACKOFF_S", 0.01)


class Failing(FakeBackend):
    """Fails to start some times."""

    def __init__(self, times: int, error: Exception) -> None:
        super().__init__()
        self.times, self.error, self.tries = times, error, 0

    async def create(self, spec):
        self.tries += 1
        if self.tries <= self.times:
            raise self.error
        return await super().create(spec)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", [EngineFailed("broke"), BackendUnavailable("away"), SandboxLost("gone")])
def test_a_start_that_fails_is_tried_again(error):
    backend = Failing(2, error)
    assert open_session(backend).run("x").stdout == "x"
    assert backend.tries == 3


@pytest.mark.usefixtures("soon")
def test_and_raised_when_the_retries_are_used_up():
    backend = Failing(5, EngineFailed("broke"))
    with pytest.raises(EngineFailed, match="broke"):
        open_session(backend, start_retries=1).run("x")
    assert backend.tries == 2


@pytest.mark.parametrize("error", [IsolationUnavailable("weak"), BadArgument("bad"), fumehood.PackageError("no")])
def test_what_will_not_pass_is_raised_at_once(error):
    backend = Failing(9, error)
    with pytest.raises(type(error)):
        open_session(backend, start_failure="skip").run("x")
    assert backend.tries == 1


def test_or_the_call_is_skipped_with_a_warning(caplog):
    session = open_session(Failing(2, EngineFailed("broke\x1b[2J")), start_retries=0, start_failure="skip")
    with caplog.at_level(logging.WARNING):
        result = session.run("x")
    assert (result.exit_code, result.meta["reason"], result.meta["skipped"]) == (1, "error", True)
    assert result.stderr.startswith("fumehood: skipped: ")
    assert "skipped: the sandbox did not start: broke\\x1b[2J" in caplog.messages[0]
    assert session.exec(["ls"]).meta["skipped"] is True
    assert session.run("x").stdout == "x"


@pytest.mark.parametrize(
    ("call", "timeout_s"),
    [
        (lambda session: session.run("x", timeout=7), 7),
        (lambda session: session.exec(["true"], timeout=8), 8),
        (lambda session: session.run("x"), 9),
        (lambda session: session.write("/workspace/a", "a"), 9),
    ],
)
def test_a_sandbox_is_made_within_the_time_out_of_the_call_that_needs_it(call, timeout_s):
    session, fake = opened(timeout_sec=9)
    call(session)
    assert [sandbox.spec.timeout_s for sandbox in fake.sandboxes] == [timeout_s]


NO_DESCRIPTORS = r"this process has no descriptors left \(.*\): close sessions, or raise the limit: ulimit -n 8192"


@pytest.mark.usefixtures("soon")
def test_a_start_without_descriptors_is_tried_again_and_may_be_skipped():
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert open_session(Failing(2, error)).run("x").stdout == "x"
    with pytest.raises(EngineFailed, match=NO_DESCRIPTORS):
        open_session(Failing(9, error), start_retries=1).run("x")
    skipped = open_session(Failing(9, error), start_retries=0, start_failure="skip").run("x")
    assert skipped.meta["skipped"]
    assert "no descriptors left" in skipped.stderr
    with pytest.raises(EngineFailed, match="Input/output error"):
        open_session(Failing(9, OSError(errno.EIO, os.strerror(errno.EIO))), start_retries=0).run("x")


@pytest.mark.usefixtures("few_descriptors")
def test_a_process_without_descriptors_is_told_so():
    program = """
import os, resource
from fumehood import EngineFailed, ConfigurationError, open_session
with open_session(isolation="process") as first:
    first.run("1", 280)  # what is loaded late is there; closed now, not when a thread comes to it
session = open_session(isolation="process", start_retries=0)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
said = []
for call in (lambda: session.write("/tmp/a", "x"), open_session):
    try:
        call()
    except (EngineFailed, ConfigurationError) as error:
        said.append(str(error))
for fd in held:
    os.close(fd)
print(*said, sep="\\n")
"""
    os.makedirs("xdg/fumehood")
    Path("xdg/fumehood/config.yaml").write_text("memory_mb: 512\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stdout
    assert all(re.search(NO_DESCRIPTORS, line) for line in said), done.stdout


def test_a_file_verb_cannot_be_skipped():
    session = open_session(Failing(9, EngineFailed("broke")), start_retries=0, start_failure="skip")
    with pytest.raises(EngineFailed):
        session.write("/tmp/a", "x")


def test_a_lost_sandbox_is_said_and_the_next_call_has_a_fresh_one():
    session, fake = opened()
    session.write("/tmp/a", "x")
    fake.sandboxes[0].lost = True
    with pytest.raises(SandboxLost, match=r"files and variables are lost.*next call starts a fresh one"):
        session.run("x")
    assert session.run("y").stdout == "y"
    assert len(fake.sandboxes) == 2
    assert fake.sandboxes[0].closed
    assert session.files() == []


def test_a_call_that_lost_its_sandbox_is_recorded():
    session, fake = opened(session_id="s", session_max_calls=3)
    calls = {
        "run": lambda: session.run("x", reasoning_trace="why"),
        "exec": lambda: session.exec(["ls"]),
        "write": lambda: session.write("/tmp/a", "x"),
    }
    for kind, call in calls.items():
        session.check()
        fake.sandboxes[-1].lost = True
        with pytest.raises(SandboxLost, match="went away"):
            call()
        record = records()[-1]
        assert (record["kind"], record["session_id"], record["result"]["exit_code"]) == (kind, "s", 125)
        assert record["result"]["meta"]["reason"] == "error"
        assert "the sandbox of this session went away" in record["result"]["stderr"]
    assert [record["step"] for record in records()] == [1, 2, 3]
    assert records()[0]["reasoning_trace"] == "why"
    with pytest.raises(BudgetExceeded):
        session.run("x")


def test_a_start_that_failed_is_recorded():
    with pytest.raises(EngineFailed):
        open_session(Failing(9, EngineFailed("broke")), start_retries=0).run("x")
    [record] = records()
    assert (record["result"]["exit_code"], record["result"]["stderr"]) == (125, "broke")


# Budgets


@pytest.mark.parametrize(
    ("settings", "reply", "setting"),
    [
        ({"session_max_calls": 1}, Reply(), "SANDBOX_SESSION_MAX_CALLS"),
        ({"session_max_cpu_sec": 2}, Reply(cpu_s=2.5), "SANDBOX_SESSION_MAX_CPU_SEC"),
        ({"session_max_wall_sec": 0.1}, Reply(after_s=0.15), "SANDBOX_SESSION_MAX_WALL_SEC"),
        ({"session_max_output_mb": 1, "max_output_kb": 2048}, Reply("x" * 1_048_576), "SANDBOX_SESSION_MAX_OUTPUT_MB"),
        ({"session_max_output_mb": 1}, Reply(results=[{"text/plain": "x" * 1_048_576}]), "SESSION_MAX_OUTPUT_MB"),
    ],
)
def test_a_used_up_budget_refuses_the_next_call_and_tells_the_model(settings, reply, setting):
    session, fake = opened(reply, reply, **settings)
    session.run("x")
    for call in (lambda: session.run("y"), lambda: session.exec(["ls"]), lambda: session.write("/tmp/a", "x")):
        with pytest.raises(BudgetExceeded, match=f"used up.*Finish with what you have.*{setting}"):
            call()
    assert len(fake.commands) == 1


def test_copied_files_count_as_output():
    session, _ = opened(session_max_output_mb=1)
    session.write("/tmp/output/a.txt", bytes(1_048_576))
    session.run("x")
    with pytest.raises(BudgetExceeded):
        session.run("y")


def test_a_call_takes_no_longer_than_the_wall_budget_that_is_left():
    session, _ = opened(Reply(after_s=3600), session_max_wall_sec=0.3)
    result = session.run("x", HANG_S)
    assert result.meta["reason"] == "timeout"
    assert "SANDBOX_SESSION_MAX_WALL_SEC" in result.stderr


# Policy, the screen, records


def test_a_command_that_is_not_allowed_is_recorded_and_raised():
    session, fake = opened(allowed_commands=["ls"])
    with pytest.raises(CommandNotAllowed):
        session.exec(["rm", "-rf", "/"], reasoning_trace="why not")
    assert fake.commands == []
    [record] = records()
    assert (record["kind"], record["command"], record["reasoning_trace"]) == ("exec", ["rm", "-rf", "/"], "why not")
    assert (record["result"]["exit_code"], record["result"]["meta"]["reason"]) == (126, "error")
    assert session.exec(["ls"]).exit_code == 0


def test_the_import_screen_holds_for_runs():
    session, fake = opened(block_dangerous_imports=True)
    result = session.run("import socket")
    assert (result.meta["reason"], result.meta["blocked_imports"]) == ("blocked_import", ["socket"])
    assert (result.meta["results"], result.meta["output_files"]) == ([], [])
    assert fake.sandboxes == []


def test_every_call_is_a_numbered_step_with_what_a_replay_needs():
    session, _ = opened(store_code="always", session_id="s", run_id="r")
    session.run("x = 1", 5, reasoning_trace="look")
    session.exec(["ls", "-l"])
    session.write("/tmp/a", "text")
    session.write("/tmp/b", b"\xff")
    session.edit("/tmp/a", "te", "ne", reasoning_trace="fix")
    session.read("/tmp/a")
    found = records()
    assert [(one["step"], one["kind"]) for one in found] == [
        *((1, "run"), (2, "exec"), (3, "write"), (4, "write"), (5, "edit"))
    ]
    assert {one["session_id"] for one in found} == {"s"}
    assert {one["run_id"] for one in found} == {"r"}
    run, command, write, binary, edit = found
    assert (run["code"], run["timeout"], run["reasoning_trace"]) == ("x = 1", 5, "look")
    assert (command["command"], command["args"]) == (["ls", "-l"], [])
    assert (write["path"], write["code"], write.get("encoding")) == ("/tmp/a", "text", None)
    assert (binary["code"], binary["encoding"]) == ("/w==", "base64")
    assert (edit["path"], edit["args"], edit["reasoning_trace"]) == ("/tmp/a", ["te", "ne"], "fix")


def test_on_error_stores_failures_alone():
    session, _ = opened()
    session.run("x")
    session.write("/tmp/a", "x")
    with pytest.raises(FileError):
        session.edit("/tmp/a", "none", "b")
    with pytest.raises(FileError):
        session.write("/home/a", "b")
    assert [(one["step"], one["kind"], one["result"]["stderr"]) for one in records()] == [
        (3, "edit", "old_string not found in /tmp/a: read the file, and copy the passage as it stands there"),
        (4, "write", "Invalid path: must be /tmp/* or /workspace/*"),
    ]


SECRET = "correct-horse-7"


@pytest.mark.parametrize("policy", ["always", "on_error"])
@pytest.mark.parametrize(
    "name_it",
    [
        lambda session: session.run(f"password = '{SECRET}'"),
        lambda session: session.exec(["ls"], env={"KEY": SECRET}),
        lambda session: session.exec(["psql", f"postgres://me:{SECRET}@db"]),
        lambda session: session.write("/tmp/.env", f"PASSWORD='{SECRET}'"),
        lambda session: session.run("x", reasoning_trace=f"the password is password='{SECRET}'"),
    ],
)
def test_a_secret_that_one_step_names_is_not_stored_by_a_later_one(name_it, policy):
    def print_it(command):
        printed = command.script == b"tell()" or "echo" in command.argv
        return Reply(SECRET, SECRET, 1, results=[{"text/plain": SECRET}]) if printed else Reply()

    session = open_session(FakeBackend(replies=print_it), store_code=policy, allowed_commands="*")
    name_it(session)
    session.run("tell()", reasoning_trace=f"use {SECRET}")
    session.exec(["echo", SECRET])
    with pytest.raises(FileError):
        session.edit(f"/tmp/{SECRET}", SECRET, "b")
    assert len(records()) == (4 if policy == "always" else 3)
    assert all(SECRET not in json.dumps(record) for record in records())


def test_a_secret_that_the_output_names_is_not_stored_by_its_own_code():
    session, _ = opened(Reply(f"password='{SECRET}'"), store_code="always")
    session.run(f"show({SECRET!r})")
    assert SECRET not in json.dumps(records())


def test_a_run_that_stores_nothing_remembers_nothing():
    session, _ = opened(store_code="never")
    session.run(f"password = '{SECRET}'")
    assert SECRET not in repr(vars(session._session._calls.steps))


def test_a_one_shot_records_its_kind():
    fumehood.get_sandbox("fake", store_code="always").execute("x")
    assert records()[0]["kind"] == "execute"


@pytest.mark.parametrize("driver", ["direct", "async"])
def test_a_one_shot_that_lost_its_sandbox_is_recorded(driver):
    class Lost(FakeBackend):
        def answer(self, command):  # noqa: ARG002
            raise SandboxLost("the machine beneath is gone")

    sandbox = fumehood.get_sandbox(Lost())
    with pytest.raises(SandboxLost):
        sandbox.execute("x") if driver == "direct" else asyncio.run(sandbox.execute_async("x"))
    [record] = records()
    assert (record["kind"], record["result"]["exit_code"]) == ("execute", 125)
    assert record["result"]["stderr"] == "the machine beneath is gone"


# Packages


@pytest.fixture
def layers(monkeypatch):
    asked = []

    def ensure(requirements, settings, progress=None):  # noqa: ARG001
        asked.append(tuple(requirements))
        if progress is not None:
            progress("installing")
        return Layer("/layers/1", ("six==1.17.0",))

    monkeypatch.setattr("fumehood.packages.ensure", ensure)
    return asked


def test_requirements_become_a_layer_of_the_sandbox(layers):
    heard = []

    class Handler:
        def send_progress(self, text):
            heard.append(text)

    session, fake = opened(requirements=["six"], io_handler=Handler())
    assert layers == []
    assert session.run("x").meta["packages"] == ["six==1.17.0"]
    session.run("y")
    assert layers == [("six",)]
    assert fake.sandboxes[0].spec.packages == "/layers/1"
    assert wait_until(lambda: heard == ["installing"])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("a\n", "utf-8")
    return path


def test_a_run_with_further_requirements_has_a_sandbox_of_its_own(layers, source):
    def leave(command):
        fake.sandboxes[-1].files[f"/tmp/output/{len(fake.commands)}.txt"] = b"12"
        return Reply("out", results=[{"text/plain": command.script.decode()}], cpu_s=2)

    fake = FakeBackend(replies=leave)
    settings = {"session_id": "s", "run_id": "r", "store_code": "always", "session_max_cpu_sec": 4}
    session = open_session(fake, requirements=["six"], datasets={"d": source}, **settings)
    session.run("a")
    result = session.run("b", 5, requirements=["numpy>=2"], reasoning_trace="why")
    kept, aside = fake.sandboxes
    assert layers == [("six",), ("six", "numpy>=2")]
    assert aside.spec == kept.spec._replace(progress=aside.spec.progress, timeout_s=5)
    assert aside.spec.datasets == (("d.csv", str(source)),)
    assert (aside.spec.packages, aside.closed, kept.closed) == ("/layers/1", True, False)
    meta = result.meta
    assert (meta["state"], meta["packages"], meta["results"]) == ("not_kept", ["six==1.17.0"], [{"text/plain": "b"}])
    assert (meta["session_id"], meta["run_id"], meta["step"]) == ("s", "r", 2)
    assert meta["output_files"] == ["2.txt"]
    assert Path(session.output_dir, "2.txt").read_bytes() == b"12"
    record = records()[1]
    assert (record["kind"], record["step"], record["session_id"], record["reasoning_trace"]) == ("run", 2, "s", "why")
    assert record["requirements"] == ["numpy>=2"]
    with pytest.raises(BudgetExceeded):
        session.run("c", requirements=["numpy>=2"])


def test_requirements_that_the_session_has_run_in_it(layers):
    session, fake = opened(requirements=["Six", "numpy>=2"])
    for requirements in (["six"], [" numpy >= 2"], [], None):
        assert session.run("x", requirements=requirements).meta["state"] == "kept"
    assert len(layers) == len(fake.sandboxes) == 1


@pytest.mark.parametrize(("requirements", "error"), [("six", BadArgument), (["../six"], fumehood.PackageError)])
def test_bad_requirements_of_a_run_start_nothing(requirements, error):
    session, fake = opened()
    with pytest.raises(error):
        session.run("x", requirements=requirements)
    assert fake.sandboxes == []


@pytest.mark.usefixtures("layers")
def test_nothing_is_said_of_variables_where_none_are_kept():
    session, fake = opened(Reply("so far", after_s=3600), Reply(exit_code=3, state_lost=True))
    result = session.run("x", 0.2, requirements=["six"])
    assert (result.meta["reason"], result.meta["state"]) == ("timeout", "not_kept")
    assert "and was killed" in result.stderr
    assert "variables" not in result.stderr
    assert session.run("x", requirements=["six"]).stderr == ""
    assert all(sandbox.closed for sandbox in fake.sandboxes)


@pytest.mark.usefixtures("layers")
def test_a_sandbox_of_its_own_that_is_lost_leaves_the_sessions():
    def lose(command):
        if command.script == b"lose":
            fake.sandboxes[-1].lost = True
        return Reply()

    fake = FakeBackend(replies=lose)
    session = open_session(fake)
    session.write("/tmp/a", "x")
    with pytest.raises(EngineFailed, match="the session's own is as it was"):
        session.run("lose", requirements=["six"])
    assert session.read("/tmp/a") == b"x"
    assert [record["result"]["exit_code"] for record in records()] == [125]
    assert fake.sandboxes[1].closed


@pytest.mark.usefixtures("layers")
def test_closing_ends_a_sandbox_of_its_own():
    async def scenario():
        fake = FakeBackend(replies=[Reply(after_s=3600)])
        session = AsyncSession(fake)
        run = asyncio.create_task(session.run("a", requirements=["six"]))
        await running(fake)
        await session.close()
        assert "the session was closed" in (await run).stderr
        assert fake.sandboxes[0].closed

    asyncio.run(scenario())


@pytest.mark.parametrize("driver", ["direct", "async"])
def test_requirements_of_a_one_shot_run_in_a_sandbox_that_is_closed_again(layers, driver):
    fake = FakeBackend()
    sandbox = fumehood.get_sandbox(fake)
    if driver == "direct":
        result = sandbox.execute("x", requirements=["six"])
    else:
        result = asyncio.run(sandbox.execute_async("x", requirements=["six"]))
    assert (result.stdout, result.meta["packages"]) == ("x", ["six==1.17.0"])
    assert layers == [("six",)]
    assert fake.sandboxes[0].spec.packages == "/layers/1"
    assert fake.sandboxes[0].closed


# Streams


def test_a_stream_gives_events_as_they_come_and_then_the_result():
    rest = [Display({"text/plain": "2"}), Output("stderr", b"3"), Exited(4, "error", 0.5, 6)]

    def program():
        """The rest comes when the first line has been seen: it waits for no more of them."""
        yield Output("stdout", b"1\n")
        yield from gated(lambda: events, *rest)

    session, _ = opened(program())
    events = []
    with session.stream("x", HANG_S) as stream:
        with pytest.raises(SessionError, match="read the stream to its end"):
            stream.result  # noqa: B018
        for event in stream:
            events.append(event)
    assert events == [Output("stdout", b"1\n"), *rest]
    assert (stream.result.stdout, stream.result.exit_code) == ("1\n", 4)
    assert stream.result.meta["results"] == [{"text/plain": "2"}]


def test_a_list_is_streamed_as_a_command():
    session, fake = opened()
    with session.stream(["ls", "-l"]) as stream:
        assert [type(event) for event in stream] == [Output, Exited]
    assert fake.commands[0].argv == ("ls", "-l")


def test_a_stream_that_times_out_ends_with_what_the_result_says():
    session, _ = opened(Reply("a", after_s=3600))
    with session.stream("x", 0.2) as stream:
        last = list(stream)[-1]
    assert (last.exit_code, last.reason, last.state_lost) == (-1, "timeout", False)


def test_leaving_early_cancels_the_execution():
    session, fake = opened([Output("stdout", b"a"), 3600.0], Reply("next"))
    with session.stream("x") as stream:
        next(stream)
    assert fake.processes[0].interrupts == 1
    assert stream.result.meta["reason"] == "cancelled"
    assert session.run("y").stdout == "next"


def test_leaving_by_an_error_keeps_the_error():
    session, fake = opened([Output("stdout", b"a"), 3600.0])
    with pytest.raises(KeyError):
        with session.stream("x"):
            raise KeyError
    assert fake.processes == [] or fake.processes[0].interrupts == 1


def test_a_stream_that_waits_for_its_turn_can_be_left():
    async def scenario():
        done = asyncio.Event()
        fake = FakeBackend(replies=[gated(done.is_set), Reply("next")])
        async with AsyncSession(fake) as session:
            first = asyncio.create_task(session.run("a", HANG_S))
            await running(fake)
            async with session.stream("never"):
                pass
            done.set()
            await first
            assert [command.script for command in fake.commands] == [b"a"]
            return (await session.run("b")).stdout

    assert asyncio.run(scenario()) == "next"


def test_an_error_comes_out_of_the_stream():
    session, _ = opened(allowed_commands=["ls"])
    with session.stream(["rm", "x"]) as stream, pytest.raises(CommandNotAllowed):
        next(stream)
    with pytest.raises(CommandNotAllowed), session.stream(["rm", "x"]):
        assert wait_until(lambda: len(records()) == 2)  # it was refused, and nobody has been told


def test_a_stream_outside_its_context_is_an_error():
    session, _ = opened()
    with pytest.raises(SessionError, match="context manager"):
        next(session.stream("x"))


def test_a_reader_that_falls_behind_makes_the_program_wait():
    def flood():
        for _ in range(2000):
            given.append(1)
            yield Output("stdout", b"x" * 65_536)

    given: list[int] = []
    session, _ = opened(flood())
    with session.stream("x", HANG_S) as stream:
        next(stream)
        assert wait_until(lambda: len(given) > 60)
        time.sleep(0.3)
        assert len(given) < 200
        assert sum(1 for _ in stream) == 2000


def test_a_reader_that_falls_behind_does_not_stretch_the_deadline():
    def flood():
        while True:
            yield Output("stdout", b"x" * 65_536)

    session, _ = opened(flood())
    with session.stream("x", 0.3) as stream:
        time.sleep(1)
        assert list(stream)[-1].reason == "timeout"


def test_a_stream_keeps_its_session_alive():
    fake = FakeBackend(replies=[Reply("a", after_s=0.2)])
    with open_session(fake).stream("x") as stream:
        gc.collect()
        assert list(stream)[-1].exit_code == 0


class _Forgetful(FakeBackend):
    """One that has no sessions: a third party's, say."""

    async def create(self, spec):
        class OneCommand(Sandbox):
            async def start(self, command):
                raise AssertionError(f"{command} is started, with {spec}")

            async def close(self):
                pass

        return OneCommand()


def test_a_backend_without_sessions_is_named_as_the_cause_and_nothing_runs():
    with open_session(_Forgetful(), start_retries=0, store_code="never") as session:
        for call in (lambda: session.run("1"), lambda: session.write("/tmp/a", "x"), lambda: session.read("/tmp/a")):
            with pytest.raises(BackendUnavailable, match="SANDBOX_TYPE=local"):
                call()
