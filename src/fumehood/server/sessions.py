"""Sessions: open, look, run, cancel, close; and the WebSocket that tells what happens there."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from ..session import with_settings
from . import events, examples, ids, wire
from .execute import PROBLEMS, in_session
from .peers import Peers
from .registry import Live, Registry
from .respond import respond
from .routes import Route, Socket, SocketCall
from .sandboxes import narrowed, run_id
from .state import Call
from .tokens import TICKET_S

MAX_IDLE_S = 7 * 24 * 3600.0  # what the setting takes
FINDING = ("not_found", "session_ended", "misdirected")


def found(call: Call[Any, Any] | SocketCall) -> Live:
    """The session that the path names."""
    return call.server.part(Registry).find(call.token, call.params["id"])


def overseen(call: Call[Any, Any]) -> Live:
    """The same, or another owner's for who may see and end it, and nothing else."""
    return call.server.part(Registry).find(call.token, call.params["id"], oversees=call.token.oversees)


async def create(call: Call[wire.SessionRequest, None]) -> wire.SessionReply:
    return await call.while_there(_create(call))


async def _create(call: Call[wire.SessionRequest, None]) -> wire.SessionReply:
    server, ask = call.server, call.body
    idle_s = None if ask.idle is None else min(ask.idle, MAX_IDLE_S)
    settings, cut = narrowed(server, ask, session_idle_sec=idle_s)
    cut = ["idle" if name == "session_idle_sec" else name for name in cut]
    registry = server.part(Registry)
    async with registry.room(call.token) as place, server.gate.execution(call.token):
        hub, session_id = events.Hub(call.server.part(events.Backlogs)), registry.new_id()
        session = with_settings(
            settings,
            session_id=session_id,
            requirements=ask.requirements,
            io_handler=hub,
            run_id=run_id(call.token),
        )
        live = Live(session_id, call.token.name, session, hub, cut, place)
        try:
            live.receipt = (await session.check()).as_dict()
        except BaseException:
            await session.close()
            raise
        registry.add(live)
        return live.told(call.token)


async def listing(call: Call[None, None]) -> wire.SessionsReply:
    """Those of all workers of this server."""
    reply = wire.SessionsReply([live.told(call.token) for live in call.server.part(Registry).seen_by(call.token)])
    if not ids.beside(call.request.scope):
        for instance, said in (await call.server.part(Peers).ask(call.request.scope)).items():
            if said is None:
                reply.unreachable.append(instance)
            else:
                reply.sessions += msgspec.json.decode(said, type=wire.SessionsReply).sessions
        reply.sessions.sort(key=lambda session: session.created_at)
    return reply


async def look(call: Call[None, None]) -> wire.SessionReply:
    return overseen(call).told(call.token)


async def close(call: Call[None, None]) -> None:
    """Also while something runs there: that is ended."""
    await call.server.part(Registry).end(overseen(call))


async def run(call: Call[wire.RunRequest, None]) -> Response:
    ask = call.body
    given = {"requirements": ask.requirements}
    return await respond(call, partial(in_session, call, found(call), ask.code, ask.timeout, given, {}))


async def execute(call: Call[wire.ExecRequest, None]) -> Response:
    ask = call.body
    given = {"stdin": ask.stdin_base64, "env": ask.env}
    return await respond(call, partial(in_session, call, found(call), ask.command, ask.timeout, given, {}))


async def cancel(call: Call[None, None]) -> None:
    """Also what still waits for a place."""
    live = found(call)
    if not call.server.gate.give_up(live):
        live.session.cancel()


async def ticket(call: Call[None, None]) -> wire.TicketReply:
    live = found(call)
    return wire.TicketReply(call.server.tickets.make(call.token, f"/sessions/{live.id}/events"), TICKET_S)


async def listen(call: SocketCall) -> None:
    removed = partial(call.server.tokens.removed, call.token)
    await events.serve(call.websocket, found(call).hub, call.server.stopping, removed)


ROUTES = (
    Route(
        "POST",
        "/sessions",
        create,
        "Open a session.",
        request=wire.SessionRequest,
        reply=wire.SessionReply,
        status=201,
        problems=("isolation_unavailable", "package_unavailable", "unavailable"),
        request_example=examples.OPEN,
        reply_example=examples.SESSION,
    ),
    Route(
        "GET",
        "/sessions",
        listing,
        "This token's sessions; all of them for an admin.",
        reply=wire.SessionsReply,
        reply_example={"sessions": [examples.SESSION]},
    ),
    Route(
        "GET",
        "/sessions/{id}",
        look,
        "One session.",
        reply=wire.SessionReply,
        problems=FINDING,
        reply_example=examples.SESSION,
    ),
    Route("DELETE", "/sessions/{id}", close, "End a session and what runs there.", status=204, problems=FINDING),
    Route(
        "POST",
        "/sessions/{id}/run",
        run,
        "Run Python in the session's interpreter, which remembers.",
        request=wire.RunRequest,
        reply=wire.ExecuteReply,
        streams=wire.Event,
        problems=PROBLEMS,
        request_example=examples.RUN,
        reply_example=examples.RAN,
    ),
    Route(
        "POST",
        "/sessions/{id}/exec",
        execute,
        "Run a command in the session's files.",
        request=wire.ExecRequest,
        reply=wire.ExecuteReply,
        streams=wire.Event,
        problems=PROBLEMS,
        request_example=examples.EXEC,
        reply_example=examples.RAN,
    ),
    Route("POST", "/sessions/{id}/cancel", cancel, "Interrupt what runs in a session.", status=202, problems=FINDING),
    Route(
        "POST",
        "/sessions/{id}/ticket",
        ticket,
        "A ticket that opens the WebSocket /sessions/{id}/events?ticket=… once.",
        reply=wire.TicketReply,
        problems=FINDING,
        reply_example={"ticket": "…", "expires_in": TICKET_S},
    ),
)
SOCKETS = (Socket("/sessions/{id}/events", listen),)
