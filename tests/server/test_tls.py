"""TLS: what the server starts with and what it refuses, who is bounded, and certificates that are renewed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from raw_http import answer, closes, connect, head
from sockets import listen, opened, ticket

from certificates import FAR_AHEAD, LONG_AGO, Authority, Pair
from fumehood import get_sandbox, open_session
from fumehood.cli.main import main
from running import TOKENS, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
AUTH = f"Authorization: Bearer {TOKENS['alice']}"
LARGE = {"code": "with open('large', 'wb') as file: _ = file.write(bytes(range(256)) * 65536)"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Running]:
    flags = (*authority.issue("usual").flags, "--max-unauthenticated", "4")
    running = Running(tmp_path_factory.mktemp("tls"), *flags, is_patient=True, trusts=authority.trust())
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log()


def _secured(running: Running, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(connect(running.url), server_hostname="127.0.0.1")


def _refused(running: Running, what: str) -> bool:
    """Waits for it in the log."""
    return wait_until(lambda: any(what in line.get("message", "") for line in running.lines()))


def test_everything_is_there_over_tls(secure: Running, authority: Authority) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    assert secure.workers(1)
    assert next(line for line in secure.lines() if line["event"] == "started")["address"] == secure.url
    assert secure.get("/").status_code == secure.get("/healthz").status_code == 200
    with secure.client() as client:
        assert client.post("/execute", json={"code": "print(6 * 7)"}).json()["stdout"] == "42\n"
        session = opened(client)
        with listen(secure, session, ticket(client, session), ssl=authority.trust()) as events:
            assert client.post(f"/sessions/{session}/run", json=LARGE).json()["exit_code"] == 0
            assert '"started"' in str(events.recv(HANG_S))
        whole = client.get(f"/sessions/{session}/files/content", params={"path": "/workspace/large"})
        assert whole.content == bytes(range(256)) * 65536
        sent = client.put(
            f"/sessions/{session}/files/content?path=/workspace/up",
            content=whole.content,
            headers={"Content-Type": "application/octet-stream"},
        )
        assert sent.status_code in (200, 201, 204)


def test_pages_of_its_own_origin_are_https(secure: Running) -> None:
    with secure.client() as client:
        for origin, status in ((secure.url, 200), (secure.url.replace("https", "http"), 403)):
            assert client.get("/info", headers={"Origin": origin}).status_code == status


def test_plain_http_is_told_what_it_is_talking_to(secure: Running) -> None:
    with connect(secure.url) as stream:
        stream.sendall(head(secure.url, "GET /healthz"))
        found = answer(stream)
    assert (found.status, found.json()["detail"]) == (400, "this server speaks TLS: use https://")
    assert _refused(secure, "this server speaks TLS")


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("TLSv1", False), ("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_1_2_or_newer(secure: Running, authority: Authority, version: str, is_taken: bool) -> None:
    context = authority.trust()
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # else the client itself would not try
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if is_taken:
        with _secured(secure, context) as stream:
            assert stream.version() == version.replace("_", ".")
            stream.sendall(head(secure.url, "GET /healthz"))
            assert answer(stream).status == 200
    else:
        with pytest.raises(OSError), _secured(secure, context):
            pass
        assert _refused(secure, "the TLS handshake failed: unsupported protocol")


@pytest.mark.parametrize("junk", [b"\x16", b"\x16\x03\x01\xff\xff" + b"x" * 70000, b"\x16\x03\x01\x00\x05hello"])
def test_a_handshake_that_is_none_is_refused(secure: Running, junk: bytes) -> None:
    with connect(secure.url) as stream:
        with contextlib.suppress(OSError):  # it may be closed before it has taken all
            stream.sendall(junk)
            stream.shutdown(socket.SHUT_WR)
        assert closes(stream)
    assert secure.get("/healthz").status_code == 200


def test_junk_after_the_handshake_ends_the_connection_alone(secure: Running, authority: Authority) -> None:
    with connect(secure.url) as stream:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = authority.trust().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                stream.sendall(outgoing.read())
                incoming.write(stream.recv(65536))
        stream.sendall(outgoing.read() + b"\x17\x03\x03\x00\x20" + b"x" * 32)
        assert closes(stream)
    assert secure.get("/healthz").status_code == 200


def test_handshakes_count_as_connections_without_a_token(secure: Running) -> None:
    before = secure.number("fumehood_connections_without_token")
    with contextlib.ExitStack() as streams:
        for _ in range(4):
            streams.enter_context(connect(secure.url)).sendall(b"\x16\x03")
        assert wait_until(lambda: secure.number("fumehood_connections_without_token") >= before + 4)
        assert secure.get("/").status_code == 503
        assert secure.get("/healthz").status_code == 200
        with secure.client() as client:
            assert client.get("/info").status_code == 200
    assert wait_until(lambda: secure.number("fumehood_connections_without_token") == before)


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_the_time_of_a_handshake_is_bounded(start: Start, authority: Authority, begun: bytes) -> None:
    server = start(*authority.issue("short").flags, "--client-timeout", "0.2", trusts=authority.trust())
    with connect(server.url) as stream:
        stream.sendall(begun)
        assert closes(stream)
    assert _refused(server, "the TLS handshake came too slowly")


def test_a_handshake_that_does_not_come_is_refused_once(start: Start, authority: Authority) -> None:
    flags = (*authority.issue("once").flags, "--client-timeout", "0.5")
    server = start(*flags, env={"NO_TOKEN_S": "0.5"}, trusts=authority.trust())
    with contextlib.ExitStack() as streams:
        for stream in [streams.enter_context(connect(server.url)) for _ in range(8)]:
            assert closes(stream)
    assert server.get("/healthz").status_code == 200
    assert server.stop() == 0
    assert sum(line["event"] == "connection_refused" for line in server.lines()) == 8


def test_who_does_not_read_is_cut_off(start: Start, authority: Authority) -> None:
    flags = (*authority.issue("unread").flags, "--client-timeout", "0.5")
    server = start(*flags, is_patient=False, trusts=authority.trust())
    with server.client() as client:
        session = opened(client)
        assert client.post(f"/sessions/{session}/run", json=LARGE).json()["exit_code"] == 0
        with _secured(server, authority.trust()) as stream:
            stream.sendall(head(server.url, f"GET /sessions/{session}/files/content?path=/workspace/large", AUTH))
            assert wait_until(lambda: server.number("fumehood_connections") == 2)
            assert wait_until(lambda: server.number("fumehood_connections") == 1)


def test_held_and_idle_connections_do_not_disturb_the_stop(start: Start, authority: Authority) -> None:
    server = start(*authority.issue("stopped").flags, trusts=authority.trust())
    with server.client() as client, contextlib.ExitStack() as streams:
        session = opened(client)
        assert client.post(f"/sessions/{session}/run", json=LARGE).json()["exit_code"] == 0
        streams.enter_context(connect(server.url))
        streams.enter_context(connect(server.url)).sendall(b"\x16\x03\x01")
        streams.enter_context(_secured(server, authority.trust()))
        idle = streams.enter_context(_secured(server, authority.trust()))
        idle.sendall(head(server.url, "GET /healthz"))
        assert answer(idle).status == 200
        fetched = streams.enter_context(_secured(server, authority.trust()))
        fetched.sendall(head(server.url, f"GET /sessions/{session}/files/content?path=/workspace/large", AUTH))
        first = fetched.recv(100)
        server.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: any(line["event"] == "stopping" for line in server.lines()))
        whole = first + b"".join(iter(lambda: fetched.recv(1 << 20), b""))
        assert whole.partition(b"\r\n\r\n")[2] == bytes(range(256)) * 65536
        assert server.process.wait(HANG_S) == 0
    assert "Traceback" not in server.log()


# ---- what it starts with


def _start_fails(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["serve", "--port", "0", *words])
    out, err = capfd.readouterr()
    assert out == ""
    return code, err


@pytest.mark.parametrize("kept", [slice(0, 2), slice(2, 4)])
def test_one_of_the_two_is_not_enough(authority: Authority, kept: slice, capfd: Any) -> None:
    code, err = _start_fails(capfd, *authority.issue("half").flags[kept])
    assert (code, "is missing: TLS needs a certificate and its key" in err) == (2, True), err


def test_what_cannot_be_used_is_a_configuration_error(authority: Authority, tmp_path: Path, capfd: Any) -> None:
    good, other = authority.issue("good"), authority.issue("other")
    empty, large, directory = tmp_path / "empty", tmp_path / "large", tmp_path / "directory"
    empty.write_bytes(b"")
    large.write_bytes(b"x" * (2 << 20))
    directory.mkdir()
    os.mkfifo(fifo := tmp_path / "fifo")
    cut = tmp_path / "cut"
    cut.write_bytes(good.key.read_bytes()[:100])
    for pair, told in (
        (Pair(good.certificate, other.key), "the key is not the certificate's"),
        (Pair(tmp_path / "missing", good.key), "--tls-cert) cannot be read: No such file"),
        (Pair(good.certificate, tmp_path / "missing"), "--tls-key) cannot be read: No such file"),
        (Pair(directory, good.key), "Is a directory"),
        (Pair(good.certificate, fifo), "it is no regular file"),
        (Pair(large, good.key), "it is no PEM file"),
        (Pair(empty, good.key), "not in PEM"),
        (Pair(good.certificate, cut), "not in PEM"),
        (Pair(good.key, good.certificate), "not in PEM"),
        (authority.issue("expired", since=LONG_AGO, until=LONG_AGO.replace(year=2002)), "certificate has expired"),
        (authority.issue("early", since=FAR_AHEAD, until=FAR_AHEAD.replace(year=3000)), "certificate is not yet valid"),
    ):
        code, err = _start_fails(capfd, *pair.flags)
        assert (code, told in err, "Traceback" in err) == (78, True, False), (pair, err)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(authority: Authority, capfd: Any) -> None:
    pair = authority.issue("locked")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pair.key.write_bytes(key.private_bytes(*kinds, serialization.BestAvailableEncryption(b"secret")))
    code, err = _start_fails(capfd, *pair.flags)
    assert (code, "protected by a passphrase" in err) == (78, True), err


# ---- renewal


def _serial(running: Running, authority: Authority) -> Any:
    with _secured(running, authority.trust()) as stream:
        found = stream.getpeercert()
        assert found is not None
        return found["serialNumber"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_new_pair_is_taken_at_a_reload_and_a_bad_one_is_not(start: Start, authority: Authority, workers: str) -> None:
    pair = authority.issue(f"renewed-{workers}")
    server = start(*pair.flags, "--workers", workers, trusts=authority.trust())
    first = _serial(server, authority)

    def reloads(outcome: str) -> int:
        return sum(line.get("certificate") == outcome for line in server.lines())

    with _secured(server, authority.trust()) as before:
        pair.replace_with(authority.issue("next"))
        assert _serial(server, authority) == first  # not before it is told
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: reloads("read") == 1)
        assert wait_until(lambda: {_serial(server, authority) for _ in range(8)}.isdisjoint({first}))
        second = _serial(server, authority)
        before.sendall(head(server.url, "GET /healthz"))
        assert answer(before).status == 200  # one that was there goes on
    bad = (
        (authority.issue("over", since=LONG_AGO, until=LONG_AGO.replace(year=2002)), "expired"),
        (Pair(authority.issue("one").certificate, authority.issue("two").key), "the key is not the certificate's"),
    )
    for number, (other, told) in enumerate(bad, 1):
        pair.replace_with(other)
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda n=number: reloads("kept") == n)
        kept = [line for line in server.lines() if line.get("certificate") == "kept"][-1]
        assert (kept["level"], told in kept["message"]) == ("warning", True), kept
        assert {_serial(server, authority) for _ in range(4)} == {second}
    assert server.stop() == 0


def test_a_worker_that_is_started_later_has_the_pair_in_force(start: Start, authority: Authority) -> None:
    pair = authority.issue("later")
    server = start(*pair.flags, "--workers", "2", trusts=authority.trust())
    first = _serial(server, authority)
    pair.key.write_bytes(b"no key")
    for pid in server.workers(2):
        os.kill(pid, signal.SIGKILL)
    assert len(server.workers(4)) == 4
    assert {_serial(server, authority) for _ in range(4)} == {first}


# ---- a client of ours


def test_the_remote_backend_trusts_whom_it_is_told_to(
    secure: Running, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    settings = {"type": "remote", "remote_url": secure.url, "remote_token": TOKENS["alice"], "store_code": "never"}
    with get_sandbox(**settings) as sandbox, open_session(**settings) as session:
        assert sandbox.execute("print(1)").stdout == "1\n"
        assert session.run("print(2)").stdout == "2\n"


def test_the_port_of_a_host_that_names_none_is_that_of_https(start: Start, authority: Authority) -> None:
    server = start(*authority.issue("host").flags, "--allow-host", "sandbox.example", trusts=authority.trust())
    for host, status in (("sandbox.example", 200), ("sandbox.example:443", 200), ("127.0.0.1", 403)):
        assert server.get("/healthz", headers={"Host": host}).status_code == status, host
    assert urlsplit(server.url).scheme == "https"
