"""Real servers on loopback; and others, which are no servers of ours."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")
from fumehood import execution, get_sandbox
from fumehood.backends import remote
from fumehood.backends.remote import client as remote_client
from fumehood.backends.remote import process as remote_process
from running import TOKENS, Running
from server.processes import WAITS, let_go, waiting
from support import HANG_S, wait_until

Starter = Callable[..., Running]
_PATIENCE = {
    execution: ("INTERRUPT_GRACE_S", "KILL_GRACE_S"),
    remote: ("_MEET_S",),
    remote_client: ("WAIT_S", "ANSWER_S", "_CONNECT_S", "_WRITE_S"),
    remote_process: ("SILENCE_S", "_END_S"),
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits for a server as long as it takes; a test that is about the waiting sets its own."""
    for module, names in _PATIENCE.items():
        for name in names:
            monkeypatch.setattr(module, name, HANG_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts a server; its settings are those of `env`."""
    started: list[Running] = []

    def make(*flags: str, **further: Any) -> Running:
        directory = tmp_path / f"server{len(started)}"
        directory.mkdir()
        started.append(Running(directory, *flags, **{"is_patient": True, **further}))
        return started[-1]

    yield make
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that nobody ends, with less than its clients ask for."""
    settings = {"MEMORY_MB": "200", "MAX_TIMEOUT_SEC": "290", "ALLOWED_COMMANDS": "echo,true"}
    env = {f"SANDBOX_{name}": value for name, value in settings.items()}
    running = Running(tmp_path_factory.mktemp("server"), env=env, is_patient=True)
    yield running
    assert running.stop() == 0


def to(url: str, **further: Any) -> dict[str, Any]:
    """The arguments of a client of that server."""
    own = {"remote_url": url, "remote_token": TOKENS["alice"], "store_code": "never", "timeout_sec": HANG_S}
    return {"type": "remote", **own, **further}


@pytest.fixture
def client() -> Callable[..., dict[str, Any]]:
    return to


@pytest.fixture
def until_let_go() -> Callable[..., list[str]]:
    """Runs three programs where there is room for one, which lasts until `then`; what each of them printed."""

    def run(running: Running, arguments: dict[str, Any], then: Callable[[], bool]) -> list[str]:
        with get_sandbox(**arguments) as sandbox, ThreadPoolExecutor(3) as pool:
            first = pool.submit(sandbox.execute, WAITS, timeout=300)
            assert wait_until(lambda: waiting(running.process.pid))
            others = [pool.submit(sandbox.execute, "print(2)") for _ in range(2)]
            try:
                assert wait_until(then)
            finally:
                let_go(waiting(running.process.pid))
            return [each.result(HANG_S).stdout for each in (first, *others)]

    return run


class Web(ThreadingHTTPServer):
    """A client that leaves before it was answered is no news: what is written here is looked at by tests."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@pytest.fixture
def stranger() -> Iterator[Callable[..., str]]:
    """A web server that gives everybody this answer; its address."""
    running: list[Web] = []

    def make(status: int, headers: dict[str, str], body: bytes, seen: list[str] | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if seen is not None:
                    seen.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        httpd = Web(("127.0.0.1", 0), Handler)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        running.append(httpd)
        return f"http://127.0.0.1:{httpd.server_address[1]}"

    yield make
    for httpd in running:
        httpd.shutdown()
        httpd.server_close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, held so that nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class Proxy:
    """Before a server, at a path of its own. It answers 502 where it does not reach the server."""

    def __init__(self, server: str, prefix: str, tls: ssl.SSLContext | None) -> None:
        self.seen: list[str] = []
        host, seen = server.removeprefix("http://"), self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                seen.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                there = http.client.HTTPConnection(host, timeout=HANG_S)
                self.close_connection = True
                try:
                    there.request(self.command, self.path.removeprefix(prefix), body, headers)
                    answer = there.getresponse()
                except (OSError, http.client.HTTPException):
                    self.send_response(502)
                    self.end_headers()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                with suppress(OSError, http.client.HTTPException):
                    while part := answer.read1(65536):
                        self.wfile.write(part)
                there.close()

            do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._httpd = Web(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}{prefix}"
        if tls is not None:
            self._httpd.socket = tls.wrap_socket(self._httpd.socket, server_side=True, do_handshake_on_connect=False)
            self.url = self.url.replace("http://127.0.0.1", "https://localhost")
        threading.Thread(target=self._httpd.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()


@pytest.fixture
def before() -> Iterator[Callable[..., Proxy]]:
    """Puts a proxy before a server."""
    running: list[Proxy] = []

    def make(server: str, prefix: str = "", tls: ssl.SSLContext | None = None) -> Proxy:
        running.append(Proxy(server, prefix, tls))
        return running[-1]

    yield make
    for proxy in running:
        proxy.stop()


@pytest.fixture
def impostor() -> Iterator[Callable[..., str]]:
    """One that says what a server of ours says, until code is sent: then these bytes, and no more."""
    running: list[Web] = []
    over = threading.Event()

    def make(said: bytes, *, stays: bool = False) -> str:
        receipt = {"level": "sealed"}
        info = json.dumps({"version": "0", "protocol": 1, "receipt": receipt}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(info)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self._say(said)
                if stays:
                    over.wait()

            def _say(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("X-Fumehood-Version", "0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        httpd = Web(("127.0.0.1", 0), Handler)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        running.append(httpd)
        return f"http://127.0.0.1:{httpd.server_address[1]}"

    yield make
    over.set()
    for httpd in running:
        httpd.shutdown()
        httpd.server_close()
