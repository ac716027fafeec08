"""Sessions over HTTP, against a real server."""

from __future__ import annotations

import base64
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import LASTING, let_go, waiting
from sockets import opened

from running import TOKENS
from support import wait_until

NDJSON = {"Accept": "application/x-ndjson"}


def run(client, session, code, **further):
    return client.post(f"/sessions/{session}/run", json={"code": code, **further})


def test_a_session_says_what_it_is(alice, session):
    found = alice.get(f"/sessions/{session}").json()
    assert re.fullmatch(r"s_[A-Za-z0-9-]+_[A-Za-z0-9_-]{22}", found["session_id"])
    assert found["state"] == "open"
    assert found["busy"] is False
    assert found["places"].keys() == {"workspace", "tmp", "data", "output"}
    assert found["receipt"]["level"] in ("sealed", "confined", "process")
    assert found["idle_seconds"] == 900
    assert found["created_at"] < found["expires_at"]
    assert session in [each["session_id"] for each in alice.get("/sessions").json()["sessions"]]


def test_variables_and_files_are_kept(alice, session):
    assert run(alice, session, "x = 5\nopen('f.txt', 'w').write('kept')").status_code == 200
    found = run(alice, session, "x * 2").json()
    assert found["results"] == [{"text/plain": "10"}]
    assert found["session_id"] == session == found["meta"]["session_id"]
    done = alice.post(f"/sessions/{session}/exec", json={"command": ["cat", "f.txt"]}).json()
    assert done["stdout"] == "kept"


def test_execute_takes_a_session_too(alice, session):
    sent = {"path": "n.txt", "content_base64": base64.b64encode(b"7").decode()}
    code = {"code": "n = int(open('n.txt').read())", "session_id": session, "files": [sent]}
    assert alice.post("/execute", json=code).json()["exit_code"] == 0
    assert alice.post("/execute", json={"code": "n", "session_id": session}).json()["results"] == [{"text/plain": "7"}]
    listed = alice.post("/execute", json={"command": ["ls"], "session_id": session}).json()
    assert listed["stdout"] == "n.txt\n"


@pytest.mark.parametrize("field", [{"network": False}, {"limits": {}}, {"args": []}, {"language": "python"}])
def test_what_a_session_has_decided_is_no_part_of_a_call(alice, session, field):
    reply = alice.post("/execute", json={"code": "1", "session_id": session, **field})
    assert reply.status_code == 422
    assert f"`{next(iter(field))}`" in reply.json()["detail"]


def test_only_the_files_of_this_call_come_back(alice, session):
    first = run(alice, session, "import os; out = os.environ['TMPDIR'] + '/output/'; _ = open(out + 'a.txt','w')")
    assert [file["path"].rpartition("/")[2] for file in first.json()["files"]] == ["a.txt"]
    second = run(alice, session, "_ = open(out + 'b.bin','w').write('b')").json()
    assert [file["path"].rpartition("/")[2] for file in second["files"]] == ["b.bin"]
    assert run(alice, session, "1").json()["files"] == []


def test_a_session_is_narrowed_once_and_for_all(alice):
    asked = {"limits": {"processes": 30, "memory_mb": 10**8}, "idle": 10**6, "network": False}
    made = alice.post("/sessions", json=asked).json()
    try:
        assert sorted(made["limits_clamped"]) == ["idle", "memory_mb"]
        assert made["idle_seconds"] == 900
        meta = run(alice, made["session_id"], "1").json()["meta"]
        assert meta["resource_limits"]["processes"] == 30
    finally:
        alice.delete(f"/sessions/{made['session_id']}")


def test_an_ended_session_is_gone_and_not_forgotten_at_once(alice):
    made = opened(alice)
    assert alice.delete(f"/sessions/{made}").status_code == 204
    for reply in (alice.get(f"/sessions/{made}"), run(alice, made, "1"), alice.delete(f"/sessions/{made}")):
        assert (reply.status_code, reply.json()["code"]) == (410, "session_ended")
    assert made not in alice.get("/sessions").text


def test_an_idle_session_ends_by_itself(alice):
    made = alice.post("/sessions", json={"idle": 0.5}).json()["session_id"]
    assert wait_until(lambda: alice.get(f"/sessions/{made}").status_code == 410)
    assert run(alice, made, "1").status_code == 410


def test_another_tokens_session_is_not_there(alice, bob, session):
    calls = [
        bob.get(f"/sessions/{session}"),
        bob.delete(f"/sessions/{session}"),
        run(bob, session, "1"),
        bob.post(f"/sessions/{session}/exec", json={"command": ["ls"]}),
        bob.post("/execute", json={"code": "1", "session_id": session}),
        bob.post(f"/sessions/{session}/cancel"),
        bob.post(f"/sessions/{session}/ticket"),
        bob.get(f"/sessions/{session}/files"),
        bob.get(f"/sessions/{session}/files/content", params={"path": "/workspace/a"}),
        bob.put(
            f"/sessions/{session}/files/content",
            params={"path": "/workspace/a"},
            content=b"x",
            headers={"Content-Type": "application/octet-stream"},
        ),
        bob.post(f"/sessions/{session}/edit", json={"path": "/workspace/a", "old": "a", "new": "b"}),
    ]
    assert [reply.status_code for reply in calls] == [404] * len(calls)
    unknown = bob.get(f"/sessions/{session[:-1]}{'A' if session[-1] != 'A' else 'B'}").json()
    assert unknown["detail"] == calls[0].json()["detail"]
    assert session not in bob.get("/sessions").text
    assert alice.get(f"/sessions/{session}").status_code == 200


@pytest.mark.parametrize("forged", ["x", "s_", "s__", "...", "%2e%2e", "s_a_b", "0" * 64, "%00", "é"])
def test_a_forged_id_is_not_there(alice, forged):
    assert alice.get(f"/sessions/{forged}").status_code in (400, 404)


def test_a_session_of_another_instance_is_told_as_such(alice):
    reply = alice.get("/sessions/s_pod-7_aaaaaaaaaaaaaaaaaaaaaa")
    assert (reply.status_code, reply.json()["code"], reply.json()["instance"]) == (421, "misdirected", "pod-7")


def test_a_second_call_waits_for_its_turn(alice, session):
    with ThreadPoolExecutor(3) as threads:
        done = list(
            threads.map(lambda number: run(alice, session, f"import time; time.sleep(0.2); print({number})"), range(3))
        )
    assert sorted(reply.json()["stdout"] for reply in done) == ["0\n", "1\n", "2\n"]


def test_a_second_call_is_refused_where_the_server_is_set_so(start):
    server = start(env={"SANDBOX_SESSION_BUSY": "refuse"})
    with server.client() as client, server.client() as other:
        made = opened(client)
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(client.post, f"/sessions/{made}/run", json=LASTING)
            assert wait_until(lambda: waiting(server.process.pid))
            reply = run(other, made, "1")
            let_go(waiting(server.process.pid))
            assert (reply.status_code, reply.json()["code"]) == (409, "session_busy")
            assert first.result().status_code == 200


def test_cancel_interrupts_what_runs_and_keeps_the_state(server, alice, session):
    run(alice, session, "kept = 1")
    with server.client() as other:
        with other.stream("POST", f"/sessions/{session}/run", json=LASTING, headers=NDJSON) as reply:
            lines = reply.iter_lines()
            assert any("here" in line for line in lines)
            assert alice.get(f"/sessions/{session}").json()["busy"] is True
            assert alice.post(f"/sessions/{session}/cancel").status_code == 202
            found = json.loads(list(lines)[-1])
    assert found["meta"]["reason"] == "cancelled"
    assert run(alice, session, "kept").json()["results"] == [{"text/plain": "1"}]


def test_a_client_that_leaves_interrupts_its_run_and_the_state_is_kept(server, alice, session):
    run(alice, session, "kept = 1")
    with server.client() as other:
        with other.stream("POST", f"/sessions/{session}/run", json=LASTING, headers=NDJSON) as reply:
            assert any("output" in line for line in reply.iter_lines())
    found = run(alice, session, "kept").json()
    assert found["results"] == [{"text/plain": "1"}], found


def test_delete_ends_what_runs(server, alice):
    made, before = opened(alice), waiting(server.process.pid)
    with ThreadPoolExecutor(1) as threads, server.client() as other:
        slow = threads.submit(other.post, f"/sessions/{made}/run", json=LASTING)
        assert wait_until(lambda: waiting(server.process.pid) - before)
        assert alice.delete(f"/sessions/{made}").status_code == 204
        reply = slow.result()
    assert reply.status_code in (200, 410)
    if reply.status_code == 200:
        assert reply.json()["meta"]["reason"] == "cancelled"


def test_sessions_are_bounded_for_a_token_and_in_all(start):
    tokens = [
        {"name": "a", "token": "a" * 20, "max_sessions": 1},
        {"name": "b", "token": "b" * 20, "max_sessions": 2},
        {"name": "c", "token": "c" * 20, "max_sessions": 0},
    ]
    server = start("--max-sessions", "2", tokens=tokens)
    with server.client("a" * 20) as a, server.client("b" * 20) as b, server.client("c" * 20) as c:
        assert c.post("/sessions", json={}).status_code == 429
        first = a.post("/sessions", json={})
        assert first.status_code == 201
        second = a.post("/sessions", json={})
        assert (second.status_code, second.json()["code"]) == (429, "too_many")
        assert int(second.headers["retry-after"]) > 0
        assert b.post("/sessions", json={}).status_code == 201
        third = b.post("/sessions", json={})
        assert (third.status_code, third.json()["code"]) == (503, "unavailable")
        a.delete(f"/sessions/{first.json()['session_id']}")
        assert b.post("/sessions", json={}).status_code == 201


def test_an_owner_leaves_sessions_for_the_others(start):
    server = start("--max-sessions", "4")
    with server.client("alice") as alice, server.client("bob") as bob:
        made = [alice.post("/sessions", json={}) for _ in range(5)]
        assert [each.status_code for each in made] == [201] * 3 + [429] * 2
        assert "3 sessions here may be yours" in made[-1].json()["detail"]
        assert bob.post("/sessions", json={}).status_code == 201
        alice.delete(f"/sessions/{made[0].json()['session_id']}")
        assert alice.post("/sessions", json={}).status_code == 201


def test_many_sessions_at_once_never_pass_the_cap(start):
    server = start("--max-sessions", "3", tokens=[{"name": "alice", "token": TOKENS["alice"]}])
    with server.client() as client, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: client.post("/sessions", json={}).status_code, range(8)))
    assert sorted(made) == [201] * 3 + [503] * 5


def test_display_and_images_are_told(alice, session):
    code = "display({'text/html': '<b>x</b>', 'text/plain': 'x'}, raw=True)"
    with alice.stream("POST", f"/sessions/{session}/run", json={"code": code}, headers=NDJSON) as reply:
        found = [json.loads(line) for line in reply.iter_lines()]
    shown = [event["data"] for event in found if event["type"] == "display"]
    assert shown == found[-1]["results"]
    assert shown, found[-1]


def test_nothing_is_copied_to_the_servers_disk(server, alice, session):
    found = run(alice, session, "import os; _ = open(os.environ['TMPDIR'] + '/output/only-inside.txt', 'w')").json()
    assert len(found["files"]) == 1
    assert not (server.directory / "output").exists()
    assert "copied_files" not in found["meta"]


def test_threads_of_clients_do_not_meet(server):
    """Each finds its own variables."""
    failed = []

    def work(number):
        with server.client() as client:
            made = opened(client)
            run(client, made, f"mine = {number}")
            if run(client, made, "mine").json()["results"] != [{"text/plain": str(number)}]:
                failed.append(number)
            client.delete(f"/sessions/{made}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
