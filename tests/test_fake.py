from __future__ import annotations

import pytest

from fumehood import EngineFailed, IsolationUnavailable, get_sandbox
from fumehood.backends.base import SandboxSpec
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.types import AXES, Command, Exited, Output
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
