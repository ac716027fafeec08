"""What lies between a client and its server: paths, redirects, waiting, silence; and who is shown the token."""

from __future__ import annotations

import json
import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fumehood import errors, get_sandbox, open_session
from fumehood.backends.remote import client as remote_client
from fumehood.cli.main import main
from running import TOKENS, Running
from support import HANG_S, wait_until

Client = Callable[..., dict[str, Any]]
OURS = {"X-Fumehood-Version": "0.0", "Content-Type": "application/json"}


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_server_beneath_a_path(server: Running, before: Callable[..., Any], client: Client, ending: str) -> None:
    proxy = before(server.url, "/deep/below")
    with get_sandbox(**client(proxy.url + ending)) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"
    with open_session(**client(proxy.url + ending)) as session:
        session.write("/workspace/ä ?&.txt", b"here")
        assert session.read("/workspace/ä ?&.txt") == b"here"
        assert session.run("print(open('ä ?&.txt').read())").stdout == "here\n"
    assert all(each.split()[1].startswith("/deep/below/") for each in proxy.seen)
    assert not any("//" in each for each in proxy.seen)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("headers", [{}, OURS])
def test_nobody_is_followed_with_the_token(
    client: Client, stranger: Callable[..., str], status: int, headers: dict[str, str]
) -> None:
    seen: list[str] = []
    elsewhere = stranger(200, OURS, b"{}", seen)
    url = stranger(status, {**headers, "Location": f"{elsewhere}/info"}, b"")
    with get_sandbox(**client(url)) as sandbox, pytest.raises(errors.FumehoodError) as caught:
        sandbox.execute("print(1)")
    assert seen == []
    assert f"HTTP {status}" in str(caught.value)


@pytest.mark.parametrize("body", [b"not json", b"[]", b"{}", b'{"protocol": 1}', b'"x"', b"\xff"])
def test_something_that_only_looks_like_a_server(client: Client, stranger: Callable[..., str], body: bytes) -> None:
    seen: list[str] = []
    with get_sandbox(**client(stranger(200, OURS, body, seen))) as sandbox:
        with pytest.raises(errors.BackendUnavailable, match=r"no fumehood server|gave no receipt"):
            sandbox.execute("print(1)")
    assert {each.split()[0] for each in seen} == {"GET"}


@pytest.fixture
def mute() -> Iterator[str]:
    """One that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_that_says_nothing_is_not_waited_for(
    client: Client, mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.backends.remote._MEET_S", 0.5)
    with get_sandbox(**client(mute)) as sandbox, pytest.raises(errors.BackendUnavailable, match="not answer in time"):
        sandbox.execute("print(1)")
    with get_sandbox(**client(mute, fallback="local")) as sandbox:
        assert sandbox.execute("print(1)").meta["fallback"]["from"] == "remote"


def test_a_full_server_is_waited_for(
    start: Callable[..., Running], client: Client, until_let_go: Callable[..., list[str]]
) -> None:
    running = start("--max-running", "1", "--max-queue", "0")
    printed = until_let_go(running, client(running.url), then=lambda: '"status": 503' in running.log())
    assert printed == ["here\ndone\n", "2\n", "2\n"]


def test_a_server_that_stays_full_is_given_up(
    start: Callable[..., Running], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.backends.remote.client.WAIT_S", 2.0)
    running = start("--max-running", "1", "--max-queue", "0")
    with get_sandbox(**client(running.url)) as sandbox, ThreadPoolExecutor(1) as pool:
        enough = threading.Event()
        first = pool.submit(sandbox.execute, "import time; time.sleep(3600)", timeout=300, cancel=enough)
        assert wait_until(lambda: running.executions() == 1)
        with pytest.raises(errors.BackendUnavailable, match=r"again in \d+ s"):
            sandbox.execute("print(1)")
        with get_sandbox(**client(running.url, fallback="local")) as spared:
            assert spared.execute("print(1)").meta["fallback"]["from"] == "remote"
        assert not first.done()
        enough.set()
        assert first.result(HANG_S).meta["reason"] == "cancelled"


def test_who_is_told_to_come_at_once_does_not_hammer(
    client: Client, stranger: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    problem = json.dumps({"code": "unavailable", "detail": "full"}).encode()
    with get_sandbox(**client(stranger(503, {**OURS, "Retry-After": "0"}, problem, seen))) as sandbox:
        for wait_s in (1.0, 4.0, 16.0, 64.0):
            monkeypatch.setattr("fumehood.backends.remote.client.WAIT_S", wait_s)
            seen.clear()
            with pytest.raises(errors.BackendUnavailable, match="full"):
                sandbox.execute("print(1)")
            assert len(seen) <= wait_s / remote_client._BUSY_S + 1  # a pause between each two
            if len(seen) > 1:  # else it was held up for as long as it may wait
                return
    pytest.fail("it came once, and not again")


# ---- the token


@pytest.mark.parametrize("kind", ["mute", "refused", "stranger", "lost"])
def test_no_error_shows_the_token(
    client: Client,
    nobody: str,
    mute: str,
    stranger: Callable[..., str],
    impostor: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    if kind == "mute":
        monkeypatch.setattr("fumehood.backends.remote._MEET_S", 0.5)
    echo = f"<html>{TOKENS['alice']}".encode()  # what it was sent
    url = {"mute": mute, "refused": nobody, "stranger": stranger(403, {}, echo), "lost": impostor(b"<html>")}[kind]
    with get_sandbox(**client(url)) as sandbox, pytest.raises(errors.FumehoodError) as caught:
        sandbox.execute("print(1)")
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(sandbox))
    assert TOKENS["alice"] not in shown


def test_no_log_and_no_record_shows_the_token(
    server: Running, client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    kept = client(server.url) | {"store_code": "always", "artifacts_dir": tmp_path}
    with caplog.at_level(logging.DEBUG), get_sandbox(**kept) as sandbox, open_session(**kept) as session:
        sandbox.execute("print(1)")
        session.run("1 / 0")
        session.write("/workspace/a", b"1")
    records = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file())
    assert "ZeroDivisionError" in records
    assert TOKENS["alice"] not in records + caplog.text
    assert TOKENS["alice"] not in server.log()


@pytest.mark.parametrize("command", [["run", "-c", "print(1)"], ["doctor"], ["doctor", "--json"]])
@pytest.mark.parametrize("case", ["nobody", "token", "stranger"])
def test_the_commands_say_what_to_do(
    server: Running,
    nobody: str,
    stranger: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: list[str],
    case: str,
) -> None:
    url = {"nobody": nobody, "token": server.url, "stranger": stranger(200, {}, b"<html>")}[case]
    for name, value in {"TYPE": "remote", "REMOTE_URL": url, "REMOTE_TOKEN": "wrong-token-0123456789"}.items():
        monkeypatch.setenv(f"SANDBOX_{name}", value)
    assert main(command) != 0
    said = "".join(capfd.readouterr())
    expected = {
        "nobody": f"no server at {nobody} (connection refused): start it with `fumehood serve`",
        "token": f"the server at {url} refused the token: check SANDBOX_REMOTE_TOKEN",
        "stranger": f"what answers at {url} is no fumehood server (HTTP 200): check SANDBOX_REMOTE_URL",
    }
    assert expected[case] in said
    assert "Traceback" not in said
    assert "wrong-token" not in said
