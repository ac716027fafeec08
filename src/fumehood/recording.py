"""What of an execution goes into its record: everything that was asked and came out, without the credentials."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .config import Settings
from .records import Store
from .redact import redact_env, redact_text
from .types import Command, ExecutionResult


def open_store(settings: Settings) -> Store:
    """The records under the artifacts directory."""
    try:
        directory = Path(settings.artifacts_dir, "executions").absolute()
    except FileNotFoundError:  # the working directory is gone: let the store say that it cannot write
        directory = Path(os.sep, "nonexistent", settings.artifacts_dir, "executions")
    return Store(directory, policy=settings.store_code, max_bytes=settings.store_max_mb * 1024 * 1024)


def describe(command: Command, language: str, result: ExecutionResult, run_id: str, step: int) -> dict[str, Any]:
    """The record of one execution, redacted."""
    return {
        "execution_id": result.meta["execution_id"],
        "timestamp": datetime.now(UTC).isoformat(),
        "run_id": run_id,
        "step": step,
        "backend": result.meta["runtime"],
        "language": language,
        "code": redact_text((command.script or b"").decode("utf-8", "replace")),
        "args": [redact_text(arg) for arg in command.argv[2:]],
        "env": redact_env(command.env),
        "stdin_bytes": len(command.stdin),
        "files": {name: len(data) for name, data in command.files.items()},
        "timeout": result.meta["timeout"],
        "result": {
            "stdout": redact_text(result.stdout),
            "stderr": redact_text(result.stderr),
            "exit_code": result.exit_code,
            "duration": result.duration,
            "meta": result.meta,
        },
    }
