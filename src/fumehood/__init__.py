"""fumehood runs code that an agent wrote, sealed off from the machine it runs on, and hands back what came out."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from .api import OneShot, get_sandbox
    from .errors import (
        BackendError,
        BackendUnavailable,
        BadArgument,
        BudgetExceeded,
        CommandNotAllowed,
        ConfigurationError,
        EngineFailed,
        ExtraMissing,
        FileError,
        FumehoodError,
        IsolationUnavailable,
        LanguageError,
        LanguageNotAllowed,
        PackageError,
        RecordsError,
        RuntimeMissing,
        SandboxLost,
        SessionBusy,
        SessionEnded,
        SessionError,
        UnknownBackend,
    )
    from .session import AsyncSession
    from .sync_session import Session, open_session
    from .tools import run_code, run_python_code
    from .types import CodeSandbox, ExecutionResult

__version__ = "0.1.0"

__all__ = [
    "AsyncSession",
    "BackendError",
    "BackendUnavailable",
    "BadArgument",
    "BudgetExceeded",
    "CodeSandbox",
    "CommandNotAllowed",
    "ConfigurationError",
    "EngineFailed",
    "ExecutionResult",
    "ExtraMissing",
    "FileError",
    "FumehoodError",
    "IsolationUnavailable",
    "LanguageError",
    "LanguageNotAllowed",
    "OneShot",
    "PackageError",
    "RecordsError",
    "RuntimeMissing",
    "SandboxLost",
    "Session",
    "SessionBusy",
    "SessionEnded",
    "SessionError",
    "UnknownBackend",
    "__version__",
    "get_sandbox",
    "open_session",
    "run_code",
    "run_python_code",
]

_HOME = {
    "AsyncSession": "session",
    "CodeSandbox": "types",
    "ExecutionResult": "types",
    "OneShot": "api",
    "Session": "sync_session",
    "get_sandbox": "api",
    "open_session": "sync_session",
    "run_code": "tools",
    "run_python_code": "tools",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing fumehood alone costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
