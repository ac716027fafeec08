"""History and info, against a real server."""

from __future__ import annotations


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
