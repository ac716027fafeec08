"""What a client is told when the server is not there, not ours, not willing, or gone."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from certificates import Authority
from fumehood import errors, get_sandbox, open_session
from fumehood.backends import remote
from fumehood.backends.remote import client as remote_client
from fumehood.backends.remote.address import Address
from fumehood.backends.remote.process import RemoteProcess
from fumehood.config import Settings
from fumehood.config_values import Secret
from fumehood.types import Receipt
from running import TOKENS, Running
from support import HANG_S

Client = Callable[..., dict[str, Any]]
LIMITS = Settings().limits()
VERSION = {"X-Fumehood-Version": "0.0", "Content-Type": "application/json"}


def refused(kind: type[Exception], arguments: dict[str, Any]) -> list[str]:
    """What a one-shot and a session say."""
    said = []
    with get_sandbox(**arguments) as sandbox, pytest.raises(kind) as caught:
        sandbox.execute("print(1)")
    said.append(str(caught.value))
    with open_session(start_retries=0, **arguments) as session, pytest.raises(kind) as caught:
        session.run("print(1)")
    return [*said, str(caught.value)]


def test_no_server(client: Client, nobody: str) -> None:
    for said in refused(errors.BackendUnavailable, client(nobody)):
        assert f"no server at {nobody}" in said
        assert "fumehood serve" in said


def test_the_fallback_runs_it_where_there_is_no_server(client: Client, nobody: str) -> None:
    with get_sandbox(**client(nobody, fallback="local")) as sandbox:
        result = sandbox.execute("print(1)")
    assert (result.stdout, result.meta["fallback"]["from"]) == ("1\n", "remote")


def test_a_refused_token(server: Running, client: Client) -> None:
    for said in refused(errors.ConfigurationError, client(server.url, remote_token="not-the-token-0123456789")):
        assert "refused the token" in said
        assert "SANDBOX_REMOTE_TOKEN" in said
        assert "not-the-token" not in said


@pytest.mark.parametrize("status", [200, 301, 404, 500])
def test_something_that_is_no_fumehood(client: Client, stranger: Callable[..., str], status: int) -> None:
    seen: list[str] = []
    url = stranger(status, {"Location": "/"}, b"<html>", seen)
    for said in refused(errors.BackendUnavailable, client(url)):
        assert "no fumehood server" in said
        assert "SANDBOX_REMOTE_URL" in said
    assert {each.split()[0] for each in seen} == {"GET"}  # no code was sent to it


def test_a_proxy_whose_server_is_down(client: Client, stranger: Callable[..., str]) -> None:
    for said in refused(errors.BackendUnavailable, client(stranger(502, {}, b"bad gateway"))):
        assert "a proxy whose server is down" in said


def test_another_protocol(
    server: Running, client: Client, stranger: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = json.dumps({"version": "9.0", "protocol": 9, "receipt": {"level": "sealed"}}).encode()
    for said in refused(errors.BackendUnavailable, client(stranger(200, VERSION, newer))):
        assert "protocol 9" in said
    monkeypatch.setattr(remote_client, "PROTOCOL", "9")
    for said in refused(errors.BackendUnavailable, client(server.url)):
        assert "another version of the protocol" in said


def test_a_server_that_says_to_come_in_an_hour_is_not_waited_for(client: Client, stranger: Callable[..., str]) -> None:
    problem = json.dumps({"code": "too_many", "detail": "enough for now"}).encode()
    for said in refused(errors.BackendUnavailable, client(stranger(429, {**VERSION, "Retry-After": "3600"}, problem))):
        assert "enough for now; again in 3600 s" in said


def test_a_quota_of_one_at_a_time_is_waited_for(
    start: Callable[..., Running], client: Client, until_let_go: Callable[..., list[str]]
) -> None:
    running = start(tokens=[{"name": "alice", "token": TOKENS["alice"], "max_concurrent": 1}])
    printed = until_let_go(running, client(running.url), then=lambda: '"status": 429' in running.log())
    assert printed == ["here\ndone\n", "2\n", "2\n"]


def test_a_session_that_the_server_ended_begins_anew(server: Running, client: Client) -> None:
    with open_session(**client(server.url)) as session:
        with server.client() as http:
            before = {each["session_id"] for each in http.get("/sessions").json()["sessions"]}
            session.run("x = 1")
            (ours,) = {each["session_id"] for each in http.get("/sessions").json()["sessions"]} - before
            assert http.delete(f"/sessions/{ours}").status_code == 204
        with pytest.raises(errors.SandboxLost, match="has ended it"):
            session.run("x")
        assert "NameError" in session.run("x").stderr


# ---- TLS


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """With a certificate for localhost, of an authority that nobody knows: authority.pem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path, "localhost").issue("server"))
    return context


@pytest.fixture
def https(server: Running, before: Callable[..., Any], tls: ssl.SSLContext) -> str:
    url: str = before(server.url, tls=tls).url
    return url


def test_a_certificate_of_one_s_own(
    client: Client, https: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with get_sandbox(**client(https)) as sandbox, open_session(**client(https)) as session:
        assert sandbox.execute("print(1)").stdout == "1\n"
        assert session.run("print(1)").stdout == "1\n"
    for said in refused(errors.BackendUnavailable, client(https.replace("localhost", "127.0.0.1"))):
        assert "certificate" in said  # it is for another name


def test_a_certificate_that_nobody_trusts(client: Client, https: str) -> None:
    for said in refused(errors.BackendUnavailable, client(https)):
        assert "certificate" in said
        assert "SSL_CERT_FILE" in said


def test_a_server_without_tls(server: Running, client: Client) -> None:
    for said in refused(errors.BackendUnavailable, client(server.url.replace("http:", "https:"))):
        assert "no TLS with https://" in said


def test_a_server_with_tls_that_is_asked_without(client: Client, https: str) -> None:
    for said in refused(errors.BackendUnavailable, client(https.replace("https:", "http:"))):
        assert "SANDBOX_REMOTE_URL" in said


async def no_cancel(_: str) -> None:
    pass


async def no_receipt() -> Receipt:
    return Receipt("process", {})


HEAD = b"HTTP/1.1 200 OK\r\nX-Fumehood-Version: 0.0\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n\r\n"


class Endless(threading.Thread):
    """A server which answers every request with the same bytes for as long as it is read."""

    def __init__(self, first: bytes, again: bytes, pause_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._first, self._again, self._pause_s = first, again, pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.sent: list[int] = []
        self.asked: list[bytes] = []

    def run(self) -> None:
        with suppress(OSError):
            while True:
                stream, _ = self._listening.accept()
                self._answer(stream)

    def _answer(self, stream: socket.socket) -> None:
        self.sent.append(0)
        with suppress(OSError), stream:
            self.asked.append(stream.recv(65536).partition(b"\r\n")[0])
            stream.sendall(self._first)
            while True:
                stream.sendall(self._again)
                self.sent[-1] += len(self._again)
                time.sleep(self._pause_s)

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.join(HANG_S)
        assert not self.is_alive()


@contextmanager
def endless(first: bytes, again: bytes, pause_s: float = 0.0) -> Iterator[Endless]:
    hostile = Endless(first, again, pause_s)
    hostile.start()
    try:
        yield hostile
    finally:
        hostile.stop()


def test_an_answer_without_an_end_is_not_read_for_ever(client: Client) -> None:
    with endless(JSON + b'{"protocol": 1, "a": "', b"a" * 65536) as hostile:
        for said in refused(errors.BackendUnavailable, client(hostile.url)):
            assert "answered with more than 1,048,576 bytes" in said
    assert max(hostile.sent) < 64 * 1024 * 1024  # with what the kernel holds of a connection


@pytest.mark.parametrize(
    ("first", "again"), [(HEAD, b"X-More: a\r\n"), (b"", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")]
)
def test_an_answer_that_does_not_begin_is_not_waited_for(
    client: Client, first: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of it comes in time."""
    monkeypatch.setattr(remote, "_MEET_S", 0.5)
    monkeypatch.setattr(remote_client, "_CONNECT_S", 0.5)
    with endless(first, again, 0.05) as hostile:
        for said in refused(errors.BackendUnavailable, client(hostile.url)):
            assert "did not answer in time" in said


def test_the_end_of_a_process_waits_for_no_whole_answer() -> None:
    with endless(HEAD, b"X-More: a\r\n", 0.05) as hostile:
        remote_client.end_now(Address(hostile.url, Settings(remote_token=Secret("a-token"))), "s_a_b")
        assert hostile.asked == [b"DELETE /sessions/s_a_b HTTP/1.1"]


def test_a_program_that_never_begins_is_lost() -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"\n"  # says that the server is there
            await asyncio.sleep(0.01)

    async def listen() -> None:
        address = Address("http://127.0.0.1:1", None)  # type: ignore[arg-type]
        response = httpx2.Response(200, content=body())
        process = RemoteProcess(remote_client.Client(address), response, LIMITS, no_cancel, keeps_state=False)
        await process.begun(no_receipt, 0.2)

    with pytest.raises(errors.SandboxLost, match="before the program began"):
        asyncio.run(listen())


@pytest.mark.parametrize(
    "event",
    [{"type": "display", "data": {"text/plain": "a" * 65536}}, {"type": "output", "stream": "stdout", "text": ""}],
)
def test_events_that_nobody_reads_are_not_piled_up(event: dict[str, Any]) -> None:
    """The server has to wait, whatever the events hold."""
    line = json.dumps(event).encode() + b"\n"

    async def body() -> AsyncIterator[bytes]:
        for _ in range(100_000):
            taken.append(len(line))
            yield line

    async def listen() -> None:
        begun = b'{"type": "started"}\n'

        async def whole() -> AsyncIterator[bytes]:
            yield begun
            async for part in body():
                yield part

        address = Address("http://127.0.0.1:1", None)  # type: ignore[arg-type]
        process = RemoteProcess(
            remote_client.Client(address), httpx2.Response(200, content=whole()), LIMITS, no_cancel, keeps_state=False
        )
        await process.begun(no_receipt, HANG_S)
        for _ in range(100_000):  # as long as it goes on by itself
            before = len(taken)
            await asyncio.sleep(0)
            if len(taken) == before:
                break
        process._leave()
        await process.close()

    taken: list[int] = []
    asyncio.run(listen())
    assert len(taken) < 30_000
    assert sum(taken) < 16 * 1024 * 1024
