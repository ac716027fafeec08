"""Many clients at once, and what one of them costs on the wire."""

from __future__ import annotations

from urllib.parse import urlsplit

from raw_http import connect, head

from fumehood.bench.served import Server, at_once
from running import TOKENS, Running

CLIENTS, EACH = 200, 2


def test_two_hundred_clients_at_once_each_get_their_own_answers(server: Running) -> None:
    address = urlsplit(server.url)
    measured = Server(server.process, (address.hostname or "", address.port or 0), TOKENS["alice"])
    found = at_once(measured, CLIENTS, EACH)
    assert (found["errors"], found["first_errors"]) == (0, [])
    assert found["requests"] == CLIENTS * EACH


def test_an_answer_comes_in_one_piece(server: Running) -> None:
    with connect(server.url) as stream:
        for _ in range(20):
            stream.sendall(head(server.url, "GET /healthz"))
            top, _, body = stream.recv(65536).partition(b"\r\n\r\n")
            length = top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            assert len(body) == int(length) > 0
