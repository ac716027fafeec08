from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood.api import get_sandbox
from fumehood.cli.main import main
from fumehood.errors import CommandNotAllowed, FileError
from fumehood.packages import Layer
from fumehood.records import Store, build, load_all
from fumehood.sync_session import open_session
from fumehood.types import ExecutionResult

Replay = Callable[..., tuple[int, str, str]]
EVIL = "\x1b]0;title\x07\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SANDBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def replay(capfd: pytest.CaptureFixture[str]) -> Replay:
    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["replay", *words])
        return (code, *capfd.readouterr())

    return call


def save(run_id: str = "r", step: int = 1, kind: str = "execute", **changes: Any) -> None:
    """A record as if the fake backend, which prints the program back, had run it."""
    code = changes.setdefault("code", "print(1)")
    stdout, exit_code = changes.pop("stdout", code), changes.pop("exit_code", 0)
    meta = {"reason": "error" if exit_code else "ok", **changes.pop("meta", {})}
    result = ExecutionResult(stdout, changes.pop("stderr", ""), exit_code, 0.1, meta)
    values: dict[str, Any] = {"backend": "fake", "language": "python", "timeout": 5.0, "kind": kind}
    record = build(execution_id=f"{run_id}-{step}", run_id=run_id, step=step, result=result, **values | changes)
    assert Store(Path("artifacts/executions"), policy="always").save(record, failed=exit_code != 0)


def statuses(output: str) -> list[str]:
    return [step["status"] for step in json.loads(output)["steps"]]


# --- what is the same


def test_a_session_is_replayed_in_one_session_and_comes_out_the_same(replay: Replay) -> None:
    with open_session(store_code="always") as session:
        session.run("x = 20")
        session.run("print('hello'); x + 1")
        session.write("/workspace/a.txt", "one two")
        session.write("/workspace/b.bin", b"\xff\x00")
        session.edit("/workspace/a.txt", "two", "three")
        session.exec(["cat", "a.txt"])
        session.run("open('c.txt', 'w').write('c'); 1 / 0")
        with pytest.raises(FileError):
            session.edit("/workspace/a.txt", "four", "five")
        with pytest.raises(CommandNotAllowed):
            session.exec(["nsenter"])
        run_id = session.run_id
    code, out, err = replay(run_id)
    assert out.splitlines()[-1] == "9 same", out
    assert "step 6  same  exec cat a.txt" in out.splitlines()
    assert (code, err) == (0, "")
    assert len(list(load_all(Path("artifacts/executions")))) == 9  # a replay is not recorded


def test_executions_are_replayed_each_afresh_with_their_arguments(replay: Replay) -> None:
    with get_sandbox(store_code="always") as sandbox:
        sandbox.execute("import sys; print(sys.argv[1:]); sys.exit(3)", args=["a", "b c"])
        sandbox.execute("import os; print(os.listdir()); open('x', 'w')")
        sandbox.execute("import os; print(os.listdir())")
    run_id = next(load_all(Path("artifacts/executions"))).record["run_id"]  # type: ignore[index]
    code, out, _ = replay(run_id, "--json")
    assert json.loads(out)["same"] is True
    assert statuses(out) == ["same"] * 3
    assert code == 0


def test_a_secret_in_the_output_is_compared_as_it_was_recorded(replay: Replay) -> None:
    key = "sk-" + "aB3" * 12
    with get_sandbox(store_code="always") as sandbox:
        sandbox.execute("print('sk-' + 'aB3' * 12)")
    code, out, _ = replay(find_only()["run_id"])
    assert key not in json.dumps(find_only())
    assert (code, out.splitlines()[-1]) == (0, "1 same")


def test_a_secret_that_an_earlier_output_named_is_compared_as_it_was_recorded(replay: Replay) -> None:
    with open_session(store_code="always") as session:
        session.run("word = 'correct' + '-horse-' + str(7); print(f'password={word!r}')")
        session.run("print(word)")
    assert "correct-horse-7" not in "".join(path.read_text("utf-8") for path in Path("artifacts/executions").glob("2*"))
    code, out, _ = replay(session.run_id)
    assert (code, out.splitlines()[-1]) == (0, "2 same"), out


def find_only() -> dict[str, Any]:
    (entry,) = load_all(Path("artifacts/executions"))
    assert entry.record is not None
    return entry.record


def test_copies_of_output_files_are_left_alone(replay: Replay) -> None:
    with open_session(store_code="always") as session:
        session.run("open('/tmp/output/a.txt', 'w').write('x')")
        copied = Path(session.output_dir)
    before = sorted(copied.rglob("*"))
    assert before
    assert replay(session.run_id)[0] == 0
    assert [folder.name for folder in Path("output").iterdir()] == [copied.name]
    assert sorted(copied.rglob("*")) == before


# --- what differs


def test_a_difference_is_shown_by_line_and_the_exit_code_is_one(replay: Replay) -> None:
    save(code="a\nb\n", stdout="a\nc\n", exit_code=3, meta={"reason": "error"})
    code, out, _ = replay("r", "--backend", "fake")
    assert code == 1
    lines = [line.strip() for line in out.splitlines()]
    assert "exit_code: 3 then, 0 now" in lines
    assert "reason: error then, ok now" in lines
    assert "-c" in lines
    assert "+b" in lines
    assert lines[-1] == "1 differs"


def test_json_has_both_sides_whole(replay: Replay) -> None:
    save(stdout="x" * 5000)
    code, out, _ = replay("r", "--backend", "fake", "--json")
    (step,) = json.loads(out)["steps"]
    assert (code, step["status"], step["kind"], step["execution_id"]) == (1, "differs", "execute", "r-1")
    assert step["differences"] == {"stdout": {"then": "x" * 5000, "now": "print(1)"}}


def test_a_long_difference_is_cut(replay: Replay) -> None:
    save(stdout="\n".join(map(str, range(500))))
    _, out, _ = replay("r", "--backend", "fake")
    assert len(out.splitlines()) < 60
    assert "more lines; --json has all" in out


def test_results_and_files_are_compared(replay: Replay) -> None:
    with open_session(store_code="always") as session:
        session.run("import os; open(f'{os.urandom(4).hex()}.txt', 'w').close(); os.urandom(4).hex()")
    code, out, _ = replay(session.run_id, "--json")
    assert code == 1
    assert set(json.loads(out)["steps"][0]["differences"]) == {"results", "files"}


def test_what_was_otherwise_is_named_beside_a_difference(replay: Replay) -> None:
    with get_sandbox(store_code="always", memory_mb=64) as sandbox:
        sandbox.execute("bytearray(200 * 2**20)")
    code, out, _ = replay(find_only()["run_id"])
    assert code == 1
    assert "resource_limits memory_bytes 67108864 then, memory_bytes 1073741824 now" in out


def test_output_of_hostile_programs_is_made_safe(replay: Replay) -> None:
    save(code=f"print(1)  # {EVIL}", stdout=EVIL + "\n", stderr=EVIL)
    _, out, _ = replay("r", "--backend", "fake")
    assert "\x1b]" not in out
    assert "\u202e" not in out
    assert "\\x1b]0;title" in out


def test_a_step_that_somebody_wrote_into_a_record_is_made_safe(replay: Replay) -> None:
    save()
    (path,) = Path("artifacts/executions").glob("2*.json")
    path.write_text(path.read_text("utf-8").replace('"step":1', '"step":"\\u001b[2J"'), "utf-8")
    _, out, _ = replay("r-1", "--backend", "fake")
    assert "\x1b" not in out
    assert "step \\x1b[2J" in out


# --- what cannot be replayed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": {"API_KEY": "secret-value"}}, "values of env are not stored: API_KEY"),
        ({"stdin": "text"}, "standard input is not stored"),
        ({"files": {"a.csv": "1"}}, "files it was given are not stored: a.csv"),
        ({"code": "key = 'sk-" + "aB3" * 12 + "'"}, "a secret in it was redacted"),
        ({"args": ["sk-" + "aB3" * 12]}, "a secret in it was redacted"),
        ({"code": "#" * 1_100_000}, "its text was cut for the record"),
        ({"code": b"# \xff", "stdout": ""}, "or was not UTF-8"),
        ({"meta": {"reason": "cancelled"}, "exit_code": 137}, "cancelled by its caller"),
        ({"kind": "dance"}, "does not know steps of the kind 'dance'"),
        ({"kind": "exec"}, "its record is not complete"),
        ({"kind": "write"}, "its record is not complete"),
        ({"kind": "edit", "path": "/tmp/a", "args": ["x"]}, "its record is not complete"),
        ({"kind": "write", "path": "/tmp/a", "code": "%", "encoding": "base64"}, "its record is not complete"),
        ({"language": "cobol"}, "cobol"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_record_does_not_hold_is_said_and_nothing_is_run(
    replay: Replay, changes: dict[str, Any], words: str
) -> None:
    save(**changes)
    code, out, _ = replay("r", "--backend", "fake")
    assert code == 1
    assert "step 1  not replayed" in out
    assert words in out
    assert out.splitlines()[-1] == "1 not replayed"


def test_a_record_that_was_changed_is_not_replayed(replay: Replay) -> None:
    save()
    (path,) = Path("artifacts/executions").glob("2*.json")
    path.write_text(path.read_text("utf-8").replace("print(1)", "print(2)"), "utf-8")
    code, out, _ = replay("r", "--backend", "fake")
    assert code == 1
    assert "changed after it was written" in out


def test_missing_steps_are_named_and_later_ones_are_run_with_a_doubt(replay: Replay) -> None:
    with open_session(store_code="on_error") as session:
        session.run("x = 1")
        session.run("y = 2")
        session.run("print(x + y); 1 / 0")
        session.run("z = 3")
        session.run("print(z); 1 / 0")
    code, out, err = replay(session.run_id)
    assert code == 1
    assert "not stored: step 1, 2, 4; only SANDBOX_STORE_CODE=always keeps all" in err
    assert "earlier steps are not replayed (step 1, 2); it may need what they left" in out
    assert "NameError" in out  # shown as the difference it makes
    assert out.splitlines()[-1] == "2 differs"


def test_steps_after_one_that_could_not_be_replayed_carry_a_doubt(replay: Replay) -> None:
    save(step=1, kind="run", session_id="s", code="password = '[redacted]'")
    save(step=2, kind="run", session_id="s", code="print(2)", meta={"results": []})
    code, out, _ = replay("r", "--backend", "fake")
    assert code == 1
    assert "step 1 could not be replayed; it may need what that left" in out
    assert out.splitlines()[-1] == "1 same, 1 not replayed"


def test_datasets_are_named_as_not_recorded(replay: Replay) -> None:
    save(kind="run", session_id="s", code="open('/tmp/data/sales.csv')")
    _, out, _ = replay("r", "--backend", "fake")
    assert "datasets are not recorded" in out


def with_dataset(path: Path) -> str:
    path.write_text("n\n1\n2\n", "utf-8")
    with open_session(datasets={"my sales": path}, store_code="always") as session:
        session.write("/workspace/a.txt", "x")
        session.run("print(open('/tmp/data/my_sales.csv').read())")
        session.exec(["cat", "/tmp/data/my_sales.csv"])
        return session.run_id


def test_datasets_are_lent_again_if_they_are_the_same(replay: Replay, tmp_path: Path) -> None:
    run_id = with_dataset(tmp_path / "in.csv")
    records = [entry.record or {} for entry in load_all(Path("artifacts/executions"))]
    [said] = next(record["datasets"] for record in records if record["kind"] == "run")
    assert (said["name"], said["path"]) == ("my sales", "/tmp/data/my_sales.csv")
    assert (said["source"], said["bytes"], len(said["sha256"])) == (str(tmp_path / "in.csv"), 6, 64)
    code, out, _ = replay(run_id)
    assert (code, out.splitlines()[-1]) == (0, "3 same"), out


@pytest.mark.parametrize(("what", "words"), [("change", "changed"), ("remove", "is missing")])
def test_a_dataset_that_is_not_the_same_is_said(replay: Replay, tmp_path: Path, what: str, words: str) -> None:
    run_id = with_dataset(tmp_path / "in.csv")
    if what == "change":
        (tmp_path / "in.csv").write_text("n\n1\n3\n", "utf-8")
    else:
        (tmp_path / "in.csv").unlink()
    code, out, _ = replay(run_id)
    assert code == 1
    assert out.count(f"dataset 'my sales' {words}: {tmp_path}/in.csv") == 2
    assert out.splitlines()[-1] == "1 same, 2 not replayed"


def test_a_step_with_requirements_of_its_own_gets_them_again(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    layer = Layer("/layers/1", ("six==1.17.0",))
    monkeypatch.setattr("fumehood.packages.ensure", lambda wanted, *_: (asked.append(list(wanted)), layer)[1])
    with open_session("fake", store_code="always") as session:
        session.run("a", requirements=["six"])
        session.run("b")
    code, out, _ = replay(session.run_id, "--backend", "fake")
    assert (code, out.splitlines()[-1]) == (0, "2 same"), out
    assert asked == [["six"], ["six==1.17.0"]]


def test_a_step_that_lost_its_sandbox_is_not_replayed(replay: Replay) -> None:
    save(kind="run", session_id="s", exit_code=125, meta={"lost": True})
    code, out, _ = replay("r", "--backend", "fake")
    assert code == 1
    assert "its sandbox went away, or did not start" in out


# --- which


def test_one_execution_is_found_by_the_beginning_of_its_id(replay: Replay) -> None:
    save("run", 1)
    save("run", 2)
    code, out, _ = replay("run-2", "--backend", "fake")
    assert (code, out.splitlines()[-1]) == (0, "1 same")
    code, out, err = replay("run-", "--backend", "fake")
    assert (code, out) == (2, "")
    assert "fits several executions; give more of it" in err


def test_steps_come_in_their_order_and_other_runs_stay_out(replay: Replay) -> None:
    for step in (2, 10, 1, *range(3, 10)):
        save("ours", step, code=f"print({step})")
    save("other", 1)
    _, out, _ = replay("ours", "--backend", "fake", "--json")
    assert [step["step"] for step in json.loads(out)["steps"]] == list(range(1, 11))


@pytest.mark.parametrize("wanted", ["nosuch", "", "../x"])
def test_an_unknown_run_is_an_error_that_names_history(replay: Replay, wanted: str) -> None:
    save()
    code, out, err = replay(wanted)
    assert (code, out) == (2, "")
    assert "`fumehood history` lists what is" in err


def test_records_elsewhere_are_named_by_their_directory(replay: Replay, tmp_path: Path) -> None:
    save()
    (tmp_path / "artifacts").rename(tmp_path / "kept")
    assert replay("r", "--backend", "fake")[0] == 2
    assert replay("r", "--backend", "fake", "--dir", "kept")[0] == 0


def test_usage_errors_end_with_two(replay: Replay) -> None:
    assert replay()[0] == 2
    assert replay("r", "--nosuch")[0] == 2
    save()
    assert replay("r", "--backend", "nosuch")[0] == 2
