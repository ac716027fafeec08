"""POST /execute: program text or a command, in a sandbox of its own or in a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from .. import paths
from ..backends.base import Places
from ..errors import FileError
from ..handed import Handed
from ..session import with_settings
from ..streaming import Stream
from ..types import ExecutionResult
from . import wire
from .bodies import Downloads
from .examples import EXECUTE, EXECUTED
from .executions import Executions
from .follow import Emit, follow
from .problems import Problem
from .registry import Live, Registry
from .respond import respond
from .routes import Route
from .sandboxes import Sandboxes, narrowed, run_id
from .state import Call

PROBLEMS = (
    *("command_not_allowed", "language_not_allowed", "package_unavailable", "isolation_unavailable"),
    *("session_busy", "conflict", "session_ended", "not_found", "misdirected", "budget_exceeded", "not_acceptable"),
    *("unavailable", "sandbox_lost"),
)
_PLACES = Places()
_NOT_IN_A_SESSION = ("language", "args", "limits", "network", "require")
_NOT_FOR_A_COMMAND = ("language", "args")


async def execute(call: Call[wire.ExecuteRequest, None]) -> Response:
    ask = call.body
    if (ask.code is None) == (ask.command is None):
        raise Problem("validation", "give exactly one of `code` and `command`")
    files = placed(ask.files or [])
    if ask.session_id is not None:
        _refuse(ask, _NOT_IN_A_SESSION, "in a session: it has its own; leave it out")
        live = call.server.part(Registry).find(call.token, ask.session_id)
        return await respond(call, partial(_in_session, call, live, files))
    if ask.command is not None:
        _refuse(ask, _NOT_FOR_A_COMMAND, "for a command: put it into `command`")
        return await respond(call, partial(_command, call, files))
    return await respond(call, partial(_code, call, files))


async def _code(call: Call[wire.ExecuteRequest, None], files: Mapping[str, bytes], emit: Emit | None) -> wire.Result:
    ask, handed = call.body, Handed()
    settings, cut = narrowed(call.server, ask)
    own = f"{_PLACES.workspace}/"
    beneath = {path.removeprefix(own): data for path, data in files.items() if path.startswith(own)}
    others = {path: data for path, data in files.items() if not path.startswith(own)}
    with call.server.part(Sandboxes).borrowed(call.token, settings) as sandbox:
        stream = sandbox.stream(
            ask.code or "",
            ask.language or "python",
            ask.timeout,
            stdin=ask.stdin_base64,
            args=ask.args or (),
            env=ask.env,
            files=beneath,
            placed=others,
            requirements=ask.requirements,
            handed=handed,
        )
        async with call.server.gate.execution(call.token) as queued_s:
            return _with(queued_s, await _one_shot(call, stream, handed, emit, cut))


async def _command(call: Call[wire.ExecuteRequest, None], files: Mapping[str, bytes], emit: Emit | None) -> wire.Result:
    """In a session of its own, which ends with it."""
    ask, handed = call.body, Handed()
    settings, cut = narrowed(call.server, ask)
    session = with_settings(settings, requirements=ask.requirements, run_id=run_id(call.token))
    try:
        command = {"stdin": ask.stdin_base64, "env": ask.env}
        stream = session.stream(ask.command or [], ask.timeout, handed=handed, **command)  # type: ignore[arg-type]
        async with call.server.gate.execution(call.token) as queued_s:
            for path, data in files.items():
                await session.write(path, data)
            return _with(queued_s, await _one_shot(call, stream, handed, emit, cut))
    finally:
        call.server.part(Sandboxes).later(session.close())


async def _one_shot(
    call: Call[Any, Any], stream: Stream, handed: Handed, emit: Emit | None, cut: list[str]
) -> wire.Result:
    call.runs(stream.execution_id)
    if emit is None:
        return await follow(stream, handed, None, _count(call), _has_room(call), cut=cut)
    with call.server.part(Executions).listed(call.token, stream.cancel) as handle:
        return await follow(stream, handed, emit, _count(call), _has_room(call), cut=cut, handle=handle)


async def _in_session(
    call: Call[wire.ExecuteRequest, None], live: Live, files: Mapping[str, bytes], emit: Emit | None
) -> wire.Result:
    ask = call.body
    program = ask.command if ask.command is not None else ask.code
    given = {"stdin": ask.stdin_base64, "env": ask.env, "requirements": ask.requirements}
    return await in_session(call, live, program or "", ask.timeout, given, files, emit)


async def in_session(
    call: Call[Any, Any],
    live: Live,
    program: str | list[str],
    timeout: float | None,
    given: Mapping[str, Any],
    files: Mapping[str, bytes],
    emit: Emit | None,
) -> wire.Result:
    """Whatever runs in a session runs here, so that those who listen hear of it."""
    handed = Handed()
    stream = live.session.stream(program, timeout, handed=handed, **given)

    async def tell(event: wire.Event) -> None:
        live.hub.publish(event)
        if emit is not None:
            await emit(event)

    async with live.turn(), call.server.gate.execution(call.token, live) as queued_s:
        call.runs(stream.execution_id)
        for path, data in files.items():
            await live.session.write(path, data)
        result = await follow(stream, handed, tell, _count(call), _has_room(call), session_id=live.id)
        _with(queued_s, result)
        live.hub.publish(result)
        return result


def _with(queued_s: float, result: wire.Result) -> wire.Result:
    result.meta["queued_s"] = round(queued_s, 3)
    return result


def _count(call: Call[Any, Any]) -> Callable[[ExecutionResult], None]:
    return partial(call.server.numbers.executed, call.token)


def _has_room(call: Call[Any, Any]) -> Callable[[int], bool]:
    return partial(call.server.part(Downloads).has_room, call.request.scope)


def placed(files: list[wire.SentFile]) -> dict[str, bytes]:
    """By path in the sandbox."""
    found: dict[str, bytes] = {}
    for number, file in enumerate(files):
        path = file.path if file.path.startswith("/") else f"{_PLACES.workspace}/{file.path}"
        try:
            path = checked(path)
        except FileError as error:
            raise Problem("validation", f"files[{number}].path: {error}") from None
        if path in found:
            raise Problem("validation", f"files[{number}].path: {path} is there twice")
        found[path] = file.content_base64
    return found


def checked(path: str) -> str:
    """A path in a sandbox, or FileError."""
    return paths.checked(path, _PLACES)


def _refuse(ask: wire.ExecuteRequest, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(ask, name) is not None:
            raise Problem("validation", f"`{name}` is not {why}")


ROUTES = (
    Route(
        "POST",
        "/execute",
        execute,
        "Run code or a command.",
        request=wire.ExecuteRequest,
        reply=wire.ExecuteReply,
        streams=wire.Event,
        problems=PROBLEMS,
        request_example=EXECUTE,
        reply_example=EXECUTED,
    ),
)
