"""Sessions, and WebSockets that listen to them."""

from __future__ import annotations

from typing import Any

import httpx2
from websockets.sync.client import ClientConnection, connect, unix_connect

from running import Running
from support import HANG_S


def opened(client: httpx2.Client) -> str:
    """A new session's id."""
    found = client.post("/sessions", json={})
    assert found.status_code == 201, found.text
    session_id: str = found.json()["session_id"]
    return session_id


def ticket(client: httpx2.Client, session: str) -> str:
    found: str = client.post(f"/sessions/{session}/ticket").json()["ticket"]
    return found


def listen(server: Running, session: str, opened_with: str, **kinds: Any) -> ClientConnection:
    """A WebSocket that waits as long as it has to."""
    url = f"{server.url.replace('http', 'ws', 1)}/sessions/{session}/events?ticket={opened_with}"
    kinds = {"open_timeout": HANG_S, "ping_interval": None, "max_size": None, **kinds}
    return connect(url, **kinds) if server.socket is None else unix_connect(server.socket, url, **kinds)
