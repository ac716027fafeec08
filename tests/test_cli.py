"""The command line: what it prints, where, and the exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fumehood import __version__, errors
from fumehood.backends import fake
from fumehood.backends.fake import Reply
from fumehood.cli import run
from fumehood.cli.main import COMMANDS, EXIT_CODES, main
from fumehood.types import ExecutionResult
from marked import gone, is_up, new_marker
from pace import take_signals
from support import HANG_S

Run = Callable[..., tuple[int, str, str]]
OURS = [sys.executable, "-m", "fumehood"]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "DOCKER_", "XDG_CONFIG")) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SANDBOX_TYPE", "fake")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    """Call `main` with the fake backend; gives exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Reply]], list[fake.FakeBackend]]:
    """Script what the program does; gives the backends that were made."""

    def script(answers: Sequence[Reply]) -> list[fake.FakeBackend]:
        made: list[fake.FakeBackend] = []
        original = fake.FakeBackend

        def make(settings: Any) -> fake.FakeBackend:
            made.append(original(settings, answers))
            return made[-1]

        monkeypatch.setattr(fake, "FakeBackend", make)
        return made

    return script


def process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OURS, *words], capture_output=True, encoding="utf-8", timeout=HANG_S, **options)


class TestMain:
    def test_without_arguments_it_shows_help_and_fails(self, cli: Run) -> None:
        code, out, err = cli()
        assert (code, out) == (2, "")
        assert "usage: fumehood" in err

    def test_the_version_is_that_of_the_package(self, cli: Run) -> None:
        assert cli("--version") == (0, f"fumehood {__version__}\n", "")

    def test_an_unknown_command_is_a_usage_error(self, cli: Run) -> None:
        assert cli("frobnicate")[0] == 2

    def test_every_error_of_ours_has_an_exit_code_from_the_table(self) -> None:
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
        tables = {kind: next((c for k, c in EXIT_CODES if issubclass(kind, k)), 125) for kind in kinds}
        assert tables[errors.ConfigurationError] == 78
        assert tables[errors.IsolationUnavailable] == tables[errors.LanguageNotAllowed] == 126
        assert tables[errors.RuntimeMissing] == 127
        assert tables[errors.BadArgument] == tables[errors.ExtraMissing] == 2
        assert tables[errors.EngineFailed] == tables[errors.BackendUnavailable] == 125

    def test_it_also_runs_as_a_module(self) -> None:
        done = process("--version")
        assert (done.returncode, done.stdout) == (0, f"fumehood {__version__}\n")

    @pytest.mark.parametrize("words", [["--help"], ["run"], ["run", "-c", "1", "--timeout", "x"]])
    def test_help_and_usage_errors_load_neither_the_library_nor_asyncio(self, words: list[str]) -> None:
        code = f"import sys; from fumehood.cli.main import main; main({words}); print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S, check=True
        )
        loaded = set(done.stdout.splitlines()[-1].split())
        assert not loaded & {"asyncio", "subprocess", "yaml", "fumehood.api", "fumehood.engine"}
        assert words == ["--help"] or "fumehood.records" not in loaded

    def test_every_command_is_in_the_module_that_the_table_names(self, cli: Run) -> None:
        for command in COMMANDS:
            code, out, _ = cli(command, "--help")
            assert code == 0
            assert f"fumehood {command}" in out

    def test_a_defect_of_ours_is_125_and_not_the_programs_1(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "_program", lambda _: 1 / 0)
        code, _, err = cli("run", "-c", "1")
        assert code == 125
        assert "ZeroDivisionError" in err


class TestRun:
    def test_output_goes_to_stdout_and_stderr_and_the_exit_code_is_the_programs(self, cli: Run, replies: Any) -> None:
        replies([Reply("out\n", "err\n", 7)])
        assert cli("run", "-c", "x") == (7, "out\n", "err\n")

    def test_a_file_is_run(self, cli: Run, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("print('é')", "utf-8")
        assert cli("run", "a.py") == (0, "print('é')", "")

    @pytest.mark.parametrize("words", [(), ("-c", "1", "a.py")])
    def test_no_program_or_two_are_usage_errors(self, cli: Run, words: tuple[str, ...]) -> None:
        code, out, err = cli("run", *words)
        assert (code, out) == (2, "")
        assert "one program" in err

    def test_what_follows_two_dashes_is_the_programs(self, cli: Run, replies: Any, tmp_path: Path) -> None:
        (tmp_path / "in.csv").write_bytes(b"a,b\n")
        (tmp_path / "input").write_bytes(b"\xff\0")
        made = replies([Reply()])
        code, _, err = cli(
            "run",
            "-c",
            "1",
            "--env",
            "A=b=c",
            "--file",
            "in.csv=in.csv",
            "--stdin",
            "input",
            "--",
            "--json",
            "-c",
            "--",
        )
        assert (code, err) == (0, "")
        (command,) = made[0].commands
        assert command.argv == ("python", "main.py", "--json", "-c", "--")
        assert command.env == {"A": "b=c"}
        assert command.files == {"in.csv": b"a,b\n"}
        assert command.stdin == b"\xff\0"

    def test_json_is_the_whole_result(self, cli: Run, replies: Any) -> None:
        replies([Reply(b"\xff\n", "e", 3)])
        code, out, err = cli("run", "--json", "-c", "x")
        result = json.loads(out)
        assert (code, err) == (3, "")
        assert result.keys() == {"stdout", "stderr", "exit_code", "duration", "meta"}
        assert result["exit_code"] == 3
        assert result["stderr"] == "e"
        result["stdout"].encode()  # no lone surrogate

    def test_json_with_a_lone_surrogate_is_still_json_that_everybody_reads(self) -> None:
        text = run.to_json(ExecutionResult("a\udcffb", "", 0, 0.0, {}))
        assert json.loads(text)["stdout"] == "a\ufffdb"

    def test_a_timeout_is_124(self, cli: Run, replies: Any) -> None:
        replies([Reply("half", after_s=60)])
        code, out, err = cli("run", "--timeout", "0.2", "-c", "x")
        assert (code, out) == (124, "half")
        assert "timed out" in err

    def test_a_signal_is_128_and_its_number(self, cli: Run, replies: Any) -> None:
        replies([Reply(exit_code=139, reason="signal")])
        assert cli("run", "-c", "x")[0] == 139

    def test_a_blocked_import_is_126(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_BLOCK_DANGEROUS_IMPORTS", "true")
        code, _, err = cli("run", "-c", "import socket")
        assert code == 126
        assert "socket" in err

    def test_less_than_required_is_126(self, cli: Run) -> None:
        code, _, err = cli("run", "--require", "sealed", "-c", "x")
        assert code == 126
        assert err.startswith("fumehood: error: ")

    def test_a_language_that_is_not_allowed_is_126_and_names_the_setting(self, cli: Run) -> None:
        code, _, err = cli("run", "--language", "bash", "-c", "echo")
        assert code == 126
        assert "SANDBOX_SUPPORTED_LANGUAGES" in err

    def test_the_suffix_chooses_the_language(self, cli: Run, replies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_SUPPORTED_LANGUAGES", "python,bash")
        Path("a.sh").write_text("echo", "utf-8")
        made = replies([Reply()])
        assert cli("run", "a.sh")[0] == 0
        assert made[0].commands[0].argv[0] == "bash"

    @pytest.mark.parametrize(
        "words", [("missing.py",), (".",), ("-c", "1", "--stdin", "no"), ("-c", "1", "--file", "a=no")]
    )
    def test_a_file_that_cannot_be_read_is_127(self, cli: Run, words: tuple[str, ...]) -> None:
        code, out, err = cli("run", *words)
        assert (code, out) == (127, "")
        assert "cannot read" in err

    @pytest.mark.parametrize(
        "words",
        [
            ("--timeout", "x"),
            ("--timeout", "-1"),
            ("--timeout", "nan"),
            ("--env", "A"),
            ("--env", "=b"),
            ("--file", "../x=in"),
            ("--isolation", "strong"),
            ("--backend", "lokal"),
            ("--nonsense",),
        ],
    )
    def test_a_bad_argument_is_2(self, cli: Run, words: tuple[str, ...]) -> None:
        Path("in").write_text("", "utf-8")
        code, out, err = cli("run", "-c", "1", *words)
        assert (code, out) == (2, "")
        assert "error: " in err

    def test_a_file_that_is_not_utf8_is_refused(self, cli: Run) -> None:
        Path("a.py").write_bytes(b"x = '\xff'")
        code, _, err = cli("run", "a.py")
        assert code == 2
        assert "UTF-8" in err

    def test_input_without_end_is_refused(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "MAX_INPUT_BYTES", 1024 * 1024)
        code, _, err = cli("run", "-c", "1", "--stdin", "/dev/zero")
        assert code == 2
        assert "larger than 1 MiB" in err

    def test_a_bad_setting_is_78(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_TIMEOUT_SEC", "soon")
        code, _, err = cli("run", "-c", "1")
        assert code == 78
        assert "SANDBOX_TIMEOUT_SEC" in err

    def test_an_unknown_backend_from_a_setting_is_78(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_TYPE", "lokal")
        assert cli("run", "-c", "1")[0] == 78

    def test_a_broken_engine_is_125(self, cli: Run, replies: Any) -> None:
        replies([])
        code, out, err = cli("run", "--json", "-c", "1")
        assert code == 125
        assert json.loads(out)["error"]["type"] == "EngineFailed"
        assert err.startswith("fumehood: error: ")

    def test_an_env_file_counts_only_when_named(self, cli: Run) -> None:
        Path(".env").write_text("SANDBOX_SUPPORTED_LANGUAGES=bash\n", "utf-8")
        assert cli("run", "-c", "1")[0] == 0
        assert cli("run", "--env-file", ".env", "-c", "1")[0] == 126
        assert cli("run", "--env-file", "no.env", "-c", "1")[0] == 78

    def test_cut_output_says_how_to_get_more(self, cli: Run, replies: Any) -> None:
        replies([Reply("x" * 100_000)])
        code, out, err = cli("run", "-c", "1")
        assert code == 0
        assert "(output truncated)" in out
        assert "SANDBOX_MAX_OUTPUT_KB" in err


class TestStreams:
    def test_code_comes_from_a_pipe(self) -> None:
        assert process("run", "-", input="print(1)").stdout == "print(1)"

    def test_a_pipe_is_the_programs_standard_input(
        self, cli: Run, replies: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = replies([Reply()])
        with open("data", "w+b") as data:
            data.write(b"from a file")
            data.seek(0)
            monkeypatch.setattr(sys, "stdin", os.fdopen(os.dup(data.fileno())))
            assert cli("run", "-c", "1")[0] == 0
            sys.stdin.close()
        assert made[0].commands[0].stdin == b"from a file"

    def test_a_terminal_is_not_read(self) -> None:
        leader, follower = pty.openpty()
        try:
            assert process("run", "-c", "print(1)", stdin=follower).stdout == "print(1)"
        finally:
            os.close(leader)
            os.close(follower)

    def test_a_terminal_never_sees_control_characters(self) -> None:
        leader, follower = pty.openpty()
        try:
            code = "#\x1b[2J\x9b".encode()
            environ = {**os.environ, "PYTHONUTF8": "1"}  # or there would be no such character
            with subprocess.Popen(
                [*OURS, "run", "-c", code], stdin=subprocess.DEVNULL, stdout=follower, env=environ
            ) as child:
                assert child.wait(HANG_S) == 0
            assert os.read(leader, 100) == b"#\\x1b[2J\\x9b"
        finally:
            os.close(leader)
            os.close(follower)

    def test_a_reader_that_leaves_early_changes_nothing(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run([*OURS, "run", "-c", "x"], stdout=writer, stderr=subprocess.PIPE, timeout=HANG_S)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_reader_that_leaves_other_commands_is_141(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run([*OURS, "config", "show"], stdout=writer, stderr=subprocess.PIPE, timeout=HANG_S)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_a_full_disk_is_said(self) -> None:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*OURS, "run", "-c", "x"], stdout=full, stderr=subprocess.PIPE, timeout=HANG_S)
        assert done.returncode == 125
        assert b"No space left" in done.stderr

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
    def test_a_closed_stream_is_no_crash(self, closed: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$0" -m fumehood run -c x {closed}', sys.executable],
            capture_output=True,
            timeout=HANG_S,
        )
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_the_program_and_shows_what_it_had_printed(self, number: int) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", _SLEEPER],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=take_signals,
        )
        assert child.stderr is not None
        assert child.stderr.readline() == b"printed\n"
        child.send_signal(number)
        out, _ = child.communicate(timeout=HANG_S)
        assert child.returncode == 128 + number
        assert out == b"so far"


_SLEEPER = """
import sys
from fumehood.backends import fake
from fumehood.cli.main import main
original = fake.FakeBackend
def program():
    yield fake.Output("stdout", b"so far")
    print("printed", file=sys.stderr, flush=True)
    yield 3600.0
fake.FakeBackend = lambda settings: original(settings, [program()])
sys.stdin.close()
sys.exit(main(["run", "-c", "1"]))
"""


class TestConfig:
    def test_every_setting_is_shown_with_its_origin(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_TIMEOUT_SEC", "7")
        code, out, err = cli("config", "show", "--origin")
        rows = {line.split(" ", 1)[0]: line for line in out.splitlines()}
        assert (code, err) == (0, "")
        assert "7" in rows["SANDBOX_TIMEOUT_SEC"]
        assert rows["SANDBOX_TIMEOUT_SEC"].endswith("# environment SANDBOX_TIMEOUT_SEC")
        assert rows["SANDBOX_MEMORY_MB"].endswith("# default")
        assert "DOCKER_IMAGE" in rows

    def test_without_origin_it_is_an_environment_file(self, cli: Run) -> None:
        out = cli("config", "show")[1]
        assert "#" not in out
        Path("all.env").write_text(out, "utf-8")
        assert cli("config", "show", "--env-file", "all.env")[:2] == (0, out)

    def test_json(self, cli: Run) -> None:
        assert json.loads(cli("config", "show", "--json")[1])["timeout_sec"] == 30
        assert json.loads(cli("config", "show", "--json", "--origin")[1])["memory_mb"] == {
            "value": 1024,
            "origin": "default",
        }


class TestDoctor:
    def test_it_says_the_level_every_axis_and_what_to_know(self, cli: Run) -> None:
        code, out, err = cli("doctor")
        assert (code, err) == (1, "")  # the fake isolates nothing
        for text in ("level process", "files", "syscalls", "Languages", "artifacts/executions", "import screen is off"):
            assert text in out
        assert "\x1b" not in out

    def test_json_has_the_same(self, cli: Run) -> None:
        code, out, _ = cli("doctor", "--json")
        report = json.loads(out)
        assert code == 1
        assert report["level"] == "process"
        assert report["axes"]["files"]["level"] == "none"
        assert report["error"] is None
        assert report["records"] == {
            "directory": str(Path.cwd() / "artifacts" / "executions"),
            "policy": "on_error",
            "writable": True,
        }
        assert {row["name"]: row["allowed"] for row in report["languages"]} == {
            "python": True,
            "javascript": False,
            "bash": False,
        }

    def test_a_deleted_working_directory_is_named(
        self, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        code, out, _ = cli("doctor")
        assert code == 1
        assert "The working directory was deleted; set SANDBOX_ARTIFACTS_DIR to an absolute path." in out
        assert json.loads(cli("doctor", "--json")[1])["records"]["writable"] is False

    def test_a_level_that_cannot_be_had_is_explained(self, cli: Run) -> None:
        code, out, _ = cli("doctor", "--require", "sealed")
        assert code == 1
        assert "Nothing can run" in out

    def test_reasons_and_fixes_are_shown(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        axis = fake.Axis("confined", "a watch", step="mkdir cgroup", errno="EACCES", fix="delegate a cgroup")
        monkeypatch.setattr(fake, "RECEIPT", fake.Receipt("confined", {"memory": axis}))
        out = cli("doctor")[1]
        assert "why: mkdir cgroup failed: EACCES" in out
        assert "do:  delegate a cgroup" in out

    def test_the_screen_being_on_takes_the_warning_away(self, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_BLOCK_DANGEROUS_IMPORTS", "true")
        assert "import screen is off" not in cli("doctor")[1]


class TestLocal:
    @pytest.fixture(autouse=True)
    def _local(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("fumehood.backends.local", reason="the local engine is not there yet")
        monkeypatch.setenv("SANDBOX_TYPE", "local")
        monkeypatch.setenv("SANDBOX_TIMEOUT_SEC", f"{HANG_S:g}")

    def test_output_input_arguments_and_exit_code_pass_through(self) -> None:
        code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('e', file=sys.stderr); sys.exit(5)"
        done = process("run", "-c", code, "--", "-x", input="in")
        assert (done.returncode, done.stdout, done.stderr) == (5, "['-x'] in\n", "e\n")

    def test_a_timeout_is_124(self) -> None:
        assert process("run", "--timeout", "1", "-c", "while True: pass").returncode == 124

    def test_ctrl_c_kills_the_program(self) -> None:
        marker = new_marker()
        Path("main.py").write_text(
            f"import subprocess\nprint('up', flush=True)\nsubprocess.run(['sleep', '{marker}'])", "utf-8"
        )  # in a file, so that the marker is on no other command line
        child = subprocess.Popen(
            [*OURS, "run", "main.py"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=take_signals
        )
        assert is_up(marker)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=HANG_S)
        assert (child.returncode, out) == (130, b"up\n")
        assert gone(marker)

    def test_doctor_agrees_with_the_receipt_of_a_run(self, cli: Run) -> None:
        code, out, _ = cli("doctor", "--json")
        level = json.loads(out)["level"]
        result = json.loads(cli("run", "--json", "-c", "1")[1])
        assert level == result["meta"]["isolation"]["level"]
        assert code == (0 if level == "sealed" else 1)
