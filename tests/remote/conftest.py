"""Real servers on loopback; and others, which are no servers of ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")
from running import TOKENS, Running

Starter = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts a server; its settings are those of `env`."""
    started: list[Running] = []

    def make(*flags: str, **further: Any) -> Running:
        directory = tmp_path / f"server{len(started)}"
        directory.mkdir()
        started.append(Running(directory, *flags, **further))
        return started[-1]

    yield make
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that nobody ends, with less than its clients ask for."""
    settings = {"MEMORY_MB": "200", "MAX_TIMEOUT_SEC": "20", "TIMEOUT_SEC": "20", "ALLOWED_COMMANDS": "echo,true"}
    running = Running(
        tmp_path_factory.mktemp("server"), env={f"SANDBOX_{name}": value for name, value in settings.items()}
    )
    yield running
    assert running.stop() == 0


def to(url: str, **further: Any) -> dict[str, Any]:
    """The arguments of a client of that server."""
    return {"type": "remote", "remote_url": url, "remote_token": TOKENS["alice"], "store_code": "never", **further}


@pytest.fixture
def client() -> Callable[..., dict[str, Any]]:
    return to


@pytest.fixture
def stranger() -> Iterator[Callable[..., str]]:
    """A web server that gives everybody this answer; its address."""
    running: list[ThreadingHTTPServer] = []

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

        httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
