"""The answer to an execution: JSON when it has ended, or its events as they come, as SSE or NDJSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
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
LISTENS_S = 1.0  # for a client that says no more: what we send shows whether it still listens
UNBUFFERED = {"X-Accel-Buffering": "no"}  # nginx would keep events back until it has a page of them
Work = Callable[[Emit | None], Coroutine[Any, Any, wire.Result]]  # None: nobody hears the events


async def respond(call: Call[Any, Any], work: Work) -> Response:
    """Do the work in the way that Accept asks for. Whoever leaves ends it."""
    kind = accepted(call.request.headers.get("accept", "*/*"))
    if kind != JSON:
        return Events(call, work, kind)
    result = await call.while_there(work(None))
    return Response(wire.encode(_reply(result)), media_type=JSON)


@lru_cache(64)
def accepted(accept: str) -> str:
    """What of ours is liked best; of two that are liked the same, the first."""
    liked = dict(map(_liked, reversed(accept.lower().split(","))))
    named = {kind: liked[kind] for kind in reversed(liked) if kind in (JSON, SSE, NDJSON)}
    for pattern in ("application/*", "*/*"):
        if pattern in liked:
            named.setdefault(JSON, liked[pattern])
    best = max(named, key=lambda kind: named[kind], default=None)
    if best is None or not named[best]:
        raise Problem("not_acceptable", f"Accept must name {JSON}, {SSE} or {NDJSON}")
    return best


def _liked(entry: str) -> tuple[str, float]:
    kind, *parameters = (part.strip() for part in entry.split(";"))
    quality = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return kind, min(1.0, max(0.0, float(quality)))
    except ValueError:
        return kind, 1.0


def _reply(result: wire.Result) -> wire.ExecuteReply:
    fields = {name: getattr(result, name) for name in wire.ExecuteReply.__struct_fields__}
    return wire.ExecuteReply(**fields)


class Events(Response):
    """Begins with the first event, so that a refusal before it is an answer with its own status."""

    def __init__(self, call: Call[Any, Any], work: Work, kind: str) -> None:
        super().__init__(headers=UNBUFFERED, media_type=kind)
        del self.headers["content-length"]
        self._call, self._work, self._kind = call, work, kind
        self._number = 0
        self._one = asyncio.Lock()  # a large event is sent in pieces, with nothing between them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._send = send
        pinging = asyncio.create_task(self._ping())
        try:
            await self._emit(await self._call.while_there(self._work(self._emit)))
        except ClientLeft:
            raise
        except Exception as error:
            if not self._number:
                raise
            self._call.request.scope["state"]["failed"] = error  # for the log
            await self._emit(wire.Failure(from_error(error).body(self._call.request_id)))
        finally:
            pinging.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _emit(self, event: wire.Event) -> None:
        async with self._one:
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
        """A comment, or an empty line: silence would be taken for the end of one of us."""
        data = b": ping\n\n" if self._kind == SSE else b"\n"
        connection = self._call.request.scope["state"]["connection"]
        waited_s = 0.0
        while True:
            await asyncio.sleep(LISTENS_S)
            waited_s += LISTENS_S
            is_unsure = connection.is_half_closed or connection.may_have_left
            if self._number and (waited_s >= PING_S or is_unsure):
                waited_s = 0.0
                async with self._one:
                    await self._send({"type": "http.response.body", "body": data, "more_body": True})
