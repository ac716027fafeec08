"""What a record says about one execution, with secrets taken out before anything reaches a disk.

`kind` is execute, run, exec, write or edit; `session_id` those of a session alone have, `command` exec, `path` write
and edit. Of a write `code` is the content (base64 where `encoding` says so); of an edit `args` are the old and the new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..redact import MARK, Known, redact_env
from ..types import ExecutionResult
from .cleaner import Cleaner

VERSION = 1

_LEAST_OVERLAP = 4  # characters of a secret: fewer are in any text
_TRUNCATED = "... (output truncated)"
# Ours, not the program's.
_TRUSTED_META = frozenset({"runtime", "isolation", "usage", "resource_limits", "reason", "execution_id", "timed_out"})


def failed(result: ExecutionResult) -> bool:
    """What the policy `on_error` calls an error: anything but a program that ended with 0."""
    return result.exit_code != 0 or result.meta.get("reason", "ok") != "ok"


def build(
    *,
    execution_id: str,
    backend: str,
    language: str,
    code: str | bytes,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    files: Mapping[str, str | bytes] | None = None,
    timeout: float | None = None,
    result: ExecutionResult,
    run_id: str | None = None,
    step: str | int | None = None,
    reasoning_trace: str | None = None,
    now: datetime | None = None,
    kind: str | None = None,
    session_id: str | None = None,
    command: Sequence[str] | None = None,
    path: str | None = None,
    encoding: str | None = None,
    requirements: Sequence[str] | None = None,
    datasets: Sequence[Mapping[str, Any]] | None = None,
    known: Known | None = None,
) -> dict[str, Any]:
    """The record of one execution, ready for `Store.save`. `known`: the secrets of its run, which grow by its own."""
    env = env or {}
    known = known or Known()
    known.give(env.values())
    secrets = known.given
    now = now or datetime.now(UTC)

    cleaner = Cleaner(known)
    clean = cleaner.text

    def output(text: str) -> str:
        return clean(_without_cut_secret(text, [*secrets, *known.found]))

    raw = code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code
    text = code if isinstance(code, str) else code.decode("utf-8", "replace")

    def made() -> dict[str, Any]:
        further = {
            "kind": kind,
            "session_id": session_id,
            "command": None if command is None else [clean(part) for part in command],
            "path": None if path is None else clean(path),
            "encoding": encoding,
            "datasets": None if datasets is None else cleaner.deep(datasets),
            "requirements": None if requirements is None else [clean(requirement) for requirement in requirements],
        }
        return {
            "version": VERSION,
            "execution_id": execution_id,
            **{name: value for name, value in further.items() if value is not None},
            "timestamp": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "run_id": run_id,
            "step": step,
            "reasoning_trace": None if reasoning_trace is None else clean(reasoning_trace),
            "backend": backend,
            "language": language,
            "code": clean(text),
            "code_bytes": len(raw),
            "args": [clean(str(arg)) for arg in args],
            "env": redact_env(env),
            "stdin_bytes": _size(stdin),
            "files": {clean(name): _size(content) for name, content in (files or {}).items()},
            "timeout": timeout,
            "result": {
                "stdout": output(result.stdout),
                "stderr": output(result.stderr),
                "exit_code": result.exit_code,
                "duration": result.duration,
                "meta": _meta(result.meta, cleaner),
            },
        }

    record = made()
    # What the end of it names may stand bare at its beginning.
    was_cut = _TRUNCATED in result.stdout or _TRUNCATED in result.stderr
    return made() if cleaner.must_read_again(was_cut=was_cut) else record


def _meta(meta: Mapping[str, Any], cleaner: Cleaner) -> dict[str, Any]:
    """Results come last: they are what may need all the room there is."""
    names = sorted(meta, key=lambda name: name == "results")
    return {name: meta[name] if name in _TRUSTED_META else cleaner.deep(meta[name]) for name in names}


def _without_cut_secret(text: str, secrets: Sequence[str]) -> str:
    """Hide what the output cap left of a value that it cut through, on either side of the cut."""
    if not secrets or _TRUNCATED not in text:
        return text
    head, tail = text.split(_TRUNCATED, 1)
    body, rest = head.rstrip("\n"), tail.lstrip("\n")
    backwards = rest[: max(map(len, secrets))][::-1]
    left = max(_overlap(body, secret) for secret in secrets)
    right = max(_overlap(backwards, secret[::-1]) for secret in secrets)
    if left:
        head = f"{body[:-left]}{MARK}{head[len(body) :]}"
    if right:
        tail = f"{tail[: len(tail) - len(rest)]}{MARK}{rest[right:]}"
    return f"{head}{_TRUNCATED}{tail}"


def _overlap(text: str, secret: str) -> int:
    """How much of the beginning of `secret` the text ends with, if it is enough to tell."""
    tail = text[-(len(secret) - 1) :]
    beginning = secret[:_LEAST_OVERLAP]
    at = tail.find(beginning)
    while at >= 0:
        if secret.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(beginning, at + 1)
    return 0


def _size(content: str | bytes | None) -> int:
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    return len(content or b"")
