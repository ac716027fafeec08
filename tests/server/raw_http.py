"""Bytes to a server that no client library would send, and the answer."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support import HANG_S


class Answer(NamedTuple):
    """`status` 0: the connection was closed without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname == "127.0.0.1"
    return socket.create_connection((parts.hostname, parts.port or 80), HANG_S)


def head(url: str, line: str, *headers: str) -> bytes:
    """A request's head, with the right Host unless another is given."""
    named = {header.partition(":")[0].lower() for header in headers}
    host = () if "host" in named else (f"Host: {urlsplit(url).netloc}",)
    return "\r\n".join([f"{line} HTTP/1.1", *host, *headers, "", ""]).encode("latin-1")


def exchange(url: str, line: str, *headers: str, body: bytes = b"") -> Answer:
    """One request on a connection of its own."""
    with connect(url) as stream:
        stream.sendall(head(url, line, *headers) + body)
        return answer(stream, has_body=not line.startswith("HEAD "))


def answer(stream: socket.socket, *, has_body: bool = True) -> Answer:
    """The next answer; its body by its length, or all there is."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := _received(stream)):
            return Answer(0, {}, data)
        data += piece
    top, _, body = data.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split()[1])
    length = headers.get("content-length")
    while has_body and status != 101 and (length is None or len(body) < int(length)):
        if not (piece := _received(stream)):
            break
        body += piece
    return Answer(status, headers, body)


def closes(stream: socket.socket) -> bool:
    """Waits until the server closes the connection, whatever it says before."""
    try:
        while _received(stream):
            pass
    except TimeoutError:
        return False
    return True


def _received(stream: socket.socket) -> bytes:
    try:
        return stream.recv(65536)
    except TimeoutError:
        raise
    except OSError:  # reset
        return b""
