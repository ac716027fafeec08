"""History and info, against a real server."""

from __future__ import annotations

import time

from fumehood import records


def test_history_has_the_newest_first_and_goes_on_before_one(alice):
    made = [alice.post("/execute", json={"code": f"print({number})"}).json()["execution_id"] for number in range(3)]
    listed = alice.get("/history", params={"limit": 2}).json()
    assert [entry["execution_id"] for entry in listed] == made[:0:-1]
    assert listed[0].keys() == {
        *("execution_id", "time", "kind", "language", "title", "exit_code", "reason", "duration", "level", "session_id")
    }
    older = alice.get("/history", params={"limit": 1, "before": made[1]}).json()
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
    assert found["limits"]["timeout_s"] == 30
    assert found["languages"] == ["python"]
    assert found["network"] is False


def test_ten_thousand_records_are_soon_looked_through(start):
    """Another token's are in between, and each file is read once."""
    server = start(env={"SANDBOX_STORE_CODE": "always"})
    store = records.Store(server.directory / "artifacts" / "executions", policy="always")
    for number in range(10_000):
        name = "alice" if number % 1000 == 0 else "bob"
        record = {"execution_id": f"{number:022x}", "run_id": f"{name}-0123456789abcdef", "code": str(number)}
        assert store.save({**record, "result": {"exit_code": 0}}, failed=False)
    hers = [f"{number:022x}" for number in range(9000, -1, -1000)]
    with server.client() as client:
        first = client.get("/history", params={"limit": 200})
        began = time.monotonic()
        assert [entry["execution_id"] for entry in client.get("/history", params={"limit": 200}).json()] == hers
        assert client.get(f"/history/{hers[-1]}").json()["code"] == "0"
        assert client.get(f"/history/{'f' * 22}").status_code == 404
        assert time.monotonic() - began < 3
        assert [entry["execution_id"] for entry in first.json()] == hers[: len(first.json())]
        assert first.elapsed.total_seconds() < 15
        made = client.post("/execute", json={"code": "1"}).json()["execution_id"]
        assert client.get("/history", params={"limit": 1}).json()[0]["execution_id"] == made
