"""What a client sends over a WebSocket after it was let in: nothing that we need, and nothing that may hurt."""

from __future__ import annotations

from .connections import Served, served
from .target import Target, finished

_UPGRADE = b"\r\n".join(
    (
        *(b"GET %b HTTP/1.1", b"Host: 127.0.0.1:8080", b"Upgrade: websocket", b"Connection: Upgrade"),
        *(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: 13", b"", b""),
    )
)


def check(data: bytes) -> None:
    """Frames; each line comes by itself. Once more as what stands in place of the handshake's own headers."""

    async def open_and_send(server: Served) -> None:
        said = await server.answer(_UPGRADE % server.ticket(), *data.split(b"\n"))
        assert b"101 Switching Protocols" in said, said
        changed = (_UPGRADE % server.ticket()).replace(b"Sec-WebSocket-Version: 13", data)
        assert b" 500 " not in await server.answer(changed)

    finished(served(open_and_send))


TARGET = Target("server_sockets", check)
