from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from fumehood import copies, outputs
from fumehood.backends.base import SandboxSpec
from fumehood.backends.fake import FakeBackend, FakeSandbox
from fumehood.copies import Copies
from fumehood.outputs import Outputs, compare
from fumehood.passed_over import MORE
from fumehood.steps import absolute
from fumehood.types import FileStat
from support import HANG_S


def stats(**versions: int) -> dict[str, FileStat]:
    return {path: FileStat(path, 1, (version,)) for path, version in versions.items()}


def test_files_are_compared_by_version():
    found = compare(stats(same=1, changed=1, gone=1), stats(same=1, changed=2, new=1))
    assert found == (["new"], ["changed"], ["gone"])


class Run:
    """A sandbox in memory whose files the test changes between calls."""

    def __init__(self, tmp_path, io_handler: object = None) -> None:
        self.sandbox = FakeSandbox(FakeBackend(), SandboxSpec(keeps=True))
        self.files = self.sandbox.files
        self.directory = tmp_path / "out" / "session_s"
        self.outputs = Outputs(Copies(str(tmp_path / "out"), "s"), io_handler)
        asyncio.run(self.outputs.begin(self.sandbox))

    def collect(self, **output: bytes) -> dict:
        self.files.update({f"/tmp/output/{name}": data for name, data in output.items()})
        return asyncio.run(self.outputs.collect(self.sandbox))

    def local(self) -> dict[str, bytes]:
        found = [path for path in self.directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_created_changed_and_deleted_files_are_named(run):
    run.files.update({"/workspace/a": b"1", "/tmp/b": b"1"})
    assert run.collect()["files"] == {"created": ["/tmp/b", "/workspace/a"], "changed": [], "deleted": []}
    run.files["/workspace/a"] = b"2"
    del run.files["/tmp/b"]
    assert run.collect()["files"] == {"created": [], "changed": ["/workspace/a"], "deleted": ["/tmp/b"]}
    assert run.collect()["files"] == {"created": [], "changed": [], "deleted": []}


def test_what_the_caller_wrote_is_not_the_runs_doing(run):
    asyncio.run(run.sandbox.write("/tmp/a", b"1"))
    asyncio.run(run.outputs.note_written(run.sandbox, "/tmp/a"))
    run.files["/tmp/b"] = b""
    assert run.collect()["files"]["created"] == ["/tmp/b"]


def test_output_files_come_back_under_their_relative_paths(run):
    meta = run.collect(**{"a.csv": b"1", "plots/p.png": b"2"})
    assert meta["output_files"] == ["a.csv", "plots/p.png"]
    assert meta["total_output_files"] == 2
    assert meta["copied_files"] == [str(run.directory / "a.csv"), str(run.directory / "plots/p.png")]
    assert run.local() == {"a.csv": b"1", "plots/p.png": b"2"}


def test_files_elsewhere_stay_inside(run):
    run.files["/workspace/secret"] = b"x"
    meta = run.collect()
    assert (meta["output_files"], run.directory.exists()) == ([], False)


def test_changed_ones_come_first_and_only_they_are_copied_again(run):
    run.collect(a=b"1", b=b"1")
    (run.directory / "a").unlink()
    meta = run.collect(b=b"2")
    assert meta["output_files"] == ["b", "a"]
    assert meta["copied_files"] == [str(run.directory / "b")]
    assert run.local() == {"b": b"2"}


def test_twenty_are_listed_and_copied_and_the_rest_comes_with_the_next_call(run):
    meta = run.collect(**{f"{number:02}": b"x" for number in range(25)})
    assert len(meta["output_files"]) == len(meta["copied_files"]) == 20
    assert meta["total_output_files"] == 25
    assert "5 more files" in meta["output_warnings"][0]
    assert len(run.collect()["copied_files"]) == 5
    assert "output_warnings" not in run.collect()


@pytest.mark.parametrize("name", ["m.pkl", "m.PKL", "w.safetensors", "a.npy", "x.bin", "n.h5"])
def test_models_and_raw_binaries_are_listed_and_left(run, name):
    meta = run.collect(**{name: b"x"})
    assert meta["output_files"] == [name]
    assert "copied_files" not in meta


def test_a_file_that_is_too_large_is_left_with_one_warning(run, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_FILE_BYTES", 3)
    meta = run.collect(big=b"1234", small=b"123")
    assert meta["output_files"] == ["big", "small"]
    assert run.local() == {"small": b"123"}
    assert "/tmp/output/big was not copied: larger" in meta["output_warnings"][0]
    assert "output_warnings" not in run.collect()


def test_a_call_copies_no_more_than_its_cap(run, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_CALL_BYTES", 5)
    meta = run.collect(a=b"123", b=b"123", c=b"12")
    assert run.local() == {"a": b"123", "c": b"12"}
    assert "1 more files" in meta["output_warnings"][0]
    assert run.outputs.copied_bytes == 5


HOSTILE = ["a\nb", "\x1b[2J", "a\\b", "x" * 230, "/".join("abcdefghijklmnopq"), "\udcff", "a//b", "b/../../c", "./d"]
HOSTILE += ["user\u202egpj.exe", "\u2066a\u2069", "a\U000e0041"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_listed_in_print_and_not_copied(run, tmp_path, name):
    meta = run.collect(**{name: b"x"})
    assert meta["total_output_files"] == 1
    assert "not copied" in meta["output_warnings"][0]
    said = " ".join([*meta["output_files"], *meta["output_warnings"], *meta["files"]["created"]])
    assert said.isprintable()
    said.encode()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_symlink_in_the_destination_is_not_followed(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_bytes(b"mine")
    run.collect(a=b"1")
    (run.directory / "dir").symlink_to(elsewhere)
    (run.directory / "f").symlink_to(elsewhere / "f")
    meta = run.collect(**{"dir/f": b"theirs", "f": b"theirs"})
    assert (elsewhere / "f").read_bytes() == b"mine"
    assert not (run.directory / "f").is_symlink()
    assert (run.directory / "f").read_bytes() == b"theirs"
    assert "/tmp/output/dir/f was not copied" in meta["output_warnings"][0]


def test_a_symlink_in_place_of_the_session_directory_is_refused(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    run.directory.symlink_to(tmp_path / "elsewhere")
    assert "not copied" in run.collect(a=b"1")["output_warnings"][0]
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_directory_in_the_way_is_a_warning(run):
    run.collect(b=b"")
    (run.directory / "a").mkdir()
    assert "/tmp/output/a was not copied" in run.collect(a=b"1")["output_warnings"][0]
    assert sorted(os.listdir(run.directory)) == ["a", "b"]


def test_a_full_disk_is_a_warning_and_leaves_nothing_half_written(run, monkeypatch):
    run.collect(a=b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copies.os, "replace", full)
    meta = run.collect(a=b"new")
    assert meta["output_warnings"] == ["/tmp/output/a was not copied: No space left on device"]
    assert run.local() == {"a": b"old"}


def test_a_copy_that_failed_is_tried_again_with_the_next_call(run, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(copies.os, "replace", full)
        assert "copied_files" not in run.collect(a=b"1")
    assert run.collect()["copied_files"] == [str(run.directory / "a")]
    assert "copied_files" not in run.collect()


def test_an_output_directory_that_is_none_is_a_warning_until_it_is_one(run, tmp_path):
    (tmp_path / "out").write_text("in the way", "utf-8")
    assert "set SANDBOX_OUTPUT_DIR to one" in run.collect(a=b"1")["output_warnings"][0]
    (tmp_path / "out").unlink()
    assert run.collect()["copied_files"]


def test_a_deleted_working_directory_is_a_warning(run, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run.outputs = Outputs(Copies(absolute("output"), "s"), None)
    (warning,) = run.collect(a=b"1")["output_warnings"]
    assert "working directory was deleted" in warning
    assert "SANDBOX_OUTPUT_DIR" in warning
    assert not Path("/nonexistent").exists()


def test_copies_that_fail_again_and_again_do_not_keep_others_back(run):
    run.sandbox.specials.update(f"/tmp/output/{number:02}" for number in range(30))
    failing = {f"{number:02}": b"x" for number in range(30)}
    meta = run.collect(**failing)
    assert len(meta["output_warnings"]) == 21  # no more are tried than could be copied
    assert run.collect(**{"99": b"y"})["copied_files"] == [str(run.directory / "99")]


def test_a_name_that_can_never_be_copied_is_said_once(run):
    assert "not a plain relative one" in run.collect(**{"a\\b": b"x"})["output_warnings"][0]
    assert "output_warnings" not in run.collect()


def test_a_file_that_is_gone_or_changed_its_kind_meanwhile_is_a_warning(run):
    run.sandbox.specials.add("/tmp/output/link")
    meta = run.collect(link=b"x")
    assert "/tmp/output/link was not copied: it is not a regular file" in meta["output_warnings"][0]


def test_what_is_no_file_is_named_once_and_is_no_output_file(run):
    run.sandbox.specials.update({"/tmp/output/d/link", "/tmp/elsewhere", "/workspace/link"})
    meta = run.collect(a=b"1")
    assert meta["output_warnings"] == ["/tmp/output/d/link was not copied: not a regular file"]
    assert (meta["output_files"], meta["total_output_files"]) == (["a"], 1)
    assert meta["files"] == {"created": ["/tmp/output/a"], "changed": [], "deleted": []}
    assert "output_warnings" not in run.collect()
    run.sandbox.specials.clear()
    assert "output_warnings" not in run.collect()
    run.sandbox.specials.add("/tmp/output/d/link")
    assert len(run.collect()["output_warnings"]) == 1


def test_what_a_new_sandbox_came_with_is_not_told(run):
    run.sandbox.specials.add("/tmp/output/link")
    asyncio.run(run.outputs.begin(run.sandbox))
    assert "output_warnings" not in run.collect()


@pytest.mark.parametrize(("path", "is_told"), [("/tmp", True), ("/tmp/output", True), ("/workspace", False)])
def test_a_listing_that_was_cut_is_told_with_every_call(run, monkeypatch, path, is_told):
    whole = run.sandbox.list

    async def cut(directory):
        found = await whole(directory)
        return [*found, FileStat(path, 0, (), MORE)] if path.startswith(directory) else found

    monkeypatch.setattr(run.sandbox, "list", cut)
    told = [f"not all of {path} was looked through: more is there than one listing takes"] * is_told
    bad = {f"a\\{number}": b"" for number in range(30)}
    assert run.collect(**bad).get("output_warnings", [])[: len(told)] == told
    for _ in range(2):
        assert run.collect().get("output_warnings", []) == told


def test_a_file_in_place_of_the_output_directory_is_named(run):
    run.files["/tmp/output"] = b"x"
    meta = run.collect()
    assert meta["output_warnings"] == ["/tmp/output was not copied: a file, not a directory"]
    assert meta["total_output_files"] == 0


def test_of_many_things_that_are_no_files_a_few_are_named_and_the_others_counted(run):
    run.sandbox.specials.update(f"/tmp/output/{number:04}" for number in range(500))
    warnings = run.collect(a=b"1")["output_warnings"]
    assert len(warnings) == outputs.MAX_WARNINGS + 1
    assert warnings[-1].startswith(f"{500 - outputs.MAX_WARNINGS} more files in /tmp/output were not")


def test_a_long_list_of_created_files_is_cut(run, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_NAMED", 3)
    run.files.update({f"/workspace/{number}": b"" for number in range(5)})
    meta = run.collect()
    assert len(meta["files"]["created"]) == 3
    assert meta["files_truncated"] is True


def test_of_many_bad_names_a_few_are_named_and_the_others_counted(run):
    meta = run.collect(**{f"a\\{number:05}": b"" for number in range(10_000)})
    assert len(meta["output_warnings"]) == outputs.MAX_WARNINGS + 1
    assert meta["output_warnings"][-1].startswith(f"{10_000 - outputs.MAX_WARNINGS} more files in /tmp/output were not")
    assert "output_warnings" not in run.collect()


def test_nothing_is_remembered_of_files_that_are_gone(run):
    run.sandbox.specials.add("/tmp/output/link")
    run.collect(**{"a": b"1", "a\\b": b"", "link": b""})
    run.files.clear()
    run.collect()
    assert (run.outputs._done, run.outputs._failed) == ({}, {})


def test_long_names_are_cut(run):
    name = "x" * 4000
    meta = run.collect(**{f"{name}{number}": b"" for number in range(3)})
    said = [*meta["files"]["created"], *meta["output_files"], *meta["output_warnings"]]
    assert len(said) == 9
    assert all(len(text) < 1200 and "... (4,0" in text for text in said)


@pytest.mark.parametrize("name", ["x" * 200, "\U000e0001" * 100])
def test_the_names_of_a_call_are_bounded_together(run, name):
    run.files.update({f"/workspace/{number:04}{name}": b"" for number in range(outputs.MAX_NAMED)})
    run.collect()
    run.files.clear()
    run.files.update({f"/tmp/{number:04}{name}": b"" for number in range(outputs.MAX_NAMED)})
    meta = run.collect()
    names = [path for paths in meta["files"].values() for path in paths]
    assert outputs.MAX_NAMED_CHARS // 2 < sum(map(len, names)) <= outputs.MAX_NAMED_CHARS
    assert meta["files_truncated"] is True


@pytest.mark.parametrize(("count", "in_loop"), [(5, True), (3000, False)])
def test_many_files_are_compared_beside_the_loop(run, monkeypatch, count, in_loop):
    threads = []
    for where, verb in ((outputs, "_described"), (Outputs, "_choose")):
        real = getattr(where, verb)

        def watched(*arguments, real=real):
            threads.append(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(where, verb, watched)
    run.collect(**{f"{number:04}": b"" for number in range(count)})
    assert [thread == threading.get_ident() for thread in threads] == [in_loop] * 2


def test_a_call_that_ran_nothing_lists_the_first_output_files(run):
    run.collect(**{f"{number:02}": b"" for number in range(25)})
    meta = run.outputs.unchanged(run.sandbox.places)
    assert meta["output_files"] == [f"{number:02}" for number in range(20)]
    assert meta["total_output_files"] == 25
    assert meta["files"] == {"created": [], "changed": [], "deleted": []}


def test_images_that_were_copied_are_shown(tmp_path):
    shown = []

    class Handler:
        def send_visualization(self, path: str) -> None:
            shown.append(path)

    run = Run(tmp_path, Handler())
    run.collect(**{"p.png": b"1", "q.JPEG": b"1", "s.svg": b"1", "t.csv": b"1"})
    assert shown == [str(run.directory / name) for name in ("p.png", "q.JPEG", "s.svg")]
    run.collect(**{"q.JPEG": b"2"})
    assert shown[3:] == [str(run.directory / "q.JPEG")]


def test_an_async_handler_is_awaited_and_hears_of_large_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "PROGRESS_BYTES", 2)
    heard = []

    class Handler:
        async def send_visualization(self, path: str) -> None:
            await asyncio.sleep(0)
            heard.append(os.path.basename(path))

        async def send_progress(self, text: str) -> None:
            heard.append(text)

    Run(tmp_path, Handler()).collect(**{"p.png": b"123"})
    assert heard == ["copying p.png (0 MB)", "p.png"]


def test_a_handler_that_fails_or_knows_nothing_changes_nothing(tmp_path, caplog):
    class Broken:
        def send_visualization(self, path: str) -> None:
            raise RuntimeError(path)

    run = Run(tmp_path, Broken())
    assert run.collect(**{"p.png": b"1"})["copied_files"]
    assert "send_visualization failed" in caplog.text
    assert Run(tmp_path, object()).collect(**{"p.png": b"1"})["copied_files"]


def test_a_slow_synchronous_handler_holds_up_nobody_else(tmp_path):
    called, answered, went_on = threading.Event(), threading.Event(), []

    class Slow:
        def send_visualization(self, path: str) -> None:  # noqa: ARG002
            called.set()
            went_on.append(answered.wait(HANG_S))

    async def scenario() -> dict:
        collecting = asyncio.create_task(run.outputs.collect(run.sandbox))
        while not called.is_set():
            await asyncio.sleep(0.01)
        answered.set()  # by the loop, which goes on
        return await collecting

    run = Run(tmp_path, Slow())
    run.files["/tmp/output/p.png"] = b"1"
    assert asyncio.run(scenario())["copied_files"]
    assert went_on == [True]


def test_what_a_synchronous_handler_gives_back_is_awaited(tmp_path):
    shown = []

    class Handler:
        def send_visualization(self, path: str):
            async def later() -> None:
                shown.append(path)

            return later()

    Run(tmp_path, Handler()).collect(**{"p.png": b"1"})
    assert len(shown) == 1
