"""History and info, against a real server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fumehood import records
from fumehood.server import history
from fumehood.server.tokens import Token
from support import HANG_S, wait_until


def test_history_has_the_newest_first_and_goes_on_before_one(dave):
    made = [dave.post("/execute", json={"code": f"print({number})"}).json()["execution_id"] for number in range(3)]
    listed = dave.get("/history", params={"limit": 2}).json()
    assert [entry["execution_id"] for entry in listed] == made[:0:-1]
    assert listed[0].keys() == {
        *("execution_id", "time", "kind", "language", "title", "exit_code", "reason", "duration", "level", "session_id")
    }
    older = dave.get("/history", params={"limit": 1, "before": made[1]}).json()
    assert [entry["execution_id"] for entry in older] == [made[0]]


def test_a_record_is_whole_and_has_its_receipt(alice, session):
    ran = alice.post(f"/sessions/{session}/run", json={"code": "1/0"}).json()
    found = alice.get(f"/history/{ran['execution_id']}").json()
    assert found["code"] == "1/0"
    assert found["session_id"] == session
    assert found["result"]["meta"]["isolation"] == ran["meta"]["isolation"]
    entry = next(e for e in alice.get("/history").json() if e["execution_id"] == ran["execution_id"])
    assert (entry["session_id"], entry["kind"], entry["reason"]) == (session, "run", "error")


def test_a_token_sees_only_its_own(alice, bob):
    hers = alice.post("/execute", json={"code": "print('hers')"}).json()["execution_id"]
    his = bob.post("/execute", json={"code": "print('his')"}).json()["execution_id"]
    assert bob.get(f"/history/{hers}").status_code == 404
    assert hers not in bob.get("/history").text
    assert alice.get(f"/history/{his}").status_code == 404
    assert bob.get(f"/history/{his}").json()["code"] == "print('his')"


def test_an_id_is_whole_or_nothing(alice):
    made = alice.post("/execute", json={"code": "1"}).json()["execution_id"]
    for wrong in (made[:10], made[:-1], made + "0", "%2e%2e", "0" * 22, "*"):
        assert alice.get(f"/history/{wrong}").status_code in (404, 400), wrong


def test_a_secret_in_the_environment_is_not_in_the_record(alice):
    body = {"code": "import os; print(os.environ['API_TOKEN'])", "env": {"API_TOKEN": "very-secret-value-123"}}
    ran = alice.post("/execute", json=body).json()
    assert ran["stdout"] == "very-secret-value-123\n"
    assert "very-secret-value-123" not in alice.get(f"/history/{ran['execution_id']}").text


def test_info_says_what_there_is(alice):
    found = alice.get("/info").json()
    assert found["protocol"] == 1
    assert found["backend"] == "local"
    assert found["level"] == found["receipt"]["level"]
    assert found["limits"]["timeout_s"] == HANG_S
    assert found["languages"] == ["python"]
    assert found["network"] is False


def stored(directory: Path, number: int) -> list[str]:
    """So many records, one in each tenth of them alice's and the others another token's; the ids of hers."""
    store = records.Store(directory, policy="always")
    every = number // 10
    for each in range(number):
        name = "alice" if each % every == 0 else "bob"
        record = {"execution_id": f"{each:022x}", "run_id": f"{name}-0123456789abcdef", "code": str(each)}
        assert store.save({**record, "result": {"exit_code": 0}}, failed=False)
    return [f"{each:022x}" for each in range(number - every, -1, -every)]


def test_each_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hers = stored(tmp_path / "executions", 100)
    monkeypatch.setattr(history, "SEARCH_S", HANG_S)
    read, read_entry = [], history.files.read_entry
    monkeypatch.setattr(history.files, "read_entry", lambda *args: read.append(args[1]) or read_entry(*args))
    index = history.Index(SimpleNamespace(settings=SimpleNamespace(artifacts_dir=str(tmp_path))))
    alice = Token("alice", b"a" * 32)
    assert [entry.execution_id for entry in index.newest(alice, 200, None)] == hers
    assert len(read) == len(set(read)) == 100
    assert [entry.execution_id for entry in index.newest(alice, 200, None)] == hers
    assert index.one(alice, "f" * 22) is None
    assert len(read) == 100
    found = index.one(alice, hers[-1])
    assert found is not None
    assert (found["code"], len(read)) == ("0", 101)  # the one that is asked for is read whole


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_records_are_looked_through(start, number):
    """A request that has no time to read them all gives what it found, and the next one goes on from there."""
    server = start(env={"SANDBOX_STORE_CODE": "always"})
    hers = stored(server.directory / "artifacts" / "executions", number)
    with server.client() as client:

        def listed() -> list[str]:
            return [entry["execution_id"] for entry in client.get("/history", params={"limit": 200}).json()]

        first = listed()
        assert first == hers[: len(first)]
        assert wait_until(lambda: listed() == hers)
        assert client.get(f"/history/{hers[-1]}").json()["code"] == "0"
        assert client.get(f"/history/{'f' * 22}").status_code == 404
        made = client.post("/execute", json={"code": "1"}).json()["execution_id"]
        assert client.get("/history", params={"limit": 1}).json()[0]["execution_id"] == made
