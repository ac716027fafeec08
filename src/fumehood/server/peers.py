"""What belongs to another worker on this machine is passed on to it; what is on no machine we know is said to be."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from . import ids
from .exchange import Exchange
from .problems import Problem
from .state import Server

ASK_S = 5.0
_CHUNK = 64 * 1024
_HOP = {
    *(b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer", b"upgrade", b"expect"),
    *(b"date", b"server", b"x-request-id", b"x-forwarded-for"),
}
_SUFFIX, _MARK = ".sock", ".ours"
_MAX_PATH = 107  # the kernel's, for a socket


class Peers:
    """The workers beside this one, by instance. A part of the server."""

    def __init__(self, server: Server) -> None:
        self._directory, self._own = server.options.peers_dir, server.instance

    def path(self, instance: str) -> str | None:
        """Where it listens or did, if it is or was one of ours."""
        if not self._directory or instance == self._own or not ids.is_instance(instance):
            return None
        return (
            socket_path(self._directory, instance) if os.path.exists(f"{self._directory}/{instance}{_MARK}") else None
        )

    async def ask(self, scope: Scope) -> dict[str, bytes | None]:
        """What each of the others says to this same GET; None where it says nothing in time."""
        names = self._others()
        answers = await asyncio.gather(*(_said(scope, socket_path(self._directory, name)) for name in names))
        return dict(zip(names, answers, strict=True))

    def _others(self) -> list[str]:
        return [name for name in _names(self._directory) if name != self._own] if self._directory else []

    async def close(self) -> None:
        pass

    async def pass_on(self, exchange: Exchange, instance: str) -> None:
        """Let it answer; 421 where it is not beside us."""
        path = self.path(instance)
        if path is None:
            raise Problem("misdirected", f"this is on the instance {instance}: ask there", more={"instance": instance})
        exchange.scope["state"]["passed_to"] = instance
        try:
            if exchange.scope["type"] == "websocket":
                await _socket(exchange, path)
            else:
                await _request(exchange, path)
        except (OSError, h11.RemoteProtocolError):
            if exchange.status is not None:
                raise
            raise Problem("session_ended", "the worker that had it is gone: make a new one") from None


def socket_path(directory: str, instance: str) -> str:
    """Where a worker listens for the others; of two names for one place the one that is short enough."""
    path = f"{directory}/{instance}{_SUFFIX}"
    return path if len(os.fsencode(path)) <= _MAX_PATH else f"/proc/self/fd/{_opened(directory)}/{instance}{_SUFFIX}"


def mark(directory: str, instance: str) -> None:
    """Before it begins: what it had is known to be gone once it is, and nobody is sent elsewhere for it."""
    os.close(os.open(f"{directory}/{instance}{_MARK}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def any_listens(directory: str) -> bool:
    """Whether a worker is left there."""
    return bool(_names(directory))


def _names(directory: str) -> list[str]:
    return sorted(name.removesuffix(_SUFFIX) for name in os.listdir(directory) if name.endswith(_SUFFIX))


@cache
def _opened(directory: str) -> int:
    return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _sent(scope: Scope, method: str, writer: asyncio.StreamWriter) -> h11.Connection:
    connection, state = h11.Connection(h11.CLIENT), scope["state"]
    body: bytes = state.get("body", b"")
    headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
    headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    headers += [(b"x-request-id", state["request_id"].encode()), (b"x-forwarded-for", state["client"].encode())]
    request = h11.Request(method=method, target=_target(scope), headers=headers)
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    return connection


async def _said(scope: Scope, path: str) -> bytes | None:
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await _whole(_sent(scope, "GET", writer), reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, h11.RemoteProtocolError):
        return None


async def _whole(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes | None:
    body, status = bytearray(), 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            return bytes(body) if status == 200 else None


async def _request(exchange: Exchange, path: str) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        connection = _sent(exchange.scope, exchange.scope["method"], writer)
        answering = asyncio.create_task(_answer(exchange, connection, reader))
        leaving = asyncio.create_task(_gone(exchange))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
    finally:
        writer.close()  # which tells it that its client left


async def _answer(exchange: Exchange, connection: h11.Connection, reader: asyncio.StreamReader) -> None:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            headers = [(name.lower(), value) for name, value in event.headers if name.lower() not in _HOP]
            kept = [pair for pair in event.headers if pair[0].lower() == b"content-length"]
            start = {"type": "http.response.start", "status": event.status_code, "headers": [*headers, *kept]}
            await exchange.send(start)
        elif isinstance(event, h11.Data):
            await exchange.send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            await exchange.send({"type": "http.response.body", "body": b""})
            return


async def _gone(exchange: Exchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    raw: bytes = scope["raw_path"]
    return raw + (b"?" + query if query else b"")


async def _socket(exchange: Exchange, path: str) -> None:
    scope = exchange.scope
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"}
    headers |= {"X-Request-Id": exchange.request_id, "X-Forwarded-For": scope["state"]["client"]}
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "localhost")
    ours = WebSocket(scope, exchange.receive, exchange.send)
    target = _target(scope).decode("latin-1")
    try:
        theirs = await unix_connect(path, f"ws://{host}{target}", additional_headers=headers, compression=None)
    except InvalidStatus as refusal:
        told, status = bytes(refusal.response.body or b""), refusal.response.status_code
        scope["state"]["connection"].shows_none(scope["path"])
        answer = Response(told, status, media_type="application/problem+json")
        await answer(scope, exchange.receive, exchange.send)
        return
    except (InvalidURI, ValueError):
        raise Problem("bad_request", "the target of a WebSocket is a path and a query") from None
    except InvalidHandshake as error:
        raise OSError from error
    async with theirs:
        scope["state"]["connection"].shows_token(scope["path"])
        await ours.accept()
        pumps = [asyncio.create_task(_down(ours, theirs)), asyncio.create_task(_up(ours, theirs))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _down(ours: WebSocket, theirs: Any) -> None:
    try:
        async for message in theirs:
            await (ours.send_text(message) if isinstance(message, str) else ours.send_bytes(message))
        await ours.close(theirs.close_code or 1000)
    except (ConnectionClosed, WebSocketDisconnect, RuntimeError):
        return


async def _up(ours: WebSocket, theirs: Any) -> None:
    try:
        while (message := await ours.receive())["type"] == "websocket.receive":
            await theirs.send(message["text"] if message.get("text") is not None else message["bytes"])
    except (ConnectionClosed, WebSocketDisconnect):
        return
