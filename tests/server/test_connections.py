"""Connections that have shown no token: how many, for how long, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from processes import LASTING, let_go, waiting
from raw_http import Answer, answer, closes, connect, exchange, head
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_socket

from fumehood import __version__
from fumehood.server import connections as connections_module
from fumehood.server.connections import RESERVE, Connections, address_of
from fumehood.server.gate import Gate
from fumehood.server.numbers import Numbers
from fumehood.server.options import ServerOptions
from fumehood.server.problems import Problem
from fumehood.server.tokens import Tokens
from running import TOKENS, Running
from support import HANG_S, wait_until

AUTH = f"Authorization: Bearer {TOKENS['alice']}"
JSON = "Content-Type: application/json"
BINARY = "Content-Type: application/octet-stream"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
SOCKET = "GET /sessions/s_a_b/events"
ELSEWHERE = "127.0.0.2"


def _from(url: str, address: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), HANG_S, (address, 0))


def _asked(stream: socket.socket, url: str, line: str, *headers: str) -> Answer:
    with stream:
        stream.sendall(head(url, line, *headers))
        return answer(stream)


class Read(asyncio.Transport):
    """Whose client has read all."""

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Four connections without a token from each address; they last as long as the client wants."""
    running = Running(tmp_path_factory.mktemp("narrow"), "--max-unauthenticated", "4", is_patient=True)
    yield running
    assert running.stop() == 0


@pytest.fixture
def held(narrow: Running) -> Iterator[list[socket.socket]]:
    """As many as there may be, each held by another kind of beginning."""
    shapes = (b"", b"GET / HTTP/1.1\r\nX: ", b"POST /execute HTTP/1.1\r\nHost: ", b"GET")
    streams = [connect(narrow.url) for _ in shapes]
    for stream, shape in zip(streams, shapes, strict=True):
        stream.sendall(shape)
    assert wait_until(lambda: narrow.number("fumehood_connections_without_token") >= len(shapes))
    yield streams
    for stream in streams:
        stream.close()
    assert wait_until(lambda: narrow.number("fumehood_connections_without_token") == 0)


@pytest.mark.usefixtures("held")
def test_one_more_without_a_token_is_refused_and_that_is_logged_and_counted(narrow):
    before = narrow.number("fumehood_refused_total")
    for line in ("GET /", "GET /readyz", "GET /info", "POST /execute", "GET /assets/app.js"):
        found = exchange(narrow.url, line)
        assert (found.status, found.json()["code"]) == (503, "unavailable"), line
        assert (found.headers["retry-after"], found.headers["x-fumehood-version"]) == ("1", __version__)
    assert narrow.number("fumehood_refused_total") >= before + 5
    assert any(line.get("path") == "/readyz" and line["status"] == 503 for line in narrow.lines())


@pytest.mark.usefixtures("held")
def test_health_has_room_of_its_own(narrow):
    assert [exchange(narrow.url, "GET /healthz").status for _ in range(3)] == [200] * 3


@pytest.mark.usefixtures("held")
def test_what_a_refused_connection_is_told_is_in_the_description(narrow):
    paths = exchange(narrow.url, "GET /openapi.json", AUTH).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            told = operation["responses"]["503"]["headers"].keys()
            assert {"Retry-After", "X-Request-Id", "X-Fumehood-Version"} <= told, (method, path)


@pytest.mark.usefixtures("held")
def test_who_shows_a_token_is_let_in(narrow):
    assert exchange(narrow.url, "GET /info", AUTH).status == 200
    assert exchange(narrow.url, "GET /readyz", AUTH).status == 200


@pytest.mark.usefixtures("held")
def test_another_address_has_room_of_its_own(narrow):
    host = f"Host: {urlsplit(narrow.url).netloc}"
    assert _asked(_from(narrow.url, ELSEWHERE), narrow.url, "GET /", host).status == 200


def test_health_is_told_on_a_full_server_with_a_token_too(start: Callable[..., Running]):
    server = start("--max-connections", "2")
    with connect(server.url) as one, connect(server.url) as two:
        for stream in (one, two):
            stream.sendall(head(server.url, "GET /info", AUTH))
            assert answer(stream).status == 200
        assert [exchange(server.url, "GET /info", AUTH).status for _ in range(2)] == [503] * 2
        assert [exchange(server.url, "GET /healthz", *shown).status for shown in ((), (AUTH,))] == [200] * 2


def test_who_shows_a_token_takes_the_place_of_one_that_shows_none(start: Callable[..., Running]):
    server = start("--max-connections", "4")
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(connect(server.url)) for _ in range(4)]  # they are taken in this order
        for _ in range(3):
            known = held.enter_context(connect(server.url))
            known.sendall(head(server.url, "GET /info", AUTH))
            assert answer(known).status == 200
        told = answer(silent[0])  # it came first
        assert (told.status, told.headers["retry-after"]) == (503, "1")


def test_a_connection_counts_by_what_it_showed_last(narrow):
    with connect(narrow.url) as stream:
        for headers, status, unknown in (((AUTH,), 200, 0), ((), 401, 1), ((AUTH,), 200, 0)):
            stream.sendall(head(narrow.url, "GET /info", *headers))
            assert answer(stream).status == status
            assert wait_until(lambda n=unknown: narrow.number("fumehood_connections_without_token") == n)


def test_those_beyond_the_bound_make_room_for_the_next(narrow, held):
    with contextlib.ExitStack() as streams:
        first = streams.enter_context(connect(narrow.url))
        assert wait_until(lambda: narrow.number("fumehood_connections_without_token") > len(held))

        def is_put_out() -> bool:
            streams.enter_context(connect(narrow.url))
            first.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                return first.recv(65536).startswith(b"HTTP/1.1 503 ")
            return False

        assert wait_until(is_put_out)
        assert exchange(narrow.url, "GET /healthz").status == 200
        assert exchange(narrow.url, "GET /info", AUTH).status == 200


def test_who_has_asked_is_answered_however_many_came_at_once(start: Callable[..., Running]):
    """More than may be without a token, and all of them there before the server looks at the first."""
    server = start("--max-unauthenticated", "1")
    server.process.send_signal(signal.SIGSTOP)
    try:
        streams = [connect(server.url) for _ in range(120)]
        for stream in streams:
            stream.sendall(head(server.url, "GET /healthz", "Connection: close"))
    finally:
        server.process.send_signal(signal.SIGCONT)
    with contextlib.ExitStack() as open_ones:
        for stream in streams:
            open_ones.enter_context(stream)
        assert {answer(stream).status for stream in streams} == {200}


def test_the_time_of_a_connection_without_a_token_is_bounded(start: Callable[..., Running]):
    short = start(is_patient=False)
    host = f"Host: {urlsplit(short.url).netloc}"
    shapes = (
        b"",
        f"GET / HTTP/1.1\r\n{host}\r\n\r\n".encode(),
        head(short.url, SOCKET, *UPGRADE, KEY, "Content-Length: 5"),
    )
    with contextlib.ExitStack() as open_ones:
        streams = [open_ones.enter_context(connect(short.url)) for _ in shapes]
        for stream, shape in zip(streams, shapes, strict=True):
            stream.sendall(shape)
        assert all(closes(stream) for stream in streams)

    def refused() -> int:
        return sum(line.get("code") == "request_timeout" for line in short.lines())

    assert wait_until(refused)
    assert short.stop() == 0  # all is written
    assert refused() == 1  # the first: the second was answered, and the third was refused before


@pytest.mark.parametrize(
    ("line", "headers", "body", "status"),
    [
        (SOCKET, (*UPGRADE, KEY, "Content-Length: 5"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "Content-Length: 5"), b"12345", 400),
        (SOCKET, (*UPGRADE, KEY, "Transfer-Encoding: chunked"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "Transfer-Encoding: chunked"), b"0\r\n\r\n", 400),
        (SOCKET, (*UPGRADE, KEY, f"X: {'x' * 9000}"), b"", 431),
        (f"{SOCKET}?ticket={'x' * 9000}", (*UPGRADE, KEY), b"", 431),
        (SOCKET, (*UPGRADE, KEY, *(f"X-{n}: x" for n in range(200))), b"", 431),
        (SOCKET, UPGRADE, b"", 400),
        (SOCKET, (*UPGRADE, "Sec-WebSocket-Key: short"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, KEY), b"", 400),
        (SOCKET, (*UPGRADE[:2], KEY, "Sec-WebSocket-Version: 8"), b"", 400),
        (SOCKET, (*UPGRADE[:2], KEY), b"", 400),
        ("POST /execute", (*UPGRADE, KEY), b"", 400),
        ("HEAD /sessions/s_a_b/events", (*UPGRADE, KEY), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "X: a\x01b"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "User-Agent: a\x7fb"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "Upgrade: websocket"), b"", 400),
        (SOCKET, (*UPGRADE[:1], UPGRADE[2], KEY, 'Connection: "x", Upgrade'), b"", 400),
        (SOCKET, (*UPGRADE[:1], UPGRADE[2], KEY, "Connection: a b, upgrade"), b"", 400),
        (SOCKET, (*UPGRADE, KEY, 'Sec-WebSocket-Protocol: "'), b"", 400),
        (SOCKET, (*UPGRADE, KEY, "Origin: a", "Origin: b"), b"", 400),
        (SOCKET, (*UPGRADE, KEY), b"", 401),
        (SOCKET, ("Upgrade: h2c", "Connection: Upgrade"), b"", 401),
    ],
)
def test_an_upgrade_that_is_none_is_answered_and_logged(server, line, headers, body, status):
    path = line.split()[1].partition("?")[0]
    before = sum(each.get("path") == path for each in server.lines())
    found = exchange(server.url, line, *headers, body=body)
    assert found.status == status
    assert found.headers["x-fumehood-version"] == __version__
    assert wait_until(lambda: sum(each.get("path") == path for each in server.lines()) > before)


@pytest.mark.parametrize("path", ["/healthz", "/", "/execute", "/nothing"])
def test_a_body_that_does_not_come_gives_no_more_time(start: Callable[..., Running], path: str):
    server = start(env={"NO_TOKEN_S": "0.5"})
    with connect(server.url) as stream:
        stream.sendall(head(server.url, f"GET {path}", "Transfer-Encoding: chunked"))
        assert closes(stream)
    assert wait_until(lambda: server.number("fumehood_connections_without_token") == 0)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_body_that_does_not_come_does_not_hold_up_the_stop(start: Callable[..., Running], workers: str):
    server = start("--workers", workers, "--grace", "3600")
    kinds = (
        ("GET /healthz", "Transfer-Encoding: chunked"),
        ("POST /execute", AUTH, JSON, "Content-Length: 100"),
        ("PUT /sessions/s_a_b/files/content?path=/workspace/a", AUTH, BINARY, "Content-Length: 100"),
    )
    with contextlib.ExitStack() as held:
        streams = [held.enter_context(connect(server.url)) for _ in kinds]
        for stream, kind in zip(streams, kinds, strict=True):
            stream.sendall(head(server.url, *kind) + b"1")
        assert exchange(server.url, "GET /healthz").status == 200
        server.process.send_signal(signal.SIGTERM)
        told = [answer(stream) for stream in streams]
        assert server.process.wait(HANG_S) == 0
    assert [(each.status, each.headers["retry-after"], each.json()["code"]) for each in told] == [
        (503, "5", "unavailable")
    ] * 3
    assert not [line for line in server.lines() if line["level"] == "error"]
    assert "Traceback" not in server.log()


def test_a_held_upgrade_does_not_disturb_the_stop_nor_a_download(start: Callable[..., Running]):
    server, size = start(), 24 * 1024 * 1024
    with server.client() as client, contextlib.ExitStack() as streams:
        session = client.post("/sessions", json={}).json()["session_id"]
        made = {"code": f"with open('large', 'wb') as file: _ = file.write(b'x' * {size})"}
        assert client.post(f"/sessions/{session}/run", json=made).json()["exit_code"] == 0
        held = [streams.enter_context(connect(server.url)) for _ in range(3)]
        held[0].sendall(head(server.url, SOCKET, *UPGRADE, KEY, "Content-Length: 5"))
        held[1].sendall(head(server.url, SOCKET, *UPGRADE, KEY)[:-2])
        held[2].sendall(head(server.url, "GET /info", AUTH)[:-1])
        fetched = streams.enter_context(connect(server.url))
        fetched.sendall(head(server.url, f"GET /sessions/{session}/files/content?path=/workspace/large", AUTH))
        first = fetched.recv(100)
        server.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: any(line["event"] == "stopping" for line in server.lines()))
        whole = first + b"".join(iter(lambda: fetched.recv(1 << 20), b""))
    assert len(whole.partition(b"\r\n\r\n")[2]) == size
    assert server.process.wait(HANG_S) == 0
    assert "Traceback" not in server.log()
    assert not [line for line in server.lines() if line.get("level") == "error"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_client_that_has_said_all_is_answered(server, accept):
    body = b'{"code": "print(6 * 7)"}'
    with connect(server.url) as stream:
        stream.sendall(
            head(server.url, "POST /execute", AUTH, JSON, f"Accept: {accept}", f"Content-Length: {len(body)}")
        )
        stream.sendall(body)
        stream.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: stream.recv(65536), b""))
    assert re.sub(rb"\AHTTP/1\.1 100 Continue\r\n\r\n", b"", said).startswith((b"HTTP/1.1 ",))
    assert b"HTTP/1.1 200 OK" in said
    assert b"42\\n" in said


def test_a_body_that_ends_too_soon_is_answered(server):
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", AUTH, JSON, "Content-Length: 100") + b"{")
        stream.shutdown(socket.SHUT_WR)
        assert answer(stream).status == 400
    with connect(server.url) as stream:
        stream.sendall(b"GET /info HTTP/1.1\r\nHo")
        stream.shutdown(socket.SHUT_WR)
        assert answer(stream).status == 400


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("shut_first", [False, True], ids=["closed", "half-closed before"])
def test_a_client_that_leaves_still_ends_its_program(start: Callable[..., Running], accept: str, shut_first: bool):
    server = start()
    body = httpx2.Request("POST", "http://x", json=LASTING).content
    with connect(server.url) as stream:
        kind = (AUTH, JSON, f"Accept: {accept}", f"Content-Length: {len(body)}")
        stream.sendall(head(server.url, "POST /execute", *kind) + body)
        if shut_first:
            stream.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: len(waiting(server.process.pid)) == 1)
        assert server.executions() == 1
    assert wait_until(lambda: server.executions() == 0)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("shuts", [False, True], ids=["closed", "half-closed before"])
def test_a_client_that_leaves_in_another_request_ends_its_program_too(
    start: Callable[..., Running], accept: str, shuts: bool
):
    """Of which nothing is read before the first one has been answered."""
    server = start()
    body = httpx2.Request("POST", "http://x", json=LASTING).content
    with connect(server.url) as stream:
        kind = (AUTH, JSON, f"Accept: {accept}", f"Content-Length: {len(body)}")
        stream.sendall(head(server.url, "POST /execute", *kind) + body)
        assert wait_until(lambda: len(waiting(server.process.pid)) == 1)
        stream.sendall(head(server.url, "GET /healthz") * 3)
        if shuts:
            stream.shutdown(socket.SHUT_WR)
            assert server.executions() == 1
    assert wait_until(lambda: server.executions() == 0)


def test_a_client_that_says_no_more_is_answered_all_that_it_asked_for(start: Callable[..., Running]):
    server = start()
    body = httpx2.Request("POST", "http://x", json=LASTING).content
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", AUTH, JSON, f"Content-Length: {len(body)}") + body)
        assert wait_until(lambda: len(waiting(server.process.pid)) == 1)
        stream.sendall(head(server.url, "GET /healthz") * 3)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(12) == b"HTTP/1.1 100"  # it is looked whether we still listen
        let_go(waiting(server.process.pid))
        said = b"".join(iter(lambda: stream.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200") == 4


def test_a_half_closed_client_waits_as_long_as_its_program(start: Callable[..., Running]):
    server = start()
    body = httpx2.Request("POST", "http://x", json=LASTING).content
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", AUTH, JSON, f"Content-Length: {len(body)}") + body)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(4).startswith(b"HTTP")  # it is looked whether we still listen
        assert wait_until(lambda: len(waiting(server.process.pid)) == 1)
        let_go(waiting(server.process.pid))
        said = b"".join(iter(lambda: stream.recv(65536), b""))
    assert b"done\\n" in said


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ("2001:db8:1234::5", "2001:db8:1234::5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        ("[2001:db8::1234:5]:4711", "2001:db8::1234:5"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7:4711", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("198.51.100.7:4711, 192.0.2.1", "198.51.100.7"),
        ("198.51.100.7, x198.51.100.8:1", "192.0.2.1"),
        ("198.51.100.7:4711:8", "192.0.2.1"),
    ],
)
def test_an_address_that_a_proxy_says_is_taken_whole(told: str, client: str):
    async def ask() -> str:
        options = ServerOptions(trusted_proxies=("192.0.2.1",))
        connections = Connections(options, Numbers(Gate(options), Tokens()))
        return connections.client(connections.open(Read(), "192.0.2.1", False), [told])

    assert asyncio.run(ask()) == client


def test_only_a_trusted_proxy_says_whose_request_it_is(start: Callable[..., Running]):
    server = start("--trusted-proxy", "127.0.0.1", "--max-unauthenticated", "2")
    host = f"Host: {urlsplit(server.url).netloc}"
    told = ("X-Forwarded-For: 192.0.2.9, 192.0.2.1", "X-Forwarded-For: 198.51.100.7:4711")
    with contextlib.ExitStack() as held:
        for _ in range(10):
            held.enter_context(connect(server.url))
        assert exchange(server.url, "GET /one", AUTH, *told).status == 404  # exempt from the bound
        assert exchange(server.url, "GET /two", "X-Forwarded-For: not an address").status == 401
    assert _asked(_from(server.url, ELSEWHERE), server.url, "GET /three", host, *told).status == 401
    assert wait_until(lambda: any(line.get("path") == "/three" for line in server.lines()))
    clients = {line["path"]: line["client"] for line in server.lines() if "path" in line}
    assert (clients["/one"], clients["/two"], clients["/three"]) == ("198.51.100.7", "127.0.0.1", ELSEWHERE)


def test_the_client_of_a_request_is_the_same_in_every_workers_line(start: Callable[..., Running]):
    server = start("--workers", "2")
    made = exchange(server.url, "POST /sessions", AUTH, JSON, "Content-Length: 2", body=b"{}").json()["session_id"]

    def lines() -> list[dict[str, str]]:
        return [line for line in server.lines() if line.get("path") == f"/sessions/{made}"]

    def was_passed_on() -> bool:
        assert exchange(server.url, f"GET /sessions/{made}", AUTH, "X-Forwarded-For: 192.0.2.9").status == 200
        return any("passed_to" in line for line in lines())

    assert wait_until(was_passed_on)
    assert {line["client"] for line in lines()} == {"127.0.0.1"}


def test_a_socket_that_is_refused_says_why(server):
    with pytest.raises(InvalidStatus) as refusal:
        open_socket(f"{server.url.replace('http', 'ws')}/sessions/s_a_b/events", open_timeout=HANG_S)
    assert refusal.value.response.status_code == 401


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("127.0.0.1", 1), "127.0.0.1"),
        (("::1", 1, 0, 0), "::1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1"),
        ("", "unix"),
        (None, "unix"),
    ],
)
def test_an_address_has_one_form(peer: object, address: str):
    assert address_of(peer) == address


def test_a_whole_network_of_ipv6_is_one_client():
    async def connect_all() -> None:
        options = ServerOptions(max_unauthenticated=2)
        connections = Connections(options, Numbers(Gate(options), Tokens()))
        opened = [connections.open(None, f"2001:db8::{n}", False) for n in range(3)]  # type: ignore[arg-type]
        other = connections.open(None, "2001:db8:0:1::1", False)  # type: ignore[arg-type]
        for connection in (*opened[:2], other):
            connection.shows_none("/")
        with pytest.raises(Problem, match="of this address"):
            opened[2].shows_none("/")
        opened[0].lost()
        connections.open(None, "2001:db8::9", False).shows_none("/")  # type: ignore[arg-type]

    asyncio.run(connect_all())


def test_clients_of_one_address_may_connect_first_and_ask_then(monkeypatch: pytest.MonkeyPatch):
    """More than may be without a token, and than the reserve holds for long."""

    async def connect_all() -> None:
        connections = Connections(options, Numbers(Gate(options), Tokens()))

        def come() -> None:
            connections.open(Read(), "192.0.2.1", False).put_out = put_out.append

        monkeypatch.setattr(connections_module, "_YOUNG_S", 3600.0)
        for _ in range(200):
            come()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(connections), put_out) == (200, [])
        monkeypatch.setattr(connections_module, "_YOUNG_S", 0.0)
        come()
        assert len(put_out) == 201 - options.max_unauthenticated - RESERVE

    options, put_out = ServerOptions(max_unauthenticated=8), list[Problem]()
    asyncio.run(connect_all())
