"""Requests, from the first byte of a connection on: none is a fault of the server's."""

from __future__ import annotations

from .connections import Served, head, served
from .target import Target, fields, finished


def check(data: bytes) -> None:
    """A request line and a body, which get their headers; then raw bytes for a connection of their own."""
    line, body, raw = fields(data, 3)

    async def ask(server: Served) -> None:
        session = server.session.encode()
        for sent in (head(line.replace(b"@", session), len(body)) + body, raw.replace(b"@", session)):
            said = await server.answer(sent[: len(sent) // 2], sent[len(sent) // 2 :])
            assert not said.startswith(b"HTTP/1.1 500"), said

    finished(served(ask))


TARGET = Target("server_requests", check)
