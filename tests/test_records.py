from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood import recorded, redact
from fumehood.errors import BadArgument, RecordsError
from fumehood.records import Report, Store, build, chain, cleaner, failed, files, find, load_all, prune, store, verify
from fumehood.records import head as heads
from fumehood.steps import absolute
from fumehood.types import ExecutionResult
from pace import calls
from support import HANG_S, wait_until

SECRET = "sk-Zq3vT9wLx2Rk8sYb4NfGh7Jd"


@pytest.fixture(autouse=True)
def _warn_again() -> None:
    store._warned.clear()


@pytest.fixture(autouse=True)
def _wait_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine another writer may hold it for seconds."""
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", HANG_S)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "artifacts" / "executions"


def fill(directory: Path, count: int, **fields: Any) -> list[Path]:
    writer = Store(directory, policy="always")
    paths = [
        writer.save({"execution_id": f"run-{i}", "code": f"print({i})", **fields}, failed=False) for i in range(count)
    ]
    assert None not in paths
    return [path for path in paths if path]


def kinds(report: Report) -> set[str]:
    return {problem.kind for problem in report.problems}


def rewrite(path: Path, **changes: Any) -> None:
    """Change a record the lazy way: its hash stays."""
    record = json.loads(path.read_text("utf-8"))
    path.write_bytes(chain.canonical(record | changes) + b"\n")


def forge(path: Path, **changes: Any) -> Path:
    """Change a record the careful way: its own hash and name fit again."""
    record = json.loads(path.read_text("utf-8")) | changes
    name, _, data = chain.seal(
        record, sequence=record["sequence"], previous=record["previous"], stored=record["stored"]
    )
    path.unlink()
    (path.parent / name).write_bytes(data)
    return path.parent / name


def blocks(path: Path) -> int:
    return path.lstat().st_blocks * 512


def disk_bytes(directory: Path) -> int:
    """What `du` says."""
    return blocks(directory) + sum(map(blocks, directory.iterdir()))


def head_of(directory: Path) -> chain.Head:
    with files.directory(directory) as dir_fd:
        return heads.load(dir_fd)


# --- writing


def test_a_record_is_a_private_json_file_named_by_time_and_hash(directory: Path) -> None:
    (path,) = fill(directory, 1)
    record = json.loads(path.read_text("utf-8"))
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z_[0-9a-f]{16}\.json", path.name)
    assert path.name == f"{record['stored']}_{record['hash'][:16]}.json"
    assert record["code"] == "print(0)"
    assert record["sequence"] == 1
    assert record["previous"] == "0" * 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in directory.iterdir())


@pytest.mark.parametrize(
    ("policy", "stored_on_success", "stored_on_failure"),
    [("always", True, True), ("on_error", False, True), ("never", False, False)],
)
def test_the_policy_decides_what_is_stored(
    directory: Path, policy: str, stored_on_success: bool, stored_on_failure: bool
) -> None:
    writer = Store(directory, policy=policy)
    assert (writer.save({}, failed=False) is not None) == stored_on_success
    assert (writer.save({}, failed=True) is not None) == stored_on_failure
    if policy == "never":
        assert not directory.exists()


def test_an_unknown_policy_is_refused(directory: Path) -> None:
    with pytest.raises(BadArgument, match="always, on_error, never"):
        Store(directory, policy="sometimes")


def test_any_exit_but_zero_counts_as_failed() -> None:
    assert not failed(ExecutionResult("", "", 0, 0.1, {"reason": "ok"}))
    assert failed(ExecutionResult("", "", 1, 0.1, {"reason": "error"}))
    assert failed(ExecutionResult("", "", -1, 0.1, {"reason": "timeout"}))


def test_each_record_names_the_one_before(directory: Path) -> None:
    records = [json.loads(path.read_text("utf-8")) for path in fill(directory, 4)]
    assert [record["sequence"] for record in records] == [1, 2, 3, 4]
    assert [record["previous"] for record in records[1:]] == [record["hash"] for record in records[:-1]]


def test_names_stay_in_order_when_the_clock_goes_back(directory: Path) -> None:
    fill(directory, 1)
    head = heads.Head.load((directory / files.HEAD).read_bytes())
    future = heads.stamp(datetime.now(UTC) + timedelta(days=400))
    assert heads.stamp_after(f"{future}_{head.hash[:16]}.json") > future
    assert heads.stamp_after(head.name) < future
    assert heads.stamp_after("99991231T235959.999999Z_0123456789abcdef.json") < future


@pytest.mark.parametrize(
    "text",
    ["\x00\x1b[31m", "\ud800 lone", "\udfff", "\ud83d\ude00", "𝕏 ü \u2028", "\x7f\x80\xff", '"\\', "x" * 300_000],
    ids=["control", "lone-high", "lone-low", "split-pair", "unicode", "c1", "quotes", "long"],
)
def test_any_text_comes_back_from_valid_json(directory: Path, text: str) -> None:
    (path,) = fill(directory, 1, output=text)
    data = path.read_bytes()
    data.decode("ascii")
    assert json.loads(data)["output"].encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")
    assert verify(directory).ok


def test_values_that_json_does_not_know_do_not_stop_a_record(directory: Path) -> None:
    circular: list[Any] = []
    circular += [circular, circular]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    odd = {
        "nan": float("nan"), "inf": float("-inf"), "bytes": b"\xff\x00", "set": {1}, "object": object(),
        "keys": {1: "a", None: "b", (1, 2): "c", "1": "d"}, "big": 10**5000, "circular": circular, "deep": deep,
    }  # fmt: skip
    (path,) = fill(directory, 1, odd=odd)
    stored = json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)["odd"]
    assert stored["nan"] == "nan"
    assert stored["object"] == "<object>"
    assert verify(directory).ok


def test_a_record_that_nobody_could_read_back_is_cut(directory: Path) -> None:
    huge = "x" * (chain.MAX_RECORD_BYTES + 1)
    many = fill(directory, 1, code=huge) + fill(directory, 1, more={str(i): "y" * 60_000 for i in range(400)})
    for path in many:
        assert path.stat().st_size < chain.MAX_RECORD_BYTES
        assert json.loads(path.read_text("utf-8"))["oversize"] is True
    assert verify(directory).ok


def test_saving_costs_little_and_no_more_the_more_records_there_are(directory: Path) -> None:
    writer = Store(directory, policy="always", max_bytes=10**9)
    record = {"code": "print(1)\n" * 200, "result": {"stdout": "x" * 5000, "meta": {str(i): i for i in range(50)}}}
    costs = [calls(lambda: writer.save(record, failed=False)) for _ in range(100)]
    assert verify(directory).records == 100
    assert len(costs[0]) < 1000  # about 240 on Python 3.13, which take less than a millisecond
    early, late = min(map(len, costs[1:50])), min(map(len, costs[50:]))  # the least: a garbage collection calls too
    assert early == late
    assert {"open", "pwrite", "rename"} <= set(costs[-1])
    assert not {"listdir", "scandir", "fsync"} & set(costs[-1])


def test_records_import_nothing_heavy() -> None:
    code = (
        "import sys, fumehood.records; "
        "print([m for m in ('asyncio', 'subprocess', 'argparse', 'tempfile', 'yaml', '_strptime') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout == "[]\n"
    )


# --- many writers, and writers that die

WRITER = """
import sys
from pathlib import Path
from fumehood.records import Store, files
files.LOCK_TIMEOUT_S = float(sys.argv[5])
store = Store(Path(sys.argv[1]), policy="always", max_bytes=int(sys.argv[4]))
for i in range(int(sys.argv[3])):
    assert store.save({"execution_id": f"{sys.argv[2]}-{i}", "code": "x" * 100}, failed=False), i
"""


def start_writer(directory: Path, name: str, count: int, max_bytes: int = 0) -> subprocess.Popen[bytes]:
    words = [str(directory), name, str(count), str(max_bytes), str(HANG_S)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *words])


def test_processes_writing_at_once_lose_nothing(directory: Path) -> None:
    writers = [start_writer(directory, f"w{i}", 60) for i in range(5)]
    assert [writer.wait(HANG_S) for writer in writers] == [0] * 5
    report = verify(directory)
    assert report.problems == []
    assert report.records == report.sequence == 300
    ids = {entry.record["execution_id"] for entry in load_all(directory) if entry.record}
    assert ids == {f"w{i}-{j}" for i in range(5) for j in range(60)}


def test_threads_writing_at_once_lose_nothing(directory: Path) -> None:
    threads = [threading.Thread(target=fill, args=(directory, 40)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = verify(directory)
    assert report.problems == []
    assert report.records == 240


def test_verify_prune_and_history_may_run_while_others_write(directory: Path) -> None:
    writers = [start_writer(directory, f"w{i}", 150, 30_000) for i in range(2)]
    looks = 0
    while any(writer.poll() is None for writer in writers):
        assert verify(directory).problems == []
        assert [entry for entry in load_all(directory) if entry.error] == []
        prune(directory, keep=20)
        looks += 1
    assert looks > 0
    assert [writer.returncode for writer in writers] == [0, 0]
    assert verify(directory).sequence == 300


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.soak)])
def test_writers_killed_at_any_moment_leave_a_sound_chain(directory: Path, rounds: int) -> None:
    def record_names() -> set[str]:
        return {path.name for path in directory.glob("2*.json")}

    for round_ in range(rounds):
        before, some = record_names(), random.randrange(1, 60)
        writer = start_writer(directory, f"w{round_}", 100_000, 400_000)
        assert wait_until(lambda before=before, some=some: len(record_names() - before) >= some)
        time.sleep(random.random() * 0.01)  # so that it is anywhere in its work
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        assert verify(directory).problems == []
    fill(directory, 1)
    assert verify(directory).problems == []
    assert not (directory / files.PENDING).exists()


def crash_at(monkeypatch: pytest.MonkeyPatch, directory: Path, step: str) -> None:
    """Die, as by SIGKILL, instead of taking this step."""

    def dying(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(files, step, dying)
        patch.setattr(files, "remove", lambda *_: True)
        with pytest.raises(SystemExit):
            Store(directory, policy="always").save({"execution_id": "dying"}, failed=False)


def test_dying_before_the_head_moves_loses_only_that_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 2)
    crash_at(monkeypatch, directory, "overwrite")
    assert verify(directory).problems == []
    assert verify(directory).records == 2
    fill(directory, 1)
    assert (verify(directory).problems, verify(directory).records) == ([], 3)


def test_dying_after_the_head_moves_loses_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 2)
    crash_at(monkeypatch, directory, "rename")
    report = verify(directory)
    assert (report.problems, report.records) == ([], 3)
    assert "interrupted" in report.notes[0]
    fill(directory, 1)
    report = verify(directory)
    assert (report.problems, report.records, report.notes) == ([], 4, [])
    assert [e.record["execution_id"] for e in load_all(directory) if e.record] == ["run-0", "dying", "run-1", "run-0"]


def test_dying_in_the_middle_of_a_prune_leaves_no_hole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = fill(directory, 10)
    removed: list[str] = []

    def dying(dir_fd: int, name: str) -> bool:
        if len(removed) == 3:
            raise SystemExit
        removed.append(name)
        os.unlink(name, dir_fd=dir_fd)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", dying)
        with pytest.raises(SystemExit):
            prune(directory, keep=4)
    report = verify(directory)
    assert report.problems == []
    assert "3 pruned record(s) still here" in report.notes[0]
    paths[4].unlink()  # a hole among those left is not our doing
    assert "order" in kinds(verify(directory))
    prune(directory, keep=4)
    assert len(list(load_all(directory))) == 4


def test_a_lock_that_is_never_let_go_costs_a_record_not_the_execution(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory, 1)
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.5)
    waits_s: list[float] = []
    acquire = files._acquire

    def noted(fd: int, deadline: float) -> None:
        waits_s.append(deadline - time.monotonic())
        acquire(fd, deadline)

    writer = Store(directory, policy="always")
    with files.directory(directory) as dir_fd, files.locked(dir_fd):
        monkeypatch.setattr(files, "_acquire", noted)
        assert [writer.save({}, failed=False) for _ in range(5)] == [None] * 5
    assert [wait_s > 0.1 for wait_s in waits_s[1:]] == [False] * 4  # only the first one waits the whole time
    assert "another process holds the lock" in caplog.text
    assert writer.save({}, failed=False)
    assert verify(directory).records == 2


def test_a_lock_file_that_was_removed_does_not_let_two_writers_in(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory, 1)
    order: list[str] = []
    waits = threading.Event()
    acquire = files._acquire

    def noted(fd: int, deadline: float) -> None:
        waits.set()
        acquire(fd, deadline)

    def wait_for_the_old_lock() -> None:
        with files.directory(directory) as dir_fd, files.locked(dir_fd):
            order.append("second")

    with files.directory(directory) as dir_fd:
        with files.locked(dir_fd):
            monkeypatch.setattr(files, "_acquire", noted)
            thread = threading.Thread(target=wait_for_the_old_lock)
            thread.start()
            assert waits.wait(HANG_S)  # it has opened the file that goes now
            (directory / files.LOCK).unlink()
            (directory / files.LOCK).touch()
            order.append("first")
        thread.join(HANG_S)
    assert order == ["first", "second"]


# --- tampering


def test_an_untouched_chain_is_sound(directory: Path) -> None:
    paths = fill(directory, 5)
    report = verify(directory)
    assert (report.ok, report.records, report.sequence, report.pruned) == (True, 5, 5, None)
    assert report.head == json.loads(paths[-1].read_text("utf-8"))["hash"]


@pytest.mark.parametrize("which", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_removed_record_shows(directory: Path, which: int) -> None:
    fill(directory, 5)[which].unlink()
    report = verify(directory)
    assert [problem.message for problem in report.problems] == [f"record {which + 1} is missing"]


def test_several_removed_records_show_as_a_range(directory: Path) -> None:
    for path in fill(directory, 9)[2:6]:
        path.unlink()
    assert [problem.message for problem in verify(directory).problems] == ["records 3 to 6 are missing"]


def test_removing_every_record_shows(directory: Path) -> None:
    for path in fill(directory, 3):
        path.unlink()
    assert [problem.message for problem in verify(directory).problems] == ["records 1 to 3 are missing"]


def test_a_removed_last_record_still_shows_after_more_are_written(directory: Path) -> None:
    fill(directory, 3)[-1].unlink()
    fill(directory, 2)
    assert [problem.message for problem in verify(directory).problems] == ["record 3 is missing"]


@pytest.mark.parametrize("which", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_changed_record_shows(directory: Path, which: int) -> None:
    rewrite(fill(directory, 5)[which], code="print('innocent')")
    report = verify(directory)
    assert [(p.kind, p.sequence) for p in report.problems] == [("changed", which + 1)]


@pytest.mark.parametrize("which", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_record_changed_together_with_its_hash_shows(directory: Path, which: int) -> None:
    forge(fill(directory, 5)[which], code="print('innocent')")
    assert kinds(verify(directory)) == {"head" if which == 4 else "link"}


def test_bytes_that_parse_to_the_same_record_still_show(directory: Path) -> None:
    first, second = fill(directory, 2)
    first.write_text(json.dumps(json.loads(first.read_text("utf-8")), indent=2), "utf-8")
    second.write_bytes(second.read_bytes().replace(b'{"code":', b'{"code":"shown first","code":', 1))
    assert [problem.sequence for problem in verify(directory).problems] == [1, 2]


def test_a_hash_that_was_moved_within_its_record_shows(directory: Path) -> None:
    path = fill(directory, 3)[1]
    data = path.read_bytes()
    (member,) = re.findall(rb'"hash":"[0-9a-f]{64}",', data)
    for moved in (b"{" + member + data.replace(member, b"")[1:], data.replace(member, member + b" ")):
        assert json.loads(moved) == json.loads(data)
        path.write_bytes(moved)
        assert kinds(verify(directory)) == {"changed"}
    path.write_bytes(data)
    assert verify(directory).ok


def test_verify_reads_each_record_once_and_writes_none_anew(directory: Path) -> None:
    fill(directory, 40)
    names = calls(lambda: verify(directory))
    assert names.count("open") <= 40 + 4  # the directory, the lock, the head and what a writer left
    assert names.count("parse") == 40 + 1
    assert not {"canonical", "dumps", "encode_basestring_ascii"} & set(names)


def test_reordered_records_show(directory: Path) -> None:
    paths = fill(directory, 4)
    a, b = paths[1].name, paths[2].name
    swapped = [f"{b.partition('_')[0]}_{a.partition('_')[2]}", f"{a.partition('_')[0]}_{b.partition('_')[2]}"]
    paths[1].rename(directory / swapped[0])
    paths[2].rename(directory / swapped[1])
    problems = verify(directory).problems
    assert sorted(problem.sequence or 0 for problem in problems) == [2, 3]
    assert all("renamed" in problem.message for problem in problems)


def test_a_copied_record_shows(directory: Path) -> None:
    paths = fill(directory, 3)
    shutil.copy(paths[1], directory / f"20200101T000000.000000Z_{paths[1].name.partition('_')[2]}")
    assert not verify(directory).ok


@pytest.mark.parametrize("number", [0, 1, 2, 3, 2**62], ids=["zero", "first", "taken", "next", "huge"])
def test_an_inserted_record_shows(directory: Path, number: int) -> None:
    fill(directory, 2)
    head = verify(directory).head
    assert head
    name, _, data = chain.seal({"code": "x"}, sequence=number, previous=head, stored=heads.now())
    (directory / name).write_bytes(data)
    assert not verify(directory).ok


def test_records_of_another_directory_do_not_fit_in(directory: Path, tmp_path: Path) -> None:
    (foreign,) = fill(tmp_path / "other", 1)
    paths = fill(directory, 2)
    paths[0].unlink()
    shutil.copy(foreign, directory)
    assert not verify(directory).ok


def test_an_older_head_put_back_shows(directory: Path) -> None:
    fill(directory, 2)
    old = (directory / files.HEAD).read_bytes()
    fill(directory, 2)
    (directory / files.HEAD).write_bytes(old)
    assert not verify(directory).ok


@pytest.mark.parametrize(
    "damage",
    [None, b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"sequence":1}', b'{"sequence":-1,"hash":"","name":"../x"}'],
    ids=["missing", "empty", "object", "list", "binary", "deep", "partial", "wrong"],
)
def test_a_lost_head_shows_now_and_after_the_next_record(directory: Path, damage: bytes | None) -> None:
    paths = fill(directory, 3)
    paths[-1].unlink()  # what somebody would hide by removing the head
    (directory / files.HEAD).unlink()
    if damage is not None:
        (directory / files.HEAD).write_bytes(damage)
    assert kinds(verify(directory)) == {"head"}
    with pytest.raises(RecordsError, match="nothing is removed"):
        prune(directory, keep=0)
    fill(directory, 2)
    report = verify(directory)
    assert (kinds(report), report.records, report.sequence) == ({"head"}, 4, 4)
    assert "records before it may be missing" in report.problems[0].message


def test_a_head_noted_elsewhere_unmasks_a_chain_written_anew(directory: Path) -> None:
    fill(directory, 3)
    noted = verify(directory).head
    assert verify(directory, expect=noted).expected_at == 3
    fill(directory, 2)
    report = verify(directory, expect=noted)
    assert (report.ok, report.expected_at) == (True, 3)
    shutil.rmtree(directory)
    fill(directory, 3)
    assert verify(directory).ok  # nothing inside the directory could tell
    assert not verify(directory, expect=noted).ok


def test_foreign_files_are_named_and_ignored(directory: Path) -> None:
    fill(directory, 2)
    (directory / "notes.txt").write_text("x", "utf-8")
    report = verify(directory)
    assert report.ok
    assert "notes.txt" in report.notes[0]


@pytest.mark.parametrize("kind", ["garbage", "symlink", "fifo", "directory", "huge", "not-an-object"])
def test_what_only_looks_like_a_record_is_reported_and_skipped(directory: Path, kind: str) -> None:
    good = fill(directory, 2)[0]
    bad = directory / "20200101T000000.000000Z_0123456789abcdef.json"
    if kind == "garbage":
        bad.write_bytes(b"\x00\xff{")
    elif kind == "symlink":
        bad.symlink_to(good)
    elif kind == "fifo":
        os.mkfifo(bad)
    elif kind == "directory":
        bad.mkdir()
    elif kind == "huge":
        with bad.open("wb") as file:
            file.truncate(chain.MAX_RECORD_BYTES * 100)
    else:
        bad.write_text("[1]", "utf-8")
    report = verify(directory)
    assert [(p.kind, p.name) for p in report.problems] == [("unreadable", bad.name)]
    entries = list(load_all(directory))
    assert [bool(entry.record) for entry in entries] == [True, True, False]
    assert entries[-1].error
    fill(directory, 1)
    assert verify(directory).records == 3


# --- pruning


def test_prune_by_count_keeps_the_newest_and_says_so(directory: Path) -> None:
    paths = fill(directory, 10)
    assert prune(directory, keep=4) == 6
    report = verify(directory)
    assert (report.ok, report.records, report.sequence) == (True, 4, 10)
    assert report.pruned
    assert report.pruned.count == 6
    assert [entry.name for entry in load_all(directory, newest_first=False)] == [path.name for path in paths[6:]]
    fill(directory, 1)
    assert prune(directory, keep=2) == 3
    report = verify(directory)
    assert report.pruned
    assert (report.ok, report.pruned.count) == (True, 9)


def test_prune_by_age(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(heads, "now", lambda: heads.stamp(datetime.now(UTC) - timedelta(days=2)))
        fill(directory, 3)
    fill(directory, 2)
    assert prune(directory, older_than=timedelta(days=3)) == 0
    assert prune(directory, older_than=timedelta(days=1)) == 3
    assert (verify(directory).ok, verify(directory).records) == (True, 2)


def test_prune_by_size(directory: Path) -> None:
    paths = fill(directory, 10)
    others = disk_bytes(directory) - sum(map(blocks, paths))
    assert prune(directory, max_bytes=others + sum(map(blocks, paths[7:]))) == 7
    assert (verify(directory).ok, verify(directory).records) == (True, 3)


def test_prune_can_remove_everything_and_the_chain_goes_on(directory: Path) -> None:
    fill(directory, 3)
    head = verify(directory).head
    assert prune(directory, keep=0) == 3
    report = verify(directory, expect=head)
    assert (report.ok, report.records, report.sequence, report.head) == (True, 0, 3, head)
    fill(directory, 1)
    report = verify(directory)
    assert (report.ok, report.records, report.sequence) == (True, 1, 4)


def test_more_than_one_batch_is_pruned(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.records.pruning._BATCH", 3)
    fill(directory, 10)
    assert prune(directory, keep=1) == 9
    assert verify(directory).ok


def test_removing_more_than_was_pruned_shows(directory: Path) -> None:
    paths = fill(directory, 10)
    prune(directory, keep=6)
    paths[4].unlink()
    assert [problem.message for problem in verify(directory).problems] == ["record 5 is missing"]


@pytest.mark.parametrize("how", ["removed", "changed", "garbage"])
def test_pruning_does_not_cover_up_what_was_wrong(directory: Path, how: str) -> None:
    paths = fill(directory, 8)
    if how == "removed":
        paths[1].unlink()
    elif how == "changed":
        rewrite(paths[1], code="x")
    else:
        paths[1].write_bytes(b"?")
    prune(directory, keep=3)
    report = verify(directory)
    assert "found among the records pruned" in report.problems[0].message
    prune(directory, keep=1)
    assert not verify(directory).ok


def test_a_pruned_record_put_back_changed_shows(directory: Path) -> None:
    first = fill(directory, 3)[0]
    data = first.read_bytes()
    prune(directory, keep=1)
    first.write_bytes(data)
    assert kinds(verify(directory)) == {"order"}


def test_the_size_cap_removes_the_oldest_by_itself(directory: Path) -> None:
    writer = Store(directory, policy="always", max_bytes=60_000)
    for i in range(100):
        assert writer.save({"execution_id": f"run-{i}", "code": "x" * 500}, failed=False)
        assert disk_bytes(directory) <= 60_000
    report = verify(directory)
    assert report.ok
    assert report.pruned
    assert report.pruned.count + report.records == 100
    newest = next(load_all(directory))
    assert newest.record
    assert newest.record["execution_id"] == "run-99"


def test_the_cap_holds_for_all_that_lies_in_the_directory(directory: Path) -> None:
    cap = 1024 * 1024
    writer = Store(directory, policy="always", max_bytes=cap)
    for i in range(400):
        assert writer.save({"code": "x" * (100 if i % 3 else 9000)}, failed=False)
    assert cap * 0.9 < disk_bytes(directory) <= cap
    assert head_of(directory).total_bytes == sum(map(blocks, directory.glob("2*.json")))
    assert prune(directory, max_bytes=cap // 2) > 0
    assert cap * 0.4 < disk_bytes(directory) <= cap // 2
    assert verify(directory).ok


def test_a_store_that_counted_lengths_is_counted_anew(directory: Path) -> None:
    fill(directory, 30)
    head = head_of(directory)
    old = {key: value for key, value in dataclasses.asdict(head).items() if key != "counts_blocks"}
    old["total_bytes"] = sum(path.stat().st_size for path in directory.glob("2*.json"))
    (directory / files.HEAD).write_bytes(chain.canonical(old).ljust(chain.HEAD_BYTES - 1) + b"\n")
    assert verify(directory).ok
    Store(directory, policy="always", max_bytes=10**9).save({"code": "x"}, failed=False)
    assert head_of(directory).total_bytes == sum(map(blocks, directory.glob("2*.json")))
    Store(directory, policy="always", max_bytes=80_000).save({"code": "x"}, failed=False)
    assert disk_bytes(directory) <= 80_000
    assert verify(directory).ok


def test_a_store_far_over_its_cap_shrinks_with_every_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 60)
    monkeypatch.setattr("fumehood.records.pruning._BATCH", 10)  # what one execution may have to wait for
    writer = Store(directory, policy="always", max_bytes=60_000)
    left = []
    for _ in range(8):
        assert writer.save({"code": "x"}, failed=False)
        left.append(len(list(directory.glob("2*.json"))))
    assert left[:3] == [51, 42, 33]
    assert disk_bytes(directory) <= 60_000
    assert verify(directory).ok


@pytest.mark.parametrize("removed", [0, 10])
def test_at_the_cap_few_records_look_at_the_directory(directory: Path, removed: int) -> None:
    cap = 4 * 1024 * 1024
    writer = Store(directory, policy="always", max_bytes=cap)
    while not (directory.exists() and disk_bytes(directory) > cap * 0.95):
        for _ in range(100):
            writer.save({"code": "x"}, failed=False)
    for path in sorted(directory.glob("2*.json"))[:removed]:
        path.unlink()
    costs = [calls(lambda: writer.save({"code": "x"}, failed=False)) for _ in range(100)]
    assert 1 <= sum("listdir" in cost for cost in costs) <= 100 // (cap // 64 // 4096) + 2
    assert disk_bytes(directory) <= cap


def test_a_directory_that_stays_large_does_not_push_out_every_record(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory, 1)
    with files.directory(directory) as dir_fd, monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: SimpleNamespace(st_blocks=10**6))
        left = files.room(dir_fd, 1024 * 1024)
    assert left > 400_000


def test_the_newest_record_stays_even_if_it_alone_is_over_the_cap(directory: Path) -> None:
    writer = Store(directory, policy="always", max_bytes=100)
    paths = [writer.save({"code": "x" * 500}, failed=False) for _ in range(3)]
    assert [path.exists() for path in paths if path] == [False, False, True]
    assert verify(directory).ok


def test_prune_of_nothing_is_nothing(directory: Path) -> None:
    assert prune(directory, keep=1) == 0
    fill(directory, 1)
    assert prune(directory, keep=1) == 0
    assert prune(directory) == 0
    with pytest.raises(BadArgument):
        prune(directory, keep=-1)


# --- directories that cannot be used


def saves_nothing(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    writer = Store(directory, policy="always")
    assert [writer.save({"code": "x"}, failed=True) for _ in range(3)] == [None] * 3
    assert Store(directory, policy="always").save({"code": "x"}, failed=True) is None
    (warning,) = caplog.records
    assert warning.name == "fumehood.records"
    assert str(directory) in warning.getMessage()
    assert "SANDBOX_ARTIFACTS_DIR" in warning.getMessage()


def test_a_file_in_the_way_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "artifacts").write_text("in the way", "utf-8")
    saves_nothing(tmp_path / "artifacts" / "executions", caplog)


def test_a_symlink_in_place_of_the_directory_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "executions").symlink_to(tmp_path / "elsewhere")
    saves_nothing(tmp_path / "executions", caplog)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with pytest.raises(RecordsError):
        verify(tmp_path / "executions")
    with pytest.raises(RecordsError):
        list(load_all(tmp_path / "executions"))


def test_a_dangling_symlink_makes_no_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "executions").symlink_to(tmp_path / "nowhere")
    saves_nothing(tmp_path / "executions", caplog)
    assert not (tmp_path / "nowhere").exists()


def test_a_nul_in_the_path_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    saves_nothing(Path("/tmp/a\x00b/executions"), caplog)


def test_a_relative_directory_is_never_written_to_once_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    place = Path(absolute("artifacts"))
    saves_nothing(place / "executions", caplog)
    assert "the working directory was deleted" in caplog.text
    monkeypatch.chdir(tmp_path)  # where nobody said to write
    assert Store(place, policy="always").directory == tmp_path / "artifacts"
    assert list(tmp_path.rglob("*")) == []
    assert not Path("/nonexistent").exists()


def test_a_store_made_before_the_working_directory_changed_writes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    writer = Store(Path("artifacts"), policy="always")
    monkeypatch.chdir(tmp_path)
    assert writer.save({"code": "x"}, failed=True) is None
    assert list(tmp_path.rglob("*")) == []


def test_a_planted_lock_symlink_is_not_followed(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory.mkdir(parents=True)
    victim = directory.parent / "victim"
    (directory / files.LOCK).symlink_to(victim)
    saves_nothing(directory, caplog)
    assert not victim.exists()


@pytest.mark.parametrize("name", [files.PENDING, files.HEAD_TEMP, files.HEAD])
def test_planted_symlinks_in_place_of_our_files_are_replaced_not_followed(directory: Path, name: str) -> None:
    directory.mkdir(parents=True)
    victim = directory.parent / "victim"
    victim.write_text("untouched", "utf-8")
    (directory / name).symlink_to(victim)
    fill(directory, 2)
    assert victim.read_text("utf-8") == "untouched"
    assert not (directory / name).is_symlink()
    assert verify(directory).records == 2


def test_a_planted_hard_link_in_place_of_the_head_is_replaced_not_written_to(directory: Path) -> None:
    fill(directory, 1)
    head = (directory / files.HEAD).read_bytes()
    victim = directory.parent / "victim"
    os.link(directory / files.HEAD, victim)
    fill(directory, 1)
    assert victim.read_bytes() == head
    assert (verify(directory).ok, verify(directory).records) == (True, 2)


FULL_OR_READ_ONLY = """
import logging, subprocess, sys
from pathlib import Path
logging.basicConfig(format="%(name)s %(message)s")
from fumehood.records import Store, verify
where = Path(sys.argv[1])
def mount(*words): subprocess.run(["mount", *words], check=True)
mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where))
store = Store(where / "executions", policy="always")
saved = sum(store.save({"code": "x" * 4000}, failed=True) is not None for _ in range(40))
assert 0 < saved < 40, saved
assert verify(where / "executions").problems == []
mount("-o", "remount,bind,ro", str(where))
store = Store(where / "executions", policy="always")
assert store.save({}, failed=True) is None
report = verify(where / "executions")
assert report.problems == [] and report.records == saved, report
assert Store(where / "other", policy="always").save({}, failed=True) is None
"""


def test_a_full_disk_and_a_read_only_one_are_warnings(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace here to make a full and a read-only file system in")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", FULL_OR_READ_ONLY, str(tmp_path)], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, lines
    assert "No space left" in lines[0]
    assert "Read-only" in lines[1]


def test_a_directory_that_does_not_exist_has_no_records(tmp_path: Path) -> None:
    assert list(load_all(tmp_path / "none")) == []
    report = verify(tmp_path / "none")
    assert (report.ok, report.records, report.head) == (True, 0, None)
    assert not verify(tmp_path / "none", expect="0" * 63 + "1").ok


def test_a_directory_removed_between_two_records_is_made_again(directory: Path) -> None:
    fill(directory, 2)
    shutil.rmtree(directory.parent)
    fill(directory, 1)
    assert verify(directory).sequence == 1


# --- finding


def test_find_takes_an_id_a_hash_or_a_name(directory: Path) -> None:
    path = fill(directory, 12)[3]
    record = json.loads(path.read_text("utf-8"))
    for prefix in ("run-3", record["hash"], record["hash"][:20], path.name, path.stem):
        assert [entry.name for entry in find(directory, prefix)] == [path.name], prefix
    assert len(find(directory, "run-1")) == 1  # whole, although run-10 begins so too
    assert len(find(directory, "run-")) == 12
    assert find(directory, "nothing") == []


def made_at(milliseconds: int, random_digits: str = "0123456789") -> str:
    return f"{milliseconds:012x}{random_digits}"


def stored_later(directory: Path, count: int) -> list[tuple[str, Path]]:
    """Records with ids like ours, each stored some microseconds after its id was made, and their ids."""
    found = []
    for i in range(count):
        execution_id = made_at(time.time_ns() // 1_000_000, f"{i:010x}")
        (path,) = fill(directory, 1, execution_id=execution_id, code="x" * 100)
        found.append((execution_id, path))
    return found


def records_read(work: Callable[[], object]) -> int:
    return calls(work).count("fstat")  # one for each file that is opened to be read


def test_one_record_of_many_is_found_by_reading_a_few(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1_800_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(heads, "now", lambda: heads.stamp(datetime.fromtimestamp(time.time_ns() / 1e9, UTC)))
    stored = stored_later(directory, 200)
    for number in (0, 1, 100, 199):
        execution_id, path = stored[number]
        digest = json.loads(path.read_bytes())["hash"]
        for whole in (execution_id, digest, digest[:16], path.name, path.stem):
            assert [entry.name for entry in find(directory, whole)] == [path.name]
            assert records_read(lambda whole=whole: find(directory, whole)) == 1, whole
    beginning = stored[190][0][:20]
    assert [entry.name for entry in find(directory, beginning)] == [stored[190][1].name]
    assert records_read(lambda: find(directory, beginning)) <= 10  # only what was stored since may begin so too


def test_an_id_of_a_clock_that_was_ahead_is_found(directory: Path) -> None:
    ahead = made_at(time.time_ns() // 1_000_000 + 3_600_000)
    fill(directory, 1, execution_id=ahead)
    fill(directory, 5)
    for prefix in (ahead, ahead[:15], ahead[:3]):
        assert [(entry.record or {})["execution_id"] for entry in find(directory, prefix)] == [ahead]


def test_a_short_beginning_looks_at_every_record(directory: Path) -> None:
    fill(directory, 1, execution_id="ab12")
    fill(directory, 1, execution_id="ab")
    assert [(entry.record or {})["execution_id"] for entry in find(directory, "ab")] == ["ab"]
    assert "ab12" in [(entry.record or {})["execution_id"] for entry in find(directory, "ab1")]


def test_records_without_a_text_are_read_and_not_parsed(directory: Path) -> None:
    paths = fill(directory, 20)
    paths[3].write_text('{"code": "cut', "utf-8")
    names = calls(lambda: list(load_all(directory, text='run-7"')))
    assert names.count("unseal") == 1  # the one that is damaged
    found = [entry.name for entry in load_all(directory, text="run-7", newest_first=False)]
    assert found == [paths[3].name, paths[7].name]


def test_find_keeps_no_more_than_asked(directory: Path) -> None:
    fill(directory, 8)
    assert len(find(directory, "run-", at_most=3)) == 3
    assert len(find(directory, "2", at_most=3)) == 3
    assert [(entry.record or {})["execution_id"] for entry in find(directory, "run-0", at_most=1)] == ["run-0"]


def test_a_changed_or_unreadable_record_is_found_by_its_name(directory: Path) -> None:
    first, second = fill(directory, 2)
    rewrite(first, hash="f" * 64)
    second.write_text("?", "utf-8")
    for path in (first, second):
        (entry,) = find(directory, path.stem)
        assert entry.error
    (entry,) = find(directory, "f" * 64)
    assert entry.name == first.name


# --- what a record says


def a_record(**changes: Any) -> dict[str, Any]:
    result = changes.pop("result", ExecutionResult("out", "err", 1, 0.25, {"runtime": "local", "reason": "error"}))
    values: dict[str, Any] = {
        "execution_id": "e1", "backend": "local", "language": "python", "code": "print(1)", "args": ["-v"],
        "env": {}, "stdin": b"abc", "files": {"a.csv": b"12345"}, "timeout": 30.0, "result": result,
    }  # fmt: skip
    return build(**values | changes)


def test_a_record_has_all_that_was_asked_and_came_out() -> None:
    moment = datetime(2026, 11, 15, 17, 50, 12, 123456, tzinfo=UTC)
    assert a_record(now=moment, run_id="r", step=3, reasoning_trace="why") == {
        "version": 1,
        "execution_id": "e1",
        "timestamp": "2026-11-15T17:50:12.123456Z",
        "run_id": "r",
        "step": 3,
        "reasoning_trace": "why",
        "backend": "local",
        "language": "python",
        "code": "print(1)",
        "code_bytes": 8,
        "args": ["-v"],
        "env": {},
        "stdin_bytes": 3,
        "files": {"a.csv": 5},
        "timeout": 30.0,
        "result": {
            "stdout": "out",
            "stderr": "err",
            "exit_code": 1,
            "duration": 0.25,
            "meta": {"runtime": "local", "reason": "error"},
        },
    }


def test_no_credential_reaches_the_disk(directory: Path) -> None:
    value = "hunter2-of-the-env"
    everywhere = f"{value} and {SECRET}"
    result = ExecutionResult(everywhere, everywhere, 1, 0.1, {"results": [{"text/plain": everywhere}]})
    record = a_record(
        code=f"login({everywhere!r})",
        args=[value, SECRET],
        env={"PASSWORD": value, "SHORT": "on"},
        files={everywhere: b""},
        reasoning_trace=everywhere,
        result=result,
    )
    path = Store(directory, policy="always").save(record, failed=True)
    assert path
    text = path.read_text("utf-8")
    assert value not in text
    assert SECRET not in text
    assert set(json.loads(text)["env"]) == {"PASSWORD", "SHORT"}
    assert "python" in text  # "on" is too short to be taken out of other words


def test_a_value_that_the_output_cap_cut_through_is_hidden_too() -> None:
    cut = "xxxx hunter2-of-th\n... (output truncated)"
    result = ExecutionResult(cut, "fine\n... (output truncated)", 0, 0.1, {})
    record = a_record(env={"P": "hunter2-of-the-env"}, result=result)
    assert "hunter2" not in record["result"]["stdout"]
    assert record["result"]["stdout"].startswith("xxxx ")
    assert record["result"]["stderr"] == result.stderr


def test_results_nested_without_end_can_be_recorded(directory: Path) -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    record = a_record(result=ExecutionResult("", "", 0, 0.1, {"results": nested}))
    assert Store(directory, policy="always").save(record, failed=False)
    assert verify(directory).ok


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are searched for secrets."""
    texts: list[str] = []

    def hide(text: str, *rest: Any) -> str:
        texts.append(text)
        return redact.hide(text, *rest)

    monkeypatch.setattr(cleaner, "hide", hide)
    return texts


def test_many_texts_that_look_like_secrets_are_each_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = counted(monkeypatch)
    texts = [f"token={number:08}" for number in range(20_000)]
    bare = texts[-1].removeprefix("token=")
    record = a_record(result=ExecutionResult(bare, "", 0, 0.1, {"results": [{"application/json": texts}]}))
    assert record["result"]["stdout"] == redact.MARK
    assert record["result"]["meta"]["results"] == [{"application/json": [f"token={redact.MARK}"] * 20_000}]
    assert len(searched) == len(set(searched))


@pytest.mark.parametrize("results", [[["x"] * 100], {str(number): number for number in range(100)}, [1] * 100])
def test_values_beyond_the_bound_are_left_out_and_the_rest_of_the_record_stays(
    monkeypatch: pytest.MonkeyPatch, results: Any
) -> None:
    monkeypatch.setattr(cleaner, "MAX_VALUES", 30)
    meta = {"results": results, "session_id": "s"}
    record = a_record(result=ExecutionResult("out", "err", 0, 0.1, meta))
    assert (record["code"], record["result"]["stdout"], record["result"]["meta"]["session_id"]) == (
        "print(1)",
        "out",
        "s",
    )
    stored = json.dumps(record["result"]["meta"]["results"])
    assert cleaner.LEFT_OUT in stored
    assert len(stored) < 400


def test_text_beyond_the_bound_is_neither_searched_nor_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "MAX_CHARS", 10_000)
    searched = counted(monkeypatch)
    results = [{"text/plain": f"{number:04}" + "x" * 996} for number in range(100)]
    record = a_record(result=ExecutionResult("", "", 0, 0.1, {"results": results}))
    stored = record["result"]["meta"]["results"]
    assert sum(map(len, searched)) <= 10_000
    assert stored[0] == results[0]
    assert stored[-1] == {"text/plain": cleaner.LEFT_OUT}
    assert len(json.dumps(stored)) < 11_000


def test_out_of_time_what_was_not_searched_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "MAX_CPU_S", -1.0)
    record = a_record(code="the program", result=ExecutionResult("its output", "", 0, 0.1, {"results": ["shown"]}))
    assert record["code"] == record["result"]["stdout"] == record["result"]["meta"]["results"] == cleaner.LEFT_OUT
    assert list(recorded.obstacles(record))


def test_half_a_secret_that_is_learned_after_the_cut_is_hidden() -> None:
    cut = "xxxx abcdefgh1\n... (output truncated)\n87654321"
    result = ExecutionResult(cut, "token=abcdefgh12345678", 0, 0.1, {})
    stored = a_record(result=result)["result"]["stdout"]
    assert "abcdefgh" not in stored
    assert stored.startswith(f"xxxx {redact.MARK}")


def test_very_long_code_is_cut_and_its_size_kept() -> None:
    code = "x = 1\n" * 2_000_000
    record = a_record(code=code)
    assert record["code_bytes"] == len(code)
    assert len(record["code"]) < 1_100_000
    assert record["code"].endswith("cut for the record)")


def test_code_that_is_not_text_can_be_recorded(directory: Path) -> None:
    for code in ("\ud800\x00", b"\xff\x00"):
        assert Store(directory, policy="always").save(a_record(code=code), failed=True)
    assert verify(directory).ok
