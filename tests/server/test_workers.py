"""Several workers behind one port: whichever answers, the answer is the server's."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import LASTING, all_gone, beneath, waiting
from raw_http import exchange
from sockets import listen, opened, ticket
from websockets.exceptions import InvalidStatus

from fumehood.errors import BadArgument
from fumehood.server import ids
from fumehood.server.peers import socket_path
from running import TOKENS, Running
from support import HANG_S, is_stopped, wait_until

Start = Callable[..., Running]
NDJSON = {"Accept": "application/x-ndjson"}
POD = "sandbox-server.7d9f8b6c5d-x2x7q." + "a" * 31  # as long as a pod's name may be


@pytest.mark.parametrize("name", ["a" * 64, "a/b", "..", ".a", "-a", "a_b", "a b", "é", ""])
def test_a_name_that_cannot_be_part_of_an_id_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match="1 to 63"):
        ids.checked(name)


def test_a_long_name_is_part_of_every_id_and_every_worker_knows_it(start: Start, tmp_path: Path) -> None:
    assert len(ids.checked(POD)) == ids.MAX_NAME
    deep = tmp_path / ("d" * 100)  # sockets have short paths, directories need not
    deep.mkdir()
    running = start("--workers", "2", "--instance", POD, env={"TMPDIR": str(deep)})
    seen = set()
    for _ in range(6):  # each over a connection of its own, which either may take
        with running.client() as client:
            seen.add(client.get("/info").json()["instance"])
            made = opened(client)
        with running.client() as client:
            assert client.get(f"/sessions/{made}").status_code == 200
            opens = ticket(client, made)
        with listen(running, made, opens) as events:
            with running.client() as client:
                ran = client.post("/execute", json={"session_id": made, "code": "print(1)"})
                assert (ran.status_code, ran.json()["stdout"]) == (200, "1\n")
            assert json.loads(events.recv(timeout=HANG_S))["type"] == "started"
        with running.client() as client:
            assert client.delete(f"/sessions/{made}").status_code == 204
    assert seen <= {f"{POD}-0", f"{POD}-1"}


def test_a_used_ticket_is_refused_by_every_worker_and_is_no_error(start: Start) -> None:
    running = start("--workers", "2")
    with running.client() as client:
        made = opened(client)
        opens = ticket(client, made)
    with listen(running, made, opens):
        pass
    for _ in range(8):  # either worker may take each
        with pytest.raises(InvalidStatus) as refused, listen(running, made, opens):
            pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["code"] == "unauthorized"
    assert '"level": "error"' not in running.log()


def test_a_websocket_of_another_workers_session_has_shown_a_token(start: Start) -> None:
    """Else it would be closed after the time of one that shows none, and count among those."""
    running = start("--workers", "2")
    with running.client() as client, ExitStack() as streams:
        for made in _opened_on_both(running):  # whichever worker takes them, some are not its own
            for _ in range(6):
                streams.enter_context(listen(running, made, ticket(client, made)))
        client.close()
        assert wait_until(lambda: running.number("fumehood_connections_without_token") == 0)
        assert running.number("fumehood_connections") > 12


def test_the_handle_of_an_execution_is_known_to_every_worker(start: Start) -> None:
    running = start("--workers", "2", "--instance", POD)
    for _ in range(4):
        with running.client() as client, client.stream("POST", "/execute", json=LASTING, headers=NDJSON) as stream:
            lines = stream.iter_lines()
            handle = json.loads(next(lines))["handle"]
            with running.client() as other:
                assert other.post(f"/executions/{handle}/cancel").status_code == 202
            assert json.loads(list(lines)[-1])["meta"]["reason"] == "cancelled"


def _each(running: Running, ask: Callable[[httpx2.Client], httpx2.Response], name: str = "alice") -> list[Any]:
    """What several connections are told; any worker may take each."""
    found = []
    for _ in range(8):
        with running.client(name) as client:
            found.append(ask(client))
    return found


def _whole(running: Running, name: str = "alice") -> list[Any]:
    """The lists of sessions, once each is one to which all workers answered in time."""
    found: list[Any] = []

    def are_whole() -> bool:
        found[:] = [each.json() for each in _each(running, lambda client: client.get("/sessions"), name)]
        return all(each.keys() == {"sessions"} for each in found)

    assert wait_until(are_whole), found
    return found


def _opened_on_both(running: Running, directory: Path | None = None) -> set[str]:
    """A session on each worker, asked for where the workers ask each other."""
    made: set[str] = set()
    for socket in (directory or Path(tempfile.gettempdir())).glob(f"fumehood-{running.process.pid}-*/*.sock"):
        short = socket_path(str(socket.parent), socket.name.removesuffix(".sock"))
        with running.client(transport=httpx2.HTTPTransport(uds=short)) as client:
            made.add(client.post("/sessions", json={"idle": 600}).json()["session_id"])
    assert len({ids.instance_of("s", each) for each in made}) == 2
    return made


def _worker(running: Running, instance: str) -> int:
    """Its process: the order came over its standard input, so its socket tells which it is."""
    for each in beneath(running.process.pid):
        try:
            names = [os.readlink(f"/proc/{each.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{each.pid}/fd")]
        except OSError:  # it has ended, or is a program's
            continue
        inodes = {name[8:-1] for name in names if name.startswith("socket:[")}
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
        if any(row[-1].endswith(f"/{instance}.sock") and row[6] in inodes and row[3] == "00010000" for row in rows):
            return each.pid
    raise AssertionError(instance)


def test_every_worker_lists_the_sessions_of_all_and_names_who_does_not_answer(start: Start) -> None:
    running = start("--workers", "2", "--instance", "two")
    made = _opened_on_both(running)
    assert all(each.status_code == 200 for each in _each(running, lambda client: client.head("/sessions")))
    for listed in _whole(running):
        assert {each["session_id"] for each in listed["sessions"]} == made
    assert all(each == {"sessions": []} for each in _whole(running, "bob"))
    stopped = _worker(running, "two-1")
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert wait_until(lambda: is_stopped(stopped))
        with running.client() as client:
            found = client.get("/sessions")  # the stopped one takes no connection
        assert found.json()["unreachable"] == ["two-1"]
        kept = {each["session_id"] for each in found.json()["sessions"]}
        assert kept == {each for each in made if ids.instance_of("s", each) == "two-0"}
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_numbers_are_those_of_all_workers_each_under_its_name(start: Start) -> None:
    running = start("--workers", "2", "--instance", "two")
    made = _opened_on_both(running)
    up = {f'fumehood_worker_up{{worker="two-{index}"}} 1.0' for index in range(2)}
    answers: list[list[str]] = []

    def are_whole() -> bool:
        answers[:] = [each.text.splitlines() for each in _each(running, lambda client: client.get("/metrics"))]
        return all(up <= set(lines) for lines in answers)

    assert wait_until(are_whole), answers
    for lines in answers:
        assert sum(float(line.split()[-1]) for line in lines if line.startswith("fumehood_sessions{")) == len(made)
        assert len([line for line in lines if line.startswith("# TYPE fumehood_requests_total ")]) == 1


@pytest.fixture
def bounded(start: Start) -> Running:
    quotas: list[dict[str, Any]] = [
        {"name": "one", "token": "one-at-a-time-0123456789", "max_concurrent": 1},
        {"name": "two", "token": "two-sessions-0123456789", "max_sessions": 2},
        {"name": "few", "token": "few-a-minute-0123456789", "per_minute": 5},
    ]
    entries = [{"name": name, "token": token} for name, token in TOKENS.items()]
    return start("--workers", "2", tokens=[*entries, *quotas])


def test_quotas_of_a_token_are_those_of_all_workers(bounded: Running) -> None:
    statuses = [
        each.status_code for each in _each(bounded, lambda c: c.get("/openapi.json"), "few-a-minute-0123456789")
    ]
    assert statuses == [200] * 5 + [429] * 3

    two = "two-sessions-0123456789"
    made = _each(bounded, lambda client: client.post("/sessions", json={}), two)
    assert sorted(each.status_code for each in made) == [201] * 2 + [429] * 6
    with bounded.client(two) as client:
        session = next(each.json()["session_id"] for each in made if each.status_code == 201)
        assert client.delete(f"/sessions/{session}").status_code == 204
        assert client.post("/sessions", json={}).status_code == 201

    one = "one-at-a-time-0123456789"
    with bounded.client(one) as client, client.stream("POST", "/execute", json=LASTING, headers=NDJSON) as stream:
        lines = stream.iter_lines()  # kept: without it the client would leave
        next(lines)
        asked = _each(bounded, lambda client: client.post("/execute", json={"code": "1"}), one)
        assert [each.status_code for each in asked] == [429] * 8
    with bounded.client(one) as client:
        assert wait_until(lambda: client.post("/execute", json={"code": "1"}).status_code == 200)


def test_a_worker_that_is_killed_gives_its_places_back(bounded: Running) -> None:
    two = "two-sessions-0123456789"
    made = _each(bounded, lambda client: client.post("/sessions", json={}), two)
    first = next(each.json()["session_id"] for each in made if each.status_code == 201)
    os.kill(_worker(bounded, str(ids.instance_of("s", first))), signal.SIGKILL)

    def is_opened() -> bool:
        try:
            with bounded.client(two) as client:
                return client.post("/sessions", json={}).status_code == 201
        except httpx2.TransportError:
            return False

    assert wait_until(is_opened)
    family, ours = beneath(bounded.process.pid), f"fumehood-{bounded.process.pid}-"
    bounded.process.kill()
    assert all_gone(family)
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(ours)]


@pytest.mark.parametrize("flags", [(), ("--instance", "two")])
def test_what_a_killed_worker_had_has_ended_for_every_worker(start: Start, flags: tuple[str, ...]) -> None:
    """Also once another has its name; what nobody here had is said to be elsewhere."""
    running = start("--workers", "2", *flags)
    lost = next(iter(_opened_on_both(running)))
    instance = str(ids.instance_of("s", lost))
    with running.client() as client:
        opens = ticket(client, lost)
    victim = _worker(running, instance)
    os.kill(victim, signal.SIGKILL)
    assert wait_until(lambda: "worker_ended" in running.log())
    for _ in range(2):
        asked = _each(running, lambda client: client.get(f"/sessions/{lost}"))
        asked += _each(running, lambda client: client.post("/execute", json={"session_id": lost, "code": "1"}))
        assert {(each.status_code, each.json()["code"]) for each in asked} == {(410, "session_ended")}
        with pytest.raises(InvalidStatus) as refused, listen(running, lost, opens):
            pass
        assert refused.value.response.status_code in (401, 410)
        told = _each(running, lambda client: client.post(f"/executions/x{lost[1:]}/cancel"))
        assert {each.status_code for each in told} <= {404, 410}
        if flags:  # whoever came in its place
            assert wait_until(lambda: _is_there(running, instance))
    elsewhere = _each(running, lambda client: client.get(f"/sessions/s_{instance}x_{'a' * 22}"))
    assert {each.status_code for each in elsewhere} == {421}
    assert '"level": "error"' not in running.log()


def _is_there(running: Running, instance: str) -> bool:
    with running.client() as client:
        return bool(client.get("/info").json()["instance"] == instance)


def test_a_bad_host_or_target_is_refused_also_where_another_worker_would_answer(start: Start) -> None:
    running = start("--workers", "2", "--allow-host", "*")
    made = next(iter(_opened_on_both(running)))
    upgrade = (
        *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    ticket_of = f"{ids.instance_of('s', made)}.0123456789"
    for _ in range(8):  # either worker may take each
        for host in ("x:notaport", "[::1", "x:99999"):
            found = exchange(running.url, f"GET /sessions/{made}/events?ticket={ticket_of}", f"Host: {host}", *upgrade)
            assert found.status == 400
        found = exchange(running.url, f"GET //x:y/%23?ticket={ticket_of}&a=[", *upgrade)
        assert found.status in (400, 401)
    assert '"level": "error"' not in running.log()


def _left(directory: str | Path, pids: set[int]) -> list[str]:
    """What is named as of these processes."""
    return [name for name in os.listdir(directory) if name.startswith(tuple(f"fumehood-{pid}-" for pid in pids))]


def _groups(pids: set[int]) -> list[str]:
    marks = tuple(f"fumehood-{pid}-" for pid in pids)
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(marks)]


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("victims", ["the first process", "a worker", "all of them"])
def test_whoever_is_killed_in_mid_run_leaves_nothing_running(
    start: Start, tmp_path: Path, clients: ExitStack, victims: str
) -> None:
    flags, env = ("--workers", "2", "--instance", "two"), {"TMPDIR": str(tmp_path)}
    running = start(*flags, env=env)
    streamed = {"json": LASTING, "headers": NDJSON}
    for made in _opened_on_both(running, tmp_path):  # so that each worker runs something
        client = clients.enter_context(running.client())
        assert clients.enter_context(client.stream("POST", f"/sessions/{made}/run", **streamed)).status_code == 200
    assert wait_until(lambda: len(waiting(running.process.pid)) == 2)
    workers = [_worker(running, "two-0"), _worker(running, "two-1")]
    family = beneath(running.process.pid)
    lost = beneath(workers[0]) if victims == "a worker" else family
    assert len(lost) > 2
    for pid in {"the first process": [running.process.pid], "a worker": workers[:1]}.get(
        victims, [running.process.pid, *workers]
    ):
        os.kill(pid, signal.SIGKILL)
    assert all_gone(lost)
    if victims != "a worker":
        running.process.wait(HANG_S)
    pids = {each.pid for each in lost}
    if victims == "a worker":
        assert running.process.poll() is None
        again = running
    else:
        assert (victims == "all of them") == bool(_left(tmp_path, pids))  # nobody was there to tidy up
        again = start(*flags, env=env)

    def tidied() -> bool:  # with the first program of whoever came in its place
        with again.client() as client:
            assert client.post("/execute", json={"code": "print(1)"}).status_code == 200
        return not _left(tmp_path, pids) and not _groups(pids)

    assert wait_until(tidied)


def test_a_restart_removes_the_files_of_a_server_that_was_killed(start: Start, open_path: Path) -> None:
    weak, env = ("--isolation", "process"), {"TMPDIR": str(open_path)}  # there programs have directories on the host
    running = start(*weak, env=env)
    with running.client() as client:
        assert client.post("/sessions", json={}).status_code == 201
    family = beneath(running.process.pid)
    pids = {each.pid for each in family}
    assert wait_until(lambda: _left(open_path, pids))
    running.process.kill()
    running.process.wait(HANG_S)
    assert all_gone(family)
    assert _left(open_path, pids)
    with start(*weak, env=env).client() as client:
        assert client.post("/execute", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    assert not _left(open_path, pids)
