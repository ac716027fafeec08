from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import tracemalloc

import pytest

from fumehood import IsolationUnavailable, execution, get_sandbox
from fumehood.backends.base import SandboxSpec
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.bundles import MAX_BUNDLES, MAX_BYTES, Bundles, clean
from fumehood.config import Settings
from fumehood.execution import TRUNCATED, Capture, new_execution_id, run_in, shorten
from fumehood.planning import Planner
from fumehood.types import Display, ExecutionResult, Exited, Output
from pace import at_some_pace, timed_out
from support import DRIVERS, HANG_S, AsyncOnly, DeafBackend, execute, scripted

drivers = pytest.mark.parametrize("driver", DRIVERS)


def captured(*chunks: bytes, cap: int = 10_240) -> tuple[str, bool]:
    capture = Capture(cap)
    for chunk in chunks:
        capture.add(chunk)
    return capture.text(), capture.truncated


def test_output_up_to_the_cap_is_kept_whole():
    assert captured(b"x" * 10_240) == ("x" * 10_240, False)


def test_one_byte_more_is_cut_and_marked():
    text, truncated = captured(b"x" * 10_241)
    assert truncated
    assert text == "x" * 5120 + TRUNCATED + "x" * 5120


@pytest.mark.parametrize("size", [1, 7, 1000, 65_536])
def test_head_and_tail_are_kept_whatever_the_size_of_the_writes(size):
    data = b"".join(b"%06d " % number for number in range(20_000))
    text, truncated = captured(*(data[at : at + size] for at in range(0, len(data), size)))
    assert truncated
    head, tail = text.split(TRUNCATED)
    assert data.decode().startswith(head)
    assert data.decode().endswith(tail)
    assert len(head) == len(tail) == 5120


def test_the_cut_moves_to_line_ends_so_that_the_marker_has_its_own_line():
    lines = b"".join(b"line %d\n" % number for number in range(5000))
    text, _ = captured(lines)
    assert f"\n{TRUNCATED}\n" in text
    assert all(line.startswith("line ") for line in text.splitlines() if line != TRUNCATED)
    assert len(text.replace(TRUNCATED, "").encode()) <= 10_240


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_no_character_is_split_by_the_cut(character, before):
    text, truncated = captured(("a" * before + character * 10_000).encode())
    assert truncated
    assert "\N{REPLACEMENT CHARACTER}" not in text


def test_a_character_split_over_two_writes_comes_out_whole():
    assert captured(b"caf\xc3", b"\xa9") == ("café", False)


def test_binary_output_becomes_replacement_characters():
    assert captured(b"\xff\xfe\x00ok") == ("\ufffd\ufffd\x00ok", False)


@pytest.mark.parametrize("cap", [0, 1, 2, 3])
def test_a_tiny_cap_still_marks_the_cut(cap):
    text, truncated = captured(b"abcdef", b"ghi", cap=cap)
    assert truncated
    assert len(text.replace(TRUNCATED, "")) <= cap


def test_a_flood_does_not_grow_the_capture():
    capture = Capture(10_240)
    chunk = b"y" * 65_536
    tracemalloc.start()
    for _ in range(2000):
        capture.add(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_shorten_keeps_what_fits_and_repairs_what_cannot_be_encoded():
    assert shorten("abc", 3) == "abc"
    assert shorten("a\ud800", 10) == "a?"
    assert shorten("ä" * 100, 20).replace(TRUNCATED, "") == "ä" * 10


def test_execution_ids_are_unique_and_sort_by_time():
    first = new_execution_id()
    time.sleep(0.005)
    assert first < new_execution_id()
    assert len({new_execution_id() for _ in range(1000)}) == 1000


@drivers
def test_a_program_that_ends_by_itself_keeps_its_streams_and_exit_code(driver):
    sandbox, _ = scripted(Reply("out\n", "err\n", exit_code=3, cpu_s=0.5, max_rss_bytes=7))
    result = execute(driver, sandbox, "pass")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert result.meta["reason"] == "error"
    assert result.meta["usage"] == {"cpu_s": 0.5, "max_rss_bytes": 7}


@drivers
def test_a_time_out_is_a_result_that_says_what_to_do(driver):
    def run(timeout):
        sandbox, _ = scripted(Reply("partial", after_s=3600))
        return execute(driver, sandbox, "pass", timeout=timeout)

    result, _ = timed_out(run, "partial")
    assert result.stdout == "partial"
    assert "SANDBOX_MAX_TIMEOUT_SEC" in result.stderr


@drivers
def test_a_program_that_never_stops_printing_is_still_timed_out(driver):
    def forever():
        while True:
            yield Output("stdout", b"spam\n" * 10)  # so little that no machine comes to the most it may print

    def run(timeout):
        sandbox, _ = scripted(forever())
        return execute(driver, sandbox, "pass", timeout=timeout)

    result, _ = timed_out(run, TRUNCATED)
    assert result.meta["truncated"] is True


@drivers
def test_too_much_output_kills_and_names_the_setting(driver):
    sandbox, _ = scripted(
        [Output("stdout", b"z" * 600_000), Output("stderr", b"z" * 600_000), 3600.0], output_kill_mb=1
    )
    result = execute(driver, sandbox, "pass")
    assert result.exit_code == 137
    assert result.meta["reason"] == "output"
    assert "SANDBOX_OUTPUT_KILL_MB" in result.stderr


@drivers
@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("memory", ["1024 MB", "SANDBOX_MEMORY_MB"]),
        ("processes", ["256", "SANDBOX_PROCESSES"]),
        ("disk", ["SANDBOX_DISK_MB", "SANDBOX_INODES", "SANDBOX_FILE_MB"]),
    ],
)
def test_a_limit_is_named_with_its_value_and_its_setting(driver, reason, named):
    sandbox, _ = scripted(Reply(stderr="own words", exit_code=137, reason=reason))
    result = execute(driver, sandbox, "pass")
    own, ours = result.stderr.split("\n", 1)
    assert own == "own words"
    assert ours.startswith("fumehood: ")
    assert [name for name in named if name not in ours] == []
    assert result.meta["reason"] == reason


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_signal_is_named(number):
    sandbox, _ = scripted(Reply(exit_code=128 + number, reason="signal"))
    result = sandbox.execute("pass")
    assert f"killed by {number.name} (signal {int(number)})" in result.stderr
    assert result.exit_code == 128 + number


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGKILL])
def test_the_cpu_backstop_is_named(number):
    sandbox, fake = scripted(Reply(exit_code=128 + number, reason="signal", cpu_s=3.1), cpu_sec=3)
    assert "3 s of CPU time per process, raise SANDBOX_CPU_SEC" in sandbox.execute("pass").stderr
    assert fake.commands[0].cpu_s == 3


def test_the_cpu_backstop_is_the_timeout_times_the_cores():
    sandbox, fake = scripted(Reply())
    result = sandbox.execute("pass", timeout=7)
    assert fake.commands[0].cpu_s == 7 * len(os.sched_getaffinity(0))
    assert result.meta["resource_limits"]["cpu_s"] == fake.commands[0].cpu_s


def then(output, call):
    """What a program does that prints this and goes on; when it has been read, another thread makes that call."""
    has_been_read = threading.Event()
    threading.Thread(target=lambda: has_been_read.wait(HANG_S) and call(), daemon=True).start()
    yield Output("stdout", output)
    has_been_read.set()
    yield 3600.0


@drivers
def test_an_event_cancels_from_another_thread(driver):
    cancel = threading.Event()
    sandbox, _ = scripted(then(b"so far", cancel.set))
    result = execute(driver, sandbox, "pass", cancel=cancel)
    assert result.meta["reason"] == "cancelled"
    assert result.exit_code == 137
    assert result.stdout == "so far"
    assert "cancelled" in result.stderr


@drivers
def test_cancel_ends_what_runs_now_and_not_what_comes_next(driver):
    sandbox, _ = scripted(then(b"so far", lambda: sandbox.cancel()), Reply("next"))
    assert execute(driver, sandbox, "pass").meta["reason"] == "cancelled"
    assert execute(driver, sandbox, "pass").stdout == "next"


def test_a_cancelled_task_kills_the_program():
    process_began, process_ended = threading.Event(), threading.Event()

    def events():
        process_began.set()
        try:
            yield 3600.0
        finally:
            process_ended.set()

    async def scenario() -> None:
        sandbox, _ = scripted(events())
        task = asyncio.create_task(sandbox.execute_async("pass"))
        assert await asyncio.to_thread(process_began.wait, HANG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert process_ended.is_set()


def test_a_process_that_survives_its_kill_is_reported_after_a_grace(monkeypatch):
    monkeypatch.setattr(execution, "KILL_GRACE_S", 0.5)
    sandbox = get_sandbox(DeafBackend(FakeBackend()))
    result = sandbox.execute("pass", timeout=0.1)
    assert result.meta["reason"] == "timeout"
    assert result.duration >= 0.6


@pytest.mark.parametrize("wrap", [lambda fake: fake, AsyncOnly])
def test_a_receipt_weaker_than_required_is_refused_whatever_the_backend_says(wrap):
    with get_sandbox(wrap(FakeBackend()), require="confined") as sandbox:
        with pytest.raises(IsolationUnavailable, match="SANDBOX_REQUIRE"):
            sandbox.execute("pass")


def test_an_exit_that_comes_just_before_the_deadline_counts():
    def is_in_time(timeout):
        sandbox, _ = scripted([0.7 * timeout, Exited(0, "ok")])
        return sandbox.execute("pass", timeout=timeout).meta["reason"] == "ok"

    assert at_some_pace(is_in_time)


def test_a_longer_timeout_than_the_ceiling_is_lowered_and_said():
    sandbox, _ = scripted(Reply())
    meta = sandbox.execute("pass", timeout=10_000).meta
    assert (meta["timeout"], meta["timeout_clamped"]) == (300, True)


def kept(fake: FakeBackend, timeout: float = HANG_S, **replaced: object) -> ExecutionResult:
    """One run that keeps state."""

    async def scenario() -> ExecutionResult:
        sandbox = await fake.create(SandboxSpec(keeps=True))
        plan = Planner(Settings()).program("fake", "x", "python", timeout, keeps_state=True)
        return await run_in(sandbox, plan._replace(**replaced))

    return asyncio.run(scenario())


LOST = "variables, imports and functions of earlier runs are gone; files are kept"


def test_each_stream_says_whether_it_was_cut():
    sandbox, _ = scripted(Reply("x" * 20_000, "short"))
    meta = sandbox.execute("pass").meta
    assert (meta["stdout_truncated"], meta["stderr_truncated"], meta["truncated"]) == (True, False, True)


def test_a_one_shot_has_no_state_and_no_results():
    sandbox, _ = scripted(Reply(results=[{"text/plain": "1"}]))
    meta = sandbox.execute("pass").meta
    assert not {"state", "results"} & meta.keys()


def test_a_run_that_keeps_state_says_that_it_did():
    result = kept(FakeBackend(replies=[Reply("out", results=[{"text/plain": "1"}])]))
    assert (result.meta["state"], result.meta["results"]) == ("kept", [{"text/plain": "1"}])
    assert (result.stdout, result.stderr) == ("out", "")


def test_a_time_out_interrupts_first():
    fake = FakeBackend(replies=[Reply(after_s=3600)])
    result = kept(fake, 0.1)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (-1, "timeout", "kept")
    assert "timed out after 0.1 s and was interrupted, its variables are kept" in result.stderr
    assert LOST not in result.stderr
    assert fake.processes[0].interrupts == 1


def test_a_program_that_ignores_the_interrupt_is_killed_and_its_state_is_gone(monkeypatch):
    monkeypatch.setattr(execution, "INTERRUPT_GRACE_S", 0.5)
    fake = FakeBackend(replies=[Reply(after_s=3600)])
    fake.deaf = True
    result = kept(fake, 0.1)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (-1, "timeout", "lost")
    assert "was killed" in result.stderr
    assert f"fumehood: the interpreter was replaced: {LOST}" in result.stderr
    assert result.duration >= 0.6


def test_cancelling_interrupts_first():
    fake = FakeBackend(replies=[Reply(after_s=3600)])
    result = kept(fake, cancelled=lambda: True)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (130, "cancelled", "kept")
    assert fake.processes[0].interrupts == 1


def test_too_much_output_kills_at_once():
    fake = FakeBackend(replies=[[Output("stdout", b"x" * 100), 3600.0]])
    result = kept(fake, output_kill_bytes=10)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (137, "output", "lost")
    assert fake.processes[0].interrupts == 0


@pytest.mark.parametrize("reply", [Reply(state_lost=True), Reply(exit_code=3, state_lost=True)])
def test_an_interpreter_that_ended_by_itself_is_said(reply):
    result = kept(FakeBackend(replies=[reply]))
    assert result.meta["state"] == "lost"
    assert result.stderr == f"fumehood: the run ended its interpreter: {LOST}, so define again what you need\n"


def test_a_process_that_ended_is_not_killed_again():
    fake = FakeBackend(replies=[Reply()])
    kills = []

    async def scenario() -> None:
        sandbox = await fake.create(SandboxSpec(keeps=True))
        start = sandbox.start

        async def watched(command):
            process = await start(command)
            process.kill = lambda: kills.append(1)
            return process

        sandbox.start = watched
        await run_in(sandbox, Planner(Settings()).program("fake", "x", "python", None, keeps_state=True))

    asyncio.run(scenario())
    assert kills == []


def test_a_flood_of_results_is_cut_by_number():
    result = kept(FakeBackend(replies=[[Display({"text/plain": str(n)}) for n in range(MAX_BUNDLES + 5)]]))
    assert len(result.meta["results"]) == MAX_BUNDLES
    assert result.meta["results_truncated"] is True


def test_and_by_size():
    bundles = Bundles()
    bundles.add({"text/plain": "x" * (MAX_BYTES // 2)})
    bundles.add({"text/plain": "x" * MAX_BYTES})
    bundles.add({"text/plain": "small"})
    assert [len(bundle["text/plain"]) for bundle in bundles.kept] == [MAX_BYTES // 2, 5]
    assert bundles.truncated


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [{1}, b"x", object(), float("nan"), float("inf"), {1: 2}, {"a": [b"x"]}, nested(100), nested(50_000)]
)
def test_what_is_no_json_is_dropped(value):
    assert clean({"a/b": value, "text/plain": "ok"})[0] == {"text/plain": "ok"}


MIME_TYPES = [
    *("text/plain", "image/svg+xml", "application/vnd.dataresource+json", "application/vnd.vegalite.v5+json"),
    *("text/html; charset=utf-8", "application/x-a;version=4", 'multipart/x; boundary="a b"', "TEXT/Plain", "a/b"),
]
NO_MIME_TYPES = [
    *("\x1b[2J/x", "text/\x1b]0;title\x07", "text/plain\n", "text/pl\x7fain", "text/plain\r", "text/plain;a=\x1b[31m"),
    *('text/plain;a="\x1b"', 'text/plain;a="b', "text/plain;", "text/plain; charset", "text", "/plain", "text/"),
    *("text/plain, text/html", "a b/c", "<b>/c", "text//plain", "-a/b", "té/xt", "text/pläin", "a/" + "b" * 128),
    *("a" * 128 + "/b", "text/plain" + ";a=b" * 100, "text/plain\u2028", "text/plain\x9b", "%s/%s"),
]


@pytest.mark.parametrize("mime", MIME_TYPES)
def test_a_form_is_kept_under_its_mime_type(mime):
    assert clean({mime: "x"})[0] == {mime: "x"}


@pytest.mark.parametrize("mime", NO_MIME_TYPES)
def test_a_form_without_a_mime_type_is_dropped(mime):
    assert clean({mime: "x", "text/plain": "ok"})[0] == {"text/plain": "ok"}


def test_forms_that_were_dropped_are_counted():
    result = kept(FakeBackend(replies=[Reply(results=[{mime: "x"} for mime in NO_MIME_TYPES])]))
    assert result.meta["results"] == []
    assert result.meta["results_dropped"] == len(NO_MIME_TYPES)
    assert "results_dropped" not in kept(FakeBackend(replies=[Reply(results=[{"a/b": 1}])])).meta


@pytest.mark.parametrize("bundle", [None, [], "x", {}, {5: "x"}, {"": "x"}, {"x" * 300: "y"}, {"é": "y"}])
def test_what_is_no_bundle_is_dropped(bundle):
    assert clean(bundle)[0] == {}


def test_a_lone_surrogate_in_a_bundle_becomes_writable():
    bundle, _ = clean({"text/plain": "a\ud800", "application/json": {"k\udc00": ["ü"]}})
    assert bundle == {"text/plain": "a?", "application/json": {"k?": ["ü"]}}


def test_json_values_come_through_as_they_are():
    value = {"a": [1, 2.5, True, None, "é", {"b": []}]}
    assert clean({"application/json": value})[0] == {"application/json": value}


def test_a_receipt_that_is_too_weak_kills_a_run_at_once():
    fake = FakeBackend(replies=[Reply(after_s=3600)])
    with pytest.raises(IsolationUnavailable):
        kept(fake, require="sealed")
    assert (fake.processes[0].interrupts, fake.processes[0].killed) == (0, True)
