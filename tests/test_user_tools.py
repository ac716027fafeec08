"""Tools of the user's own, from the folder that SANDBOX_TOOLS_DIR names."""

from __future__ import annotations

import json
import os
from typing import Any, Literal, Optional

import pytest

from fumehood import open_session
from fumehood.backends.fake import FakeBackend
from fumehood.errors import ConfigurationError
from fumehood.tools import Toolbox, ToolCategory
from fumehood.tools.user_tools import schema_of


@pytest.fixture
def toolbox(tmp_path, monkeypatch):
    """A toolbox whose tools directory holds these files."""
    directory = tmp_path / "tools"
    directory.mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = []

    def make(**files):
        for name, text in files.items():
            (directory / f"{name}.py").write_text(text, "utf-8")
        made.append(Toolbox(type=FakeBackend(), store_code="never", tools_dir=str(directory)))
        return made[-1]

    make.directory = directory
    yield make
    for box in made:
        box.close()


GREET = '''
from typing import Literal

def greet(name: str, times: int = 1, tone: Literal["warm", "cold"] = "warm") -> str:
    """Greet somebody.

    As often as {you} like.
    """
    return " ".join([f"{tone} hello {name}"] * times)

def helper(x):
    return x

def _private(x: int) -> int:
    """Not a tool."""
    return x
'''


def test_a_public_function_is_a_tool(toolbox):
    box = toolbox(greet=GREET)
    assert box.problems == ()
    assert box.tools["greet"].category is ToolCategory.USER
    assert "helper" not in box.tools
    assert "_private" not in box.tools
    assert box.call("greet", {"name": "you", "times": 2}) == {
        "success": True,
        "result": "warm hello you warm hello you",
        "hint": "Tool call succeeded.",
    }


def test_its_spec_comes_from_its_hints_and_docstring(toolbox):
    spec = toolbox(greet=GREET).specs("anthropic")[-1]
    assert spec == {
        "name": "greet",
        "description": "Greet somebody.\n\nAs often as {you} like.",
        "input_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "times": {"type": "integer", "default": 1},
                "tone": {"enum": ["warm", "cold"], "default": "warm"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "name"),
        ({"name": 5}, "name must be a string, not an integer"),
        ({"name": "x", "times": True}, "times"),
        ({"name": "x", "tone": "icy"}, "tone must be one of 'warm', 'cold'"),
        ({"name": "x", "other": 1}, "'other'"),
    ],
)
def test_its_arguments_are_checked(toolbox, arguments, named):
    reply = toolbox(greet=GREET).call("greet", arguments)
    assert reply["success"] is False
    assert named in reply["error"]


def test_null_is_a_value_where_the_hint_says_so_and_not_given_elsewhere(toolbox):
    box = toolbox(mine='def say(a: int | None = 5, b: int = 7) -> str:\n    """Say."""\n    return f"{a} {b}"\n')
    assert box.call("say")["result"] == "5 7"
    assert box.call("say", {"a": None, "b": None})["result"] == "None 7"


def test_an_async_function_and_a_session(toolbox):
    code = '''
import asyncio

async def slow(word: str) -> str:
    """Say it later."""
    await asyncio.sleep(0.01)
    return word

async def ran(code: str, session) -> str:
    """Run code in the session."""
    return session.run(code).stdout

def where(session) -> str:
    """Where files are."""
    return session.places.workspace
'''
    box = toolbox(mine=code)
    assert box.call("slow", {"word": "now"})["result"] == "now"
    assert box.call("where")["result"] == "/workspace"
    assert box.call("ran", {"code": "abc"})["result"] == "abc"
    assert "session" not in json.dumps(box.tools["where"].schema)


def test_a_tool_s_failure_is_a_reply(toolbox):
    box = toolbox(mine='def boom(x: int) -> int:\n    """Fails."""\n    return 1 // x\n')
    reply = box.call("boom", {"x": 0})
    assert reply["success"] is False
    assert reply["error"].startswith("ZeroDivisionError: ")
    assert reply["hint"]


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    "body",
    [
        *("raise SystemExit(3)", "import sys; sys.exit()", "raise GeneratorExit", "raise BaseException"),
        *("import asyncio; raise asyncio.CancelledError", "raise OSError('\\udfff')", "raise OSError('x' * 9999)"),
        *("x = []; x.append(x); return x", "return {(1, 2): 3}", "return '\\udfff'"),
        *("return float('nan')", "return {'a': [float('inf')]}", "return -float('inf')"),
    ],
)
def test_what_a_tool_does_wrong_is_told_as_its_failure(toolbox, kind, body):
    reply = toolbox(mine=f'{kind} odd() -> object:\n    """Odd."""\n    {body}\n').call("odd")
    assert reply["success"] is False
    assert reply["hint"] == "Tool call failed. Review the error and the arguments."
    assert len(json.dumps(reply, allow_nan=False, ensure_ascii=False).encode()) < 5000


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_interrupt_in_a_tool_passes(toolbox, kind):
    box = toolbox(mine=f'{kind} stop() -> None:\n    """Stop."""\n    raise KeyboardInterrupt\n')
    with pytest.raises(KeyboardInterrupt):
        box.call("stop")


def test_what_json_cannot_hold_becomes_text(toolbox):
    box = toolbox(mine='def thing() -> object:\n    """A thing."""\n    return {"a": {1, 1}, 2: None}\n')
    assert box.call("thing")["result"] == {"a": "{1}", "2": None}


def test_a_broken_file_is_named_and_the_others_load(toolbox, caplog):
    box = toolbox(
        a_broken="def f(:",
        b_raises="1 / 0",
        c_exits="raise SystemExit(3)",
        d_unhinted='def unhinted(x):\n    """A tool?"""\n',
        e_star='def star(*x: int):\n    """A tool?"""\n',
        f_odd='def odd(x: bytes):\n    """A tool?"""\n',
        greet=GREET,
    )
    assert "greet" in box.tools
    assert [problem.split(":")[0] for problem in box.problems] == [
        *("a_broken.py", "b_raises.py", "c_exits.py", "d_unhinted.py", "e_star.py", "f_odd.py")
    ]
    assert "ZeroDivisionError" in box.problems[1]
    assert "x needs a type hint" in box.problems[3]
    assert "b_raises.py" in caplog.text


def test_a_name_in_use_is_an_error(toolbox):
    with pytest.raises(ConfigurationError, match=r"'sandbox_exec'.*fumehood itself"):
        toolbox(mine='def sandbox_exec() -> str:\n    """Mine."""\n')
    (toolbox.directory / "mine.py").unlink()
    with pytest.raises(ConfigurationError, match=r"b\.py defines the tool 'same'.*a\.py"):
        toolbox(a='def same() -> str:\n    """A."""\n', b='def same() -> str:\n    """B."""\n')


def test_imported_functions_are_no_tools(toolbox):
    assert "dedent" not in toolbox(mine="from textwrap import dedent\n").tools


def test_no_byte_code_is_left_or_used(toolbox):
    toolbox(greet=GREET)
    assert sorted(path.name for path in toolbox.directory.iterdir()) == ["greet.py"]


def test_a_relative_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    with pytest.raises(ConfigurationError, match="relative"):
        Toolbox(type=FakeBackend(), tools_dir="tools")


def test_the_working_directory_is_refused_by_any_name(toolbox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="working directory"):
        toolbox(greet=GREET)
    (tmp_path / "link").symlink_to(toolbox.directory)
    monkeypatch.chdir(toolbox.directory)
    with pytest.raises(ConfigurationError, match="working directory"):
        Toolbox(type=FakeBackend(), tools_dir=str(tmp_path / "link"))


@pytest.mark.parametrize(
    "name", ["work/link", "work/deep/../link", "alias/link", "chain", "relative", "work/into/tools"]
)
def test_a_link_that_an_agent_could_have_turned_is_refused(toolbox, tmp_path, name):
    toolbox(greet=GREET)
    (tmp_path / "work" / "deep").mkdir()
    (tmp_path / "work" / "link").symlink_to(toolbox.directory)
    (tmp_path / "work" / "into").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path / "work")
    (tmp_path / "chain").symlink_to(tmp_path / "work" / "link")
    (tmp_path / "relative").symlink_to("./alias/../work/link")
    with pytest.raises(ConfigurationError, match="working directory"):
        Toolbox(type=FakeBackend(), tools_dir=str(tmp_path / name))


def test_a_link_elsewhere_is_followed(toolbox, tmp_path):
    toolbox(greet=GREET)
    (tmp_path / "link").symlink_to("tools")
    with Toolbox(type=FakeBackend(), store_code="never", tools_dir=f"{tmp_path}/work/../link/") as box:
        assert box.call("greet", {"name": "you"})["success"] is True


def test_links_in_a_circle_are_an_error(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Toolbox(type=FakeBackend(), tools_dir=str(tmp_path / "a"))


def test_a_link_into_the_working_directory_is_left_out(toolbox, tmp_path):
    (tmp_path / "work" / "planted.py").write_text(GREET, "utf-8")
    (toolbox.directory / "linked.py").symlink_to(tmp_path / "work" / "planted.py")
    box = toolbox()
    assert "greet" not in box.tools
    assert "working directory" in box.problems[0]


def test_what_everyone_may_write_is_refused(toolbox):
    (toolbox.directory / "open.py").write_text(GREET, "utf-8")
    (toolbox.directory / "open.py").chmod(0o666)
    box = toolbox()
    assert "greet" not in box.tools
    assert "written to by everyone" in box.problems[0]
    toolbox.directory.chmod(0o777)
    with pytest.raises(ConfigurationError, match="written to by everyone"):
        toolbox()
    toolbox.directory.chmod(0o755)
    toolbox.directory.parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match="is beneath"):
        toolbox()
    toolbox.directory.parent.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(toolbox):
    (toolbox.directory / "theirs.py").write_text(GREET, "utf-8")
    os.chown(toolbox.directory / "theirs.py", 12345, 12345)
    assert "another user" in toolbox().problems[0]
    os.chown(toolbox.directory, 12345, 12345)
    with pytest.raises(ConfigurationError, match="another user"):
        toolbox()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere", "does not exist. Make it, outside the working directory"),
        ("work/nowhere", "does not exist. Make it, outside the working directory"),
        ("file", "is not a directory"),
        ("work/file", "is not a directory"),
        ("file/beneath", "cannot be read: Not a directory"),
    ],
)
def test_a_directory_that_is_none_is_an_error(tmp_path, monkeypatch, name, why):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "file").write_text("", "utf-8")
    (tmp_path / "work" / "file").write_text("", "utf-8")
    with pytest.raises(ConfigurationError, match=why):
        Toolbox(type=FakeBackend(), tools_dir=str(tmp_path / name))


def test_an_error_names_who_named_the_directory(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"^tools_dir = '/nowhere' \(from argument tools_dir\) "):
        Toolbox(type=FakeBackend(), tools_dir="/nowhere")
    monkeypatch.setenv("SANDBOX_TOOLS_DIR", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"\(from environment SANDBOX_TOOLS_DIR\)"):
        Toolbox(type=FakeBackend())
    monkeypatch.delenv("SANDBOX_TOOLS_DIR")
    (tmp_path / "fumehood").mkdir()
    (tmp_path / "fumehood" / "config.yaml").write_text("tools_dir: /nowhere\n", "utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"\(from .*/config\.yaml\)"), open_session(FakeBackend()) as session:
        Toolbox(session=session)


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal[1, "a"], {"enum": [1, "a"]}),
        (Any, {}),
    ],
)
def test_a_hint_becomes_a_schema(hint, schema):
    assert schema_of(hint) == schema


@pytest.mark.parametrize("hint", [bytes, set[int], dict[int, str], object])
def test_a_hint_that_json_has_no_word_for_is_refused(hint):
    with pytest.raises(TypeError):
        schema_of(hint)
