"""What a client is told when the server is not there, not ours, not willing, or gone."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import errors, get_sandbox, open_session
from fumehood.backends.remote import client as remote_client
from running import TOKENS, Running
from support import HANG_S

Client = Callable[..., dict[str, Any]]
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
    """With a certificate for localhost that nobody has signed: cert.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl, which is not installed")
    made = (
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    )
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *made],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=HANG_S,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


@pytest.fixture
def https(server: Running, before: Callable[..., Any], tls: ssl.SSLContext) -> str:
    url: str = before(server.url, tls=tls).url
    return url


def test_a_certificate_of_one_s_own(
    client: Client, https: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with get_sandbox(**client(https)) as sandbox, open_session(**client(https)) as session:
        assert sandbox.execute("print(1)").stdout == "1\n"
        assert session.run("print(1)").stdout == "1\n"
    for said in refused(errors.BackendUnavailable, client(https.replace("localhost", "127.0.0.1"))):
        assert "certificate" in said  # it is for another name


def test_a_certificate_that_nobody_signed(client: Client, https: str) -> None:
    for said in refused(errors.BackendUnavailable, client(https)):
        assert "certificate" in said
        assert "SSL_CERT_FILE" in said


def test_a_server_without_tls(server: Running, client: Client) -> None:
    for said in refused(errors.BackendUnavailable, client(server.url.replace("http:", "https:"))):
        assert "no TLS with https://" in said


def test_a_server_with_tls_that_is_asked_without(client: Client, https: str) -> None:
    for said in refused(errors.BackendUnavailable, client(https.replace("https:", "http:"))):
        assert "SANDBOX_REMOTE_URL" in said
