"""WebSockets that listen to a session, against a real server."""

from __future__ import annotations

import json
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from raw_http import exchange
from sockets import listen, opened, ticket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support import HANG_S, wait_until

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def until(socket, kind):
    found = []
    while not found or found[-1]["type"] != kind:
        found.append(json.loads(socket.recv(timeout=HANG_S)))
    return found


def run(client, session, code):
    return client.post(f"/sessions/{session}/run", json={"code": code})


def test_everything_that_runs_is_told(server, alice, session):
    with listen(server, session, ticket(alice, session)) as socket:
        ran = run(alice, session, "print('hello')\n42").json()
        found = until(socket, "result")
        assert [event["type"] for event in found] == ["started", "output", "display", "result"]
        assert found[0]["execution_id"] == ran["execution_id"] == found[-1]["execution_id"]
        alice.post(f"/sessions/{session}/exec", json={"command": ["echo", "x"]})
        assert {"type": "output", "stream": "stdout", "text": "x\n"} in until(socket, "result")


def test_an_image_in_the_output_directory_is_told_of(server, alice, session):
    with listen(server, session, ticket(alice, session)) as socket:
        run(alice, session, "import os; _ = open(os.environ['TMPDIR'] + '/output/plot.png', 'wb').write(b'x')")
        found = until(socket, "result")
    shown = [event["path"] for event in found if event["type"] == "visualization"]
    assert [path.rpartition("/")[2] for path in shown] == ["plot.png"]


def test_a_ticket_opens_one_socket_once(server, alice, session):
    once = ticket(alice, session)
    with listen(server, session, once):
        pass
    refused(server, session, once)


@pytest.mark.parametrize("wrong", ["", "x", "0" * 43])
def test_no_socket_without_a_ticket(server, session, wrong):
    refused(server, session, wrong)


def test_a_ticket_is_for_one_session(server, alice, session):
    other = opened(alice)
    try:
        refused(server, other, ticket(alice, session))
    finally:
        alice.delete(f"/sessions/{other}")


def test_a_page_of_another_origin_opens_none(server, alice, session):
    for origin in ("https://evil.example", "null", "file://"):
        with pytest.raises(InvalidStatus) as refusal:
            listen(server, session, ticket(alice, session), origin=origin)
        assert refusal.value.response.status_code == 403


def test_the_end_of_the_session_is_the_last_event(server, alice):
    made = opened(alice)
    with listen(server, made, ticket(alice, made)) as socket:
        alice.delete(f"/sessions/{made}")
        assert until(socket, "ended")[-1] == {"type": "ended"}
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=HANG_S)


def test_who_does_not_read_is_let_go_and_the_run_goes_on(server, alice, session):
    with listen(server, session, ticket(alice, session), max_queue=1) as socket:
        ran = run(alice, session, "for _ in range(1200): print('x' * 100_000)").json()
        assert (ran["exit_code"], ran["meta"]["reason"]) == (0, "ok")
        last = the_last_of(socket)
    assert last["type"] == "error"
    assert last["error"]["code"] == "too_slow"
    with listen(server, session, ticket(alice, session)) as socket:
        run(alice, session, "print('again')")
        assert {"type": "output", "stream": "stdout", "text": "again\n"} in until(socket, "result")


@pytest.mark.parametrize("code", ["print('x' * 5_000_000)", "for _ in range(200): print('x' * 25_000)"])
def test_a_burst_is_no_sign_of_a_slow_client(server, alice, session, code):
    with listen(server, session, ticket(alice, session), max_queue=1) as socket:
        assert run(alice, session, code).json()["exit_code"] == 0  # and nothing is read before it has ended
        told = until(socket, "result")
    assert sum(len(event["text"]) for event in told if event["type"] == "output") >= 5_000_000


def test_what_a_client_says_is_passed_over(server, alice, session):
    with listen(server, session, ticket(alice, session)) as socket:
        socket.send("{" * 1000)
        socket.send(b"\x00\xff")
        run(alice, session, "print(1)")
        assert until(socket, "result")


def test_who_says_too_much_is_cut_off(server, alice, session):
    def cut_off(socket):
        try:
            socket.send("x" * 1000)
        except ConnectionClosed:
            return True
        return False

    with listen(server, session, ticket(alice, session)) as socket:
        until_s = time.monotonic() + HANG_S
        while not cut_off(socket):  # as fast as it can, since a little each second is allowed
            assert time.monotonic() < until_s


def test_a_token_that_is_removed_opens_and_hears_nothing_more(start):
    rotating = start()
    with rotating.client() as alice:
        session = opened(alice)
        kept = ticket(alice, session)
        with listen(rotating, session, ticket(alice, session)) as socket:
            rotating.give([{"name": "alice", "token": "another-0123456789abcd"}])
            assert wait_until(lambda: alice.get("/openapi.json").status_code == 401)
            with pytest.raises(InvalidStatus) as refused:
                listen(rotating, session, kept)
            assert refused.value.response.status_code == 401
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=HANG_S)
            assert closed.value.rcvd.code == 1008


def test_a_refused_socket_is_no_error_in_the_log(start):
    quiet = start()
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + KEY)
    assert exchange(quiet.url, "GET /sessions/x/events", *upgrade).status == 401
    quiet.stop()
    assert '"level": "error"' not in quiet.log()


def test_a_message_that_is_too_large_closes_the_socket(server, alice, session):
    with listen(server, session, ticket(alice, session)) as socket:
        socket.send("x" * 60_000)
        run(alice, session, "print(1)")
        assert until(socket, "result")
        socket.send("x" * 70_000)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=HANG_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_the_progress_of_an_installation_is_told(start, tmp_path):
    house = tmp_path / "house"
    house.mkdir()
    with zipfile.ZipFile(house / "alpha-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("alpha.py", "version = '1.0'")
        wheel.writestr("alpha-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n")
        wheel.writestr("alpha-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("alpha-1.0.dist-info/RECORD", "")
    env = {"SANDBOX_WHEELHOUSE": str(house), "SANDBOX_PACKAGES_DIR": str(tmp_path / "packages")}
    server = start(env=env)
    with server.client() as client:
        made = opened(client)
        with listen(server, made, ticket(client, made)) as socket:
            body = {"code": "import alpha; print(alpha.version)", "requirements": ["alpha"]}
            ran = client.post(f"/sessions/{made}/run", json=body)
            assert (ran.status_code, ran.json()["stdout"]) == (200, "1.0\n"), ran.text
            found = until(socket, "result")
    told = [event["text"] for event in found if event["type"] == "progress"]
    assert any("alpha" in text for text in told), found


def test_a_server_that_stops_closes_its_sockets(start):
    server = start("--grace", "3600")  # which it does not wait for
    with server.client() as client:
        made = opened(client)
        with listen(server, made, ticket(client, made)) as socket, ThreadPoolExecutor(1) as threads:
            stopped = threads.submit(server.stop)
            the_last_of(socket)
            assert stopped.result() == 0


def the_last_of(socket):
    last = None
    try:
        while True:
            last = json.loads(socket.recv(timeout=HANG_S))
    except ConnectionClosed:
        return last


def refused(server, session, opened_with):
    with pytest.raises(InvalidStatus) as refusal:
        listen(server, session, opened_with)
    assert refusal.value.response.status_code == 401
