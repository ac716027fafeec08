"""Many clients at once, and what one of them costs on the wire."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from raw_http import connect, head

from running import TOKENS, Running
from support import HANG_S


@pytest.mark.parametrize(("clients", "each"), [(100, 2), pytest.param(200, 10, marks=pytest.mark.soak)])
def test_many_clients_at_once_each_get_their_own_answers(
    server: Running, monkeypatch: pytest.MonkeyPatch, clients: int, each: int
) -> None:
    from fumehood.bench import served  # with much that only it needs

    monkeypatch.setattr(served, "_REPLY_S", HANG_S)
    address = urlsplit(server.url)
    measured = served.Server(server.process, (address.hostname or "", address.port or 0), TOKENS["alice"])
    found = served.at_once(measured, clients, each)
    assert (found["errors"], found["first_errors"]) == (0, [])
    assert found["requests"] == clients * each


def test_an_answer_comes_in_one_piece(server: Running) -> None:
    with connect(server.url) as stream:
        for _ in range(20):
            stream.sendall(head(server.url, "GET /healthz"))
            top, _, body = stream.recv(65536).partition(b"\r\n\r\n")
            length = top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            assert len(body) == int(length) > 0
