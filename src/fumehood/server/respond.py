"""The answer to an execution: JSON when it has ended, or its events as they come, as SSE or NDJSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from . import wire
from .follow import Emit
from .problems import Problem, from_error
from .routes import JSON
from .state import Call, ClientLeft

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
PING_S = 15.0
Work = Callable[[Emit | None], Coroutine[Any, Any, wire.Result]]  # None: nobody hears the events


async def respond(call: Call[Any, Any], work: Work) -> Response:
    """Do the work in the way that Accept asks for. Whoever leaves ends it."""
    kind = accepted(call.request.headers.get("accept", "*/*"))
    if kind != JSON:
        return Events(call, work, kind)
    result = await call.while_there(work(None))
    return Response(wire.encode(_reply(result)), media_type=JSON)


def accepted(accept: str) -> str:
    """The first of ours that is named; quality values are not weighed."""
    for each in accept.lower().split(","):
        kind = each.partition(";")[0].strip()
        if kind in (SSE, NDJSON):
            return kind
        if kind in ("*/*", "application/*", JSON):
            return JSON
    raise Problem("not_acceptable", f"Accept must name {JSON}, {SSE} or {NDJSON}")


def _reply(result: wire.Result) -> wire.ExecuteReply:
    fields = {name: getattr(result, name) for name in wire.ExecuteReply.__struct_fields__}
    return wire.ExecuteReply(**fields)


class Events(Response):
    """Begins with the first event, so that a refusal before it is an answer with its own status."""

    def __init__(self, call: Call[Any, Any], work: Work, kind: str) -> None:
        super().__init__(media_type=kind)
        del self.headers["content-length"]
        self._call, self._work, self._kind = call, work, kind
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._send = send
        pinging: asyncio.Task[None] | None = None
        try:
            if self._kind == SSE:
                pinging = asyncio.create_task(self._ping())
            await self._call.while_there(self._work(self._emit))
        except ClientLeft:
            raise
        except Exception as error:
            if not self._number:
                raise
            self._call.request.scope["state"]["failed"] = error  # for the log
            await self._emit(wire.Failure(from_error(error).body(self._call.request_id)))
        finally:
            if pinging is not None:
                pinging.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _emit(self, event: wire.Event) -> None:
        if not self._number:
            await self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._number += 1
        data = wire.encode(event)
        if self._kind == SSE:
            data = b"id: %d\ndata: %b\n\n" % (self._number, data)
        else:
            data += b"\n"
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            if self._number:
                await self._send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
