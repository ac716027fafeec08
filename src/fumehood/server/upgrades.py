"""What a request for a WebSocket has to be. The parser of `websockets` does not answer, time or log one that is not."""

from __future__ import annotations

from typing import Any

from websockets.http11 import Request
from websockets.server import ServerProtocol

from .problems import Problem

_LONGEST_LINE, _MOST_HEADERS = 8000, 100  # the parser of websockets takes a few more


def upgrade_fault(scope: Any) -> Problem | None:
    """Why this is no request for a WebSocket; None where it is one."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    named = {name: value.strip() for name, value in headers}
    if scope["method"] != "GET" or scope["http_version"] != "1.1":
        return Problem("bad_request", "a WebSocket is opened with GET and HTTP/1.1")
    if b"transfer-encoding" in named or named.get(b"content-length", b"0") != b"0":
        return Problem("bad_request", "a request for a WebSocket has no body")
    target = scope["raw_path"] + b"?" + scope["query_string"]
    if max(len(target), *(len(name) + len(value) for name, value in headers)) > _LONGEST_LINE:
        return Problem("headers_too_large", f"send at most {_LONGEST_LINE} bytes a line to open a WebSocket")
    if len(headers) > _MOST_HEADERS:
        return Problem("headers_too_large", f"send at most {_MOST_HEADERS} headers to open a WebSocket")
    if named.get(b"sec-websocket-version") != b"13":
        return Problem("bad_request", "send `Sec-WebSocket-Version: 13`", {"Sec-WebSocket-Version": "13"})
    if not _is_taken(b"".join([b"GET ", target, b" HTTP/1.1\r\n", *map(_line, headers), b"\r\n"])):
        return Problem("bad_request", "this is no valid request for a WebSocket: see its headers (RFC 6455, 4.1)")
    return None


def _line(header: tuple[bytes, bytes]) -> bytes:
    return header[0] + b": " + header[1] + b"\r\n"


def _is_taken(request: bytes) -> bool:
    """By the parser that will read it."""
    trial = ServerProtocol()
    trial.receive_data(request)
    events = trial.events_received()
    return bool(events) and isinstance(events[0], Request) and trial.accept(events[0]).status_code == 101
