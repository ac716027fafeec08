"""What a client is told when something cannot be done: RFC 9457 problems, and our errors as such."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .. import errors

# Code: status and title.
KINDS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "Bad request"),
    "version_mismatch": (400, "Another protocol version"),
    "unauthorized": (401, "No valid token"),
    "host_not_allowed": (403, "Host not allowed"),
    "origin_not_allowed": (403, "Origin not allowed"),
    "role_not_allowed": (403, "Role not allowed"),
    "command_not_allowed": (403, "Command not allowed"),
    "language_not_allowed": (403, "Language not allowed"),
    "package_not_allowed": (403, "Package not allowed"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "not_acceptable": (406, "Not acceptable"),
    "request_timeout": (408, "The request came too slowly"),
    "conflict": (409, "Conflict"),
    "session_busy": (409, "Session busy"),
    "session_ended": (410, "Session ended"),
    "too_large": (413, "Too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "range_not_satisfiable": (416, "Range not satisfiable"),
    "misdirected": (421, "On another instance"),
    "validation": (422, "Not valid"),
    "isolation_unavailable": (422, "Isolation not available"),
    "package_unavailable": (422, "Package not available"),
    "too_many": (429, "Too many requests"),
    "budget_exceeded": (429, "Budget used up"),
    "headers_too_large": (431, "Headers too large"),
    "internal": (500, "Internal error"),
    "unavailable": (503, "Not available"),
    "sandbox_lost": (503, "Sandbox lost"),  # unlike all others: the program may have run
}
MAX_DETAIL = 4096  # it may quote what was sent


class ProblemBody(msgspec.Struct, kw_only=True):
    """The body of every error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    request_id: str


class Problem(Exception):
    """Ends a request with this answer. `more` are further members of its body."""

    def __init__(
        self, code: str, detail: str, headers: Mapping[str, str] | None = None, more: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail[:MAX_DETAIL]
        self.status, self.title = KINDS[code]
        self.headers, self.more = dict(headers or {}), dict(more or {})

    def body(self, request_id: str) -> dict[str, Any]:
        """The same as data: the body of an answer, or `error` of a stream's last event."""
        told = ProblemBody(
            title=self.title, status=self.status, detail=self.detail, code=self.code, request_id=request_id
        )
        return {**msgspec.to_builtins(told), **self.more}


def later(code: str, detail: str, after_s: float) -> Problem:
    """A refusal that may go away by itself."""
    return Problem(code, detail, {"Retry-After": str(max(1, round(after_s)))})


def stopping() -> Problem:
    return later("unavailable", "the server is stopping: try another instance, or again", 5)


# The first row that matches decides; without a text of ours, the error's own message is about the request alone.
TABLE: tuple[tuple[type[Exception], str, str | None], ...] = (
    (errors.BadArgument, "validation", None),
    (errors.LanguageNotAllowed, "language_not_allowed", None),
    (errors.RuntimeMissing, "language_not_allowed", "the language is allowed here and its interpreter is missing"),
    (errors.CommandNotAllowed, "command_not_allowed", None),
    (errors.SessionBusy, "session_busy", None),
    (errors.SessionEnded, "session_ended", None),
    (errors.BudgetExceeded, "budget_exceeded", None),
    (
        errors.IsolationUnavailable,
        "isolation_unavailable",
        "this server cannot give the level that `require` names: ask for a weaker one, or see `fumehood doctor` there",
    ),
    (errors.SandboxLost, "sandbox_lost", "the sandbox was lost while the program ran: try again"),
    (errors.BackendError, "unavailable", "the server's backend cannot be used now: try again, or see its log"),
    (errors.FumehoodError, "internal", "the server failed: see its log for this request_id"),
)
# What an installer says may name directories and addresses of the server.
_PLACE = re.compile(r"(?:[A-Za-z+]+://|(?<![\w.])~?/)[^\s'\"`,;()]*[^\s'\"`,;():.]")
FILE_KINDS = {"missing": "not_found", "too_large": "too_large", "full": "too_large"}  # others: validation


def from_error(error: Exception) -> Problem:
    """What a client is told about an error: never a trace, nor a path of this machine."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, errors.FileError):
        return Problem(FILE_KINDS.get(error.kind, "validation"), str(error), more={"kind": error.kind})
    if isinstance(error, errors.PackageError):
        return Problem("package_unavailable", _PLACE.sub("…", str(error)))
    for kind, code, text in TABLE:
        if isinstance(error, kind):
            return Problem(code, text or str(error))
    return Problem("internal", "the server failed: see its log for this request_id")
