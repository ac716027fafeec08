"""Everything fumehood raises.

    FumehoodError
    ├── ConfigurationError      a setting is unknown, unparsable or not allowed where it stands
    ├── BadArgument             a call was given something it cannot take (also a ValueError)
    ├── LanguageError
    │   ├── LanguageNotAllowed      known, but not in SANDBOX_SUPPORTED_LANGUAGES; or not known at all
    │   └── RuntimeMissing          allowed, but its interpreter is not on this machine
    ├── BackendError
    │   ├── UnknownBackend          no backend has that name
    │   ├── ExtraMissing            its package is not installed
    │   ├── BackendUnavailable      it is installed and cannot be reached or used
    │   └── EngineFailed            it broke while making or running a sandbox
    │       └── SandboxLost             the sandbox went away while the program ran, through no fault of either
    ├── IsolationUnavailable    this host cannot give the level that was required
    └── RecordsError            the stored records cannot be read

What the program does is never an exception: it is an `ExecutionResult`.
Every message says what happened and what to do next.
"""

from __future__ import annotations


class FumehoodError(Exception):
    """The root: `except FumehoodError` catches all of ours and nothing else."""


class ConfigurationError(FumehoodError):
    pass


class BadArgument(FumehoodError, ValueError):
    pass


class LanguageError(FumehoodError):
    pass


class LanguageNotAllowed(LanguageError):
    pass


class RuntimeMissing(LanguageError):
    pass


class BackendError(FumehoodError):
    pass


class UnknownBackend(BackendError):
    pass


class ExtraMissing(BackendError):
    pass


class BackendUnavailable(BackendError):
    pass


class EngineFailed(BackendError):
    pass


class SandboxLost(EngineFailed):
    pass


class IsolationUnavailable(FumehoodError):
    """Carries the step that failed, its errno name and the fix, for programs that want to act on it."""

    def __init__(self, message: str, *, step: str | None = None, errno: str | None = None, fix: str | None = None):
        super().__init__(message)
        self.step = step
        self.errno = errno
        self.fix = fix


class RecordsError(FumehoodError):
    pass
