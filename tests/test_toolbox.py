"""The toolbox: exact replies, exact hints, and never an exception."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import zipfile

import pytest

from fumehood import errors, open_session
from fumehood.backends.base import Places
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.config import Settings
from fumehood.tools import Toolbox, ToolCategory, hints, schema
from fumehood.tools.facts import Facts
from fumehood.tools.table import TABLE

NAMES = [
    *("sandbox_exec", "sandbox_write_file", "sandbox_edit_file", "run_python_code", "run_code", "code_interpreter"),
]
MB5 = 5_242_880
NOT_FOUND = "Edit failed - old_string not found. Read file first with sandbox_exec."
NOT_UNIQUE = "Edit failed - old_string not unique. Include more surrounding context."


@pytest.fixture
def fake(tmp_path):
    """Makes a toolbox over a backend that answers from a script."""
    made = []

    def make(*replies, **settings):
        backend = FakeBackend(replies=replies or None)
        settings = {"store_code": "never", "output_dir": str(tmp_path / "output"), **settings}
        made.append(Toolbox(type=backend, **settings))
        made[-1].backend = backend
        return made[-1]

    yield make
    for box in made:
        box.close()


def _real(output, **settings):
    """A toolbox over the real thing, with a /tmp of its own."""
    box = Toolbox(type="local", require="sealed", store_code="never", output_dir=str(output), **settings)
    try:
        box.session.check()
    except errors.IsolationUnavailable as missing:
        box.close()
        pytest.skip(f"these write to /tmp, which must be the sandbox's own: {missing}")
    return box


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    with _real(tmp_path_factory.mktemp("toolbox") / "output", session_id="real") as box:
        yield box


@pytest.fixture
def own(tmp_path):
    """The same for a test that counts files."""
    with _real(tmp_path / "output") as box:
        yield box


def _write(box, path, content):
    reply = box.call("sandbox_write_file", {"file_path": path, "content": content})
    assert reply["success"], reply


def _edit(box, path, old, new="y"):
    return box.call("sandbox_edit_file", {"file_path": path, "old_string": old, "new_string": new})


def _exec(box, *command, **arguments):
    return box.call("sandbox_exec", {"command": list(command), **arguments})


# ---- sandbox_exec


def test_a_command_gives_the_document_s_reply(fake):
    reply = _exec(fake(Reply("Created 3 clusters\n", "careful\n")), "python", "/tmp/analysis.py")
    assert reply.pop("execution_time") >= 0
    assert reply == {
        "exit_code": 0,
        "stdout": "Created 3 clusters\n",
        "stderr": "careful\n",
        "stdout_truncated": False,
        "stderr_truncated": False,
        "output_files": [],
        "total_output_files": 0,
        "hint": "Code executed but no outputs in /tmp/output/. Verify script saves results.",
    }


def test_a_failed_command_has_its_exit_code_and_hint(fake):
    reply = _exec(fake(Reply(stderr="boom\n", exit_code=3)), "python", "/tmp/a.py")
    assert reply["exit_code"] == 3
    assert reply["hint"] == "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
    assert "success" not in reply


def test_the_time_out_is_60_s_unless_given(fake):
    box = fake(Reply(after_s=3600))
    reply = _exec(box, "sleep", "3600", timeout=0.1)
    assert reply["exit_code"] == -1
    assert reply["hint"] == hints.EXEC_FAILED
    assert "timed out after 0.1 s" in reply["stderr"]
    timeouts = [item["properties"]["timeout"]["description"] for item in _schemas(box) if item["properties"]["timeout"]]
    assert "60 unless given, 300 at most" in timeouts[0]


def _schemas(box):
    return [tool["input_schema"] for tool in box.specs("anthropic") if tool["name"] == "sandbox_exec"]


def test_more_than_the_ceiling_is_cut_and_said(fake):
    reply = _exec(fake(), "ls", timeout=1e9)
    assert reply["timeout_clamped"] is True
    assert "300 s" in reply["note"]
    assert "timeout_clamped" not in _exec(fake(), "ls", timeout=300)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf, "60", True, [1]], ids=repr)
def test_a_time_out_that_is_none_is_an_error(fake, timeout):
    box = fake()
    reply = _exec(box, "ls", timeout=timeout)
    assert reply["exit_code"] == 2
    assert reply["error"].startswith("timeout must be ")
    assert box.backend.commands == []


def test_a_refused_command_is_126_with_the_whole_shape(fake):
    box = fake(allowed_commands="cat,ls")
    reply = _exec(box, "curl", "x")
    error = reply["error"]
    assert "'curl' is not allowed" in error
    assert "cat, ls" in error
    assert reply == {
        "success": False,
        "error": error,
        "exit_code": 126,
        "stdout": "",
        "stderr": error,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "output_files": [],
        "total_output_files": 0,
        "execution_time": 0.0,
        "hint": "Command refused. Use one of the allowed commands.",
    }
    assert box.backend.commands == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "ls -l"}, "command must be an array of strings, not a string"),
        ({"command": []}, "command must have at least 1 item"),
        ({"command": ["ls", 5]}, "command[1] must be a string, not an integer"),
        ({"command": ["ls", "a\0b"]}, "NUL"),
        ({"command": ["ls", "\udfff"]}, "UTF-8"),
        ({"command": None}, "command must be an array of strings, not null"),
        ({}, "sandbox_exec needs the argument command"),
        ({"command": ["ls"], "cmd": None}, "sandbox_exec has no argument 'cmd'"),
        ({"cmd": ["ls"]}, "sandbox_exec has no argument 'cmd'; it takes command, timeout (optional)"),
        ("{", "not JSON"),
        ("[1]", "must be an object, not list"),
        (5, "must be an object, not int"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_arguments_of_a_command_are_named(fake, arguments, said):
    box = fake(allowed_commands="*")
    reply = box.call("sandbox_exec", arguments)
    assert reply["success"] is False
    assert reply["exit_code"] == 2
    assert said in reply["error"]
    assert reply["hint"] == "Invalid arguments. Correct them and call sandbox_exec again."
    assert box.backend.commands == []
    json.dumps(reply, ensure_ascii=False).encode()


def test_arguments_may_be_json(fake):
    assert fake(Reply("ok")).call("sandbox_exec", '{"command": ["ls"], "timeout": 5}')["stdout"] == "ok"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sandbox_exec", {"command": ["ls"], "timeout": None}),
        ("run_python_code", {"code": "1", "timeout": None}),
        ("run_code", '{"code": "1", "language": null, "timeout": null}'),
        ("code_interpreter", {"code": "1", "requirements": None}),
    ],
)
def test_null_for_an_optional_argument_is_not_given(fake, tool, arguments):
    reply = fake().call(tool, arguments)
    assert reply["exit_code"] == 0, reply
    assert "error" not in reply


def test_an_engine_that_fails_is_125(fake):
    box = fake(Reply())
    _exec(box, "ls")
    reply = _exec(box, "ls")  # the script is at its end
    assert reply["exit_code"] == 125
    assert reply["success"] is False
    assert reply["hint"] == "The sandbox is not available. Try once more, then tell the user."


def test_a_bug_of_ours_is_a_reply_and_is_logged(fake, monkeypatch, caplog):
    box = fake()
    monkeypatch.setattr(type(box.session), "exec", lambda *_, **__: 1 / 0)
    reply = _exec(box, "ls")
    assert reply["success"] is False
    assert "ZeroDivisionError" in reply["error"]
    assert "sandbox_exec failed" in caplog.text


def test_an_interrupt_passes(fake, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    box = fake()
    monkeypatch.setattr(type(box.session), "exec", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _exec(box, "ls")


@pytest.mark.parametrize("name", ["no_such_tool", "", None, 5, ["sandbox_exec"]], ids=repr)
def test_an_unknown_tool_is_told_the_names(fake, name):
    reply = fake().call(name, {})
    assert reply["success"] is False
    assert all(known in reply["error"] for known in NAMES)
    assert reply["hint"]


class Hostile(str):
    __slots__ = ()

    def __hash__(self):
        raise RuntimeError("no")

    encode = lower = strip = __str__ = __repr__ = __len__ = __iter__ = __getitem__ = __eq__ = __format__ = __hash__


@pytest.mark.parametrize("name", NAMES)
def test_hostile_objects_never_raise(fake, name):
    box = fake()
    text = Hostile("x")
    for arguments in (object(), text, {"code": text}, {"file_path": text, "content": text}):
        assert box.call(name, arguments, reasoning_trace=object())["hint"]
    assert box.call(text, {})["success"] is False


def test_a_dataset_that_vanished_is_said(tmp_path):
    (tmp_path / "a.csv").write_text("x\n", "utf-8")
    with Toolbox({"a": str(tmp_path / "a.csv")}, type=FakeBackend(), store_code="never") as box:
        (tmp_path / "a.csv").unlink()
        reply = _exec(box, "ls")
    assert reply["success"] is False
    assert "dataset 'a'" in reply["error"]
    assert "does not exist" in reply["error"]


def test_after_the_end_a_call_says_so(fake):
    box = fake()
    box.close()
    box.close()
    reply = _exec(box, "ls")
    assert reply["exit_code"] == 125
    assert reply["hint"] == "The session has ended. Tell the user; what it held is gone."


def test_a_spent_budget_tells_the_model(fake):
    box = fake(session_max_calls=1)
    assert _exec(box, "ls")["exit_code"] == 0
    reply = _exec(box, "ls")
    assert reply["exit_code"] == 126
    assert reply["hint"] == "The session's budget is used up. Present the results so far."


def test_a_session_that_was_given_is_left_open():
    with open_session(type=FakeBackend(), store_code="never") as session:
        with Toolbox(session=session) as box:
            assert _exec(box, "ls")["exit_code"] == 0
        assert session.exec(["ls"]).exit_code == 0


def test_a_call_beside_a_running_loop(fake):
    box = fake(Reply("ok"))
    reply = asyncio.run(box.call_async("sandbox_exec", {"command": ["ls"]}, "why"))
    assert reply["stdout"] == "ok"


def test_many_threads_may_call(fake):
    box = fake()
    replies = []
    threads = [threading.Thread(target=lambda n=n: replies.append(_exec(box, "echo", str(n)))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(reply["stdout"].split()[1]) for reply in replies) == list(range(20))


def test_a_reasoning_trace_is_recorded(fake, tmp_path):
    box = fake(store_code="always", artifacts_dir=str(tmp_path / "artifacts"))
    box.call("sandbox_exec", {"command": ["ls"]}, reasoning_trace="to see what is there")
    box.call("sandbox_write_file", {"file_path": "/tmp/a", "content": "x"}, "to have a file")
    box.call("run_python_code", {"code": "1"}, reasoning_trace=5)
    stored = sorted((tmp_path / "artifacts" / "executions").glob("*.json"))
    traces = [json.loads(path.read_text("utf-8")).get("reasoning_trace") for path in stored]
    assert set(traces) == {None, "to have a file", "to see what is there"}


class Unstartable(FakeBackend):
    async def create(self, spec):  # noqa: ARG002
        raise errors.EngineFailed("it does not start")


@pytest.mark.parametrize("choice", ["fail", "skip"])
def test_a_sandbox_that_does_not_start_is_a_reply(choice):
    with Toolbox(type=Unstartable(), store_code="never", start_retries=0, start_failure=choice) as box:
        reply = _exec(box, "ls")
        assert "it does not start" in reply["stderr"]
        assert reply["exit_code"] not in (0, None)
        assert reply.get("skipped", False) is (choice == "skip")
        assert [spec["name"] for spec in box.specs("mcp")] == NAMES  # the tools can be named all the same
        assert "Timeout: 60s" in box.system_prompt()


# ---- hints


def test_the_hints_are_the_document_s():
    places = Places()
    assert hints.after_exec(0, 3, places) == (
        "Code executed successfully. 3 output files created. Consider using 'complete' to present results."
    )
    assert hints.after_exec(0, 1, places).split(". ")[1] == "1 output files created"
    assert hints.after_exec(0, 0, places) == (
        "Code executed but no outputs in /tmp/output/. Verify script saves results."
    )
    assert hints.after_exec(-1, 3, places) == (
        "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
    )
    assert hints.WRITTEN == "File written successfully. Use sandbox_exec to run it."
    assert hints.EDITED == "File edited successfully. Re-run with sandbox_exec."


@pytest.mark.parametrize("kind", hints.FILE_ERRORS)
@pytest.mark.parametrize("tool", ["sandbox_write_file", "sandbox_edit_file"])
def test_every_kind_of_file_error_has_one_form(tool, kind):
    failure = hints.failure(tool, errors.FileError(hints.FILE_ERRORS[kind], kind))
    assert re.fullmatch(r"[A-Z][^:]+: must [^:]+", failure.error)
    assert failure.hint.endswith(".")
    if tool == "sandbox_edit_file" or kind != "missing":
        assert "cannot be used" not in failure.hint


@pytest.mark.parametrize(
    "error",
    [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)],
)
def test_every_error_of_ours_has_an_exit_code_and_a_hint(error):
    made = error("what", "denied") if error is errors.FileError else error("what")
    failure = hints.failure("run_code", made)
    assert failure.error == "what"
    assert failure.exit_code in (2, 78, 125, 126, 127)
    assert failure.hint.endswith(".")


# ---- sandbox_write_file, sandbox_edit_file


def test_a_written_file_gives_the_document_s_reply(local):
    content = "import polars as pl\nprint('é')\n"
    reply = local.call("sandbox_write_file", {"file_path": "/tmp/a/analysis.py", "content": content})
    assert reply == {
        "success": True,
        "file_path": "/tmp/a/analysis.py",
        "bytes_written": len(content.encode()),
        "hint": "File written successfully. Use sandbox_exec to run it.",
    }
    assert _exec(local, "cat", "/tmp/a/analysis.py")["stdout"] == content


BAD_PATHS = [
    *("/home/bad.py", "/etc/passwd", "relative.py", "", "/", "/tmp", "/tmp/", "/tmp/../etc/passwd", "/tmp/a/../b"),
    *("/tmp//a", "/tmp/./a", "/tmp/a\0b", "/tmp/a\nb", "/tmp/a\x1bb", "/tmpx/a", "/workspacex/a", "/tmp/\udfff", "~/a"),
]


@pytest.mark.parametrize("tool", ["sandbox_write_file", "sandbox_edit_file"])
def test_a_path_elsewhere_is_refused_before_anything_else(local, tool):
    rest = {"content": "x" * (MB5 + 1)} if tool == "sandbox_write_file" else {"old_string": "a", "new_string": "b"}
    for path in BAD_PATHS:
        reply = local.call(tool, {"file_path": path, **rest})
        assert reply == {
            "success": False,
            "error": "Invalid path: must be /tmp/* or /workspace/*",
            "file_path": path.encode("utf-8", "replace").decode(),
            "hint": "Invalid path. Use /tmp/ or /workspace/ only.",
        }
        json.dumps(reply, ensure_ascii=False).encode()


def test_five_megabytes_are_written_and_one_byte_more_is_not(local):
    _write(local, "/tmp/big.txt", "x" * MB5)
    reply = local.call("sandbox_write_file", {"file_path": "/tmp/big.txt", "content": "é" + "x" * (MB5 - 1)})
    assert reply["success"] is False
    assert reply["error"] == "File too large: must be at most 5242880 bytes"
    assert _exec(local, "wc", "-c", "/tmp/big.txt")["stdout"].split()[0] == str(MB5)
    assert _exec(local, "rm", "/tmp/big.txt")["exit_code"] == 0


def test_what_is_not_utf_8_is_not_written(local):
    reply = local.call("sandbox_write_file", {"file_path": "/tmp/text", "content": "a\udfffb"})
    assert reply["error"] == "Not a text file: must be UTF-8"
    assert _exec(local, "cat", "/tmp/text")["exit_code"] != 0


def test_a_directory_is_not_written_over(local):
    assert _exec(local, "mkdir", "-p", "/tmp/here")["exit_code"] == 0
    for reply in (
        local.call("sandbox_write_file", {"file_path": "/tmp/here", "content": "x"}),
        _edit(local, "/tmp/here", "a"),
    ):
        assert reply["success"] is False
        assert reply["error"] == "Is a directory: must be a file"


def test_a_planted_link_is_not_followed(local, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine", "utf-8")
    assert _exec(local, "ln", "-sfn", str(tmp_path), "/tmp/link")["exit_code"] == 0
    assert _exec(local, "ln", "-sfn", str(outside), "/tmp/file_link")["exit_code"] == 0
    for path in ("/tmp/link/outside", "/tmp/file_link"):
        assert _edit(local, path, "mine")["success"] is False
    local.call("sandbox_write_file", {"file_path": "/tmp/link/outside", "content": "theirs"})
    local.call("sandbox_write_file", {"file_path": "/tmp/file_link", "content": "theirs"})
    assert outside.read_text("utf-8") == "mine"


def test_an_edit_gives_the_document_s_reply(local):
    _write(local, "/workspace/e.py", "KMeans(n_clusters=3)\r\nother\r\n")
    reply = _edit(local, "/workspace/e.py", "n_clusters=3", "n_clusters=5, random_state=42")
    assert reply == {
        "success": True,
        "file_path": "/workspace/e.py",
        "hint": "File edited successfully. Re-run with sandbox_exec.",
    }
    assert local.session.read("/workspace/e.py") == b"KMeans(n_clusters=5, random_state=42)\r\nother\r\n"


@pytest.mark.parametrize(
    ("content", "old", "error", "hint"),
    [
        ("a b", "c", "old_string not found", NOT_FOUND),
        ("a\r\nb", "a\nb", "old_string not found", None),
        ("", "a", "old_string not found", None),
        ("a a a", "a", "old_string found 3 times - not unique. Include more context.", NOT_UNIQUE),
        ("aaa", "aa", "old_string found 2 times - not unique. Include more context.", None),
        ("a\0b", "a", "Not a text file: must be UTF-8", None),
        (b"a\xffb", "a", "Not a text file: must be UTF-8", None),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(local, content, old, error, hint):
    local.session.write("/tmp/edit.txt", content)
    reply = _edit(local, "/tmp/edit.txt", old)
    assert reply["success"] is False
    assert reply["error"] == error
    assert reply["file_path"] == "/tmp/edit.txt"
    assert reply["hint"]
    assert hint in (None, reply["hint"])
    assert local.session.read("/tmp/edit.txt") == (content.encode() if isinstance(content, str) else content)


def test_an_empty_old_string_is_an_error(local):
    _write(local, "/tmp/edit.txt", "abc")
    reply = _edit(local, "/tmp/edit.txt", "")
    assert reply["success"] is False
    assert reply["error"].startswith("old_string")
    assert local.session.read("/tmp/edit.txt") == b"abc"


def test_a_missing_file_cannot_be_edited(local):
    reply = _edit(local, "/tmp/nowhere.txt", "a")
    assert reply["error"] == "File not found: must be an existing file"
    assert reply["hint"] == "Edit failed - file not found. Create it with sandbox_write_file."


def test_a_full_disk_is_said(tmp_path):
    with _real(tmp_path, disk_mb=4) as box:
        _write(box, "/tmp/a", "x" * 3_000_000)
        reply = box.call("sandbox_write_file", {"file_path": "/tmp/b", "content": "x" * 3_000_000})
        large = box.call("sandbox_write_file", {"file_path": "/tmp/b", "content": "x" * MB5})
        assert _exec(box, "cat", "/tmp/b")["exit_code"] != 0
    assert reply["success"] is False
    assert reply["error"].startswith("Disk full: must ")
    assert large["error"] == "File too large: must be at most 4194304 bytes"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("sandbox_write_file", {"file_path": "/tmp/a"}, "needs the argument content"),
        ("sandbox_write_file", {"file_path": 5, "content": "x"}, "file_path must be a string"),
        ("sandbox_write_file", {"file_path": "/tmp/a", "content": b"x"}, "content must be a string, not bytes"),
        ("sandbox_edit_file", {"file_path": "/tmp/a", "old_string": "x"}, "needs the argument new_string"),
        ("sandbox_edit_file", {"file_path": "/tmp/a", "old_string": None, "new_string": ""}, "old_string must be"),
    ],
)
def test_bad_arguments_of_the_file_tools_are_named(fake, tool, arguments, said):
    reply = fake().call(tool, arguments)
    assert set(reply) == {"success", "error", "file_path", "hint"}
    assert reply["success"] is False
    assert said in reply["error"]


# ---- files and time; the document's own checklist is test_checklist


def test_several_files_come_back_and_those_that_stay_are_not_counted_twice(tmp_path):
    with _real(tmp_path, session_id="many") as box:
        code = "for name in 'abc': open(f'/tmp/output/{name}.txt', 'w').write(name)"
        reply = _exec(box, "python", "-c", code)
        assert sorted(reply["output_files"]) == ["a.txt", "b.txt", "c.txt"]
        assert reply["hint"].startswith("Code executed successfully. 3 output files created.")
        assert _exec(box, "true")["total_output_files"] == 3
        code = "for n in range(30): open(f'/tmp/output/n{n}.txt', 'w').close()"
        reply = _exec(box, "python", "-c", code)
    assert len(reply["output_files"]) == 20
    assert reply["total_output_files"] == 33
    assert (tmp_path / "session_many" / "b.txt").read_text("utf-8") == "b"


def test_a_dataset_is_read_where_the_tools_say(tmp_path):
    (tmp_path / "sales.csv").write_text("price\n1\n2\n", "utf-8")
    with _real(tmp_path / "output", datasets={"my sales": str(tmp_path / "sales.csv")}) as box:
        assert _exec(box, "tail", "-1", "/tmp/data/my_sales.csv")["stdout"] == "2\n"
        assert _exec(box, "sh", "-c", "echo 3 >> /tmp/data/my_sales.csv")["exit_code"] != 0
        assert _exec(box, "rm", "-f", "/tmp/data/my_sales.csv")["exit_code"] != 0
    assert (tmp_path / "sales.csv").read_text("utf-8") == "price\n1\n2\n"


def test_a_command_that_takes_too_long_is_ended_and_the_files_stay(local):
    _write(local, "/tmp/stay.txt", "here")
    reply = _exec(local, "sleep", "3600", timeout=0.5)
    assert reply["exit_code"] == -1
    assert _exec(local, "cat", "/tmp/stay.txt")["stdout"] == "here"


def test_the_sandbox_ends_with_the_toolbox(tmp_path):
    with _real(tmp_path) as box:
        _write(box, "/tmp/kept", "x")
    assert box.session.ended
    assert _exec(box, "cat", "/tmp/kept")["success"] is False


# ---- the code tools


def test_python_keeps_its_variables(own):
    assert own.call("run_python_code", {"code": "x = 20"})["output"] == "(no output)"
    reply = own.call("run_python_code", {"code": "print('so')\nx + 1"})
    assert reply["results"] == ["21"]
    assert reply["output"] == "so\n21"
    assert reply["exit_code"] == 0
    assert reply["hint"] == hints.CODE_NO_FILES
    keys = {"output", "exit_code", "results", "output_files", "total_output_files", "execution_time", "hint"}
    assert set(reply) == keys
    assert own.call("run_code", {"code": "x"})["results"] == ["20"]
    assert own.call("code_interpreter", {"code": "x", "requirements": []})["results"] == ["20"]


def test_a_python_failure_is_in_the_output(local):
    reply = local.call("run_python_code", {"code": "1 / 0"})
    assert reply["exit_code"] == 1
    assert "ZeroDivisionError" in reply["output"]
    assert reply["hint"] == hints.CODE_FAILED


def test_another_language_shares_the_files(tmp_path):
    with _real(tmp_path, supported_languages="python,bash") as box:
        box.call("run_python_code", {"code": "open('/tmp/note', 'w').write('hello')"})
        reply = box.call("run_code", {"code": "cat /tmp/note; exit 3", "language": "bash"})
    assert "hello" in reply["output"]
    assert reply["exit_code"] == 3


def test_a_language_that_is_not_allowed_is_126(fake):
    box = fake()
    reply = box.call("run_code", {"code": "ls", "language": "bash"})
    assert reply["success"] is False
    assert reply["exit_code"] == 126
    assert "SANDBOX_SUPPORTED_LANGUAGES" in reply["error"]
    assert reply["output"].startswith("Error (nothing ran): ")
    assert reply["output_files"] == []


@pytest.mark.parametrize("tool", ["run_python_code", "code_interpreter"])
def test_a_result_without_text_is_named_by_kinds_that_cannot_drive_a_terminal(local, tool):
    code = "display({'\\x1b]0;title\\x07/x': '1', 'image/png': 'AAAA'}, raw=True)"
    reply = local.call(tool, {"code": code})
    assert reply["results"] == ["<image/png>"]
    assert "\x1b" not in str(reply.get("output", reply.get("logs")))


def test_the_interpreter_tells_of_logs_and_files(own):
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nopen('/tmp/output/t.csv', 'w').write('a\\n')\n7"
    reply = own.call("code_interpreter", {"code": code})
    assert reply.pop("execution_time") >= 0
    assert reply == {
        "logs": "out\nerr\n",
        "files": [{"path": "/tmp/output/t.csv", "size": 2, "mime": "text/csv"}],
        "exit_code": 0,
        "results": ["7"],
        "hint": hints.EXEC_FILES.format(count=1),
    }
    assert own.call("code_interpreter", {"code": "1"})["files"] == []


def test_requirements_that_cannot_be_had_are_a_reply(fake, monkeypatch):
    box = fake()
    asked = []

    def ensure(requirements, *_, **__):
        asked.append(list(requirements))
        raise errors.PackageError("no index here")

    monkeypatch.setattr("fumehood.packages.ensure", ensure)
    reply = box.call("code_interpreter", {"code": "1", "requirements": ["humanize==4.9.0"]})
    assert asked == [["humanize==4.9.0"]]
    assert reply["success"] is False
    assert reply["exit_code"] == 2
    assert reply["error"] == "no index here"
    assert reply["logs"].startswith("Error (nothing ran): ")


def test_a_spent_budget_installs_nothing(fake, monkeypatch):
    monkeypatch.setattr("fumehood.packages.ensure", lambda *_, **__: pytest.fail("it was asked to install"))
    box = fake(session_max_calls=1)
    assert _exec(box, "ls")["exit_code"] == 0
    reply = box.call("code_interpreter", {"code": "1", "requirements": ["humanize"]})
    assert reply["exit_code"] == 126


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """Packages that need no index: one wheel, written by hand."""
    house = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(house / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeting.py", "text = 'hello'\n")
        wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("greeting-1.0.dist-info/RECORD", "greeting.py,,\ngreeting-1.0.dist-info/RECORD,,\n")
    return {"wheelhouse": str(house), "packages_dir": str(tmp_path_factory.mktemp("packages"))}


APART = """
import greeting, sys
rows = open({data!r}).read().split()
open({output!r} + '/t.csv', 'w').write(rows[-1])
print(greeting.text, 'x' in globals())
rows[-1]
"""


@pytest.mark.parametrize("level", ["sealed", "process"])
def test_requirements_of_a_call_run_it_apart(tmp_path, open_path, wheelhouse, level):
    (tmp_path / "d.csv").write_text("a\n41\n", "utf-8")
    settings = {"isolation": level, "store_code": "always", "artifacts_dir": str(tmp_path / "artifacts"), **wheelhouse}
    settings["packages_dir"] = str(open_path / "packages")
    output = tmp_path / "output"
    with Toolbox({"d": tmp_path / "d.csv"}, "apart", type="local", output_dir=str(output), **settings) as box:
        assert box.call("run_python_code", {"code": "x = 1; import os"})["exit_code"] == 0
        paths = {"data": "../tmp/data/d.csv", "output": "../tmp/output"}  # from the workspace, wherever that is
        arguments = {"code": APART.format(**paths), "requirements": ["greeting"]}
        reply = box.call("code_interpreter", arguments, "to be greeted")
        places = box.session.places
        assert box.call("run_python_code", {"code": "x + 1"})["results"] == ["2"]
        assert box.session.files(places.output) == []
    assert reply.pop("execution_time") >= 0
    assert reply == {
        "logs": "hello False\n",
        "files": [{"path": f"{places.output}/t.csv", "size": 2, "mime": "text/csv"}],
        "exit_code": 0,
        "results": ["'41'"],
        "hint": "Code executed successfully. 1 output files created. Consider using 'complete' to present results.",
        "state": "not kept",
        "note": hints.RAN_APART,
    }
    assert (output / "session_apart" / "t.csv").read_text("utf-8") == "41"
    recorded = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "artifacts" / "executions").glob("*.json")]
    assert "to be greeted" in {record.get("reasoning_trace") for record in recorded}


def test_requirements_of_the_session_run_in_it(tmp_path, wheelhouse):
    with _real(tmp_path, requirements=["greeting"], **wheelhouse) as box:
        assert box.call("run_python_code", {"code": "import greeting; x = greeting.text"})["exit_code"] == 0
        reply = box.call("code_interpreter", {"code": "x", "requirements": ["Greeting"]})
    assert reply["results"] == ["'hello'"]
    assert "state" not in reply


def test_what_ran_apart_says_that_its_state_is_gone(fake, monkeypatch, tmp_path):
    from fumehood.packages import Layer

    monkeypatch.setattr("fumehood.packages.ensure", lambda *_, **__: Layer(str(tmp_path), ()))
    box = fake(Reply("hello\n"))
    with Toolbox(session=box.session) as given:  # also in a session with a backend of its own
        reply = given.call("code_interpreter", {"code": "print('hello')", "requirements": ["humanize"]})
    assert reply["logs"] == "hello\n"
    assert reply["state"] == "not kept"
    assert reply["files"] == []
    assert reply["hint"] == hints.CODE_NOT_KEPT
    assert "were not kept" in reply["note"]


# ---- the table, the specs, the facts


def test_the_table_has_the_tools_and_their_categories():
    assert [tool.name for tool in TABLE] == NAMES
    files = {tool.name for tool in TABLE if tool.category is ToolCategory.FILE_MANAGEMENT}
    assert files == {"sandbox_write_file", "sandbox_edit_file"}
    assert ToolCategory("code_execution") is ToolCategory.CODE_EXECUTION


def test_the_specs_have_the_shape_that_each_client_wants(fake):
    box = fake()
    first = {name: box.specs(name)[0] for name in ("openai", "anthropic", "mcp")}
    assert set(first["openai"]) == {"type", "name", "description", "parameters", "strict"}
    assert first["openai"]["type"] == "function"
    assert set(first["anthropic"]) == {"name", "description", "input_schema"}
    assert set(first["mcp"]) == {"name", "title", "description", "inputSchema", "annotations"}
    assert first["mcp"]["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
    schemas = [first["openai"]["parameters"], first["anthropic"]["input_schema"], first["mcp"]["inputSchema"]]
    assert schemas[0] == schemas[1] == schemas[2]
    assert schemas[0]["required"] == ["command"]
    assert schemas[0]["additionalProperties"] is False
    for name in ("openai", "anthropic", "mcp"):
        assert [spec["name"] for spec in box.specs(name)] == NAMES
        assert not re.search(r"[{}]", json.dumps([spec["description"] for spec in box.specs(name)]))
    with pytest.raises(errors.BadArgument, match="anthropic"):
        box.specs("soap")


def test_a_description_says_what_holds_here(fake):
    box = fake(network=True, allowed_commands="ls", max_timeout_sec=40, timeout_sec=7)
    command, python = box.specs("mcp")[0], box.specs("mcp")[3]
    assert "There is network access." in command["description"]
    assert "Allowed commands: ls." in command["description"]
    assert "40 unless given, 40 at most" in command["inputSchema"]["properties"]["timeout"]["description"]
    assert "7 unless given" in python["inputSchema"]["properties"]["timeout"]["description"]
    assert command["annotations"]["openWorldHint"] is True
    assert "Installed" not in command["description"]  # nothing runs there, so nothing can be imported
    assert "polars" not in json.dumps(box.specs("mcp")).lower()


@pytest.mark.parametrize("level", ["sealed", "confined", "process"])
def test_what_a_model_is_told_is_what_a_program_finds(tmp_path, level):
    (tmp_path / "x.csv").write_text("a\n1\n", "utf-8")
    settings = {"isolation": level, "store_code": "never", "output_dir": str(tmp_path / "output")}
    with Toolbox({"x": str(tmp_path / "x.csv")}, type="local", **settings) as box:
        receipt, prompt = box.session.check(), box.system_prompt()
        if receipt.level != level:
            pytest.skip(f"this machine gives {receipt.level}, not {level}")
        spec = box.specs("mcp")[0]
        described, data = spec["description"], f"{box.session.places.data}/x.csv"
        append = _exec(box, "sh", "-c", f"echo 2 >> {data}")
    sealed, open_ = level == "sealed", receipt.axes["network"].level == "none"
    assert ("Datasets, read-only: " in described) is sealed
    assert (append["exit_code"] != 0) is sealed
    assert f": {data}." in described
    assert ("MB of disk" in described) is sealed
    assert ("There is network access." in described) is open_
    assert ("no network access" in described) is ("No network access" in prompt) is not open_
    assert spec["annotations"]["openWorldHint"] is open_
    assert (tmp_path / "x.csv").read_text("utf-8") == "a\n1\n"


@pytest.mark.parametrize("level", ["sealed", "confined", "process"])
@pytest.mark.parametrize("directory", ["/tmp", "/workspace", "/mnt/data"])
def test_a_reply_names_the_path_that_a_program_can_open(tmp_path, level, directory):
    with Toolbox(type="local", isolation=level, store_code="never", output_dir=str(tmp_path)) as box:
        arguments = {"file_path": f"{directory}/x.py", "content": "print('a')\n"}
        written = box.call("sandbox_write_file", arguments)["file_path"]
        edited = box.call("sandbox_edit_file", {"file_path": written, "old_string": "a", "new_string": "b"})
        assert edited["file_path"] == written
        assert _exec(box, "python", written)["stdout"] == "b\n"
        assert _edit(box, f"{directory}/x.py", "b")["file_path"] == written


def test_libraries_are_named_only_if_they_can_be_imported(local):
    import importlib.util

    for name, module in (("polars", "polars"), ("scikit-learn", "sklearn"), ("torch", "torch")):
        assert (name in local.facts().libraries) == bool(importlib.util.find_spec(module))


def test_datasets_are_told_by_their_paths(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n", "utf-8")
    settings = {"type": FakeBackend(), "store_code": "never"}
    with Toolbox({"my sales": str(tmp_path / "a.csv")}, **settings) as box:
        assert "Datasets: /tmp/data/my_sales.csv." in box.specs("mcp")[0]["description"]
        assert "`/tmp/data/my_sales.csv`" in box.system_prompt()


@pytest.mark.parametrize(
    ("allowed", "said"), [((), "No commands are"), (("*",), "All commands"), (("a",) * 150, ", …")], ids=str
)
def test_every_list_of_commands_has_words(allowed, said):
    assert said in Facts(Places(), Settings(allowed_commands=allowed), ()).words()["commands"]


def test_a_language_whose_program_may_not_be_started_is_not_offered():
    settings = Settings(supported_languages=("python", "javascript", "bash"))
    assert Facts(Places(), settings, ()).words()["languages"] == "python, bash"  # node is not on the default list
    everything = settings._replace(allowed_commands=("*",))
    assert Facts(Places(), everything, ()).words()["languages"] == "python, javascript, bash"


# ---- the validator


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        (1.5, {"type": "integer"}, "an integer, not a number"),
        (True, {"type": "number"}, "a number, not a boolean"),
        (11, {"type": "integer", "maximum": 10}, "at most 10"),
        (0, {"type": "integer", "minimum": 1}, "at least 1"),
        (10**400, {"type": "integer", "maximum": 10}, "a huge number"),
        ({"a": 1}, {"type": "object", "additionalProperties": {"type": "string"}}, "['a'] must be a string"),
        ([["x"]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "x[0][0] must"),
        (1, {"enum": [True]}, "one of True"),
        (1.5, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "an integer or null"),
    ],
)
def test_a_value_that_does_not_fit_is_described(value, wanted, said):
    with pytest.raises(errors.BadArgument) as refused:
        schema.check_value("x", value, wanted)
    assert said in str(refused.value).replace('x["a"]', "x['a']")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1, {"type": "number"}),
        (None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ({"a": 1}, {"type": "object"}),
        ((1, 2), {"type": "array"}),
        (object(), {}),
        ("a", {"enum": ["a"]}),
    ],
)
def test_a_value_that_fits_passes(value, wanted):
    schema.check_value("x", value, wanted)
