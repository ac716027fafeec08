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
    ├── SessionError
    │   ├── SessionEnded            it was closed, or its time was up
    │   ├── SessionBusy             it runs another call and was told to refuse a second
    │   └── BudgetExceeded          its calls, seconds or bytes are used up
    ├── FileError               a file in a sandbox cannot be read or written; `kind` says why
    ├── CommandNotAllowed       the command is not on the list SANDBOX_ALLOWED_COMMANDS
    ├── PackageError            requirements cannot be had: unknown, conflicting, without a wheel, not allowed
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


class SessionError(FumehoodError):
    pass


class SessionEnded(SessionError):
    pass


class SessionBusy(SessionError):
    pass


class BudgetExceeded(SessionError):
    pass


class FileError(FumehoodError):
    """`kind`: invalid, missing, directory, special, too_large, full, denied; of edits not_text, no_match, not_unique"""

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


class CommandNotAllowed(FumehoodError):
    pass


class PackageError(FumehoodError):
    pass


class RecordsError(FumehoodError):
    pass
