"""GET /info: what this server is and allows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from .. import __version__, handed
from ..session import with_settings
from ..types import Receipt
from . import wire
from .files import largest
from .guard import PROTOCOL
from .routes import Route
from .state import Call, Server
from .tokens import Token

FRESH_S = 30.0


class Checked:
    """The backend's receipt, asked for again when it is no longer fresh. A part of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._at = 0.0
        self._told: tuple[str, Receipt] | None = None
        self._lock = asyncio.Lock()

    async def look(self) -> tuple[str, Receipt]:
        """The backend's name, and what it enforces."""
        async with self._lock:
            if self._told is None or time.monotonic() - self._at > FRESH_S:
                session = with_settings(self._server.settings)
                try:
                    receipt = await session.check()
                    self._told = session.backend_name, receipt  # its fallback's name, if that stood in
                finally:
                    await session.close()
                self._at = time.monotonic()
            return self._told

    async def close(self) -> None:
        pass


async def info(call: Call[None, None]) -> wire.InfoReply:
    server, settings = call.server, call.server.settings
    backend, receipt = await call.while_there(server.part(Checked).look())
    return wire.InfoReply(
        version=__version__,
        protocol=int(PROTOCOL),
        instance=server.instance,
        backend=backend,
        level=receipt.level,
        receipt=receipt.as_dict(),
        limits=_limits(server),
        languages=list(settings.supported_languages),
        network=settings.network or (settings.type == "docker" and settings.docker_network_enabled),
        policy={
            "allowed_commands": list(settings.allowed_commands),
            "allowed_packages": list(settings.allowed_packages),
            "block_dangerous_imports": settings.block_dangerous_imports,
            "require": settings.require,
            "store_code": settings.store_code,
            "session_busy": settings.session_busy,
        },
        yours=_load(server, call.token),
    )


def _load(server: Server, token: Token) -> wire.Load:
    gate = server.gate
    return wire.Load(
        gate.running_of[token.name], gate.queued_of(token.name), gate.share(token), server.options.max_queue
    )


def _limits(server: Server) -> dict[str, Any]:
    settings, options = server.settings, server.options
    return {
        **settings.limits()._asdict(),
        "timeout_s": settings.timeout_sec,
        "max_timeout_s": settings.max_timeout_sec,
        "output_kb": settings.max_output_kb,
        "session_idle_s": settings.session_idle_sec,
        "session_max_s": settings.session_max_sec,
        "sessions": options.max_sessions,
        "body_bytes": options.max_body_bytes,
        "upload_bytes": options.max_upload_bytes,
        "download_bytes": largest(settings),
        "output_files": handed.MAX_FILES,
        "output_file_bytes": handed.MAX_FILE_BYTES,
        "output_bytes": handed.MAX_BYTES,
    }


ROUTES = (
    Route(
        "GET",
        "/info",
        info,
        "What this server is and allows.",
        reply=wire.InfoReply,
        problems=("isolation_unavailable", "unavailable"),
        reply_example={
            "version": __version__,
            "protocol": 1,
            "instance": "0a1b2c3d",
            "backend": "local",
            "level": "sealed",
            "receipt": {"level": "sealed"},
            "limits": {"memory_bytes": 1073741824},
            "languages": ["python"],
            "network": False,
            "policy": {"session_busy": "queue"},
            "yours": {"running": 3, "queued": 1, "max_running": 3, "max_queue": 1024},
        },
    ),
)
