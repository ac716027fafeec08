"""Runs programs on another fumehood, over HTTP: one that `fumehood serve` serves."""

from __future__ import annotations

import asyncio
import os
import weakref

from ...config import Settings
from ...errors import BackendUnavailable, SandboxLost
from ...types import Command, Receipt
from ..base import Backend, Sandbox, SandboxSpec
from . import address, said
from .client import PROTOCOL, Client
from .refusals import no_server
from .sandbox import RemoteSandbox, RemoteSession

__all__ = ["RemoteBackend"]

_LOOK_S = 5.0
_MEET_S = 20.0  # it may have to make a sandbox first
_MAX_INFO = 1024 * 1024


class RemoteBackend(Backend):
    name = "remote"
    installs = True
    hands_back = True

    def __init__(self, settings: Settings):
        self._settings = settings
        self._address = address.find(settings)
        self._clients: dict[asyncio.AbstractEventLoop, tuple[Client, asyncio.Task[None]]] = {}
        self._has_met = False
        self._most_bytes: dict[str, int] = {}
        self._pid = os.getpid()
        self._closed = False

    async def check(self) -> Receipt:
        """By running nothing."""
        settings = self._settings
        sandbox = await self.create(SandboxSpec(settings.limits(), settings.network))
        try:
            process = await sandbox.start(Command(("python", "main.py"), b""))
            return process.receipt
        finally:
            await sandbox.close()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        client = self._client()
        if not client.is_sure:
            await self._meet(client)
        if not spec.keeps:
            return RemoteSandbox(client, spec, self._settings, lambda: self._meet(client))
        session = RemoteSession(client, spec, self._settings, lambda: self._meet(client))
        await session.open()
        return session

    async def close(self) -> None:
        self._closed = True
        clients, self._clients = self._clients, {}
        if self._pid != os.getpid():
            return
        for loop, (_, keeper) in clients.items():
            if loop is asyncio.get_running_loop():
                keeper.cancel()
                await asyncio.wait([keeper])
            elif loop.is_running():
                loop.call_soon_threadsafe(keeper.cancel)

    # --- inside

    async def _meet(self, client: Client) -> Receipt:
        """Before any code is sent: whether it is one of ours, takes the token and speaks as we do."""
        try:
            info = await client.ask("GET", "/info", read_s=_MEET_S, most=_MAX_INFO)
        except SandboxLost as error:
            raise BackendUnavailable(str(error)) from error
        if not isinstance(info, dict) or "protocol" not in info:
            raise no_server(client.where, 200)
        spoken = said.protocol(info)
        if spoken != PROTOCOL:
            raise BackendUnavailable(
                f"the server at {client.where} speaks protocol {spoken} and this is {PROTOCOL}:"
                " use the same version of fumehood on both sides"
            )
        self._most_bytes = said.most_bytes(info)
        client.most_bytes |= self._most_bytes
        client.is_sure = self._has_met = True
        return said.receipt(info.get("receipt"))

    def _client(self) -> Client:
        """The running loop's."""
        if self._closed:
            raise BackendUnavailable("this backend is closed; make a new sandbox")
        loop = asyncio.get_running_loop()
        for gone in [each for each in self._clients if each.is_closed()]:
            del self._clients[gone]
        if loop not in self._clients:
            client = Client(self._address)
            client.most_bytes |= self._most_bytes
            client.is_sure = self._has_met
            self._clients[loop] = client, loop.create_task(_keep(client, weakref.ref(self)), name="fumehood-remote")
        return self._clients[loop][0]


async def _keep(client: Client, user: weakref.ref[RemoteBackend]) -> None:
    """Until the backend is closed or forgotten, or the loop ends: its connections end with it."""
    try:
        while user() is not None:
            await asyncio.sleep(_LOOK_S)
    finally:
        await client.close()
