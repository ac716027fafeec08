"""A server that listens at a Unix socket: who may connect, what is in its place, and what is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sockets import listen, opened, ticket

from fumehood.cli.main import main
from running import PATIENT, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
TRUSTED = ("--trusted-proxy", "unix")


@pytest.fixture
def path() -> Iterator[str]:
    """A short one: a socket's name has 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield f"{directory}/s.sock"


def _refused(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["serve", *words])
    out, err = capfd.readouterr()
    assert out == ""
    return code, err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_everything_is_there(start: Start, path: str, workers: str) -> None:
    server = start("--unix-socket", path, "--workers", workers)
    assert (server.socket, stat.S_IMODE(os.stat(path).st_mode)) == (path, 0o600)
    assert len(server.workers(int(workers))) == int(workers)
    assert {line["address"] for line in server.lines() if line["event"] == "started"} == {f"unix:{path}"}
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(4)]  # so that each worker has some
        session = opened(clients[0])
        for client in clients:
            assert client.post(f"/sessions/{session}/run", json={"code": "6 * 7"}).json()["exit_code"] == 0
        with listen(server, session, ticket(clients[0], session)) as events:
            clients[1].post(f"/sessions/{session}/run", json={"code": "print(1)"})
            assert '"started"' in str(events.recv(HANG_S))
    for host, status in (("localhost", 200), ("localhost:81", 200), ("127.0.0.1", 200), ("evil.example", 403)):
        assert server.get("/healthz", headers={"Host": host}).status_code == status, host
    for host in ("localhost:x", "localhost:", "127.0.0.1:99999", "[::1]:x", "[::1]:-1"):
        assert server.get("/healthz", headers={"Host": host}).status_code == 400, host
    assert server.get("/info").status_code == 401
    assert server.stop() == 0
    assert {line["client"] for line in server.lines() if line["event"] == "request"} == {"unix"}
    assert os.listdir(os.path.dirname(path)) == []


def test_a_path_that_is_no_text_is_shown_as_one_can(start: Start, path: str) -> None:
    server = start("--unix-socket", f"{path}\udcff")
    assert server.socket == rf"{path}\udcff"
    assert server.stop() == 0


def test_a_mode_is_given_before_anybody_can_connect(start: Start, path: str) -> None:
    start("--unix-socket", path, "--socket-mode", "660")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert os.listdir(os.path.dirname(path)) == ["s.sock"]


@pytest.mark.parametrize(("flags", "status", "client"), [((), 503, "unix"), (TRUSTED, 200, "192.0.2.7")])
def test_no_bound_by_address_holds_for_a_proxy_that_is_trusted(
    start: Start, path: str, flags: tuple[str, ...], status: int, client: str
) -> None:
    server = start("--unix-socket", path, "--max-unauthenticated", "2", *flags)
    with ExitStack() as held:
        for number in range(2, 5):
            held.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
            assert wait_until(partial(_has, server, number))
        assert server.get("/", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == status
    assert wait_until(lambda: [line["client"] for line in server.lines() if line.get("path") == "/"] == [client])


def _has(server: Running, connections: int) -> bool:
    return server.number("fumehood_connections") >= connections


def test_a_server_that_was_killed_is_in_nobodys_way(start: Start, path: str) -> None:
    first = start("--unix-socket", path)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(HANG_S)
    assert os.path.exists(path)
    assert start("--unix-socket", path).get("/healthz").status_code == 200


def test_a_server_that_lives_keeps_its_place(start: Start, path: str, capfd: Any) -> None:
    server = start("--unix-socket", path)
    code, err = _refused(capfd, "--unix-socket", path)
    assert (code, "another server listens there; try another --unix-socket" in err) == (2, True), err
    assert server.get("/healthz").status_code == 200


def test_what_is_no_socket_is_left_alone(path: str, capfd: Any) -> None:
    Path(path).write_text("kept")
    code, err = _refused(capfd, "--unix-socket", path)
    assert (code, "which is no socket" in err, Path(path).read_text()) == (2, True, "kept"), err
    for other, told in (
        (f"{path}/s", "Not a directory"),
        (f"{path}.none/s", "No such file or directory; make its directory first"),
        (path + 120 * "s", "longer than the 98 bytes"),
    ):
        code, err = _refused(capfd, "--unix-socket", other)
        assert (code, told in err) == (2, True), err


def test_the_next_servers_socket_is_not_removed(start: Start, path: str) -> None:
    first = start("--unix-socket", path)
    os.rename(path, f"{path}.old")
    second = start("--unix-socket", path)
    assert first.stop() == 0
    assert second.get("/healthz").status_code == 200


def test_a_token_that_is_made_is_printed(path: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    command = [sys.executable, str(PATIENT), "fumehood", "serve", "--unix-socket", path]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(
            rf"fumehood serves at unix:{re.escape(path)}, token (\S{{43}})\n", process.stdout.readline()
        )
        assert found
        with httpx2.Client(
            transport=httpx2.HTTPTransport(uds=path), base_url="http://localhost", timeout=HANG_S
        ) as http:
            assert http.get("/info", headers={"Authorization": f"Bearer {found[1]}"}).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "0.0.0.0"), "--host is for a port"),
        (("--port", "1"), "--port is for a port"),
        (("--tls-cert", "c", "--tls-key", "k"), "--tls-cert is for a port"),
        (("--socket-mode", "8"), "three octal digits"),
    ],
)
def test_what_does_not_fit_a_socket_is_told(words: tuple[str, ...], told: str, path: str, capfd: Any) -> None:
    try:
        code, err = _refused(capfd, "--unix-socket", path, *words)
    except SystemExit as wrong:
        code, err = int(str(wrong.code)), capfd.readouterr().err
    assert (code, told in err) == (2, True), err


def test_a_mode_without_a_socket_is_told(capfd: Any) -> None:
    code, err = _refused(capfd, "--port", "0", "--socket-mode", "660")
    assert (code, "--socket-mode is for --unix-socket" in err) == (2, True), err
