"""The numbered steps of a run: each is screened before it runs and recorded when it has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .config import Settings
from .execution import not_run
from .planning import Plan
from .types import ExecutionResult

if TYPE_CHECKING:
    from .records import Store

LOST_EXIT_CODE = 125  # of a step whose sandbox went away
_MB = 1024 * 1024


class Steps:
    """Counts, screens and records what one run does."""

    def __init__(self, settings: Settings, run_id: str | None = None) -> None:
        self.run_id = run_id or os.urandom(8).hex()
        self.number = 0
        self._settings = settings
        self._store: Store | None = None
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
        self.number += 1
        if self._wanted(result):
            command = plan.command
            code = command.script or b""
            self._save(
                result,
                kind=kind,
                backend=plan.runtime,
                language=language,
                code=code,
                args=command.argv[2:] if code or command.script is not None else (),
                env=command.env,
                stdin=command.stdin,
                files=command.files,
                timeout=plan.timeout_s,
                **said,
            )

    def record_file(self, result: ExecutionResult, backend: str, kind: str, **said: Any) -> None:
        """Store one step that wrote or changed a file."""
        self.number += 1
        if self._wanted(result):
            self._save(result, kind=kind, backend=backend, language="", **said)

    def _wanted(self, result: ExecutionResult) -> bool:
        policy = self._settings.store_code
        return policy == "always" or (
            policy == "on_error" and (result.exit_code != 0 or result.meta.get("reason", "ok") != "ok")
        )

    def _save(self, result: ExecutionResult, **said: Any) -> None:
        from pathlib import Path  # most calls store nothing

        from . import records

        if self._store is None:
            settings = self._settings
            max_bytes = settings.store_max_mb * _MB
            self._store = records.Store(Path(self._directory), policy=settings.store_code, max_bytes=max_bytes)
        record = records.build(
            execution_id=result.meta["execution_id"], result=result, run_id=self.run_id, step=self.number, **said
        )
        self._store.save(record, records.failed(result))


def absolute(directory: str) -> str:
    """As seen from the working directory of now, which may be another one later."""
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:  # the working directory is gone; who writes there will warn that it cannot
        return os.path.join(os.sep, "nonexistent", directory)
