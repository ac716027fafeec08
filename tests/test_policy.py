from __future__ import annotations

import logging

import pytest

from fumehood.config_table import DEFAULT_COMMANDS
from fumehood.errors import CommandNotAllowed, ConfigurationError
from fumehood.policy import check_command


def _allowed(argv, allowed, env=None):
    try:
        check_command(tuple(argv), tuple(allowed), env or {})
    except CommandNotAllowed:
        return False
    return True


FITTING = [
    (["ls"], ["ls"]),
    (["ls", "-l", "/tmp"], ["ls"]),
    (["anything", "at", "all"], ["*"]),
    (["/tmp/x"], ["ls", "*"]),
    (["/usr/bin/python", "a.py"], ["python"]),
    (["//usr/./bin//python"], ["python"]),
    (["/opt/tool/run"], ["/opt/tool/run"]),
    (["/opt//tool/./run"], ["/opt/tool/run"]),
    (["git", "log", "-1"], ["git log *"]),
    (["git", "log"], ["git log **"]),
    (["git", "log", "a", "b"], ["git log **"]),
    (["git", "status"], ["git log *", "git status"]),
    (["grep", "-n", "a b"], ["grep -? 'a b'"]),
    (["/usr/bin/git", "log", "x"], ["git log *"]),
]


def test_what_an_entry_fits_is_allowed():
    assert [case for case in FITTING if not _allowed(*case)] == []


UNFITTING = [
    (["ls"], []),
    (["ls"], ["lsof"]),
    (["LS"], ["ls"]),
    (["ls -l"], ["ls"]),
    ([""], ["ls"]),
    ([""], ["''"]),
    (["bash", "-c", "ls"], ["ls"]),
    (["/tmp/python"], ["python"]),
    (["./python"], ["python"]),
    (["./python"], ["./python"]),
    (["bin/python"], ["python"]),
    (["../x"], ["x"]),
    (["/usr/bin/../../tmp/python"], ["python"]),
    (["/tmp/link/../../usr/bin/python"], ["python"]),
    (["/usr/bin/sub/python"], ["python"]),
    (["/usr/bin/python/"], ["ls"]),
    (["python"], ["/usr/bin/python"]),
    (["git", "push"], ["git log *"]),
    (["git", "log"], ["git log *"]),
    (["git", "log", "a", "b"], ["git log *"]),
    (["git"], ["git log **"]),
    (["git", "push", "log"], ["git log **"]),
]


def test_what_no_entry_fits_is_refused():
    assert [case for case in UNFITTING if _allowed(*case)] == []


def test_a_path_of_the_caller_s_making_is_refused_unless_everything_is_allowed():
    assert not _allowed(["ls"], ["ls"], {"PATH": "/tmp"})
    assert not _allowed(["/bin/ls"], ["ls"], {"PATH": "/tmp"})
    assert _allowed(["ls"], ["*"], {"PATH": "/tmp"})
    assert _allowed(["ls"], ["ls"], {"HOME": "/tmp"})


VARIABLES = [
    *(("ls", name, False) for name in ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV")),
    ("sh", "ENV", False),
    ("/bin/bash", "ENV", False),
    ("python", "ENV", True),  # ENV=production
    *(("python", name, True) for name in ("PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS", "LDFLAGS", "path")),
]


def test_a_variable_that_decides_what_runs_is_refused():
    allowed = ("python", "ls", "sh", "bash")
    for program, variable, passes in VARIABLES:
        assert _allowed([program], ["*"], {variable: "x"})
        assert _allowed([program], allowed, {"A": "b", variable: "x"}) == passes, (program, variable)
        if not passes:
            with pytest.raises(CommandNotAllowed, match=rf"sets '{variable}', .*SANDBOX_ALLOWED_COMMANDS=\*"):
                check_command((program,), allowed, {"A": "b", variable: "x"})


def test_the_default_list_has_what_a_data_worker_needs():
    needed = ["python", "python3", "sh", "bash", "cat", "head", "ls", "grep", "wc", "find"]
    assert [program for program in needed if not _allowed([program, "x"], DEFAULT_COMMANDS)] == []


def test_the_message_says_what_was_refused_and_what_is_allowed():
    with pytest.raises(CommandNotAllowed, match=r"'curl' is not allowed.*Allowed here: cat, ls \(SANDBOX_ALLOWED"):
        check_command(("curl", "x"), ("cat", "ls"), {})
    with pytest.raises(CommandNotAllowed, match="Allowed here: none"):
        check_command(("curl",), (), {})
    with pytest.raises(CommandNotAllowed, match="a shell must be listed itself"):
        check_command(("bash", "-c", "ls"), ("ls",), {})
    for program in ("/bin/busybox", "busybox", "/usr/bin/curl"):
        with pytest.raises(CommandNotAllowed, match=r"not allowed: it is not on the list\. Allowed here: ls \("):
            check_command((program,), ("ls",), {"PATH": "/tmp"})
    for program in ("/tmp/bash", "./ls", "/usr/bin/python/x"):
        with pytest.raises(CommandNotAllowed, match="outside the system's directories must be listed itself"):
            check_command((program,), ("bash", "ls", "python"), {})
    with pytest.raises(CommandNotAllowed, match="each argument must be an item of its own"):
        check_command(("ls -l",), ("ls",), {})
    with pytest.raises(CommandNotAllowed, match=r"other arguments only: git log \*"):
        check_command(("git", "push"), ("git log *",), {})


def test_a_long_list_is_shown_in_part():
    def said(*allowed):
        with pytest.raises(CommandNotAllowed) as refused:
            check_command(("curl",), allowed, {})
        return str(refused.value).partition("Allowed here: ")[2]

    assert said(*DEFAULT_COMMANDS) == f"{', '.join(DEFAULT_COMMANDS)} (SANDBOX_ALLOWED_COMMANDS)."
    assert said(*["1234"] * 100) == f"{', '.join(['1234'] * 100)} (SANDBOX_ALLOWED_COMMANDS)."  # 598 characters
    assert said(*["12345"] * 100) == f"{', '.join(['12345'] * 86)} and 14 more (SANDBOX_ALLOWED_COMMANDS)."
    assert said("x" * 700, "y") == f"{'x' * 700} and 1 more (SANDBOX_ALLOWED_COMMANDS)."


def test_a_refusal_is_logged_without_the_arguments(caplog):
    caplog.set_level(logging.INFO, "fumehood.policy")
    with pytest.raises(CommandNotAllowed) as refused:
        check_command(("curl\n", "--token", "hunter2"), ("ls",), {})
    assert "'curl\\n'" in caplog.text
    assert "hunter2" not in caplog.text + str(refused.value)


def test_an_entry_that_cannot_be_read_names_the_setting():
    with pytest.raises(ConfigurationError, match="SANDBOX_ALLOWED_COMMANDS"):
        check_command(("ls",), ("ls 'x",), {})
