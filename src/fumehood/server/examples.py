"""Examples for /openapi.json."""

from __future__ import annotations

from typing import Any

_SESSION_ID = "s_0a1b2c3d_kX2vQ9aYb4TfLm0ZpR7sWg"
_EXECUTION_ID = "019a8c1f2b3c0f1e2d3c4b"

EXECUTE: dict[str, Any] = {"code": "print(6 * 7)", "timeout": 10}
EXECUTED: dict[str, Any] = {
    "execution_id": _EXECUTION_ID,
    "session_id": None,
    "stdout": "42\n",
    "stderr": "",
    "exit_code": 0,
    "duration": 0.0019,
    "meta": {
        "execution_id": _EXECUTION_ID,
        "reason": "ok",
        "runtime": "local",
        "truncated": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "timed_out": False,
        "timeout": 10.0,
        "timeout_clamped": False,
        "blocked_imports": [],
        "resource_limits": {"memory_bytes": 1073741824, "processes": 256, "cpu_s": None},
        "isolation": {"level": "sealed"},
        "usage": {"cpu_s": 0.01, "max_rss_bytes": 12582912},
    },
    "results": [],
    "files": [],
}
RUN: dict[str, Any] = {"code": "x = 6 * 7\nx"}
EXEC: dict[str, Any] = {"command": ["ls", "-l", "/workspace"]}
RAN: dict[str, Any] = {
    **EXECUTED,
    "session_id": _SESSION_ID,
    "stdout": "",
    "results": [{"text/plain": "42"}],
}
OPEN: dict[str, Any] = {"limits": {"memory_mb": 512}, "idle": 300}
SESSION: dict[str, Any] = {
    "session_id": _SESSION_ID,
    "state": "open",
    "busy": False,
    "created_at": "2026-11-16T10:00:00.000Z",
    "expires_at": "2026-11-16T10:05:00.000Z",
    "idle_seconds": 300.0,
    "backend": "local",
    "requirements": [],
    "places": {"workspace": "/workspace", "tmp": "/tmp", "data": "/tmp/data", "output": "/tmp/output"},
    "receipt": {"level": "sealed"},
    "limits_clamped": [],
}
EDIT: dict[str, Any] = {"path": "/workspace/a.py", "old": "x = 1", "new": "x = 2"}
CONTENT = "city,population\nOslo,709037\n"
FILE: dict[str, Any] = {"path": "/workspace/a.csv", "size": 120, "mime": "text/csv"}
ENTRY: dict[str, Any] = {
    "execution_id": _EXECUTION_ID,
    "time": "2026-11-16T10:00:00.000000Z",
    "kind": "execute",
    "title": "1/0",
    "language": "python",
    "exit_code": 1,
    "reason": "error",
    "duration": 0.02,
    "level": "sealed",
    "session_id": None,
}
