"""Whether it lives, whether it can run programs, and its numbers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from .. import records
from ..api import OneShot
from ..steps import absolute
from ..thread_pool import aside
from . import ids, log, numbers
from .peers import Peers
from .problems import later
from .routes import Route
from .state import Call, Server

_KEPT_S = 2.0
_WAIT_S = 10.0


class Health(msgspec.Struct):
    """It answers."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, omit_defaults=True):
    """A sandbox was just made, and ended. `warnings`: what does not hold although it was promised."""

    status: Literal["ready"] = msgspec.field(default_factory=lambda: "ready")  # always told
    warnings: list[str] = []


class Readiness:
    """Makes a sandbox for real; what came of it is kept for a moment, and asked for once at a time."""

    def __init__(self, server: Server) -> None:
        self._sandbox = OneShot(server.settings)
        self._check: asyncio.Task[Exception | None] | None = None
        self._checked = -_KEPT_S

    async def failure(self) -> Exception | None:
        if self._check is None or (self._check.done() and time.monotonic() - self._checked > _KEPT_S):
            self._check = asyncio.create_task(self._find_out())
        done, _ = await asyncio.wait((self._check,), timeout=_WAIT_S)
        return next(iter(done)).result() if done else TimeoutError()

    async def _find_out(self) -> Exception | None:
        try:
            await aside(self._sandbox.check)
        except Exception as error:
            log.write("not_ready", level="error", error=type(error).__name__, message=str(error))
            return error
        finally:
            self._checked = time.monotonic()
        return None

    async def close(self) -> None:
        await aside(self._sandbox.close)


async def healthz(_: Call[Any, Any]) -> Health:
    return Health()


async def readyz(call: Call[Any, Any]) -> Ready:
    if call.server.stopping.is_set:
        raise later("unavailable", "the server is stopping", 5)
    if await call.server.part(Readiness).failure() is not None:
        raise later("unavailable", "no sandbox can be made: see the server's log and `fumehood doctor`", 5)
    lost, settings = records.lost_by_all(), call.server.settings
    if not lost:
        return Ready()
    text = f"records: lost {lost} since the start"
    directory = Path(absolute(settings.artifacts_dir), "executions")
    if settings.store_code == "always" and not await aside(records.takes, directory):
        raise later("unavailable", f"{text}, and none can be stored now: see the server's log and its disk", 5)
    return Ready(warnings=[text])


async def metrics(call: Call[Any, Any]) -> Response:
    server, scope = call.server, call.request.scope
    text = server.numbers.text(call.token)
    if server.options.peers_dir and not ids.beside(scope):
        text = numbers.merged({server.instance: text, **await server.part(Peers).ask(scope)})
    return Response(text, media_type=numbers.CONTENT_TYPE)


ROUTES = (
    Route("GET", "/healthz", healthz, "It answers.", reply=Health, public=True),
    Route("GET", "/readyz", readyz, "It can run programs.", reply=Ready, public=True, problems=("unavailable",)),
    Route("GET", "/metrics", metrics, "Numbers for Prometheus: this token's, or all of them.", reply_type="text/plain"),
)
