"""What an owner's tokens share, what a role opens, and how owners share the server; by one worker and by two."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import LASTING, let_go, waiting
from sockets import listen, opened, ticket
from websockets.exceptions import ConnectionClosed

from fumehood.errors import ConfigurationError
from fumehood.server import tokens
from fumehood.server.tokens import Token, Tokens
from running import OPERATOR, TOKENS, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
OLD, NEW, ADMIN = "the-old-token-01234567", "the-new-token-01234567", "admin-token-0123456789"
QUOTAS = ("max_concurrent", "max_sessions", "per_minute")
NO_QUOTAS = (True, False, 1.0, float("nan"), float("inf"), "1", [1], -1, 1_000_001, 10**13, 10**400)
NO_END = ("--grace", f"{HANG_S:g}")
NDJSON = {"Accept": "application/x-ndjson"}


def _entry(name: str, token: str, **further: Any) -> dict[str, Any]:
    return {"name": name, "token": token, **further}


def _tokens(directory: Path, *entries: dict[str, Any], variable: str | None = None) -> Tokens:
    (directory / "file").write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    return Tokens(variable, str(directory / "file"))


def test_entries_of_one_name_share_what_one_of_them_says(tmp_path: Path) -> None:
    both = _tokens(tmp_path, _entry("a", OLD, max_sessions=2), _entry("a", NEW, per_minute=5))
    found = [both.find(each) for each in (OLD, NEW)]
    assert [each and each[2:] for each in found] == [(None, 2, 5, "")] * 2


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"per_minute": 1}, {"per_minute": 2}, "per_minute twice, with different values"),
        ({"max_sessions": 0}, {"max_sessions": 1}, "max_sessions twice"),
        ({"role": "admin"}, {}, "two roles"),
        ({"role": "admin"}, {"role": "metrics"}, "two roles"),
        ({"role": "root"}, {}, "role is admin or metrics"),
        ({"role": ["admin"]}, {}, "role is admin or metrics"),
        ({"per_minute": 10**13}, {}, "from 0 to 1000000"),
        ({"max_concurrent": 10**13}, {}, "from 0 to 1000000"),
        ({"max_sessions": -1}, {}, "from 0 to 1000000"),
        *(({quota: value}, {}, "whole numbers") for quota in QUOTAS for value in NO_QUOTAS),
        ({"name": "a\nb"}, {}, "printable"),
        ({"name": "a" * 200}, {}, "at most 128"),
        ({"name": "a "}, {}, "no blanks at its ends"),
        ({"name": "e\u0301"}, {}, "composed"),
        ({"token": NEW}, {}, "a token that is there twice"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    first: dict[str, Any], second: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        _tokens(tmp_path, {**_entry("a", OLD), **first}, {**_entry("a", NEW), **second})


@pytest.mark.parametrize(
    "form", ["- name: a\n  token: {}\n  {}: 1\n  {}: 2", '{{"name": "a", "token": "{}", "{}": 1, "{}": 2}}']
)
@pytest.mark.parametrize("quota", QUOTAS)
def test_a_key_is_there_once_in_an_entry(form: str, quota: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(form.format(OLD, quota, quota), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"{quota} twice in one entry"):
        Tokens(None, str(tmp_path / "file"))


def test_nobody_is_named_as_the_owner_of_the_variables_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="give the entry another name, or unset"):
        _tokens(tmp_path, _entry("default", NEW), variable=OLD)
    with pytest.raises(ConfigurationError, match="is in FUMEHOOD_TOKEN too"):
        _tokens(tmp_path, _entry("a", OLD), variable=OLD)
    both = _tokens(tmp_path, _entry("a", NEW), variable=OLD)
    monkeypatch.setattr(tokens, "_REREAD_S", 0.0)
    (tmp_path / "file").write_text(json.dumps(_entry("default", ADMIN)), encoding="utf-8")
    assert both.find(ADMIN) is None  # what was in force stays
    assert "another name" in str(both.failure)
    assert both.find(NEW) is not None
    (tmp_path / "file").write_text(ADMIN, encoding="utf-8")
    alone = both.find(ADMIN)
    assert alone is not None
    assert alone.name == "default"


def test_a_token_whose_role_changes_is_another_one(tmp_path: Path) -> None:
    found = _tokens(tmp_path, _entry("a", OLD)).find(OLD)
    changed = _tokens(tmp_path, _entry("a", OLD, role="metrics"))
    assert isinstance(found, Token)
    assert not changed.current(found)


@pytest.fixture(params=["1", "2"], ids=["one worker", "two workers"])
def served(start: Start, request: pytest.FixtureRequest) -> Running:
    entries = [_entry(name, token) for name, token in TOKENS.items()]
    entries += [_entry("ci", OLD), _entry("ci", NEW), _entry("boss", ADMIN, role="admin")]
    return start("--workers", request.param, "--max-running", "4", tokens=entries, env={"SANDBOX_STORE_CODE": "always"})


def test_a_token_rotates_and_its_owner_keeps_what_it_has(served: Running) -> None:
    with ExitStack() as stack:
        old, new = (stack.enter_context(served.client(each)) for each in (OLD, NEW))
        session = opened(old)
        assert old.post(f"/sessions/{session}/run", json={"code": "x = 42"}).status_code == 200
        streams = [stack.enter_context(c.stream("POST", "/execute", json=LASTING, headers=NDJSON)) for c in (old, new)]
        lines = [each.iter_lines() for each in streams]
        assert [json.loads(next(each))["type"] for each in lines] == ["started"] * 2
        sockets = []
        for token in (OLD, NEW):
            with served.client(token) as client:
                sockets.append(stack.enter_context(listen(served, session, ticket(client, session))))
        assert wait_until(lambda: len(waiting(served.process.pid)) == 2)
        served.give([_entry("ci", NEW), OPERATOR])
        ended = json.loads(list(lines[0])[-1])
        assert (ended["type"], ended["error"]["code"]) == ("error", "unauthorized")
        with pytest.raises(ConnectionClosed):
            sockets[0].recv(timeout=HANG_S)
        assert wait_until(lambda: old.get("/openapi.json").status_code == 401)
        let_go(waiting(served.process.pid))
        assert json.loads(list(lines[1])[-1])["stdout"] == "here\ndone\n"
        with served.client(NEW) as client:
            ran = client.post(f"/sessions/{session}/run", json={"code": "x"})
            assert ran.json()["results"] == [{"text/plain": "42"}]
            assert json.loads(sockets[1].recv(timeout=HANG_S))["type"] == "started"
            assert "x = 42" in {each["title"] for each in client.get("/history").json()}


def test_an_admin_sees_and_ends_all_sessions_and_does_nothing_else_there(served: Running) -> None:
    with served.client("alice") as alice, served.client(ADMIN) as admin, served.client("bob") as bob:
        made = [opened(alice) for _ in range(3)]

        def seen(client: httpx2.Client) -> dict[str, Any]:
            return {each["session_id"]: each.get("owner") for each in client.get("/sessions").json()["sessions"]}

        assert wait_until(lambda: seen(admin) == dict.fromkeys(made, "alice"))
        assert wait_until(lambda: seen(alice) == dict.fromkeys(made))
        assert seen(bob) == {}
        path = f"/sessions/{made[0]}"
        assert admin.get(path).json()["owner"] == "alice"
        refused = [
            admin.post(f"{path}/run", json={"code": "1"}),
            admin.post(f"{path}/exec", json={"command": ["ls"]}),
            admin.post("/execute", json={"code": "1", "session_id": made[0]}),
            admin.post(f"{path}/cancel"),
            admin.post(f"{path}/ticket"),
            admin.get(f"{path}/files"),
            admin.get(f"{path}/files/content", params={"path": "/workspace/a"}),
            admin.post(f"{path}/edit", json={"path": "/workspace/a", "old": "a", "new": "b"}),
            bob.delete(path),
            bob.get(path),
        ]
        assert {each.status_code for each in refused} == {404}
        ran = alice.post(f"{path}/run", json={"code": "print(1)"}).json()
        assert admin.get("/history").json() == []
        assert admin.get(f"/history/{ran['execution_id']}").status_code == 404
        for each in made:
            assert admin.delete(f"/sessions/{each}").status_code == 204
        assert alice.get(path).status_code == 410
        assert admin.get(path).status_code == 410
        assert bob.get(path).status_code == 404


def test_the_role_metrics_reads_numbers_alone(served: Running) -> None:
    with served.client(OPERATOR["token"]) as client:
        assert client.get("/metrics").status_code == 200
        asked = [
            client.get(path) for path in ("/info", "/sessions", "/history", "/openapi.json", "/nowhere", "/metrics/")
        ]
        asked += [client.post("/execute", json={"code": "1"}), client.post("/sessions", json={})]
        assert {(each.status_code, each.json()["code"]) for each in asked} == {(403, "role_not_allowed")}
        assert client.post("/metrics").status_code == 405


def test_a_token_sees_its_own_numbers_alone(served: Running) -> None:
    for name in ("alice", "bob", OLD, NEW):
        with served.client(name) as client:
            assert client.post("/execute", json={"code": "1"}).status_code == 200
            assert client.get("/nowhere").status_code == 404
    served.get("/info")  # nobody's

    def lines(name: str) -> list[str]:
        with served.client(name) as client:
            return [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]

    def owners(name: str) -> set[str]:
        return set(re.findall(r'token="([^"]*)"', "\n".join(lines(name))))

    assert wait_until(lambda: {"alice", "bob", "ci", "boss", ""} <= owners(ADMIN))
    assert wait_until(lambda: {"alice", "bob", "ci", "boss", ""} <= owners(OPERATOR["token"]))
    for name, owner in (("alice", "alice"), (NEW, "ci")):
        assert owners(name) == {owner}
        others = {line.split("{")[0].split()[0] for line in lines(name) if f'token="{owner}"' not in line}
        capacity = {f"fumehood_max_{what}" for what in ("running", "queue", "sessions", "connections")}
        assert capacity < others <= capacity | {"fumehood_info", "fumehood_worker_up"}

    def ran() -> float:
        counted = [line for line in lines(NEW) if line.startswith("fumehood_token_executions_total")]
        return sum(float(line.split()[-1]) for line in counted)

    assert wait_until(lambda: ran() == 2)


@pytest.fixture
def asked() -> Iterator[list[threading.Thread]]:
    """Clients; made before the server, so that where a test fails they are joined when it is gone."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(HANG_S)


def test_four_long_runs_of_one_token_do_not_keep_another_out(asked: list[threading.Thread], start: Start) -> None:
    running = start("--max-running", "4")
    replies: list[httpx2.Response] = []

    def last() -> None:
        with running.client("alice") as client:
            replies.append(client.post("/execute", json=LASTING))

    for _ in range(4):
        asked.append(threading.Thread(target=last))
        asked[-1].start()
    assert wait_until(lambda: running.number("fumehood_queued") == 1)
    with running.client("alice") as alice:
        assert alice.get("/info").json()["yours"] == {"running": 3, "queued": 1, "max_running": 3, "max_queue": 1024}
    with running.client("bob") as bob:
        assert bob.get("/info").json()["yours"] == {"running": 0, "queued": 0, "max_running": 3, "max_queue": 1024}
        found = bob.post("/execute", json={"code": "print(1)"}).json()
    assert (found["stdout"], found["meta"]["queued_s"], replies) == ("1\n", 0.0, [])
    assert wait_until(lambda: len(waiting(running.process.pid)) == 3)
    let_go(waiting(running.process.pid))
    assert wait_until(lambda: len(replies) == 3 and len(waiting(running.process.pid)) == 1)
    let_go(waiting(running.process.pid))
    assert wait_until(lambda: len(replies) == 4)
    assert sorted(reply.json()["meta"]["queued_s"] > 0 for reply in replies) == [False] * 3 + [True]
    assert running.number("fumehood_queue_seconds_count") == 5


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_comes_later_does_not_wait_for_the_end_of_anothers_backlog(
    asked: list[threading.Thread], start: Start, workers: str
) -> None:
    running = start("--workers", workers, "--max-running", "2", tokens=_entries(20))
    order: list[str] = []

    def ask(owner: str, code: dict[str, Any]) -> None:
        with running.client(_secret(owner)) as client:
            reply = client.post("/execute", json=code)
            order.append(owner if reply.status_code == 200 else reply.text)

    first, *others = (f"o{number}" for number in range(20))
    backlog = 20 * int(workers)  # so many that each worker has some
    _send(asked, ask, [(first, LASTING)] * backlog)
    assert wait_until(partial(_has, running, backlog))
    _send(asked, ask, [(other, {"code": "print(1)"}) for other in others] * 3)
    assert wait_until(lambda: len(order) == 57), order  # each with the first's programs still there
    assert sorted(order) == sorted(others * 3)

    def all_end() -> bool:
        for each in waiting(running.process.pid):
            with suppress(ProcessLookupError):  # it was told before, and has ended
                let_go({each})
        return len(order) == 57 + backlog

    assert wait_until(all_end)
    assert order[57:] == [first] * backlog


def test_200_clients_of_20_tokens_each_get_their_share(asked: list[threading.Thread], start: Start) -> None:
    """Each of ten rounds has every owner once, although the owners came one after the other."""
    running = start("--max-running", "1", tokens=_entries(20))
    owners = [f"o{number}" for number in range(20)]
    turns: list[tuple[int, str]] = []

    def ask(owner: str, code: dict[str, Any]) -> None:
        with running.client(_secret(owner)) as client:
            reply = client.post("/execute", json=code)
            ran = reply.status_code == 200
            turns.append((int(reply.json()["stdout"]), owner) if ran else (0, reply.text))

    with running.client("holder-token-0123456789") as holder, ExitStack() as stack:
        stream = stack.enter_context(holder.stream("POST", "/execute", json=LASTING, headers=NDJSON))
        assert wait_until(lambda: waiting(running.process.pid))
        for number, owner in enumerate(owners, 1):
            _send(asked, ask, [(owner, {"code": "import time; print(time.monotonic_ns())"})] * 10)
            if number in (1, 2, 20):
                assert wait_until(partial(_has, running, 1 + 10 * number))
        let_go(waiting(running.process.pid))
        assert json.loads(list(stream.iter_lines())[-1])["stdout"] == "here\ndone\n"
    assert wait_until(lambda: len(turns) == 200)
    order = [owner for _, owner in sorted(turns)]
    assert [sorted(order[at : at + 20]) for at in range(0, 200, 20)] == [sorted(owners)] * 10


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_among_200_clients_ends_with_0_and_whole_downloads(
    asked: list[threading.Thread], start: Start, workers: str
) -> None:
    running = start("--workers", workers, "--max-running", "4", *NO_END, tokens=_entries(20))
    owners = [f"o{number}" for number in range(20)]
    content = b"".join(number.to_bytes(4, "big") for number in range(4 * 1024 * 1024))  # no part is like another
    code = "open('/workspace/large', 'wb').write(b''.join(n.to_bytes(4, 'big') for n in range(4 * 1024 * 1024)))"
    large = {"path": "/workspace/large"}
    answers: list[tuple[str, int, bytes]] = []

    def ask(owner: str, method: str, path: str, **sent: Any) -> None:
        status, body = 0, b""
        with running.client(_secret(owner)) as client, suppress(httpx2.TransportError):
            with client.stream(method, path, **sent) as reply:
                status = reply.status_code  # what fails from here on is a cut answer
                body = b"cut"
                body = reply.read()
        answers.append((method, status, body))

    with ExitStack() as stack:
        files, begun = [], []
        for owner in owners[:3]:
            client = stack.enter_context(running.client(_secret(owner)))
            files.append((owner, f"/sessions/{opened(client)}/files/content"))
            made = client.post(files[-1][1].replace("files/content", "run"), json={"code": code})
            assert made.json()["exit_code"] == 0, made.text
        for owner, path in files * 2:
            client = stack.enter_context(running.client(_secret(owner)))
            begun.append(stack.enter_context(client.stream("GET", path, params=large)))
        assert [each.status_code for each in begun] == [200] * 6  # and most of each is still to come
        _send(asked, partial(ask, json=LASTING), [(owner, "POST", "/execute") for owner in owners] * 10)
        assert wait_until(partial(_has, running, 200))
        places = running.executions()  # fewer than there are, where few connections came to one of two workers
        assert wait_until(lambda: len(waiting(running.process.pid)) == places)
        running.process.send_signal(signal.SIGTERM)
        _send(asked, partial(ask, params=large), [(owner, "GET", path) for owner, path in files] * 4)
        assert wait_until(lambda: len(answers) >= 200 - places)  # those who wait are told
        let_go(waiting(running.process.pid))
        assert {each.read() == content for each in begun} == {True}
        assert wait_until(lambda: len(answers) == 212)
    assert running.process.wait(HANG_S) == 0
    ran = [json.loads(body)["stdout"] for method, status, body in answers if (method, status) == ("POST", 200)]
    assert ran == ["here\ndone\n"] * places
    assert all(body == content for method, status, body in answers if (method, status) == ("GET", 200))
    told = [(method, json.loads(body)["code"]) for method, status, body in answers if status not in (0, 200)]
    assert [code for method, code in told if method == "POST"] == ["unavailable"] * (200 - places)
    assert {code for _, code in told} <= {"unavailable", "session_ended", "misdirected"}
    assert "Traceback" not in running.log()


def _entries(number: int) -> list[dict[str, Any]]:
    owners = [_entry(f"o{each}", _secret(f"o{each}")) for each in range(number)]
    return [*owners, _entry("holder", "holder-token-0123456789")]


def _secret(owner: str) -> str:
    return f"token-of-owner-{owner}-0123456789"


def _send(asked: list[threading.Thread], ask: Callable[..., None], each: list[tuple[str, Any]]) -> None:
    for words in each:
        asked.append(threading.Thread(target=ask, args=words))
        asked[-1].start()


def _has(running: Running, executions: int) -> bool:
    """That run or wait."""
    return running.number("fumehood_running") + running.number("fumehood_queued") == executions
