"""Clients that read nothing of what they are sent: how long they last, and that they do not hold up the end."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from raw_http import head
from sockets import opened, ticket

from running import TOKENS, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
AUTH = f"Authorization: Bearer {TOKENS['alice']}"
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
CLOSES = b"\x88\x82\0\0\0\0\x03\xe8"  # a frame of a client
LARGE = 24 * 1024 * 1024


def _narrow(url: str) -> socket.socket:
    """Which has room for very little."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stream.settimeout(HANG_S)
    stream.connect(("127.0.0.1", urlsplit(url).port))
    return stream


def _fetch(url: str, session: str) -> socket.socket:
    stream = _narrow(url)
    stream.sendall(head(url, f"GET /sessions/{session}/files/content?path=/workspace/large", AUTH))
    return stream


def _large(client, session: str) -> None:
    code = f"with open('large', 'wb') as file: _ = file.write(b'x' * {LARGE})"
    assert client.post(f"/sessions/{session}/run", json={"code": code}).json()["exit_code"] == 0


def _is_without_fault(running: Running) -> bool:
    return "Traceback" not in running.log() and not [each for each in running.lines() if each["level"] == "error"]


def test_who_shows_no_token_and_reads_no_answer_has_no_more_time_than_others(start: Start) -> None:
    running = start("--client-timeout", "250", is_patient=False)
    with _narrow(running.url) as stream:
        stream.setblocking(False)
        asked, sent = head(running.url, "GET /nope") * 100, 1
        while sent:  # until the server reads no more
            try:
                sent = stream.send(asked)
            except BlockingIOError:
                sent = 0 if wait_until(lambda: running.number("fumehood_requests_total") > 100) else 1
        assert wait_until(lambda: any(line.get("code") == "request_timeout" for line in running.lines()))
    (line,) = [line for line in running.lines() if line.get("code") == "request_timeout"]
    assert line["message"] == "no token was shown in time"  # it would have had 250 s to read


LARGER, SMALLER = "GET /assets/app.js", "GET /assets/licenses.txt"
CLIENTS = 24


def _unread(running: Running, *headers: str) -> ExitStack:
    """Clients that ask for more and more, each of them for a last answer, and read nothing.

    The kernel takes all that is for the first of them, nearly all of what is for others, and not half for the rest.
    """
    streams = ExitStack()
    most = 3 * head(running.url, LARGER, *headers) if running.socket is None else b""
    for number in range(CLIENTS):
        asked = head(running.url, SMALLER, *headers) * number + head(
            running.url, SMALLER, "Connection: close", *headers
        )
        streams.enter_context(_connected(running)).sendall(most + asked)
    answered = [-1]
    while len(set(answered[-20:])) > 1 or len(answered) < 20:  # until it gets no further
        time.sleep(0.02)
        answered.append(_answered(running))
    return streams


def _answered(running: Running) -> int:
    return sum(line.get("path", "").startswith("/assets/") for line in running.lines())


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Of a socket: its name has 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory, "s.sock")


def _connected(running: Running) -> socket.socket:
    if running.socket is None:
        return _narrow(running.url)
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(HANG_S)
    stream.connect(running.socket)
    return stream


def _sockets(running: Running) -> int:
    """That it has open, whatever it counts."""
    files = Path(f"/proc/{running.process.pid}/fd")
    return sum(each.readlink().name.startswith("socket:") for each in files.iterdir() if each.is_symlink())


@pytest.mark.parametrize("place", ["port", "unix socket"])
@pytest.mark.parametrize("shown", [(), (AUTH,)], ids=["no token", "a token"])
def test_an_answer_that_is_the_last_is_not_waited_for_either(
    start: Start, short_path: Path, place: str, shown: tuple[str, ...]
) -> None:
    where = () if place == "port" else ("--unix-socket", str(short_path))
    within = {"env": {"NO_TOKEN_S": "1"}} if not shown else {}
    running = start(*where, *(("--client-timeout", "1") if shown else ()), **within)
    before = _sockets(running)
    with _unread(running, *shown):
        assert wait_until(lambda: _sockets(running) <= before), _sockets(running) - before
    assert _is_without_fault(running)


@pytest.mark.parametrize("shown", [(), (AUTH,)], ids=["no token", "a token"])
def test_the_last_answers_do_not_hold_up_the_stop(start: Start, shown: tuple[str, ...]) -> None:
    running = start("--grace", "1" if shown else "3600")
    with _unread(running, *shown):
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(HANG_S) == 0
    assert _is_without_fault(running)


def test_after_the_grace_nobody_waits_for_them(start: Start) -> None:
    running = start("--grace", "1")
    with running.client() as client, ExitStack() as streams:
        session = opened(client)
        _large(client, session)
        held = [streams.enter_context(_fetch(running.url, session)) for _ in range(3)]
        assert all(stream.recv(1) == b"H" for stream in held)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(HANG_S) == 0
    assert _is_without_fault(running)


def test_a_websocket_that_closes_and_reads_nothing_does_not_disturb_the_stop(start: Start) -> None:
    running = start("--grace", "3600")
    with running.client() as client, ExitStack() as streams:
        session = opened(client)
        _large(client, session)
        stream = streams.enter_context(_narrow(running.url))
        path = f"/sessions/{session}/events?ticket={ticket(client, session)}"
        stream.sendall(head(running.url, f"GET {path}", *UPGRADE, KEY))
        assert stream.recv(12) == b"HTTP/1.1 101"
        printing = {"code": "for _ in range(8): print('x' * 999_999, flush=True)"}
        assert client.post(f"/sessions/{session}/run", json=printing).json()["exit_code"] == 0
        fetched = streams.enter_context(_fetch(running.url, session))
        found = fetched.recv(1)
        stream.sendall(CLOSES)
        assert wait_until(lambda: any(line.get("status") == 101 for line in running.lines()))  # it was heard
        running.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: any(line["event"] == "stopping" for line in running.lines()))
        reading = threading.Thread(target=lambda: list(iter(lambda: stream.recv(1 << 20), b"")), daemon=True)
        found += b"".join(iter(lambda: fetched.recv(1 << 20), b""))
        reading.start()
        assert running.process.wait(HANG_S) == 0
        reading.join(HANG_S)
    assert len(found.partition(b"\r\n\r\n")[2]) == LARGE
    assert _is_without_fault(running)
