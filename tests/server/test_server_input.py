"""Whatever is sent, the answer is a problem that names the field, and nothing runs."""

from __future__ import annotations

import pytest

from fumehood.errors import PackageError
from fumehood.server.problems import from_error
from support import wait_until

DEEP = "[" * 100 + "]" * 100

BAD = [
    ({}, "code"),
    ({"code": "1", "command": ["ls"]}, "code"),
    ({"code": None}, "code"),
    ({"code": 1}, "code"),
    ({"code": ["print(1)"]}, "code"),
    ({"command": "ls"}, "command"),
    ({"command": []}, "command"),
    ({"command": [""]}, "command"),
    ({"command": ["ls", 1]}, "command"),
    ({"command": ["ls", "a\0b"]}, "command"),
    ({"command": ["ls"], "language": "python"}, "language"),
    ({"command": ["ls"], "args": ["x"]}, "args"),
    ({"code": "1", "backend": "none"}, "backend"),
    ({"code": "1", "image": "x"}, "image"),
    ({"code": "1", "user": "root"}, "user"),
    ({"code": "1", "mounts": []}, "mounts"),
    ({"code": "1", "timeout": 0}, "timeout"),
    ({"code": "1", "timeout": -1}, "timeout"),
    ({"code": "1", "timeout": "10"}, "timeout"),
    ({"code": "1", "timeout": True}, "timeout"),
    ({"code": "1", "limits": {"memory_mb": 0}}, "memory_mb"),
    ({"code": "1", "limits": {"memory_mb": -1}}, "memory_mb"),
    ({"code": "1", "limits": {"memory_mb": 1.5}}, "memory_mb"),
    ({"code": "1", "limits": {"memory_mb": 10**30}}, "memory_mb"),
    ({"code": "1", "limits": {"cpu_sec": -1}}, "cpu_sec"),
    ({"code": "1", "limits": {"gpus": 1}}, "gpus"),
    ({"code": "1", "limits": []}, "limits"),
    ({"code": "1", "network": "yes"}, "network"),
    ({"code": "1", "require": "none"}, "require"),
    ({"code": "1", "files": {}}, "files"),
    ({"code": "1", "files": [{"path": "a"}]}, "content_base64"),
    ({"code": "1", "files": [{"path": "a", "content_base64": "!"}]}, "content_base64"),
    ({"code": "1", "files": [{"path": "a", "content_base64": "YQ"}]}, "content_base64"),
    ({"code": "1", "files": [{"path": "", "content_base64": ""}]}, "path"),
    ({"code": "1", "files": [{"path": "../a", "content_base64": ""}]}, "files[0].path"),
    ({"code": "1", "files": [{"path": "a\0", "content_base64": ""}]}, "files[0].path"),
    ({"code": "1", "files": [{"path": "/etc/a", "content_base64": ""}]}, "files[0].path"),
    ({"code": "1", "files": [{"path": "a\\b", "content_base64": ""}]}, "files[0].path"),
    ({"code": "1", "files": [{"path": "a", "content_base64": ""}] * 2}, "files[1].path"),
    (
        {"code": "1", "files": [{"path": path, "content_base64": ""} for path in ("a", "/workspace/a")]},
        "files[1].path",
    ),
    ({"code": "1", "files": [{"path": path, "content_base64": ""} for path in ("a", "a/b")]}, "files"),
    ({"code": "1", "stdin_base64": "?"}, "stdin_base64"),
    ({"code": "1", "args": "x"}, "args"),
    ({"code": "1", "args": ["\0"]}, "args"),
    ({"code": "1", "env": {"A": 1}}, "env"),
    ({"code": "1", "env": {"A=B": "1"}}, "env"),
    ({"code": "1", "env": {"": "1"}}, "env"),
    ({"code": "1", "env": {"A": "\0"}}, "env"),
    ({"code": "1", "requirements": "polars"}, "requirements"),
    ({"code": "1", "requirements": [""]}, "requirements"),
    ({"code": "1", "session_id": 5}, "session_id"),
    ({"code": "1", "session_id": ""}, "session_id"),
]


def test_a_bad_request_names_its_field_and_runs_nothing(dave):
    def newest():
        return [entry["execution_id"] for entry in dave.get("/history", params={"limit": 1}).json()]

    before = newest()
    for body, field in BAD:
        reply = dave.post("/execute", json=body)
        assert reply.status_code == 422, (body, reply.text)
        assert reply.headers["content-type"] == "application/problem+json", body
        problem = reply.json()
        assert problem.keys() >= {"type", "title", "status", "detail", "code", "request_id"}, body
        assert field in problem["detail"], (body, problem)
        assert newest() == before, body
    ran = dave.post("/execute", json={"code": "1"}).json()["execution_id"]
    assert newest() == [ran] != before  # what runs is there


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"x"', 422),
        (b'{"code": "1", "timeout": NaN}', 400),
        (b'{"code": "1", "timeout": Infinity}', 400),
        (b'{"code": "1", "timeout": 1e999}', 422),
        (b'{"code": "\\ud800"}', 400),
        (b'{"code": "\xff"}', 400),
        (b'{"code": "1"} {"code": "2"}', 400),
        (f'{{"code": {DEEP}}}'.encode(), 400),
        (b"[" * 1_000_000, 400),
        (b'{"code": "1", "timeout": ' + b"9" * 10_000 + b"}", 422),
    ],
)
def test_what_is_no_json_of_ours_is_refused(alice, content, status):
    reply = alice.post("/execute", content=content, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text


def test_a_field_that_is_there_twice_is_the_last_one(alice):
    content = b'{"code": "print(1)", "code": "print(2)"}'
    reply = alice.post("/execute", content=content, headers={"Content-Type": "application/json"})
    assert reply.json()["stdout"] == "2\n"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/sessions", {"datasets": {}}, "datasets"),
        ("/sessions", {"idle": 0}, "idle"),
        ("/sessions", {"idle": -5}, "idle"),
        ("/sessions", {"requirements": [5]}, "requirements"),
        ("/sessions", {"require": "strong"}, "require"),
        ("/sessions/{id}/run", {"code": 5}, "code"),
        ("/sessions/{id}/run", {"code": "1", "env": {}}, "env"),
        ("/sessions/{id}/run", {"code": "1", "timeout": -1}, "timeout"),
        ("/sessions/{id}/exec", {"command": []}, "command"),
        ("/sessions/{id}/exec", {"command": ["ls"], "stdin_base64": "*"}, "stdin_base64"),
        ("/sessions/{id}/edit", {"path": "/workspace/a"}, "old"),
        ("/sessions/{id}/edit", {"path": "/workspace/a", "old": "", "new": ""}, "old"),
    ],
)
def test_routes_of_sessions_name_the_field_too(alice, session, path, body, field):
    reply = alice.post(path.replace("{id}", session), json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, "validation"), reply.text
    assert field in reply.json()["detail"]


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "limit=1e9", "before=" + "0" * 99, "other=1"])
def test_a_bad_query_names_its_field(alice, query):
    reply = alice.get(f"/history?{query}")
    assert (reply.status_code, reply.json()["code"]) == (422, "validation")
    assert query.partition("=")[0] in reply.json()["detail"]


def test_a_stronger_level_than_there_is_is_refused(start):
    server = start("--isolation", "process")
    with server.client() as client:
        for path, body in (("/execute", {"code": "1"}), ("/execute", {"command": ["ls"]}), ("/sessions", {})):
            reply = client.post(path, json={**body, "require": "sealed"})
            assert (reply.status_code, reply.json()["code"]) == (422, "isolation_unavailable"), reply.text
        assert client.post("/execute", json={"code": "print(1)", "require": "process"}).json()["stdout"] == "1\n"


def test_a_language_that_is_not_allowed_is_refused(alice):
    for language in ("bash", "cobol", "../sh", "\0"):
        reply = alice.post("/execute", json={"code": "1", "language": language})
        assert reply.status_code == 403, language
        assert reply.json()["code"] == "language_not_allowed"


def test_names_and_code_put_nothing_into_the_log(server, alice):
    marker = "marker-7f3a"
    replies = [
        alice.post("/execute", json={"code": f"print('{marker}')", "env": {"A": marker}, "args": [marker]}),
        alice.get(f"/history/{marker}%0a%1b[31m%0d"),
        alice.get("/history", headers={"X-Request-Id": marker}),
    ]
    for reply in replies:  # the line comes after the answer
        assert wait_until(lambda reply=reply: reply.headers["x-request-id"] in server.log())
    assert all(server.lines())
    assert not any(marker in line for line in server.log().splitlines() if '"/history/' not in line)
    assert "\x1b" not in server.log()
    assert "Bearer" not in server.log()
    assert not any(token in server.log() for token in ("alice-token", "bob-token"))


def test_no_error_of_an_installation_tells_a_path_of_the_machine(start, tmp_path):
    wheels = tmp_path / "wheels"
    offline = start(env={"SANDBOX_WHEELHOUSE": str(wheels), "SANDBOX_PACKAGES_DIR": str(tmp_path / "packages")})
    with offline.client() as alice:
        for _ in ("there is none", "it is empty"):
            reply = alice.post("/execute", json={"code": "1", "requirements": ["nosuch>=1"]})
            assert (reply.status_code, reply.json()["code"]) == (422, "package_unavailable")
            assert "the wheelhouse … " in reply.text or "the wheelhouse …:" in reply.text
            assert str(tmp_path) not in reply.text
            wheels.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("x is not in the wheelhouse /srv/wheels: check", "x is not in the wheelhouse …: check"),
        ("run `/usr/bin/python3 -m ensurepip`, or install uv", "run `… -m ensurepip`, or install uv"),
        ("Looking in indexes: https://me:secret@index.example/simple", "Looking in indexes: …"),
        ("for too long (/var/cache/x.lock)", "for too long (…)"),
        ("and/or a name such as 'polars[xlsx]>=1.0'", "and/or a name such as 'polars[xlsx]>=1.0'"),
    ],
)
def test_what_an_installer_says_is_told_without_its_places(said, told):
    assert from_error(PackageError(said)).detail == told


def test_no_error_tells_a_path_of_the_machine(server, alice, session):
    replies = [
        alice.get("/history/" + "0" * 22),
        alice.post("/execute", json={"code": "1", "requirements": ["no such thing at all"]}),
        alice.post(f"/sessions/{session}/exec", json={"command": ["nonexistent"]}),
        alice.get(f"/sessions/{session}/files/content", params={"path": "/workspace/none"}),
    ]
    for reply in replies:
        assert 400 <= reply.status_code < 500
        assert str(server.directory) not in reply.text
        assert "Traceback" not in reply.text
        assert "site-packages" not in reply.text
        assert ".py" not in reply.text
