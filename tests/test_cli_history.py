from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli import history, history_view, terminal
from fumehood.cli.main import main
from fumehood.errors import BadArgument, RecordsError
from fumehood.records import Store, build
from fumehood.types import ExecutionResult
from support import HANG_S

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SANDBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    return tmp_path / "artifacts" / "executions"


def save(directory: Path, execution_id: str, exit_code: int = 0, **changes: Any) -> Path:
    stdout = changes.pop("stdout", "hello\n")
    reason = "ok" if exit_code == 0 else "error"
    meta = {"reason": reason, "runtime": "local", "isolation": {"level": "sealed"}}
    result = ExecutionResult(stdout, "", exit_code, 0.25, meta)
    values: dict[str, Any] = {"backend": "local", "language": "python", "code": "print('hello')", "timeout": 30.0}
    record = build(execution_id=execution_id, result=result, **values | changes)
    path = Store(directory, policy="always").save(record, failed=exit_code != 0)
    assert path
    return path


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    history.add_parsers(parser.add_subparsers(required=True))
    args = parser.parse_args(words)
    return int(args.handler(args))


def call_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = call(*words, "--json")
    return code, json.loads(capsys.readouterr().out)


def is_usage_error(*words: str) -> bool:
    with pytest.raises(SystemExit) as ended:
        call(*words)
    return ended.value.code == 2


# --- history


def test_history_lists_the_newest_first(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    save(directory, "bbb", exit_code=3, code="\n\n  import sys  \nsys.exit(3)")
    assert call("history") == 0
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["TIME", "(UTC)", "ID"]
    assert first.split()[2:] == ["bbb", "local", "python", "3", "error", "0.250", "import", "sys"]
    assert second.split()[2] == "aaa"


def test_history_filters(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(6):
        save(directory, f"id{i}", exit_code=i % 2, run_id=f"run{i % 3}", step=i)

    def ids(*words: str) -> list[str]:
        return [record["execution_id"] for record in call_json(capsys, "history", *words)[1]]

    assert ids() == ["id5", "id4", "id3", "id2", "id1", "id0"]
    assert ids("--limit", "2") == ["id5", "id4"]
    assert ids("--failed") == ["id5", "id3", "id1"]
    assert ids("--failed", "--limit", "1") == ["id5"]
    assert ids("--run", "run1") == ["id4", "id1"]
    assert ids("--since", "1h") == ids()
    assert ids("--since", "2099-01-01") == []
    assert ids("--limit", "0") == ids()


def test_a_streamed_list_reads_as_one_document(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("history", "--json") == 1
    assert capsys.readouterr().out == "[]\n"
    for i in range(3):
        save(directory, f"id{i}", stdout="a\nb\x7f")
        assert call("history", "--json") == 0
        out = capsys.readouterr().out
        assert out == json.dumps(json.loads(out), indent=2).replace("\x7f", "\\u007f") + "\n"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_long_history_takes_no_more_memory_than_a_short_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    def peak(count: int) -> int:
        for _ in range(count):
            writer.save({"execution_id": "id", "code": "x" * 20_000}, failed=False)
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            monkeypatch.setattr(sys, "stdout", nowhere)
            tracemalloc.start()
            try:
                assert call("history", "--limit", "0", *more) == 0
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    writer = Store(directory, policy="always")
    monkeypatch.setattr(history_view, "ALIGNED_ROWS", 10)
    peak(1)  # what is loaded once
    few = peak(30)
    assert peak(270) < few + 300_000  # all of it is 6 MB


def test_columns_grow_with_later_rows(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history_view, "ALIGNED_ROWS", 2)
    for execution_id in ("longest", "b", "a"):
        save(directory, execution_id)
    assert call("history") == 0
    assert [line[19:].split("local")[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        *("  a   ", "  b        ", "  longest  ")
    ]


def test_the_default_limit_is_twenty(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(22):
        save(directory, f"id{i}")
    assert len(call_json(capsys, "history")[1]) == 20


def test_since_takes_times_and_ages(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    now = datetime.now(UTC)
    before, after = now - timedelta(hours=1), now + timedelta(hours=1)
    for when in (before.isoformat(), f"{before:%Y-%m-%dT%H:%M}", "90s", "5 m", "2h", "1d", "1w", "2020-01-01"):
        assert call("history", "--since", when) == 0, when
    for when in (after.isoformat(), f"{after:%Y-%m-%d %H:%M}"):
        assert call("history", "--since", when) == 1, when
    for when in ("yesterday", "", "-5m", "9" * 30 + "d", "25:99"):
        assert is_usage_error("history", f"--since={when}"), when
    assert "is not a time" in capsys.readouterr().err


def test_an_empty_history_says_where_it_looked_and_the_policy(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("history") == 1
    assert "artifacts/executions (SANDBOX_STORE_CODE=on_error)" in capsys.readouterr().err
    assert call_json(capsys, "history") == (1, [])
    save(directory, "aaa")
    assert call("history", "--failed") == 1
    assert "no such execution" in capsys.readouterr().err


def test_history_skips_and_names_what_it_cannot_read(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    (directory / "20200101T000000.000000Z_0123456789abcdef.json").write_text("?", "utf-8")
    assert call("history") == 0
    captured = capsys.readouterr()
    assert "aaa" in captured.out
    assert "20200101T000000.000000Z_0123456789abcdef.json" in captured.err


def test_records_of_any_shape_can_be_listed_and_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"result": 3, "code": None, "execution_id": 7},
        {"result": {"meta": "x", "duration": "y", "exit_code": [1]}, "args": 1, "env": "e", "timestamp": 5},
    ]
    for record in odd:
        assert Store(directory, policy="always").save(record, failed=True)
        assert call("show", "latest") == 0
    assert call("history") == 0
    assert len(capsys.readouterr().out.splitlines()) > 4


def test_a_given_directory_may_be_the_artifacts_or_the_records(
    tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    save(elsewhere / "executions", "aaa")
    assert call("history") == 1
    for given in (elsewhere, elsewhere / "executions"):
        for command in (["history"], ["show", "aaa"], ["verify"]):
            assert call(*command, "--dir", str(given)) == 0
    assert not directory.exists()  # looking makes nothing
    capsys.readouterr()


def test_a_directory_that_cannot_be_read_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    for command in (["history"], ["show", "latest"], ["verify"], ["history", "--prune", "--keep", "1"]):
        with pytest.raises(RecordsError, match="cannot be"):
            call(*command, "--dir", str(tmp_path / "file"))


def test_a_deleted_working_directory_is_our_error(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in (["history"], ["show", "latest"], ["verify"], ["verify", "--dir", "artifacts"]):
        with pytest.raises(RecordsError, match=r"was deleted: change to .* absolute path"):
            call(*command)
    save(directory, "aaa")
    assert call("show", "aaa", "--dir", str(directory)) == 0


# --- prune


def test_prune_by_count_age_and_size(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(6):
        save(directory, f"id{i}")
    assert call_json(capsys, "history", "--prune", "--older-than", "1")[1]["removed"] == 0
    assert call_json(capsys, "history", "--prune", "--max-mb", "1")[1]["removed"] == 0
    assert call_json(capsys, "history", "--prune")[1]["removed"] == 0  # well under SANDBOX_STORE_MAX_MB
    assert call_json(capsys, "history", "--prune", "--keep", "4")[1]["removed"] == 2
    assert call_json(capsys, "history", "--prune", "--max-mb", "0.001")[1]["removed"] > 1
    assert call("history", "--prune", "--older-than", "0") == 0
    assert "removed from" in capsys.readouterr().out
    code, report = call_json(capsys, "verify")
    assert (code, report["ok"], report["records"], report["pruned"]["count"]) == (0, True, 0, 6)


def test_nothing_is_removed_without_the_word_prune(directory: Path) -> None:
    save(directory, "aaa")
    for words in (["--keep", "0"], ["--older-than", "0"], ["--max-mb", "0"]):
        with pytest.raises(BadArgument, match="--prune"):
            call("history", *words)
    assert call("show", "aaa") == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--keep", "-1"],
        ["--keep", "x"],
        ["--older-than", "nan"],
        ["--older-than", "-1"],
        ["--older-than", "1e9"],
        ["--max-mb", "nan"],
        ["--max-mb=-1"],
        ["--limit", "1.5"],
    ],
)
def test_senseless_numbers_are_usage_errors(words: list[str], directory: Path) -> None:
    assert is_usage_error("history", "--prune", *words)
    assert not directory.exists()


# --- show


def test_show_prints_what_was_asked_and_came_out(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(
        directory, "0123456789", args=["-v"], env={"TOKEN": "hidden-value"}, run_id="r7", step=2, stdout="hidden-value"
    )
    assert call("show", "0123") == 0
    out = capsys.readouterr().out
    for part in ("0123456789", "r7", '["-v"]', "TOKEN", "print('hello')", "0 (ok)", "sealed", "0.250 s of 30.0 s"):
        assert part in out, part
    assert "hidden-value" not in out


def test_show_latest(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    save(directory, "bbb")
    assert call_json(capsys, "show", "latest")[1]["execution_id"] == "bbb"


def test_show_tells_not_found_from_ambiguous(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "latest") == 1
    save(directory, "abc1")
    save(directory, "abc2")
    capsys.readouterr()
    assert main(["show", "abc"]) == 2
    assert "fits 2 executions: abc2, abc1" in capsys.readouterr().err
    for i in range(5):
        save(directory, f"abc3{i}")
    assert main(["show", "abc"]) == 2
    assert "fits more than 5 executions: abc34, " in capsys.readouterr().err
    for unknown in ("nothing", "", "../../etc/passwd"):
        assert main(["show", unknown]) == 2
    assert "`fumehood history` lists what is" in capsys.readouterr().err


def test_show_takes_a_file_name_and_a_hash(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(directory, "aaa")
    save(directory, "bbb")
    for word in (path.name, path.stem, json.loads(path.read_text("utf-8"))["hash"]):
        assert call_json(capsys, "show", word)[1]["execution_id"] == "aaa"


def test_show_says_that_a_record_was_changed_or_is_unreadable(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(directory, "aaa")
    path.write_bytes(path.read_bytes().replace(b"hello", b"jello"))
    assert call("show", "aaa") == 1
    captured = capsys.readouterr()
    assert "jello" in captured.out
    assert "was changed after it was written" in captured.err
    path.write_text("?", "utf-8")
    assert call("show", path.name) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_nothing_that_a_program_wrote_can_drive_the_terminal(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(
        directory,
        f"id{EVIL}",
        code=EVIL + "\r\n",
        stdout=EVIL,
        args=[EVIL],
        files={EVIL: b""},
        run_id=EVIL,
        reasoning_trace=EVIL + "\nforged: line",
        backend=EVIL,
        language=EVIL,
        exit_code=1,
    )
    for words in (["history"], ["show", "latest"], ["history", "--json"], ["show", "latest", "--json"], ["show", "id"]):
        assert call(*words) == 0
    save(directory, f"id{EVIL}2")
    assert main(["show", "id"]) == 2
    path = next(directory.glob("2*.json"))
    path.write_text(path.read_text("utf-8").replace('"sequence":1', '"sequence":"\\u001b[2J"'), "utf-8")
    call("history")
    call("verify")
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not set(text) & set("\x1b\x07\x9b\u202e\r")
    assert "\nforged: line" not in captured.out


# --- verify


def test_verify_prints_the_head_and_takes_it_back(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    head = json.loads(save(directory, "bbb").read_text("utf-8"))["hash"]
    assert call("verify") == 0
    out = capsys.readouterr().out
    assert "sound: 2 record(s)" in out
    assert head in out
    save(directory, "ccc")
    assert call("verify", "--expect", head.upper()) == 0
    assert "found as record 2; 1 newer" in capsys.readouterr().out
    assert call("verify", "--expect", "f" * 64) == 1
    assert "no record here has the expected hash" in capsys.readouterr().out
    assert is_usage_error("verify", "--expect", "abc")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("where", [Terminal, io.StringIO])
@pytest.mark.parametrize("patience_s", [0.0, HANG_S])
def test_verify_that_takes_long_tells_a_terminal_how_far_it_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch, where: type[io.StringIO], patience_s: float
) -> None:
    for name, value in (("NO_COLOR", ""), ("FORCE_COLOR", ""), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal, "_PATIENCE_S", patience_s)
    monkeypatch.setattr(sys, "stderr", err := where())
    save(directory, "aaa")
    assert call("verify") == 0
    told = where is Terminal and patience_s == 0
    assert err.getvalue() == ("\r\x1b[Kverifying record 0 of 1\r\x1b[K" if told else "")


def test_verify_of_a_broken_chain_fails_and_says_what(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, "aaa")
    path = save(directory, "bbb")
    save(directory, "ccc")
    path.unlink()
    assert call("verify") == 1
    out = capsys.readouterr().out
    assert "BROKEN: 1 problem(s)" in out
    assert "record 2 is missing" in out
    code, report = call_json(capsys, "verify")
    assert (code, report["ok"]) == (1, False)
    assert report["problems"][0]["kind"] == "missing"


def test_verify_of_nothing_is_not_a_success(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify") == 1
    assert not directory.exists()
    assert "nothing to verify" in capsys.readouterr().err
    assert call_json(capsys, "verify")[1]["ok"] is False


def test_verify_says_how_many_were_pruned(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(5):
        save(directory, f"id{i}")
    assert call("history", "--prune", "--keep", "2") == 0
    assert call("verify") == 0
    assert "pruned  3 before them" in capsys.readouterr().out


def test_the_commands_work_from_the_shell(directory: Path) -> None:
    save(directory, "aaa")

    def fumehood(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, "-m", "fumehood", *words],
            capture_output=True,
            encoding="utf-8",
            env=environ,
            timeout=HANG_S,
        )

    assert "aaa" in fumehood("history").stdout
    assert json.loads(fumehood("show", "aaa", "--json").stdout)["execution_id"] == "aaa"
    assert fumehood("verify").returncode == 0
    unknown = fumehood("show", "zzz", "--json")
    assert (unknown.returncode, json.loads(unknown.stdout)["error"]["exit_code"]) == (2, 2)
    assert fumehood("replay", "zzz").returncode == 2
    assert fumehood("history", "--keep", "1").returncode == 2
