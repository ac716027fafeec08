from __future__ import annotations

import asyncio

import pytest

from fumehood import EngineFailed, FileError, IsolationUnavailable, SandboxLost, get_sandbox
from fumehood.backends.base import SandboxSpec
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.types import AXES, Command, Display, Exited, Output
from support import DRIVERS, execute, scripted

drivers = pytest.mark.parametrize("driver", DRIVERS)


@drivers
def test_without_a_script_the_program_text_comes_back(driver):
    assert execute(driver, get_sandbox("fake"), "print('hi')").stdout == "print('hi')"


@drivers
def test_replies_are_used_in_turn_and_the_commands_are_noted(driver):
    sandbox, fake = scripted(Reply("one"), [Output("stderr", b"two"), Exited(4, "error")])
    assert execute(driver, sandbox, "a", args=["x"], stdin="in", env={"K": "v"}, files={"f": "data"}).stdout == "one"
    second = execute(driver, sandbox, "b")
    assert (second.stderr, second.exit_code) == ("two", 4)
    command = fake.commands[0]
    assert command.argv == ("python", "main.py", "x")
    assert (command.script, command.stdin) == (b"a", b"in")
    assert (command.env, command.files) == ({"K": "v"}, {"f": b"data"})


@drivers
def test_being_asked_once_too_often_is_an_error(driver):
    sandbox, _ = scripted()
    with pytest.raises(EngineFailed, match="0 replies"):
        execute(driver, sandbox, "a")


@drivers
def test_a_function_may_answer(driver):
    fake = FakeBackend(replies=lambda command: Reply(command.script.upper()))
    assert execute(driver, get_sandbox(fake), "shout").stdout == "SHOUT"


def test_a_script_without_an_end_ends_well():
    sandbox, _ = scripted([Output("stdout", b"x")])
    assert sandbox.execute("a").exit_code == 0


def test_the_receipt_claims_nothing():
    isolation = get_sandbox("fake").execute("a").meta["isolation"]
    assert isolation.pop("level") == "process"
    assert {name: axis["level"] for name, axis in isolation.items()} == dict.fromkeys(AXES, "none")


@drivers
def test_more_isolation_than_none_is_refused(driver):
    sandbox = get_sandbox("fake", require="sealed")
    with pytest.raises(IsolationUnavailable, match="isolates nothing"):
        execute(driver, sandbox, "a")
    with pytest.raises(IsolationUnavailable):
        sandbox.check()


def test_check_gives_the_receipt():
    assert get_sandbox("fake").check().level == "process"


def test_reading_on_after_the_end_is_an_error():
    process = FakeBackend(replies=[Reply()]).start_direct(SandboxSpec(), Command(("python",)))
    assert process.read(1) == Exited(0, "ok")
    with pytest.raises(EngineFailed):
        process.read(0)


def test_a_sandbox_that_keeps_is_there_for_the_test_to_see():
    async def scenario():
        fake = FakeBackend()
        await fake.create(SandboxSpec())
        kept = await fake.create(SandboxSpec(keeps=True))
        assert fake.sandboxes == [kept]
        await kept.write("/tmp/a/b", b"1")
        assert kept.files == {"/tmp/a/b": b"1"}
        assert await kept.read("/tmp/a/b", 1) == b"1"
        first = await kept.list("/tmp")
        await kept.write("/tmp/a/b", b"2")
        assert first[0].version != (await kept.list("/tmp"))[0].version
        assert await kept.list("/workspace") == []
        await kept.close()
        with pytest.raises(SandboxLost):
            await kept.list("/tmp")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "path"),
    [("missing", "/tmp/none"), ("directory", "/tmp/a"), ("too_large", "/tmp/a/b"), ("special", "/tmp/l")],
)
def test_its_files_fail_as_real_ones_do(kind, path):
    async def scenario():
        sandbox = await FakeBackend().create(SandboxSpec(keeps=True))
        sandbox.files["/tmp/a/b"] = b"12"
        sandbox.specials.add("/tmp/l")
        with pytest.raises(FileError) as caught:
            await sandbox.read(path, 1)
        assert caught.value.kind == kind

    asyncio.run(scenario())


def test_a_reply_displays_its_results_and_may_lose_its_state():
    process = FakeBackend(replies=[Reply(results=[{"a/b": 1}], state_lost=True)]).start_direct(
        SandboxSpec(), Command(())
    )
    assert [process.read(1), process.read(1)] == [Display({"a/b": 1}), Exited(0, "ok", state_lost=True)]
