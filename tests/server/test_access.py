"""Who gets in: tokens, Host, Origin. Each refusal stands beside the request that is served."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest
from raw_http import Answer, exchange

from fumehood.server.options import ServerOptions
from fumehood.server.origins import host_allowed
from fumehood.server.problems import Problem
from running import TOKENS, Running
from support import HANG_S, wait_until

AUTH = f"Authorization: Bearer {TOKENS['alice']}"
UPGRADE = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
PROTECTED = (
    *("GET /openapi.json", "GET /metrics", "GET /sessions", "GET /history", "GET /info", "GET /docs", "GET /nowhere"),
    *("GET /sessions/s_x_y", "POST /execute", "POST /sessions", "DELETE /sessions/s_x_y", "POST /healthz", "PATCH /x"),
)
WRONG = {
    "none": (),
    "another": ("Authorization: Bearer alice-token-0123456788",),
    "a part": ("Authorization: Bearer alice-token",),
    "empty": ("Authorization: Bearer ",),
    "another scheme": ("Authorization: Basic YWxpY2U6YWxpY2UtdG9rZW4tMDEyMzQ1Njc4OQ==",),
    "without a scheme": (f"Authorization: {TOKENS['alice']}",),
    "not ASCII": ("Authorization: Bearer \xff\xfe",),
    "a cookie": (f"Cookie: token={TOKENS['alice']}; Authorization={TOKENS['alice']}",),
}


def _code(found: Answer) -> tuple[int, str]:
    return found.status, found.json()["code"]


@pytest.mark.parametrize("line", PROTECTED)
def test_without_a_token_nothing_is_told(server: Running, line: str) -> None:
    found = exchange(server.url, line, "Content-Length: 0")
    assert _code(found) == (401, "unauthorized")
    assert found.headers["www-authenticate"] == 'Bearer realm="fumehood"'
    assert exchange(server.url, line, "Content-Length: 0", AUTH).status != 401


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_stream_needs_a_token_too(server: Running, accept: str) -> None:
    ask = {"json": {"code": "1"}, "headers": {"Accept": accept}}
    assert httpx2.post(f"{server.url}/execute", timeout=HANG_S, **ask).status_code == 401
    with server.client() as client:
        assert client.post("/execute", **ask).status_code == 200


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_a_wrong_token_is_not_told_what_was_wrong(server: Running, headers: tuple[str, ...]) -> None:
    found, plain = (exchange(server.url, "GET /info", *each) for each in (headers, ()))
    told = [{name: value for name, value in each.json().items() if name != "request_id"} for each in (found, plain)]
    assert told[0] == told[1]
    assert found.status == 401


def test_a_token_is_no_part_of_an_address(server: Running) -> None:
    assert exchange(server.url, f"GET /info?token={TOKENS['alice']}").status == 401
    assert exchange(server.url, f"GET /info?token={TOKENS['alice']}", AUTH).status == 422
    assert exchange(server.url, "GET /info", AUTH).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_needs_no_token(server: Running, path: str) -> None:
    assert exchange(server.url, f"GET {path}").status == 200


def test_the_page_needs_no_token(server: Running) -> None:
    assert exchange(server.url, "GET /").status in (200, 404)  # 404: it was not built here
    assert exchange(server.url, "GET /assets/none.js").status == 404
    assert exchange(server.url, "GET /assets/../run.py").status == 404
    assert exchange(server.url, "GET /assets/%2e%2e/%2e%2e/run.py").status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1:{port}x"]
)
@pytest.mark.parametrize("line", ["GET /healthz", "GET /info", "GET /"])
def test_another_host_is_refused_before_anything_else(server: Running, host: str, line: str) -> None:
    port = server.url.rpartition(":")[2]
    found = exchange(server.url, line, f"Host: {host.format(port=port)}", AUTH)
    assert _code(found) == (403, "host_not_allowed")


def test_a_host_that_is_none_is_bad_also_where_any_is_allowed(start: Callable[..., Running]) -> None:
    running = start("--allow-host", "*")
    bad = ("x:notaport", "x:", "x:-1", "x:65536", "x:99999999", "x:1:2", "[::1", "[::1]x", "[zz]", "[]", "::1", "u@x")
    for host in (*bad, "u:p@x", "x/y", "x?y", "x#y", "\\x", "a b", "\xe9x", "%zz", "x:\xb2"):
        for line in ("GET /healthz", "GET /info", "GET /"):
            found = exchange(running.url, line, f"Host: {host}", AUTH)
            assert _code(found) == (400, "bad_request"), host
        assert exchange(running.url, "GET /sessions/a/events?ticket=b", f"Host: {host}", *UPGRADE).status == 400
    for host in ("x", "x:1", "X.example:65535", "[::1]", "[::1]:80", "127.0.0.1:8080", "a_b-c.example", "%41"):
        assert exchange(running.url, "GET /info", f"Host: {host}", AUTH).status == 200, host
    assert '"level": "error"' not in running.log()


ASKED = ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "[fe80::1]", "x.example"]
OPTIONS = {
    "a Unix socket": (ServerOptions(unix_socket="/s"), 3),
    "beyond loopback": (ServerOptions(host="0.0.0.0"), 5),
    "any name": (ServerOptions(allowed_hosts=("*",)), 6),
}


@pytest.mark.parametrize("port", ["", ":0", ":65535", ":", ":x", ":65536", ":-1", ":\xb2", ":1:2", ":8o"])
@pytest.mark.parametrize(("options", "served"), OPTIONS.values(), ids=OPTIONS)
def test_a_port_that_is_none_is_bad_behind_a_name_and_behind_an_address(
    options: ServerOptions, served: int, port: str
) -> None:
    def outcome(name: str) -> bool | str:
        try:
            return host_allowed(name + port, options)
        except Problem as problem:
            return problem.code

    found = [outcome(name) for name in ASKED]
    if port in ("", ":0", ":65535"):
        assert found == [True] * served + [False] * (6 - served)
    else:
        assert True not in found


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_loopback_are_served(server: Running, name: str) -> None:
    port = server.url.rpartition(":")[2]
    assert exchange(server.url, "GET /info", f"Host: {name}:{port}", AUTH).status == 200


def test_a_request_without_or_with_two_hosts_is_bad(server: Running) -> None:
    port = server.url.rpartition(":")[2]
    good = f"Host: 127.0.0.1:{port}"
    assert exchange(server.url, "GET /healthz", good, "Host: evil.example").status == 400
    assert exchange(server.url, "GET /healthz", "host: ", "X: 1").status in (400, 403)
    assert exchange(server.url, "GET /healthz", good).status == 200


@pytest.mark.parametrize("target", ["http://evil.example/healthz", "http://127.0.0.1/healthz", "*", "healthz"])
def test_a_target_that_is_no_path_is_bad(server: Running, target: str) -> None:
    assert exchange(server.url, f"GET {target}", AUTH).status == 400


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "file://", "chrome-extension://abc", "http://localhost:1", "http://127.0.0.1"],
)
def test_pages_of_another_origin_are_refused(server: Running, origin: str) -> None:
    for line in ("GET /info", "POST /execute", "OPTIONS /execute", "GET /healthz"):
        found = exchange(server.url, line, f"Origin: {origin}", AUTH)
        assert _code(found) == (403, "origin_not_allowed")
        assert not [name for name in found.headers if name.startswith("access-control-")]
    assert exchange(server.url, "GET /info", f"Origin: {server.url}", AUTH).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_another_site_are_refused_but_may_link_here(server: Running, site: str) -> None:
    fetch = f"Sec-Fetch-Site: {site}"
    assert exchange(server.url, "GET /info", fetch, AUTH).status == 403
    assert exchange(server.url, "GET /info", fetch, "Sec-Fetch-Mode: navigate", AUTH).status == 403
    assert exchange(server.url, "GET /", fetch).status == 403
    assert exchange(server.url, "GET /", fetch, "Sec-Fetch-Mode: navigate").status in (200, 404)
    assert exchange(server.url, "GET /info", "Sec-Fetch-Site: same-origin", AUTH).status == 200


def test_a_form_of_another_page_runs_nothing(server: Running) -> None:
    body, kind = b'{"code": "1"}', "Content-Type: text/plain"
    length = f"Content-Length: {len(body)}"
    evil = "Origin: https://evil.example"
    assert exchange(server.url, "POST /execute", kind, length, evil, body=body).status == 403
    assert exchange(server.url, "POST /execute", kind, length, body=body).status == 401
    assert exchange(server.url, "POST /execute", kind, length, AUTH, body=body).status == 415
    right = exchange(server.url, "POST /execute", "Content-Type: application/json", length, AUTH, body=body)
    assert right.status == 200


def test_there_is_no_cors(server: Running) -> None:
    asks = ("Origin: {}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
    evil = exchange(server.url, "OPTIONS /execute", *(ask.format("https://evil.example") for ask in asks))
    own = exchange(server.url, "OPTIONS /execute", *(ask.format(server.url) for ask in asks), AUTH)
    assert (evil.status, own.status, own.headers["allow"]) == (403, 405, "POST")
    for found in (evil, own):
        assert not [name for name in found.headers if name.startswith("access-control-")]


def _ticket(server: Running, session: str) -> str:
    with server.client() as client:
        ticket: str = client.post(f"/sessions/{session}/ticket").json()["ticket"]
        return ticket


def test_a_websocket_needs_a_ticket_of_its_own(server: Running, session: str, alice: httpx2.Client) -> None:
    path = f"/sessions/{session}/events"
    for line in (f"GET {path}", f"GET {path}?ticket=", f"GET {path}?ticket=x", f"GET {path}?token={TOKENS['alice']}"):
        assert _code(exchange(server.url, line, *UPGRADE, AUTH)) == (401, "unauthorized")
    other = alice.post("/sessions", json={}).json()["session_id"]
    elsewhere = f"GET {path}?ticket={_ticket(server, other)}"
    assert exchange(server.url, elsewhere, *UPGRADE).status == 401
    line = f"GET {path}?ticket={_ticket(server, session)}"
    assert exchange(server.url, line, *UPGRADE).status == 101
    assert exchange(server.url, line, *UPGRADE).status == 401  # it was used
    alice.delete(f"/sessions/{other}")


def test_a_websocket_of_another_page_is_refused_and_uses_no_ticket_up(server: Running, session: str) -> None:
    line = f"GET /sessions/{session}/events?ticket={_ticket(server, session)}"
    for bad in ("Origin: https://evil.example", "Origin: null", "Host: evil.example", "Sec-Fetch-Site: cross-site"):
        assert exchange(server.url, line, *UPGRADE, bad).status == 403
    assert exchange(server.url, line, *UPGRADE, f"Origin: {server.url}").status == 101


def test_a_request_id_is_ours_and_nothing_is_reflected(server: Running) -> None:
    asked = exchange(server.url, "GET /healthz", "X-Request-Id: mine", "X-Forwarded-For: 6.6.6.6")
    again = exchange(server.url, "GET /healthz")
    assert len({asked.headers["x-request-id"], again.headers["x-request-id"], "mine"}) == 3
    assert "6.6.6.6" not in server.log()


@pytest.mark.parametrize("value", ["a\nSet-Cookie: x", "a\rSet-Cookie: x", "a\0b"])
def test_a_header_with_a_break_in_it_is_bad(server: Running, value: str) -> None:
    found = exchange(server.url, "GET /healthz", f"X-Request-Id: {value}")
    assert found.status in (200, 400)
    assert "set-cookie" not in found.headers


def test_the_log_has_no_secret_no_code_and_no_break(server: Running) -> None:
    body = json.dumps({"code": "print('canary-7519')"}).encode()
    kind = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    found = [
        exchange(server.url, "GET /a%0a%1b[31mforged%00", AUTH),
        exchange(server.url, "GET /info?token=canary-8620", AUTH),
        exchange(server.url, "POST /execute", *kind, AUTH, body=body),
    ]
    for each in found:  # the line comes after the answer
        assert wait_until(lambda each=each: each.headers["x-request-id"] in server.log())
    log = server.log()
    assert not [canary for canary in ("canary-7519", "canary-8620", *TOKENS.values(), "\x1b", "\0") if canary in log]
    lines = server.lines()
    others = {"log", "not_ready", "stopping", "stopped", "fewer_connections", "connection_refused", "started"}
    assert {line["event"] for line in lines} <= {"request", *others}
    assert "/a??[31mforged?" in {line.get("path") for line in lines}
    assert {"/execute", "alice"} <= {line.get(key) for line in lines for key in ("path", "token")}


def test_another_protocol_version_is_told(server: Running) -> None:
    assert _code(exchange(server.url, "GET /info", "X-Fumehood-Protocol: 2", AUTH)) == (400, "version_mismatch")
    assert exchange(server.url, "GET /info", "X-Fumehood-Protocol: 1", AUTH).status == 200


def test_every_answer_has_the_headers_that_bind_a_browser(server: Running) -> None:
    for line in ("GET /info", "GET /nowhere", "GET /healthz", "DELETE /info", "GET /openapi.json"):
        headers = exchange(server.url, line, AUTH).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers


def test_errors_are_problems(server: Running) -> None:
    for line, status in (("GET /nowhere", 404), ("DELETE /info", 405), ("GET /info?x=1", 422)):
        found = exchange(server.url, line, AUTH)
        assert found.headers["content-type"] == "application/problem+json"
        told = found.json()
        assert (told["status"], told["request_id"]) == (status, found.headers["x-request-id"])
        assert set(told) == {"type", "title", "status", "detail", "code", "request_id"}
