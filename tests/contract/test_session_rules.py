"""What every session refuses, and the files that its caller writes: the same wherever it runs, the fake included."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from fumehood import errors
from support import open_fds, wait_until

from .conftest import SESSION_TARGETS, Kept, Target
from .test_sessions import kind_of

INVALID = "Invalid path: must be /tmp/* or /workspace/*"


@pytest.fixture(params=SESSION_TARGETS, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


def test_the_sandbox_is_made_by_the_first_call(session: Kept) -> None:
    def takes_nothing() -> bool:
        before = set(os.listdir("/proc/self/fd"))
        session()
        return set(os.listdir("/proc/self/fd")) == before

    assert wait_until(takes_nothing)  # what earlier tests left may still be closed beside it
    other = session()
    assert not other.ended
    assert other.run("print(1)").exit_code == 0


def test_a_session_that_was_never_used_closes(session: Kept) -> None:
    session.close()
    assert session.ended


def test_workspace_and_mnt_data_are_one_directory(session: Kept) -> None:
    session.write("/mnt/data/a", "1")
    assert session.read("/workspace/a") == b"1"


def test_cancelling_nothing_changes_nothing(session: Kept) -> None:
    session.cancel()
    assert session.run("print(1)").meta["reason"] == "ok"
    session.cancel()
    assert session.run("print(1)").meta["reason"] == "ok"


def test_a_command_that_is_no_list_of_strings_is_refused(session: Kept) -> None:
    bad: list[Any] = ["ls -l", b"ls", [], [""], ["echo", "a\0b"], ["echo", 1], None, {"a": 1}]
    for command in bad:
        with pytest.raises(errors.BadArgument, match="command"):
            session.exec(command)


def test_a_command_that_is_not_allowed_is_refused(session: Kept) -> None:
    few = session(allowed_commands="echo")
    with pytest.raises(errors.CommandNotAllowed, match="echo"):
        few.exec(["cat", "/etc/passwd"])
    assert few.exec(["echo", "yes"]).exit_code == 0


def test_the_synchronous_session_works_inside_a_running_event_loop(session: Kept) -> None:
    async def scenario() -> Any:
        return session.run("print('x')")

    assert asyncio.run(scenario()).exit_code == 0


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_many_calls_leave_no_descriptor(session: Kept, count: int) -> None:
    def call() -> None:
        assert session.run("pass").exit_code == 0
        assert session.exec(["true"]).exit_code == 0
        session.write("/tmp/a", "1")

    call()
    before = open_fds()
    for _ in range(count):
        call()
    assert wait_until(lambda: open_fds() <= before + 2), (open_fds(), before)


def test_the_budget_of_calls(session: Kept) -> None:
    frugal = session(session_max_calls=2)
    frugal.run("print(1)")
    frugal.write("/tmp/a", "1")
    with pytest.raises(errors.BudgetExceeded, match="SANDBOX_SESSION_MAX_CALLS"):
        frugal.run("print(1)")


def test_what_is_written_is_read_back(session: Kept) -> None:
    for content in ("ein Wört\n", b"\0\xff\r\n", "", "x" * 300_000):
        data = content if isinstance(content, bytes) else content.encode()
        assert session.write("/workspace/deep/er/a.txt", content) == len(data)
        assert session.read("/workspace/deep/er/a.txt") == data


BAD_PATHS = [
    "/tmp/../etc/passwd",
    "/workspace/a/../../etc/passwd",
    "/workspace/./a",
    "/workspace//a",
    "/workspace/a/",
    "/tmp/",
    "/",
    "",
    "a",
    "./a",
    "~/a",
    "/home/bad.py",
    "/etc/passwd",
    "/tmpfile",
    "/workspaces/a",
    "/TMP/a",
    "/tmp/a\0b",
    "/tmp/a\nb",
    "/tmp/a\rb",
    "/tmp/a\x1b[2Jb",
    "/tmp/a\x7f",
    "/tmp/a\u2028b",
    "/tmp/\udcff",
    "/proc/self/root/tmp/a",
]


def test_a_bad_path_is_refused_and_nothing_changes(session: Kept) -> None:
    session.write("/workspace/a", "before")
    for path in BAD_PATHS:
        for call, rest in ((session.write, ("x",)), (session.read, ()), (session.edit, ("a", "b"))):
            with pytest.raises(errors.FileError) as caught:
                call(path, *rest)
            assert (str(caught.value), caught.value.kind) == (INVALID, "invalid"), ascii(path)
    assert [Path(file.path).name for file in session.files()] == ["a"]
    assert session.read("/workspace/a") == b"before"


def test_a_path_that_is_too_long_is_refused(session: Kept) -> None:
    for path in ("/tmp/" + "a" * 256, "/tmp" + "/abcdefg" * 200):  # a part of it, or all of it
        for call, rest in ((session.write, ("x",)), (session.read, ())):
            with pytest.raises(errors.FileError) as caught:
                call(path, *rest)
            assert caught.value.kind == "invalid"


def test_a_path_that_is_no_text_is_refused(session: Kept) -> None:
    bad: list[Any] = [None, 1, b"/tmp/a", ["/tmp/a"]]
    for path in bad:
        for call, rest in ((session.write, ("x",)), (session.read, ()), (session.edit, ("a", "b"))):
            with pytest.raises(errors.BadArgument, match="path"):
                call(path, *rest)


def test_a_missing_file_is_missing(session: Kept) -> None:
    assert kind_of(lambda: session.read("/tmp/none")) == "missing"
    assert kind_of(lambda: session.edit("/tmp/none/none", "a", "b")) == "missing"
    assert session.files() == []


def test_a_missing_directory_is_missing_and_an_empty_place_is_empty(session: Kept) -> None:
    for place in ("/workspace", "/tmp", "/tmp/data", "/tmp/output"):
        assert session.files(place) == []
    for missing in ("/workspace/nope", "/tmp/nope/deeper/"):
        with pytest.raises(errors.FileError, match=r"does not exist; files\(\) lists") as caught:
            session.files(missing)
        assert caught.value.kind == "missing"
    session.write("/workspace/a", "1")
    session.write("/workspace/empty", "")
    for file in ("/workspace/a", "/workspace/empty"):
        with pytest.raises(errors.FileError, match="is a file: name a directory, or read it"):
            session.files(file)


def test_a_directory_is_no_file(session: Kept) -> None:
    session.write("/workspace/d/a", "1")
    for call in (
        lambda: session.read("/workspace/d"),
        lambda: session.write("/workspace/d", "x"),
        lambda: session.edit("/workspace/d", "a", "b"),
    ):
        assert kind_of(call) == "directory"
    assert session.read("/workspace/d/a") == b"1"
    assert kind_of(lambda: session.write("/workspace", "x")) == "invalid"
    assert kind_of(lambda: session.edit("/workspace", "a", "b")) == "invalid"
    for directory in ("/workspace/d", "/workspace", "/tmp"):
        with pytest.raises(errors.FileError, match=r"is a directory; name a file in it, files\(\) lists them"):
            session.read(directory)


def test_a_file_that_is_too_large_is_not_read_or_written(session: Kept) -> None:
    small = session(file_mb=1)
    assert small.write("/tmp/a", b"x" * 1024 * 1024) == 1024 * 1024
    assert kind_of(lambda: small.write("/tmp/a", b"y" * (1024 * 1024 + 1))) == "too_large"
    assert small.read("/tmp/a", 1024 * 1024) == b"x" * 1024 * 1024
    assert kind_of(lambda: small.read("/tmp/a", 1024 * 1024 - 1)) == "too_large"


def test_an_edit_of_more_than_five_megabytes_is_refused(session: Kept) -> None:
    limit = 5_242_880
    session.write("/tmp/a", b"old" + b"x" * (limit - 2))
    assert kind_of(lambda: session.edit("/tmp/a", "old", "o")) == "too_large"
    session.write("/tmp/a", b"old" + b"x" * (limit - 3))
    assert kind_of(lambda: session.edit("/tmp/a", "old", "older")) == "too_large"
    assert session.read("/tmp/a").startswith(b"oldx")
    session.edit("/tmp/a", "old", "new")
    assert session.read("/tmp/a").startswith(b"newx")


NO_MATCH = "old_string not found in {tmp}/a: read the file, and copy the passage as it stands there"
BAD_EDITS = [
    (b"abc", "", "old_string is empty: must be a passage of the file", "no_match"),
    (b"abc", "z", NO_MATCH, "no_match"),
    (b"aXbXcX", "X", "old_string found 3 times - not unique. Include more context.", "not_unique"),
    (b"aaa", "aa", "old_string found 2 times - not unique. Include more context.", "not_unique"),
    (b"a\r\nb", "a\nb", NO_MATCH, "no_match"),
    (b"a\xffb", "a", "Not a text file: must be UTF-8", "not_text"),
    (b"a\0b", "a", "Not a text file: it holds NUL bytes", "not_text"),
    ("é".encode("latin-1"), "é", "Not a text file: must be UTF-8", "not_text"),
]


def test_an_edit_that_does_not_fit_changes_nothing(session: Kept) -> None:
    for content, old, message, kind in BAD_EDITS:
        session.write("/tmp/a", content)
        with pytest.raises(errors.FileError) as caught:
            session.edit("/tmp/a", old, "new")
        assert (str(caught.value), caught.value.kind) == (message.format(tmp=session.places.tmp), kind)
        assert session.read("/tmp/a") == content


def test_an_edit_replaces_one_passage_and_leaves_every_other_byte(session: Kept) -> None:
    session.write("/tmp/a", b"one\r\ntwo\nthree\rW\xc3\xb6rt")
    session.edit("/tmp/a", "two\nthree", "2\r\n3")
    assert session.read("/tmp/a") == b"one\r\n2\r\n3\rW\xc3\xb6rt"


def test_a_full_disk_is_an_error_and_what_was_there_stays(session: Kept) -> None:
    small = session(disk_mb=3)
    small.write("/tmp/a", b"a" * 2_000_000)
    assert kind_of(lambda: small.write("/workspace/b", b"b" * 2_000_000)) == "full"
    assert small.read("/tmp/a") == b"a" * 2_000_000
    assert [Path(file.path).name for file in small.files()] == ["a"]


def test_a_dataset_that_vanished_is_told_before_anything_runs(session: Kept, tmp_path: Path) -> None:
    source = tmp_path / "here.csv"
    source.write_text("a", "utf-8")
    with_data = session(datasets={"here": source})
    source.unlink()
    for call in (lambda: with_data.run("print(1)"), lambda: with_data.write("/tmp/a", "1")):
        with pytest.raises(errors.BadArgument, match=r"here.*does not exist"):
            call()
    source.write_text("back", "utf-8")
    assert with_data.run("print(1)").exit_code == 0


def test_what_is_no_file_is_no_dataset(session: Kept, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for what in ("missing", "directory", "fifo"):
        with pytest.raises(errors.BadArgument, match="dataset"):
            session(datasets={"a": tmp_path / what})
