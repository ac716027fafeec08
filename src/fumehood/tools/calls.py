"""What each tool does: a call in, the reply out. Our own errors pass through; the toolbox words them."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import paths
from ..config import clamp_timeout
from ..errors import FileError
from ..execution import shorten
from ..languages import resolve
from ..types import ExecutionResult
from . import hints
from .facts import EXEC_TIMEOUT_S
from .hints import Failure
from .text import NO_OUTPUT, render

if TYPE_CHECKING:
    from ..sync_session import Session


class Call(NamedTuple):
    """One call of a tool, its arguments checked against its schema."""

    session: Session
    arguments: Mapping[str, Any]
    reasoning_trace: str | None


def sandbox_exec(call: Call) -> dict[str, Any]:
    session = call.session
    asked = call.arguments.get("timeout")
    default = min(EXEC_TIMEOUT_S, session.settings.max_timeout_sec)
    seconds, clamped = clamp_timeout(default if asked is None else asked, session.settings)
    result = session.exec(list(call.arguments["command"]), seconds, reasoning_trace=call.reasoning_trace)
    total = result.meta["total_output_files"]
    reply = {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_truncated": result.meta["stdout_truncated"],
        "stderr_truncated": result.meta["stderr_truncated"],
        **_outcome(result),
        "hint": hints.after_exec(result.exit_code, total, session.places),
    }
    return reply | _clamped(clamped, session)


def exec_failed(failure: Failure, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "success": False,
        "error": failure.error,
        "exit_code": failure.exit_code,
        "stdout": "",
        "stderr": failure.error,
        "stdout_truncated": False,
        "stderr_truncated": False,
        **_NOTHING,
        "hint": failure.hint,
    }


def sandbox_write_file(call: Call) -> dict[str, Any]:
    path = call.arguments["file_path"]
    data = _checked_content(path, call.arguments["content"], call.session)
    written = call.session.write(path, data, reasoning_trace=call.reasoning_trace)
    return {"success": True, "file_path": _seen(path, call), "bytes_written": written, "hint": hints.WRITTEN}


def sandbox_edit_file(call: Call) -> dict[str, Any]:
    path, old, new = (call.arguments[name] for name in ("file_path", "old_string", "new_string"))
    call.session.edit(path, old, new, reasoning_trace=call.reasoning_trace)
    return {"success": True, "file_path": _seen(path, call), "hint": hints.EDITED}


def _seen(path: str, call: Call) -> str:
    """The path that a program would open: without a root of its own, /tmp is another directory to it."""
    return paths.checked(path, call.session.places)


def _checked_content(path: str, content: str, session: Session) -> bytes:
    limits = session.settings.limits()
    most = min(hints.MAX_FILE_BYTES, limits.file_bytes, limits.disk_bytes)
    try:
        data = content.encode()
    except UnicodeEncodeError:
        problem = FileError(hints.FILE_ERRORS["not_text"], "not_text")
    else:
        if len(data) <= most:
            return data
        problem = FileError(f"File too large: must be at most {most} bytes", "too_large")
    paths.checked(path, session.places)  # the path comes first: what is wrong with it is said before the rest
    raise problem


def file_failed(failure: Failure, arguments: Mapping[str, Any]) -> dict[str, Any]:
    path = arguments.get("file_path", "")
    shown = shorten(str.__str__(path), 4096) if isinstance(path, str) else ""
    return {"success": False, "error": failure.error, "file_path": shown, "hint": failure.hint}


def run_python_code(call: Call) -> dict[str, Any]:
    return run_code(call._replace(arguments={**call.arguments, "language": "python"}))


def run_code(call: Call) -> dict[str, Any]:
    session, arguments = call.session, call.arguments
    language = resolve(arguments.get("language", "python"), session.settings.supported_languages)
    seconds, clamped = clamp_timeout(arguments.get("timeout"), session.settings)
    if language.name == "python":
        result = session.run(arguments["code"], seconds, reasoning_trace=call.reasoning_trace)
    else:
        data = arguments["code"].encode("utf-8", "surrogatepass")
        name = f"{hashlib.sha256(data).hexdigest()[:16]}-{language.filename}"  # so that two threads do not collide
        path = posixpath.join(session.places.tmp, name)
        session.write(path, arguments["code"])
        result = session.exec([language.program, path], seconds, reasoning_trace=call.reasoning_trace)
    results = _results(result, session)
    reply = {
        "output": _output(result, results),
        "exit_code": result.exit_code,
        "results": results,
        **_outcome(result),
        "hint": _code_hint(result, session, language.name == "python"),
    }
    return reply | _clamped(clamped, session)


def code_failed(failure: Failure, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "success": False,
        "error": failure.error,
        "output": f"Error (nothing ran): {failure.error}",
        "exit_code": failure.exit_code,
        "results": [],
        **_NOTHING,
        "hint": failure.hint,
    }


def code_interpreter(call: Call) -> dict[str, Any]:
    session = call.session
    result = session.run(
        call.arguments["code"],
        reasoning_trace=call.reasoning_trace,
        requirements=call.arguments.get("requirements"),
    )
    if result.meta["state"] != "not_kept":
        return _logs(result, session, _files(result, session), _code_hint(result, session))
    files = _copied(result, session)
    hint = hints.after_code(result.exit_code, len(files), kept=False)
    return _logs(result, session, files, hint) | {"state": "not kept", "note": hints.RAN_APART}


def interpreter_failed(failure: Failure, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "success": False,
        "error": failure.error,
        "logs": f"Error (nothing ran): {failure.error}",
        "files": [],
        "exit_code": failure.exit_code,
        "results": [],
        "execution_time": 0.0,
        "hint": failure.hint,
    }


_NOTHING: Mapping[str, Any] = {"output_files": [], "total_output_files": 0, "execution_time": 0.0}


def _outcome(result: ExecutionResult) -> dict[str, Any]:
    outcome = {
        "output_files": list(result.meta["output_files"]),
        "total_output_files": result.meta["total_output_files"],
        "execution_time": round(result.duration, 3),
    }
    return {**outcome, "skipped": True} if result.meta.get("skipped") else outcome  # SANDBOX_START_FAILURE=skip


def _clamped(clamped: bool, session: Session) -> dict[str, Any]:
    if not clamped:
        return {}
    ceiling = f"{session.settings.max_timeout_sec:g}"
    return {"timeout_clamped": True, "note": f"timeout was cut to the ceiling of {ceiling} s (SANDBOX_MAX_TIMEOUT_SEC)"}


def _results(result: ExecutionResult, session: Session) -> list[str]:
    """The text of each rich result; what has none is named by its kind."""
    cap = session.settings.max_output_kb * 1024
    found: list[str] = []
    for bundle in result.meta.get("results", ()):
        text = bundle.get("text/plain")
        found.append(shorten(text, cap) if isinstance(text, str) else f"<{', '.join(bundle)}>")
    return found


def _output(result: ExecutionResult, results: list[str]) -> str:
    shown = render(result)
    if result.exit_code != 0 or not results:
        return shown
    printed = "" if shown == NO_OUTPUT else shown if shown.endswith("\n") else f"{shown}\n"
    return printed + "\n".join(results)


def _code_hint(result: ExecutionResult, session: Session, stateful: bool = True) -> str:
    if not stateful and result.exit_code == 0:
        return hints.after_exec(0, result.meta["total_output_files"], session.places)
    lost = result.meta.get("state") == "lost"
    return hints.after_code(result.exit_code, result.meta["total_output_files"], lost=lost)


def _logs(result: ExecutionResult, session: Session, files: list[dict[str, Any]], hint: str) -> dict[str, Any]:
    between = "\n" if result.stdout and result.stderr and not result.stdout.endswith("\n") else ""
    return {
        "logs": f"{result.stdout}{between}{result.stderr}",
        "files": files,
        "exit_code": result.exit_code,
        "results": _results(result, session),
        "execution_time": round(result.duration, 3),
        "hint": hint,
    }


def _files(result: ExecutionResult, session: Session) -> list[dict[str, Any]]:
    """What this run made or changed in the output directory."""
    touched = {*result.meta["files"]["created"], *result.meta["files"]["changed"]}
    return [_file(file.path, file.size) for file in session.files(session.places.output) if file.path in touched]


def _copied(result: ExecutionResult, session: Session) -> list[dict[str, Any]]:
    """The same of a sandbox that is gone: what is left are the copies on this machine."""
    return [
        _file(posixpath.join(session.places.output, os.path.relpath(copy, session.output_dir)), os.path.getsize(copy))
        for copy in result.meta.get("copied_files", ())
        if os.path.isfile(copy)
    ]


def _file(path: str, size: int) -> dict[str, Any]:
    return {"path": path, "size": size, "mime": mimetypes.guess_type(path)[0] or "application/octet-stream"}
