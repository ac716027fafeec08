"""The numbered steps of a run: each is screened before it runs and recorded when it has ended."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .config import Settings
from .execution import not_run
from .planning import Plan
from .types import ExecutionResult

if TYPE_CHECKING:
    from .records import Store
    from .redact import Known

LOST_EXIT_CODE = 125  # of a step whose sandbox went away
_MB = 1024 * 1024
_UNREAD_CHARS = 8 * 1024
_storing: list[int] = []  # in threads beside event loops, of all runs of this process
_LONG = ("code", "args", "command", "files", "datasets", "requirements", "reasoning_trace", "path")


class Steps:
    """Counts, screens and records what one run does."""

    def __init__(self, settings: Settings, run_id: str | None = None) -> None:
        self.run_id = run_id or os.urandom(8).hex()
        self.number = 0
        self._settings = settings
        self._store: Store | None = None
        self._known: Known | None = None
        # Of steps that were not stored. Bounded by their number, so that threads need no lock here.
        self._env: deque[str] = deque(maxlen=200)
        self._asked: deque[str] = deque(maxlen=64)
        self._answered: deque[str] = deque(maxlen=32)
        self._directory = os.path.join(absolute(settings.artifacts_dir), "executions")

    def screened(self, plan: Plan) -> ExecutionResult | None:
        """The result of a program that the import screen turns away."""
        if (
            not self._settings.block_dangerous_imports
            or plan.command.script is None
            or plan.command.argv[0] != "python"
        ):
            return None
        import logging

        from . import screen  # needs ast, and is off by default

        findings = screen.find(plan.command.script.decode(), self._settings.dangerous_imports)
        if not findings:
            return None
        message = screen.message(findings)
        logging.getLogger("fumehood.screen").info("%s", message)
        result = not_run(plan, "blocked_import", message)
        result.meta["blocked_imports"] = list(dict.fromkeys(found.module for found in findings))
        return result

    def record(self, result: ExecutionResult, plan: Plan, language: str, kind: str = "execute", **said: Any) -> None:
        """Store one step that ran a program, if the policy says so."""
        if self._settings.store_code == "never":
            self.number += 1
            return
        said = _said(plan, language, kind, said)
        if self._counts(result, said):
            self._save(result, self.number, said)

    async def record_in_loop(
        self, result: ExecutionResult, plan: Plan, language: str, kind: str = "execute", **said: Any
    ) -> None:
        """The same, without keeping the running loop from others."""
        await self._store_in_loop(result, _said(plan, language, kind, said))

    async def record_file(self, result: ExecutionResult, backend: str, kind: str, **said: Any) -> None:
        """Store one step that wrote or changed a file."""
        await self._store_in_loop(result, {**said, "kind": kind, "backend": backend, "language": ""})

    async def _store_in_loop(self, result: ExecutionResult, said: dict[str, Any]) -> None:
        if not self._counts(result, said):
            return
        from .offload import is_small, offload  # needs asyncio

        read = [result.stdout, result.stderr, result.meta.get("results"), result.meta.get("files")]
        read += [said.get(name) for name in _LONG]
        # One that is being stored in a thread has the directory's lock, for which the loop must not wait.
        if not _storing and is_small(read, [*self._asked], [*self._answered]):
            self._save(result, self.number, said)
        else:
            await offload(self._save_aside, result, self.number, said)

    def _save_aside(self, result: ExecutionResult, number: int, said: Mapping[str, Any]) -> None:
        _storing.append(number)
        try:
            self._save(result, number, said)
        finally:
            _storing.pop()

    def wants(self, result: ExecutionResult) -> bool:
        """Whether the policy has it stored."""
        policy = self._settings.store_code
        return policy == "always" or (
            policy == "on_error" and (result.exit_code != 0 or result.meta.get("reason", "ok") != "ok")
        )

    def _counts(self, result: ExecutionResult, said: Mapping[str, Any]) -> bool:
        """One more step; whether it is stored."""
        self.number += 1
        if self.wants(result):
            return True
        asked = (said["code"], *(said.get("command") or ()), *said.get("args", ()), said.get("reasoning_trace"))
        self._pass_over(result, said.get("env") or {}, *asked)
        return False

    def _save(self, result: ExecutionResult, number: int, said: Mapping[str, Any]) -> None:
        from pathlib import Path  # most calls store nothing

        from . import records

        if self._store is None:
            settings = self._settings
            max_bytes = settings.store_max_mb * _MB
            self._store = records.Store(Path(self._directory), policy=settings.store_code, max_bytes=max_bytes)
        record = records.build(
            execution_id=result.meta["execution_id"],
            result=result,
            run_id=self.run_id,
            step=number,
            known=self._secrets(),
            **said,
        )
        self._store.save(record, records.failed(result))

    def _pass_over(self, result: ExecutionResult, env: Mapping[str, str], *asked: str | bytes | None) -> None:
        """Not stored. What it named a secret must be known if a later step is: then, for it takes long, is it read."""
        if self._settings.store_code == "never":
            return
        self._env.extend(env.values())
        self._asked.append(_joined(asked))
        shown = (bundle.get("text/plain") for bundle in result.meta.get("results", ()))
        self._answered.append(_joined((result.stdout, result.stderr, *shown)))

    def _secrets(self) -> Known:
        from .redact import Known, hide, variants

        if self._known is None:
            self._known = Known()
        self._known.give(_taken(self._env))
        given = variants(self._known.given)
        for text in (*_taken(self._asked), *_taken(self._answered)):
            hide(text, given, self._known)
        return self._known


def _said(plan: Plan, language: str, kind: str, further: Mapping[str, Any]) -> dict[str, Any]:
    command = plan.command
    return {
        **further,
        "kind": kind,
        "backend": plan.runtime,
        "language": language,
        "code": command.script or b"",
        "args": command.argv[2:] if command.script is not None else (),
        "env": command.env,
        "stdin": command.stdin,
        "files": command.files,
        "timeout": plan.timeout_s,
    }


def _joined(texts: Iterable[object]) -> str:
    joined = ""
    for text in texts:
        if text and isinstance(text, (str, bytes)) and len(joined) < _UNREAD_CHARS:
            part = text[:_UNREAD_CHARS]
            joined += f"{part if isinstance(part, str) else part.decode('utf-8', 'replace')}\n"
    return joined[:_UNREAD_CHARS]


def _taken(texts: deque[str]) -> list[str]:
    taken = []
    with suppress(IndexError):  # as many as there are, also if another thread takes some
        while True:
            taken.append(texts.popleft())
    return taken


def absolute(directory: str) -> str:
    """As seen from the working directory of now, which may be another one later.

    It stays relative if the working directory was deleted; nothing is ever written to a relative one.
    """
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:
        return directory
