"""Output files that a caller gets as bytes, one-shots that are streamed, and settings that are only narrowed."""

from __future__ import annotations

import asyncio
import os

import pytest

from fumehood import AsyncSession, config, get_sandbox
from fumehood.backends.base import SandboxSpec
from fumehood.backends.fake import FakeBackend, FakeSandbox
from fumehood.config_table import Settings
from fumehood.errors import BadArgument, CommandNotAllowed, FileError, IsolationUnavailable
from fumehood.handed import MAX_FILE_BYTES, MAX_FILES, MAX_LEFT_OUT, MAX_TRIED, Handed
from fumehood.outputs import in_order
from fumehood.passed_over import MORE
from fumehood.session import with_settings
from fumehood.types import Exited, FileStat, Output
from support import HANG_S

OUT = "import os\nout = os.environ['TMPDIR'] + '/output/'\n"


def streamed(code, **further):
    handed = Handed()

    async def run():
        with get_sandbox(store_code="never") as sandbox:
            async with sandbox.stream(code, handed=handed, **further) as events:
                seen = [event async for event in events]
            return seen, events.result, events.execution_id

    return (*asyncio.run(run()), handed)


def names(handed):
    return [file.path.rpartition("/output/")[2] for file in handed.files]


def test_a_one_shot_gives_its_events_its_result_and_its_files():
    seen, result, execution_id, handed = streamed(OUT + "print('x')\nopen(out + 'a.txt', 'w').write('a')")
    assert [type(event) for event in seen] == [Output, Exited]
    assert (result.stdout, result.exit_code) == ("x\n", 0)
    assert result.meta["execution_id"] == execution_id
    assert names(handed) == ["a.txt"]
    assert handed.files[0].data == b"a"


def test_what_is_past_the_caps_is_named():
    many = f"for n in range({MAX_FILES + 2}): open(out + f'{{n:02}}', 'w')\n"
    code = many + f"open(out + 'zz', 'wb').write(bytes({MAX_FILE_BYTES + 1}))"
    handed = streamed(OUT + code)[-1]
    assert len(handed.files) == MAX_FILES
    assert [entry["path"].rpartition("/")[2] for entry in handed.left_out] == ["20", "21", "zz"]


def test_a_name_that_looks_like_another_is_left_out():
    handed = streamed(OUT + "open(out + 'user\\u202egpj.exe', 'w')")[-1]
    assert handed.files == []
    (entry,) = handed.left_out
    assert entry["path"].endswith("/user\\u202egpj.exe")
    assert "direction characters" in entry["why"]


def test_files_that_cannot_be_read_are_not_tried_for_ever():
    sandbox = FakeSandbox(FakeBackend(), SandboxSpec(keeps=True))
    paths = [f"/tmp/output/{number:04}" for number in range(1000)]
    sandbox.files.update(dict.fromkeys(paths, b""))
    sandbox.specials.update(paths)
    tried, read = [], sandbox.read

    async def watched(path, max_bytes):
        tried.append(path)
        return await read(path, max_bytes)

    sandbox.read = watched
    handed = Handed()
    asyncio.run(handed.take(sandbox, asyncio.run(sandbox.list("/tmp/output"))))
    assert len(tried) == MAX_TRIED
    assert len(handed.left_out) == MAX_LEFT_OUT + 1
    assert handed.left_out[-1]["why"] == "900 more"


LEAVES = """
import os, socket
out = os.environ['TMPDIR'] + '/output/'
open(out + 'file', 'w').close()
os.symlink('/etc/passwd', out + 'link')
os.mkfifo(out + 'pipe')
os.chdir(out); s = socket.socket(socket.AF_UNIX); s.bind('socket')
os.makedirs(out + '/'.join('d' * 67))
"""
LEFT = {
    "/link": "a symbolic link, which is never followed",
    "/pipe": "a named pipe",
    "/socket": "a socket",
    "/d/d/d/": "a directory too deep to be looked into",
}


def left(handed):
    paths = [entry["path"].rpartition("/output")[2] for entry in handed.left_out]
    return {path[:7]: entry["why"] for path, entry in zip(paths, handed.left_out, strict=True)}


@pytest.fixture(params=["sealed", "confined"])
def level(request):
    with get_sandbox(isolation=request.param) as sandbox:
        try:
            sandbox.check()
        except IsolationUnavailable as error:
            pytest.skip(str(error))
    return request.param


def of_one_shot(code, level):
    async def run():
        handed = Handed()
        with get_sandbox(store_code="never", isolation=level) as sandbox:
            assert (await sandbox.stream(code, handed=handed).whole()).stderr == ""
        return handed

    return asyncio.run(run())


def of_session(code, level):
    async def run():
        found = []
        async with AsyncSession(store_code="never", isolation=level) as session:
            for each in (code, "1"):
                handed = Handed()
                assert (await session.stream(each, handed=handed).whole()).stderr == ""
                found.append(handed)
            assert [stat.why for stat in await session.files()] == [""] * len(found[0].files)
        assert found[1].left_out == []  # told once
        return found[0]

    return asyncio.run(run())


@pytest.mark.parametrize("run", [of_one_shot, of_session])
def test_what_is_no_file_is_named(level, run):
    handed = run(LEAVES, level)
    assert names(handed) == ["file"]
    assert left(handed) == LEFT


@pytest.mark.parametrize("run", [of_one_shot, of_session])
def test_a_link_in_place_of_the_output_directory_is_named(level, run):
    handed = run(OUT + "os.rmdir(out); os.symlink('/etc', out[:-1])", level)
    assert handed.files == []
    assert left(handed) == {"": "a symbolic link, which is never followed"}


@pytest.mark.parametrize("run", [of_one_shot, of_session])
def test_a_directory_that_may_not_be_entered_is_named(level, run):
    handed = run(OUT + "os.mkdir(out + 'd'); _ = open(out + 'd/a', 'w'); os.chmod(out + 'd', 0)", level)
    if level == "confined" and os.getuid() == 0:  # programs are root as well
        assert names(handed) == ["d/a"]
    else:
        assert left(handed) == {"/d": "a directory that cannot be looked into"}


def test_that_there_is_more_comes_first_and_what_is_no_file_last():
    sandbox = FakeSandbox(FakeBackend(), SandboxSpec(keeps=True))
    sandbox.files.update({f"/tmp/output/{number:03}": b"" for number in range(200)})
    sandbox.specials.update(f"/tmp/output/{number:03}-link" for number in range(200))

    async def run():
        handed = Handed()
        found = [*await sandbox.list("/tmp/output"), FileStat("/tmp/output", 0, (), MORE)]
        await handed.take(sandbox, await in_order(found))
        return handed

    handed = asyncio.run(run())
    assert len(handed.files) == MAX_FILES
    assert handed.left_out[0] == {"path": "/tmp/output", "why": MORE}
    assert handed.left_out[1]["path"] == "/tmp/output/020"
    assert handed.left_out[-1] == {"path": "…", "why": f"{401 - MAX_FILES - MAX_LEFT_OUT} more"}


def test_files_are_placed_by_their_path():
    _, result, _, _ = streamed(
        "import os; print(open(os.environ['TMPDIR'] + '/in.txt').read())", placed={"/tmp/in.txt": b"there"}
    )
    assert result.stdout == "there\n"
    with pytest.raises(FileError):
        streamed("1", placed={"/etc/x": b""})


def test_leaving_a_one_shots_stream_kills_it():
    async def run():
        with get_sandbox(store_code="never") as sandbox:
            async with sandbox.stream(
                "import time\nprint('on', flush=True)\ntime.sleep(3600)", timeout=HANG_S
            ) as events:
                await anext(events)
            return events.result

    assert asyncio.run(run()).meta["reason"] == "cancelled"


def test_what_keeps_a_program_from_starting_is_raised_before_it_begins():
    async def run():
        async with AsyncSession(store_code="never") as session, session.stream(["no-such-command"]) as events:
            await events.begun()

    with pytest.raises(CommandNotAllowed):
        asyncio.run(run())


def test_a_session_hands_over_what_each_call_made_and_copies_nothing(tmp_path):
    async def run():
        found = []
        async with AsyncSession(store_code="never", output_dir=str(tmp_path / "copies")) as session:
            for code in (OUT + "_ = open(out + 'a.pkl', 'w')", "_ = open(out + 'b', 'w')", "1"):
                handed = Handed()
                async with session.stream(code, handed=handed) as events:
                    async for _ in events:
                        pass
                found.append((names(handed), events.result.meta["total_output_files"]))
        return found

    assert asyncio.run(run()) == [(["a.pkl"], 1), (["b"], 2), ([], 2)]
    assert not (tmp_path / "copies").exists()


def test_a_stream_takes_what_its_kind_of_program_takes():
    async def run():
        async with AsyncSession(store_code="never") as session:
            async with session.stream(["cat"], stdin="in", env={"A": "b"}) as events:
                async for _ in events:
                    pass
            assert events.result.stdout == "in"
            for wrong in ({"stdin": "x"}, {"env": {}}):
                with pytest.raises(BadArgument):
                    session.stream("1", **wrong)
            with pytest.raises(BadArgument):
                session.stream(["ls"], requirements=["polars"])

    asyncio.run(run())


def test_a_session_with_settings_reads_no_environment(monkeypatch):
    monkeypatch.setenv("SANDBOX_SESSION_IDLE_SEC", "5")

    async def run():
        session = with_settings(Settings(session_idle_sec=3600, store_code="never"), run_id="mine")
        try:
            assert session.run_id == "mine"
            assert session.ends_in_s == 3600
            await session.run("1")
            assert 1800 < session.ends_in_s < 3600
        finally:
            await session.close()
        assert session.ends_in_s == 0

    asyncio.run(run())


def test_settings_are_narrowed_and_never_widened():
    base = Settings(memory_mb=100, network=True, require="confined", session_max_calls=None)
    asked = {"memory_mb": 50, "processes": 1000, "network": True, "require": "process", "session_max_calls": 3}
    settings, cut = config.narrowed(base, asked)
    assert (settings.memory_mb, settings.session_max_calls) == (50, 3)
    assert (settings.processes, settings.require, settings.network) == (256, "confined", True)
    assert sorted(cut) == ["processes", "require"]
    assert config.narrowed(base, {"network": False, "require": "sealed"}) == (
        base._replace(network=False, require="sealed"),
        [],
    )
    assert config.narrowed(Settings(), {"network": True}) == (Settings(), ["network"])
