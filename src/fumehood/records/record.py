"""What a record says about one execution, with secrets taken out before anything reaches a disk.

`kind` is execute, run, exec, write or edit; `session_id` those of a session alone have, `command` exec, `path` write
and edit. Of a write `code` is the content (base64 where `encoding` says so); of an edit `args` are the old and the new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..redact import MARK, Known, redact_env, redact_text
from ..types import ExecutionResult

VERSION = 1
MAX_TEXT_CHARS = 1024 * 1024

# Longer than any secret: what a cut might have left of one lies in the part that is dropped.
_CUT_MARGIN_CHARS = 64 * 1024
_MAX_DEPTH = 64  # a program may have nested what it displayed as deep as it liked
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

    def clean(text: str) -> str:
        return _clean(text, secrets, known)

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
            "datasets": None if datasets is None else _deep(datasets, clean),
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
                "meta": {k: v if k in _TRUSTED_META else _deep(v, clean) for k, v in result.meta.items()},
            },
        }

    before = known.learned
    record = made()
    return record if known.learned == before else made()  # what the end of it names may stand bare at its beginning


def _clean(text: str, secrets: Sequence[str], known: Known) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return redact_text(text, secrets, known)
    kept = redact_text(text[:MAX_TEXT_CHARS], secrets, known)[:-_CUT_MARGIN_CHARS]
    return f"{kept}\n... ({len(text)} characters, cut for the record)"


def _without_cut_secret(text: str, secrets: Sequence[str]) -> str:
    """Hide what the output cap left of a value that it cut through, on either side of the cut."""
    if not secrets or _TRUNCATED not in text:
        return text
    head, tail = text.split(_TRUNCATED, 1)
    body, rest = head.rstrip("\n"), tail.lstrip("\n")
    left = max((_overlap(body, secret) for secret in secrets), default=0)
    right = max((_overlap(rest[::-1], secret[::-1]) for secret in secrets), default=0)
    if left:
        head = f"{body[:-left]}{MARK}{head[len(body) :]}"
    if right:
        tail = f"{tail[: len(tail) - len(rest)]}{MARK}{rest[right:]}"
    return f"{head}{_TRUNCATED}{tail}"


def _overlap(text: str, secret: str) -> int:
    """How much of the beginning of `secret` the text ends with, if it is enough to tell."""
    longest = min(len(secret) - 1, len(text))
    return next((length for length in range(longest, 3, -1) if text.endswith(secret[:length])), 0)


def _deep(value: Any, clean: Callable[[str], str], depth: int = 0) -> Any:
    if isinstance(value, str):
        return clean(value)
    if depth > _MAX_DEPTH and isinstance(value, (Mapping, list, tuple)):
        return "…"
    if isinstance(value, Mapping):
        return {clean(k) if isinstance(k, str) else k: _deep(v, clean, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_deep(item, clean, depth + 1) for item in value]
    return value


def _size(content: str | bytes | None) -> int:
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    return len(content or b"")
