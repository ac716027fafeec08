"""How much one client may ask of the server, and how slowly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from raw_http import Answer, answer, closes, connect, exchange, head

from fumehood import __version__
from fumehood.server import routes
from fumehood.server.options import ServerOptions
from pace import AT_MOST, TIMES, growth
from running import TOKENS, Running
from support import HANG_S, wait_until

AUTH = f"Authorization: Bearer {TOKENS['alice']}"
JSON = "Content-Type: application/json"
MIB = 1024 * 1024


def _post(server: Running, body: bytes, *headers: str) -> Answer:
    return exchange(server.url, "POST /execute", f"Content-Length: {len(body)}", AUTH, *headers, body=body)


def _rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("headers", [(AUTH, JSON), (JSON,)], ids=["alice", "nobody"])
def test_a_body_without_end_is_refused_while_it_comes(server: Running, headers: tuple[str, ...]) -> None:
    before, piece, sent = _rss_bytes(server.process.pid), b"10000\r\n" + b" " * 65536 + b"\r\n", 0
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", "Transfer-Encoding: chunked", *headers))
        try:
            while sent < 200 * MIB:
                stream.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        found = answer(stream)
    assert found.status in (413 if AUTH in headers else 401, 0)  # 0: the reset was faster than we read
    assert sent < 100 * MIB
    assert _rss_bytes(server.process.pid) - before < 150 * MIB


def _unfinished(server: Running, size: int) -> socket.socket:
    """A request whose last byte does not come."""
    stream = connect(server.url)
    stream.sendall(head(server.url, "POST /execute", f"Content-Length: {size}", AUTH, JSON))
    try:
        stream.sendall(b" " * (size - 1))
    except OSError:
        stream.close()
        raise
    return stream


def test_all_bodies_together_have_a_bound(start: Callable[..., Running]) -> None:
    server = start("--max-body-memory", "64")
    large = json.dumps({"code": "print(1)", "args": ["x" * 3 * MIB]}).encode()
    small = json.dumps({"code": "print(1)"}).encode()
    held = [_unfinished(server, 24 * MIB) for _ in range(2)]

    def is_full() -> bool:
        if _post(server, large, JSON).status == 503:
            return True
        with contextlib.suppress(OSError):  # that one may have come before the others, which were refused then
            held.append(_unfinished(server, 24 * MIB))
        return False

    try:
        assert wait_until(is_full)
        refused = _post(server, large, JSON)
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("unavailable", "1")
        chunked = (f"Transfer-Encoding: chunked\r\n{AUTH}", JSON)
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)
        assert exchange(server.url, "POST /execute", *chunked, body=body).status == 503
        assert _post(server, small, JSON).status == 200  # there is room for that one
        bob = f"Authorization: Bearer {TOKENS['bob']}"
        length = f"Content-Length: {len(large)}"
        assert exchange(server.url, "POST /execute", bob, length, JSON, body=large).status != 503  # and for others
    finally:
        for stream in held:
            stream.close()
    assert wait_until(lambda: _post(server, large, JSON).status != 503)


def test_a_body_of_tiny_chunks_is_cut_off(server: Running) -> None:
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", AUTH, JSON, "Transfer-Encoding: chunked"))
        with contextlib.suppress(OSError):  # it does not hear us to the end
            for _ in range(200):
                stream.sendall(b"1\r\n \r\n" * 1000)
        assert closes(stream)


def test_some_small_chunks_and_many_that_are_not_are_taken(alice: httpx2.Client) -> None:
    pieces = [b'{"code":"'] + [b"#"] * 200 + [b"#" * 300] * 1000 + [b'\\nprint(1)"}']
    found = alice.post("/execute", content=iter(pieces), headers={"Content-Type": "application/json"})
    assert found.json()["stdout"] == "1\n"


def test_a_body_that_says_it_is_too_large_is_refused_at_once(server: Running) -> None:
    found = exchange(server.url, "POST /execute", f"Content-Length: {10 * 1024 * MIB}", AUTH, JSON)
    assert (found.status, found.json()["code"], found.headers["connection"]) == (413, "too_large", "close")
    large = json.dumps({"code": "#" * 200_000}).encode()
    assert _post(server, large, JSON).status == 200


def test_a_path_that_takes_no_body_takes_none(server: Running) -> None:
    assert exchange(server.url, "GET /info", "Content-Length: 1", AUTH, body=b"x").status == 413
    assert exchange(server.url, "GET /info", "Content-Length: 0", AUTH).status == 200


@pytest.mark.parametrize("path", ["ticket", "cancel"])
def test_an_empty_object_is_no_body(alice: httpx2.Client, session: str, path: str) -> None:
    found = {
        "none": alice.post(f"/sessions/{session}/{path}"),
        "{}": alice.post(f"/sessions/{session}/{path}", json={}),
        "more": alice.post(f"/sessions/{session}/{path}", json={"a": 1}),
        "large": alice.post(f"/sessions/{session}/{path}", json={"a": "x" * 1000}),
        "text": alice.post(f"/sessions/{session}/{path}", content=b"{}", headers={"Content-Type": "text/plain"}),
    }
    right = 200 if path == "ticket" else 202
    statuses = {name: reply.status_code for name, reply in found.items()}
    assert statuses == {"none": right, "{}": right, "more": 400, "large": 413, "text": 415}


@pytest.mark.parametrize("size", [20_000, 70_000, 1_000_000])
def test_a_long_request_line_is_told_so(server: Running, size: int) -> None:
    found = exchange(server.url, f"GET /info?{'x' * size}", AUTH)
    assert (found.status, found.json()["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"files":' * 5000, b'{"code":"1","x":' + b"[" * 17 + b"]" * 17 + b"}"]
)
def test_deep_json_is_refused_before_it_is_parsed(server: Running, body: bytes) -> None:
    found = _post(server, body, JSON)
    assert (found.status, "nested" in found.json()["detail"]) == (400, True)
    brackets = json.dumps({"code": f"x = {'[' * 50}{']' * 50}  # {chr(92)}{chr(34)}" + "{" * 99}).encode()
    assert _post(server, brackets, JSON).status == 200  # in a string they are no depth


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("[]", 1),
        ('{"a":[{}]}', 3),
        ('"[[[["', 0),
        (r'["\"[[[[", []]', 2),
        (r'["\\", [[]]]', 3),
        ('[[],[],[{"a":"}"}]]', 3),
        ("[" * 9, 9),
    ],
)
def test_depth_is_found_without_parsing(text: str, depth: int) -> None:
    assert not routes.deeper(text.encode(), depth)
    assert depth == 0 or routes.deeper(text.encode(), depth - 1)


FORMS: dict[str, tuple[int, Callable[[int], bytes]]] = {  # of how many parts, and how such a body is made
    "arrays": (5_000_000, lambda n: b'{"code":"1","args":[' + b"[]," * n + b"[]]}"),
    "members": (2_000_000, lambda n: b'{"env":{' + b'"":"",' * n + b'"":""}}'),
    "a string without end": (2_000_000, lambda n: b"{}" * 20 + b'"' + b'\\"' * n),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_body_of_a_great_many_parts_is_refused(server: Running, form: str) -> None:
    parts, made = FORMS[form]
    assert _post(server, made(parts), JSON).status == 400


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_json_is_found_without_a_look_at_each_part(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, made = FORMS[form]
    looks = []

    class Counted:
        def finditer(self, data: bytes) -> Iterator[re.Match[bytes]]:
            return (looks.append(1) or match for match in pattern.finditer(data))

    pattern = routes._STRUCTURE
    monkeypatch.setattr(routes, "_STRUCTURE", Counted())
    routes.deeper(made(parts // 10), 16)
    assert 0 < len(looks) <= routes.MAX_PARTS + 2


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_json_takes_no_more_than_linear_time(form: str) -> None:
    parts, made = FORMS[form]
    bodies = {size: made(size) for size in (parts // TIMES, parts)}
    assert growth(lambda size: routes.deeper(bodies[size], 16), parts // TIMES) < AT_MOST


def test_a_program_may_have_any_number_of_quotes_and_commas(server: Running) -> None:
    code = "x = [" + "''," * 30_000 + "]#" + '",{[' * 60_000 + "\nprint(len(x))"
    assert _post(server, json.dumps({"code": code}).encode(), JSON).json()["stdout"] == "30000\n"


def test_an_error_quotes_little_of_what_was_sent(server: Running) -> None:
    assert len(_post(server, b'{"' + b"k" * 1_000_000 + b'":1}', JSON).body) < 10_000


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (("Content-Type: text/plain",), b'{"code":"1"}', 415),
        (("Content-Type: application/x-www-form-urlencoded",), b"code=1", 415),
        (("Content-Type: multipart/form-data; boundary=x",), b"--x--", 415),
        (("Content-Type: application/json; charset=utf-16",), b'{"code":"1"}', 415),
        ((JSON, "Content-Encoding: gzip"), b"\x1f\x8b", 415),
        ((), b'{"code":"1"}', 415),
        ((JSON,), b"", 400),
        ((JSON,), b"{", 400),
        ((JSON,), b'{"code":"\xff"}', 400),
        ((JSON,), b"\xff\xfe{\0", 400),
        ((JSON,), b"[]", 422),
        ((JSON,), b'{"code":"1","image":"evil"}', 422),
        ((JSON,), b'{"code":1}', 422),
        (("Content-Type: Application/JSON; charset=UTF-8",), b'{"code":"1"}', 200),
    ],
)
def test_json_is_what_it_takes(server: Running, headers: tuple[str, ...], body: bytes, status: int) -> None:
    assert _post(server, body, *headers).status == status


@pytest.mark.parametrize(
    "headers",
    [("X: " + "x" * 20_000,), tuple(f"X-{n}: 1" for n in range(70)), tuple(f"X-{n}: {'x' * 900}" for n in range(20))],
    ids=["one large", "many", "large together"],
)
def test_headers_are_bounded(server: Running, headers: tuple[str, ...]) -> None:
    assert exchange(server.url, "GET /info", AUTH, *headers).status == 431
    assert exchange(server.url, "GET /info", AUTH, *(f"X-{n}: 1" for n in range(40)), "Y: " + "y" * 4000).status == 200


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00", b"GET / HTTPS\r\n\r\n", b"GET /\r\n\r\n", b"\0" * 64 + b"\r\n\r\n"]
)
def test_what_is_no_http_is_told_so(server: Running, data: bytes) -> None:
    with connect(server.url) as stream:
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
        found = answer(stream)
    assert found.status in (400, 0)
    if found.status:
        request_id = found.headers["x-request-id"]
        assert found.json()["request_id"] == request_id
        assert wait_until(lambda: any(line.get("request_id") == request_id for line in server.lines()))
    assert exchange(server.url, "GET /healthz").status == 200


def test_two_framings_of_one_body_are_bad(server: Running) -> None:
    framings = ("Content-Length: 4", "Transfer-Encoding: chunked")
    chunked = b'c\r\n{"code":"1"}\r\n0\r\n\r\n'
    assert exchange(server.url, "POST /execute", framings[1], AUTH, JSON, body=chunked).status == 200
    assert exchange(server.url, "POST /execute", *framings, AUTH, JSON, body=chunked).status == 400
    assert exchange(server.url, "POST /execute", "Content-Length: 4", "Content-Length: 5", AUTH, JSON).status == 400


def _started(directory: Path, *flags: str) -> Iterator[Running]:
    entries = [{"name": name, "token": token} for name, token in TOKENS.items()]
    entries += [
        {"name": "one", "token": "one-at-a-time-0123456789", "max_concurrent": 1},
        {"name": "few", "token": "few-a-minute-0123456789", "per_minute": 3},
    ]
    running = Running(directory, *flags, tokens=entries, is_patient=True)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Short of time for its clients; connections that nobody uses it keeps, so it closes one for no other reason."""
    yield from _started(tmp_path_factory.mktemp("hasty"), "--client-timeout", "2")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Short of places."""
    flags = ("--max-connections", "12", "--max-running", "1", "--max-queue", "1")
    yield from _started(tmp_path_factory.mktemp("narrow"), *flags)


@contextlib.contextmanager
def _dripping(stream: socket.socket) -> Iterator[None]:
    """Sends a byte now and then, as long as it is let."""
    enough = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not enough.wait(0.1):
                stream.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _serves(server: Running) -> bool:
    """Who is held up for long between connecting and sending is cut off by a server that is short of time."""
    return wait_until(lambda: exchange(server.url, "GET /healthz").status == 200)


def test_silence_is_cut_off(hasty: Running) -> None:
    with connect(hasty.url) as stream:
        assert closes(stream)
    assert _serves(hasty)


def test_slow_headers_are_cut_off(hasty: Running) -> None:
    with connect(hasty.url) as stream:
        stream.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        with _dripping(stream):
            assert closes(stream)
    assert _serves(hasty)


def test_slow_headers_of_a_second_request_are_cut_off(hasty: Running) -> None:
    def answered(stream: socket.socket) -> bool:
        stream.sendall(head(hasty.url, "GET /healthz"))
        return answer(stream).status == 200

    with contextlib.ExitStack() as streams:
        found: list[socket.socket] = []

        def first_request_is_answered() -> bool:
            found.append(streams.enter_context(connect(hasty.url)))
            with contextlib.suppress(OSError):
                return answered(found[-1])
            return False

        assert wait_until(first_request_is_answered)
        found[-1].sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        with _dripping(found[-1]):
            assert closes(found[-1])


def test_a_slow_body_is_cut_off(hasty: Running) -> None:
    with connect(hasty.url) as stream:
        stream.sendall(head(hasty.url, "POST /execute", "Content-Length: 1000000", AUTH, JSON))
        with _dripping(stream):
            found = answer(stream)
    assert (found.status, found.headers["connection"]) == (408, "close")


def test_a_client_that_does_not_read_is_cut_off(hasty: Running) -> None:
    size = 24 * MIB
    with hasty.client() as client:
        session = client.post("/sessions", json={}).json()["session_id"]
        made = {"code": f"with open('large', 'wb') as file: _ = file.write(b'x' * {size})"}
        assert client.post(f"/sessions/{session}/run", json=made).json()["exit_code"] == 0
        path = f"/sessions/{session}/files/content"
        with socket.socket() as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.settimeout(HANG_S)
            stream.connect(("127.0.0.1", int(hasty.url.rpartition(":")[2])))
            stream.sendall(head(hasty.url, f"GET {path}?path=/workspace/large", AUTH))
            assert wait_until(lambda: any(line.get("path") == path for line in hasty.lines()))  # it is over
            assert len(answer(stream).body) < size

        def whole() -> bool:
            with contextlib.suppress(httpx2.TransportError):  # we were held up for as long ourselves
                return len(client.get(f"{path}?path=/workspace/large").content) == size
            return False

        assert wait_until(whole)
        client.delete(f"/sessions/{session}")


def test_answers_that_nobody_reads_have_a_bound(start: Callable[..., Running]) -> None:
    small = start("--max-body-memory", "64")
    files = "for n in range(3): open(f'/tmp/output/{n}', 'wb').write(bytes(5 * 1024 * 1024))"
    body = json.dumps({"code": files}).encode()
    with contextlib.ExitStack() as open_ones:
        assert len(_run(small, files)["files"]) == 3
        before = _rss_bytes(small.process.pid)
        for accept in ("application/json", "text/event-stream") * 10:
            stream = open_ones.enter_context(connect(small.url))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sent = (AUTH, JSON, f"Accept: {accept}", f"Content-Length: {len(body)}")
            stream.sendall(head(small.url, "POST /execute", *sent) + body)
        assert wait_until(lambda: small.number("fumehood_executions_total") == 21)
        assert _rss_bytes(small.process.pid) - before < 250 * MIB  # of 20 times 20 MB, and as much while one is made
        found = _run(small, f"{files}\nprint('ran')")
        assert (found["stdout"], found["files"]) == ("ran\n", [])
        assert len(found["meta"]["files_left_out"]) == 3
    assert wait_until(lambda: len(_run(small, files)["files"]) == 3)  # those who left hold nothing


def _run(server: Running, code: str) -> Any:
    return _post(server, json.dumps({"code": code}).encode(), JSON).json()


def test_idle_connections_leave_files_for_programs(start: Callable[..., Running]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as idle:
        idle.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        usual = start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024 if hard == resource.RLIM_INFINITY else min(hard, 1024), hard))
        for _ in range(500):
            idle.enter_context(connect(usual.url)).sendall(b"GET / HTTP/1.1\r\n")
        with usual.client() as client:
            assert client.post("/sessions", json={}).status_code == 201


def test_there_are_as_many_connections_as_files_allow() -> None:
    from fumehood.server.run import open_files  # with uvicorn

    options = ServerOptions(max_connections=2048, max_sessions=64, max_running=4)
    assert open_files(options, resource.RLIM_INFINITY) == (4480, 2048)
    assert open_files(options, 4480) == (4480, 2048)
    assert open_files(options, 4000) == (4000, 2000)
    assert open_files(options, 1024) == (1024, 512)


def test_connections_are_counted(narrow: Running) -> None:
    held = [connect(narrow.url) for _ in range(12)]
    try:
        found = exchange(narrow.url, "GET /readyz")
        assert (found.status, found.headers["retry-after"]) == (503, "1")
        assert found.headers["x-fumehood-version"] == __version__
        assert exchange(narrow.url, "GET /healthz").status == 200
    finally:
        for stream in held:
            stream.close()
    assert _serves(narrow)


class _Busy:
    """An execution that lasts until the client leaves."""

    def __init__(self, server: Running, token: str) -> None:
        self.stream = connect(server.url)
        body = b'{"code": "import time; time.sleep(3600)", "timeout": 300}'
        headers = (f"Authorization: Bearer {token}", JSON, f"Content-Length: {len(body)}")
        self.stream.sendall(head(server.url, "POST /execute", *headers) + body)

    def leave(self) -> None:
        self.stream.close()


def test_executions_wait_for_a_place_and_too_many_are_refused(narrow: Running) -> None:
    with narrow.client() as client:
        running = _Busy(narrow, TOKENS["alice"])
        assert wait_until(lambda: narrow.number("fumehood_running") == 1)
        waiting = _Busy(narrow, TOKENS["bob"])
        assert wait_until(lambda: narrow.number("fumehood_queued") == 1)
        refused = client.post("/execute", json={"code": "1"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        running.leave()
        assert wait_until(lambda: narrow.number("fumehood_queued") == 0)
        waiting.leave()
        assert wait_until(lambda: narrow.number("fumehood_running") == 0)
        assert client.post("/execute", json={"code": "print(1)"}).json()["stdout"] == "1\n"


def test_who_waits_may_leave_or_be_cancelled(narrow: Running) -> None:
    with narrow.client() as client, narrow.client() as other:
        session = client.post("/sessions", json={}).json()["session_id"]
        running = _Busy(narrow, TOKENS["bob"])
        assert wait_until(lambda: narrow.number("fumehood_running") == 1)
        waiting = _Busy(narrow, TOKENS["alice"])
        assert wait_until(lambda: narrow.number("fumehood_queued") == 1)
        waiting.leave()
        assert wait_until(lambda: narrow.number("fumehood_queued") == 0)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(other.post, f"/sessions/{session}/run", json={"code": "x = 1"})
            assert wait_until(lambda: narrow.number("fumehood_queued") == 1)
            assert client.post(f"/sessions/{session}/cancel").status_code == 202
            found = asked.result(HANG_S)
        assert (found.status_code, found.json()["code"]) == (409, "conflict")
        assert (narrow.number("fumehood_running"), narrow.number("fumehood_queued")) == (1, 0)
        running.leave()
        ran = client.post(f"/sessions/{session}/run", json={"code": "'x' in globals()"})
        assert ran.json()["results"] == [{"text/plain": "False"}]
        client.delete(f"/sessions/{session}")


def test_a_token_has_its_own_number_of_executions(narrow: Running) -> None:
    token = "one-at-a-time-0123456789"
    with narrow.client(token) as client:
        running = _Busy(narrow, token)
        assert wait_until(lambda: narrow.number("fumehood_running") == 1)
        refused = client.post("/execute", json={"code": "1"})
        assert (refused.status_code, refused.json()["code"], "retry-after" in refused.headers) == (
            429,
            "too_many",
            True,
        )
        running.leave()
        assert wait_until(lambda: narrow.number("fumehood_running") == 0)
        assert client.post("/execute", json={"code": "1"}).status_code == 200


def test_a_token_has_its_own_number_of_requests_a_minute(narrow: Running) -> None:
    with narrow.client("few-a-minute-0123456789") as client:
        statuses = [client.get("/openapi.json").status_code for _ in range(4)]  # nothing that takes long
        refused = client.get("/openapi.json")
    assert statuses == [200, 200, 200, 429]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    with narrow.client() as client:
        assert client.get("/info").status_code == 200
