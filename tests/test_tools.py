from __future__ import annotations

import decimal
import math
import subprocess
import sys

import pytest

from fumehood import api, registry, run_code, run_python_code
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.execution import TRUNCATED
from fumehood.tools import text as tools
from fumehood.types import ExecutionResult
from pace import at_some_pace
from support import HANG_S


@pytest.fixture
def answers(monkeypatch):
    """Sets what the shared sandbox answers next."""

    def use(*replies, **settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"SANDBOX_{name.upper()}", str(value))
        fake = FakeBackend(replies=replies or None)
        monkeypatch.setattr(registry, "open_backend", lambda _: fake)
        api._shared.clear()
        return fake

    yield use
    api._shared.clear()


def test_output_alone_comes_back_as_it_is(answers):
    answers(Reply("4\n"))
    assert run_python_code("print(2 + 2)") == "4\n"


def test_no_output_is_said(answers):
    answers(Reply())
    assert run_python_code("x = 1") == "(no output)"


def test_warnings_of_a_program_that_went_well_are_shown_apart(answers):
    answers(Reply("4", "careful\n"))
    assert run_python_code("...") == "4\n[stderr]\ncareful\n"


def test_a_failure_says_what_happened_and_what_to_do(answers):
    answers(Reply("so far\n", "Traceback ...\nZeroDivisionError: division by zero\n", exit_code=1))
    text = run_python_code("1/0")
    assert text.startswith("Error: the program failed (exit code 1)\n[stderr]\nTraceback")
    assert "ZeroDivisionError: division by zero\n[stdout]\nso far\n" in text
    assert text.splitlines()[-1].startswith("Next: ")


def test_a_time_out_says_so(answers):
    def is_cut(timeout):
        answers(Reply("part", after_s=3600))
        text = run_python_code("while True: pass", timeout=timeout)
        assert text.startswith(f"Error: timed out after {timeout:g} s")
        assert "longer timeout" in text
        return "[stdout]\npart" in text

    assert at_some_pace(is_cut)


@pytest.mark.parametrize("reason", ["signal", "memory", "processes", "disk"])
def test_every_limit_has_its_own_words(answers, reason):
    answers(Reply(exit_code=137, reason=reason))
    text = run_python_code("...")
    assert tools._NEXT[reason] in text
    assert "fumehood: " in text


def test_a_lowered_timeout_is_said(answers):
    answers(Reply("ok"))
    assert "timeout lowered to the ceiling of 300 s" in run_python_code("...", timeout=1e9)


def test_long_output_keeps_head_and_tail(answers):
    answers(Reply("HEAD" + "x" * 100_000 + "TAIL"))
    text = run_python_code("...")
    assert text.startswith("HEAD")
    assert TRUNCATED in text
    assert text.endswith("TAIL")
    assert len(text) < 11_000


def test_the_whole_answer_is_bounded_too(answers):
    answers(Reply(b"\xff" * 50_000, b"\xfe" * 50_000, exit_code=1))
    assert len(run_python_code("...").encode()) <= 25_000


class Hostile:
    """Every way of looking at it raises."""

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __float__ = __index__ = __bool__ = __len__ = __hash__ = __iter__ = __eq__ = __format__ = __str__


class HostileText(str):
    __slots__ = ()
    encode = lower = strip = __str__ = __repr__ = __len__ = __iter__ = Hostile.__str__


# Functions, because pytest looks at its parameters.
BAD = {
    "none": lambda: None,
    "bytes": lambda: b"bytes",
    "number": lambda: 5,
    "list": list,
    "dict": dict,
    "object": object,
    "hostile object": Hostile,
    "class": lambda: type,
    "surrogate": lambda: "x\udfffy",
}
BAD_LANGUAGE = {
    **BAD,
    "unknown": lambda: "cobol",
    "empty": str,
    "nul": lambda: "\0",
    "long": lambda: "x" * 10_000_000,
    "hostile text": lambda: HostileText("python"),
}
BAD_TIMEOUT = {
    **{name: make for name, make in BAD.items() if name not in ("none", "number")},
    "zero": lambda: 0,
    "negative": lambda: -1,
    "nan": lambda: math.nan,
    "minus infinity": lambda: -math.inf,
    "text": lambda: "5",
    "true": lambda: True,
    "huge": lambda: -(10**400),
    "signalling nan": lambda: decimal.Decimal("sNaN"),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_code_of_any_kind_never_raises(answers, make):
    answers()
    text = run_python_code(make())
    assert text.startswith("Error (nothing ran): code ")
    text.encode()


@pytest.mark.parametrize("make", BAD_LANGUAGE.values(), ids=BAD_LANGUAGE)
def test_a_language_of_any_kind_never_raises(answers, make):
    answers()
    text = run_code("1", make())
    assert text.startswith("Error")
    text.encode()
    assert len(text.encode()) <= 25_000


@pytest.mark.parametrize("make", BAD_TIMEOUT.values(), ids=BAD_TIMEOUT)
def test_a_timeout_of_any_kind_never_raises(answers, make):
    answers()
    assert run_python_code("1", make()).startswith("Error")


@pytest.mark.parametrize("value", [math.inf, 10**400, 0.5, decimal.Decimal(2)], ids=["inf", "huge", "half", "decimal"])
def test_odd_but_valid_timeouts_run(answers, value):
    answers(Reply("ran"))
    assert "ran" in run_python_code("1", value)


TEXTS = {
    "empty": str,
    "nul": lambda: "\0",
    "nuls": lambda: "\0" * 1000,
    "unicode": lambda: "é\N{GRINNING FACE}",
    "hostile text": lambda: HostileText("print()"),
    "50 MB": lambda: "x" * 50_000_000,
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_any_text_is_run(answers, make):
    fake = answers(Reply("ran"))
    assert run_python_code(make()) == "ran"
    assert len(fake.commands) == 1


def test_text_beyond_the_disk_is_refused_and_says_why(answers):
    answers(file_mb=1)
    text = run_python_code("#" * 2_000_000)
    assert text.startswith("Error (nothing ran): code is 2,000,000 bytes")
    assert "SANDBOX_FILE_MB" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("SANDBOX_TIMEOUT_SEC", "soon"), ("SANDBOX_TYPO", "1"), ("SANDBOX_REQUIRE", "everything")],
)
def test_a_broken_configuration_is_text_that_names_the_setting(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    text = run_python_code("1")
    assert text.startswith("Error (nothing ran, the configuration is wrong): ")
    assert name in text


def test_an_unknown_backend_is_text_that_names_the_setting(monkeypatch):
    monkeypatch.setenv("SANDBOX_TYPE", "no-such-place")
    text = run_python_code("1")
    assert text.startswith("Error (nothing ran")
    assert "SANDBOX_TYPE" in text


def test_a_bug_of_ours_is_text_and_is_logged(answers, monkeypatch, caplog):
    answers()
    monkeypatch.setattr(tools, "render", lambda _: 1 / 0)
    assert run_python_code("1").startswith("Error: the sandbox failed (ZeroDivisionError)")
    assert "run_code failed" in caplog.text


def test_an_interrupt_passes(answers, monkeypatch):
    answers()

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tools, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_python_code("1")


def test_the_environment_is_read_at_each_call(monkeypatch):
    monkeypatch.setenv("SANDBOX_TYPE", "fake")
    assert run_code("a") == "a"
    monkeypatch.setenv("SANDBOX_SUPPORTED_LANGUAGES", "bash")
    assert "SANDBOX_SUPPORTED_LANGUAGES" in run_code("a")
    assert run_code("b", "bash") == "b"


def test_the_same_settings_share_one_sandbox_and_few_are_kept(answers, monkeypatch):
    answers()
    for seconds in (10, 10, 11, 12, 13, 14, 15):
        monkeypatch.setenv("SANDBOX_TIMEOUT_SEC", str(seconds))
        run_code("a")
    kept = [settings.timeout_sec for settings in api._shared]
    assert kept == [12, 13, 14, 15]


def test_a_blocked_import_is_text_that_names_it(answers):
    fake = answers(block_dangerous_imports="true")
    text = run_python_code("import os\nprint(os.getcwd())")
    assert text.startswith("Error: not run, because of imports that are blocked here")
    assert "os" in text
    assert fake.commands == []


def test_a_result_without_any_meta_still_renders():
    assert tools.render(ExecutionResult("", "boom", 1, 0.0)).startswith("Error: the program failed (exit code 1)")


def test_importing_the_tools_loads_no_event_loop():
    code = "import sys, fumehood.tools as t; t.run_code; t.render; print('asyncio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S, check=True
    )
    assert done.stdout == "False\n"


def test_the_names_of_the_package_are_there():
    import fumehood.tools

    assert all(getattr(fumehood.tools, name) is not None for name in fumehood.tools.__all__)
    assert set(fumehood.tools.__all__) <= set(dir(fumehood.tools))
    with pytest.raises(AttributeError):
        _ = fumehood.tools.no_such_name
