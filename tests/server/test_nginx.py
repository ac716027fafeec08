"""The configuration of nginx in docs/server.md, run as it stands there, before a server that is started as it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from processes import LASTING, let_go, waiting
from sockets import opened, ticket
from websockets.sync.client import connect

from certificates import Authority
from running import TOKENS, Running, held_port
from support import HANG_S, wait_until

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "server.md"
HOST = "sandbox.example"
NDJSON = {"Accept": "application/x-ndjson"}
MIB = 1024 * 1024
# What the machine has in /etc/nginx/nginx.conf around it, in a directory of the test's own.
AROUND = """
{user}
daemon off;
pid {own}/nginx.pid;
error_log {own}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {own}/body;
    proxy_temp_path {own}/proxy;
    fastcgi_temp_path {own}/fastcgi;
    uwsgi_temp_path {own}/uwsgi;
    scgi_temp_path {own}/scgi;
    include {own}/site.conf;
}}
"""


class Site:
    """What a client sees, and the server behind it."""

    def __init__(self, server: Running, port: str, authority: Authority) -> None:
        self.server, self.port = server, port
        self.trust = authority.trust()
        self.trust.check_hostname = False  # the certificate is that of 127.0.0.1

    def client(self, name: str | None = "alice") -> httpx2.Client:
        headers = {"Host": HOST} | ({"Authorization": f"Bearer {TOKENS[name]}"} if name else {})
        return httpx2.Client(
            base_url=f"https://127.0.0.1:{self.port}", headers=headers, verify=self.trust, timeout=HANG_S
        )


def _block(kind: str, begins: str) -> str:
    """What the page shows."""
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return next(str(text) for text in found if text.startswith(begins))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.issue("nginx")
    with tempfile.TemporaryDirectory() as own, held_port() as port, ExitStack() as ends:
        replaced = {
            "/run/fumehood/http.sock": f"{own}/http.sock",
            "/etc/fumehood/fullchain.pem": str(pair.certificate),
            "/etc/fumehood/key.pem": str(pair.key),
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        }
        words = shlex.split(_block("sh", "fumehood serve --unix-socket").replace("\\\n", ""))
        assert words[:2] + words[-2:] == ["fumehood", "serve", "--token-file", "/etc/fumehood/tokens"]
        flags = [replaced.get(word, word) for word in words[2:-2]]
        configuration = _block("nginx", "map ")
        for shown, here in replaced.items():
            assert shown in configuration
            configuration = configuration.replace(shown, here)
        Path(own, "site.conf").write_text(configuration)
        user = "user root;" if Path(own).owner() == "root" else ""
        Path(own, "nginx.conf").write_text(AROUND.format(own=own, user=user))
        server = Running(
            tmp_path_factory.mktemp("behind"), *flags, "--max-unauthenticated", "2", is_patient=True
        )  # it would not let many in, if it did not trust nginx
        ends.callback(server.stop)
        nginx = subprocess.Popen(
            ["nginx", "-p", own, "-e", f"{own}/error.log", "-c", f"{own}/nginx.conf"], stderr=subprocess.DEVNULL
        )
        ends.callback(nginx.wait, HANG_S)
        ends.callback(nginx.terminate)
        assert wait_until(lambda: _answers(port) or nginx.poll() is not None)
        assert nginx.poll() is None, Path(own, "error.log").read_text()
        yield Site(server, port, authority)


def _answers(port: str) -> bool:
    with socket.socket() as stream:
        return stream.connect_ex(("127.0.0.1", int(port))) == 0


def test_page_and_programs_are_there(site: Site) -> None:
    with site.client() as client:
        assert "<title>" in client.get("/").text
        assert client.post("/execute", json={"code": "print(6 * 7)"}).json()["stdout"] == "42\n"
        assert client.get("/info").json()["policy"]["require"] == "sealed"
        own = {"Origin": f"https://{HOST}", "Sec-Fetch-Site": "same-origin"}
        assert client.get("/info", headers=own).status_code == 200
        assert client.get("/info", headers={"Origin": "https://evil.example"}).status_code == 403
        assert client.get("/info", headers={"Host": "evil.example"}).status_code == 403


def test_events_come_as_they_happen(site: Site) -> None:
    for accept in ("text/event-stream", NDJSON["Accept"]):
        with (
            site.client() as client,
            client.stream("POST", "/execute", json=LASTING, headers={"Accept": accept}) as said,
        ):
            lines = said.iter_lines()
            assert any("here" in line for line in lines)  # and the program has not ended
            assert wait_until(lambda: waiting(site.server.process.pid))
            let_go(waiting(site.server.process.pid))
            assert any('"done\\n"' in line or "here\\ndone" in line for line in lines)


def test_who_leaves_ends_its_program(site: Site) -> None:
    with site.client() as client, client.stream("POST", "/execute", json=LASTING, headers=NDJSON) as said:
        lines = said.iter_lines()  # kept: a client whose iterator is gone closes its connection
        assert "started" in next(lines)
        assert wait_until(lambda: len(waiting(site.server.process.pid)) == 1)
    assert wait_until(lambda: not waiting(site.server.process.pid))


def test_a_websocket_tells_what_runs(site: Site) -> None:
    with site.client() as client:
        session = opened(client)
        path = f"/sessions/{session}/events?ticket={ticket(client, session)}"
        stream = socket.create_connection(("127.0.0.1", int(site.port)), HANG_S)
        with connect(f"wss://{HOST}{path}", sock=stream, ssl=site.trust, open_timeout=HANG_S) as events:
            assert client.post(f"/sessions/{session}/run", json={"code": "print(7)"}).json()["stdout"] == "7\n"
            kinds = [json.loads(events.recv(HANG_S)).get("type") for _ in range(2)]
        assert kinds == ["started", "output"], kinds


def test_the_largest_upload_and_its_download_come_through(site: Site) -> None:
    content = bytes(range(256)) * (50 * MIB // 256)
    with site.client() as client:
        path = f"/sessions/{opened(client)}/files/content?path=/workspace/large"
        sent = client.put(path, content=content, headers={"Content-Type": "application/octet-stream"})
        assert sent.is_success, sent.text
        assert client.get(path).content == content


def test_the_log_names_the_client_that_nginx_saw(site: Site) -> None:
    with site.client() as client:
        said = client.get("/info?seen=1", headers={"X-Forwarded-For": "192.0.2.9"})
    wanted = said.headers["x-request-id"]
    assert wait_until(lambda: any(line.get("request_id") == wanted for line in site.server.lines()))
    assert [line["client"] for line in site.server.lines() if line.get("request_id") == wanted] == ["127.0.0.1"]


def test_many_that_show_no_token_are_not_taken_for_one(site: Site) -> None:
    """They are all of nginx, which the bound by address would refuse."""
    statuses: list[int] = []
    together = threading.Barrier(12)

    def ask() -> None:
        with site.client(None) as client:
            together.wait(HANG_S)
            statuses.extend(client.get("/").status_code for _ in range(5))

    asked = [threading.Thread(target=ask) for _ in range(12)]
    for each in asked:
        each.start()
    for each in asked:
        each.join(HANG_S)
    assert statuses == [200] * 60
