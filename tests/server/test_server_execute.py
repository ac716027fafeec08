"""POST /execute against a real server."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import pytest
from processes import LASTING, let_go, waiting
from raw_http import connect, head

from running import TOKENS
from support import wait_until


def encoded(data: bytes | str) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def events_of(client: httpx2.Client, accept: str, path: str = "/execute", **body: Any) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body, headers={"Accept": accept}) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith(accept)
        lines = list(reply.iter_lines())
    if accept == "text/event-stream":
        assert [line for line in lines if line.startswith("id: ")] == [
            f"id: {number + 1}" for number in range(sum(line.startswith("data: ") for line in lines))
        ]
        lines = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line]


def test_code_gives_its_output_and_its_receipt(alice):
    reply = alice.post("/execute", json={"code": "print(6 * 7)"})
    assert reply.status_code == 200
    found = reply.json()
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("42\n", "", 0)
    assert found["session_id"] is None
    assert found["results"] == []
    assert found["files"] == []
    assert found["execution_id"] == found["meta"]["execution_id"]
    assert found["meta"]["isolation"]["level"] in ("sealed", "confined", "process")
    assert found["duration"] > 0


def test_a_program_that_fails_is_an_answer_not_an_error(alice):
    found = alice.post("/execute", json={"code": "import sys; sys.exit(7)"}).json()
    assert (found["exit_code"], found["meta"]["reason"]) == (7, "error")


def test_files_of_the_output_directory_come_back(alice):
    code = """
import os
os.makedirs("/tmp/output/deep", exist_ok=True)
open("/tmp/output/a.csv", "w").write("x,y")
open("/tmp/output/deep/b.bin", "wb").write(bytes(range(256)))
os.symlink("/etc/passwd", "/tmp/output/link")
os.mkfifo("/tmp/output/pipe")
open("/tmp/elsewhere", "w").write("not this one")
"""
    found = alice.post("/execute", json={"code": code}).json()
    assert found["exit_code"] == 0, found["stderr"]
    files = {file["path"].rpartition("/output/")[2]: file for file in found["files"]}
    assert files.keys() == {"a.csv", "deep/b.bin"}
    assert base64.b64decode(files["a.csv"]["content_base64"]) == b"x,y"
    assert files["a.csv"]["mime"] == "text/csv"
    assert base64.b64decode(files["deep/b.bin"]["content_base64"]) == bytes(range(256))
    assert files["deep/b.bin"]["size"] == 256


def test_files_with_odd_names_are_named_and_left_out(alice):
    code = """
import os
os.makedirs(b'/tmp/output/dir-\\xff')
for name in (b'new\\nline', b'\\xff\\xfe', b'\\xff\\xff', b'\\xed\\xa0\\x80', b'x' * 255, b'dir-\\xff/inside', b'ok'):
    open(b'/tmp/output/' + name, 'w').close()
"""
    found = alice.post("/execute", json={"code": code}).json()
    assert found["exit_code"] == 0, found["stderr"]
    assert {file["path"].rpartition("/")[2] for file in found["files"]} == {"x" * 255, "ok"}
    left = found["meta"]["files_left_out"]
    names = {entry["path"].removeprefix("/tmp/output/") for entry in left}
    assert names == {"new\\nline", r"\x1aff\x1afe", r"\x1aff\x1aff", r"\x1aed\x1aa0\x1a80", r"dir-\x1aff/inside"}
    assert {entry["why"] for entry in left} == {"its name has control or direction characters"}


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize("in_session", [False, True])
def test_what_is_no_file_is_named_and_left_out(alice, accept, in_session):
    code = """
import os
os.symlink('/etc', '/tmp/output/link')
os.mkfifo('/tmp/output/pipe')
os.makedirs('/tmp/output/closed/d'); os.chmod('/tmp/output/closed', 0)
"""
    made = alice.post("/sessions", json={}).json()["session_id"] if in_session else None
    path, body = f"/sessions/{made}/run" if in_session else "/execute", {"code": code}
    if accept == "application/json":
        found = alice.post(path, json=body).json()
    else:
        found = events_of(alice, accept, path, **body)[-1]
    if in_session:
        alice.delete(f"/sessions/{made}")
    assert (found["files"], found["stderr"]) == ([], "")
    left = {entry["path"].removeprefix("/tmp/output/"): entry["why"] for entry in found["meta"]["files_left_out"]}
    assert left == {
        "link": "a symbolic link, which is never followed",
        "pipe": "a named pipe",
        "closed": "a directory that cannot be looked into",
    }


def test_files_past_the_caps_are_named_and_left_out(alice):
    code = """
open("/tmp/output/0big", "wb").write(bytes(6 << 20))
for number in range(30):
    open(f"/tmp/output/{number:02}", "w").write("x")
"""
    found = alice.post("/execute", json={"code": code}).json()
    assert len(found["files"]) == 20
    left = {entry["path"].rpartition("/")[2]: entry["why"] for entry in found["meta"]["files_left_out"]}
    assert len(left) == 11
    assert left["0big"] == "larger than 5 MB"
    assert left["29"] == "more than 20 files"


def test_files_are_laid_out_before_the_program_runs(alice):
    found = alice.post(
        "/execute",
        json={
            "code": "print(open('in/a.txt').read() + open('/tmp/b.txt').read() + open('/workspace/c.txt').read())",
            "files": [
                {"path": "in/a.txt", "content_base64": encoded("1")},
                {"path": "/tmp/b.txt", "content_base64": encoded("2")},
                {"path": "/workspace/c.txt", "content_base64": encoded("3")},
            ],
        },
    ).json()
    if found["meta"]["isolation"]["level"] != "sealed":
        pytest.skip("without a root of its own /tmp is the machine's")
    assert found["stdout"] == "123\n", found["stderr"]


def test_a_command_runs_in_a_session_of_its_own(alice):
    found = alice.post(
        "/execute",
        json={
            "command": ["sh", "-c", "cat; cat note.txt; echo $WHO; echo made > $TMPDIR/output/made.txt"],
            "stdin_base64": encoded("in "),
            "env": {"WHO": "me"},
            "files": [{"path": "note.txt", "content_base64": encoded("note ")}],
        },
    ).json()
    assert (found["stdout"], found["exit_code"]) == ("in note me\n", 0), found["stderr"]
    assert found["session_id"] is None
    assert "session_id" not in found["meta"]
    assert [file["path"].rpartition("/")[2] for file in found["files"]] == ["made.txt"]


def test_stdin_args_and_environment_reach_the_program(alice):
    code = "import os, sys; print(sys.stdin.read(), sys.argv[1:], os.environ['A'])"
    body = {"code": code, "stdin_base64": encoded("in"), "args": ["x", "y z"], "env": {"A": "b"}}
    assert alice.post("/execute", json=body).json()["stdout"] == "in ['x', 'y z'] b\n"


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_events_come_in_their_order_and_end_with_the_whole(alice, accept):
    code = "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr)\nopen('/tmp/output/f.txt','w').write('f')"
    found = events_of(alice, accept, code=code)
    kinds = [event["type"] for event in found]
    assert kinds[0] == "started"
    assert kinds[-1] == "result"
    assert kinds[-2] == "file"
    assert {"type": "output", "stream": "stdout", "text": "a\n"} in found
    assert {"type": "output", "stream": "stderr", "text": "b\n"} in found
    result = found[-1]
    assert result["execution_id"] == found[0]["execution_id"]
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("a\n", "b\n", 0)
    assert found[-2]["path"] == result["files"][0]["path"]


def test_output_comes_while_the_program_runs(server, alice):
    headers = {"Accept": "application/x-ndjson"}
    with alice.stream("POST", "/execute", json=LASTING, headers=headers) as reply:
        lines = reply.iter_lines()
        assert any("here" in line for line in lines)
        let_go(waiting(server.process.pid))  # what has told nothing yet would last
        assert json.loads(list(lines)[-1])["stdout"] == "here\ndone\n"


def test_a_character_cut_between_two_writes_is_whole_in_the_events(alice):
    code = """
import os, time
for byte in "é€𝄞".encode():
    os.write(1, bytes([byte]))
    time.sleep(0.02)
"""
    found = events_of(alice, "application/x-ndjson", code=code)
    texts = [event for event in found if event["type"] == "output"]
    assert all("base64" not in event for event in texts)
    assert "".join(event["text"] for event in texts) == "é€𝄞"


def test_bytes_that_are_no_text_come_as_base64(alice):
    found = events_of(alice, "application/x-ndjson", code="import os; os.write(1, bytes([255, 254, 65]))")
    data = b"".join(base64.b64decode(event["base64"]) for event in found if event["type"] == "output")
    assert data == bytes([255, 254, 65])


def test_a_refusal_before_the_start_of_a_stream_has_its_own_status(alice):
    headers = {"Accept": "text/event-stream"}
    reply = alice.post("/execute", json={"command": ["no-such-command"]}, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (403, "command_not_allowed")


def test_an_accept_that_cannot_be_met_is_refused(alice):
    reply = alice.post("/execute", json={"code": "1"}, headers={"Accept": "image/png"})
    assert (reply.status_code, reply.json()["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/event-stream;q=0, application/json", "application/json"),
        ("text/event-stream; q=0.0, */*", "application/json"),
        ("application/json;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("application/json;q=0.1, text/event-stream;q=0.9", "text/event-stream"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("application/json, text/event-stream", "application/json"),
        ("text/event-stream, application/json", "text/event-stream"),
        ("text/event-stream;q=wrong", "text/event-stream"),
        ("application/json;q=0, text/html", None),
        ("*/*;q=0", None),
    ],
)
def test_accept_is_weighed(alice, accept, kind):
    reply = alice.post("/execute", json={"code": "1"}, headers={"Accept": accept})
    assert reply.status_code == (406 if kind is None else 200)
    assert kind is None or reply.headers["content-type"].startswith(kind)


def test_a_request_only_narrows(alice):
    limits = {"memory_mb": 10**9, "processes": 20, "output_kb": 1}
    body = {"code": "print('x' * 5000)", "timeout": 1e9, "network": True, "limits": limits}
    meta = alice.post("/execute", json=body).json()["meta"]
    assert meta["timeout"] == 300
    assert meta["timeout_clamped"] is True
    assert meta["resource_limits"]["memory_bytes"] == 1024 * 1024 * 1024
    assert meta["resource_limits"]["processes"] == 20
    assert meta["stdout_truncated"] is True
    assert sorted(meta["limits_clamped"]) == ["memory_mb", "network"]


def test_a_timeout_is_a_result(alice):
    found = alice.post("/execute", json={"code": "while True: pass", "timeout": 0.3}).json()
    assert (found["exit_code"], found["meta"]["reason"]) == (-1, "timeout")


def test_a_client_that_leaves_ends_its_program(server):
    """Its place among those that run is free when its process is gone."""
    before = server.executions()
    leave(server, LASTING)
    assert wait_until(lambda: server.executions() <= before)


def test_what_a_client_left_is_stored_as_cancelled(server, alice):
    leave(server, {**LASTING, "code": f"# left alone{LASTING['code']}"})

    def reasons() -> list[str]:
        return [row["reason"] for row in alice.get("/history").json() if "left alone" in row["title"]]

    assert wait_until(reasons)
    assert reasons() == ["cancelled"]


def test_a_client_that_leaves_a_stream_ends_its_program(server):
    before = server.executions()
    with server.client() as other:
        headers = {"Accept": "text/event-stream"}
        with other.stream("POST", "/execute", json=LASTING, headers=headers) as reply:
            assert any("output" in line for line in reply.iter_lines())
    assert wait_until(lambda: server.executions() <= before)


def leave(server, body: dict[str, Any]) -> None:
    """Ask for it, and go away when its program has begun."""
    data, before = json.dumps(body).encode(), waiting(server.process.pid)
    sent = (
        f"Authorization: Bearer {TOKENS['alice']}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", *sent) + data)
        assert wait_until(lambda: waiting(server.process.pid) - before)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
def test_a_proxy_is_asked_not_to_keep_events_back(alice, kind):
    with alice.stream("POST", "/execute", json={"code": "1"}, headers={"Accept": kind}) as reply:
        assert reply.headers["x-accel-buffering"] == "no"
        reply.read()
    assert "x-accel-buffering" not in alice.post("/execute", json={"code": "1"}).headers
