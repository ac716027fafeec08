"""What the server refuses, and what the way to it does, as errors of ours, by table."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import (
    BackendUnavailable,
    BadArgument,
    BudgetExceeded,
    CommandNotAllowed,
    ConfigurationError,
    EngineFailed,
    FileError,
    FumehoodError,
    IsolationUnavailable,
    LanguageNotAllowed,
    PackageError,
    SandboxLost,
    SessionBusy,
)

MAX_DETAIL = 1000
_TABLE: dict[str, tuple[type[FumehoodError], str]] = {  # the server's code: our error, and what we say
    "unauthorized": (
        ConfigurationError,
        "the server at {where} refused the token: check SANDBOX_REMOTE_TOKEN or SANDBOX_REMOTE_TOKEN_FILE",
    ),
    "version_mismatch": (
        BackendUnavailable,
        "the server at {where} speaks another version of the protocol ({said}): use the same fumehood on both sides",
    ),
    "host_not_allowed": (
        ConfigurationError,
        "the server at {where} does not answer to that name: start it with --allow-host, or change SANDBOX_REMOTE_URL",
    ),
    "command_not_allowed": (CommandNotAllowed, "the server does not allow it: {said}"),
    "language_not_allowed": (LanguageNotAllowed, "the server does not allow it: {said}"),
    "package_not_allowed": (PackageError, "the server does not allow it: {said}"),
    "package_unavailable": (PackageError, "{said}"),
    "isolation_unavailable": (IsolationUnavailable, "the server at {where}: {said}"),
    "session_busy": (SessionBusy, "{said}"),
    "budget_exceeded": (BudgetExceeded, "the server's own budget: {said}"),
    "session_ended": (SandboxLost, "the server at {where} has ended it: idle for too long, or closed there"),
    "not_found": (
        SandboxLost,
        "the server at {where} does not know it: it was started anew, is another one, or does not know this URL's path",
    ),
    "misdirected": (
        SandboxLost,
        "another instance answers at {where} now: it was started anew, or one session's requests reach several",
    ),
    "sandbox_lost": (SandboxLost, "the server at {where}: {said}"),
    "too_many": (BackendUnavailable, "the server at {where} is asked too much: {said}{later}"),
    "unavailable": (BackendUnavailable, "the server at {where}: {said}{later}"),
    "too_large": (BadArgument, "more than the server takes: {said}"),
    "validation": (BadArgument, "the server refused it: {said}"),
    "bad_request": (BadArgument, "the server refused it: {said}"),
}


class Refusal(NamedTuple):
    """The server's answer: RFC 9457."""

    where: str
    status: int
    code: str
    said: str
    kind: str | None = None  # of a file's trouble
    after_s: float | None = None  # when to come again

    def error(self) -> FumehoodError:
        if self.kind is not None:
            return FileError(self.said, self.kind)
        kind, text = _TABLE.get(self.code, (EngineFailed, "the server at {where} failed: {said} (HTTP {status})"))
        later = "" if self.after_s is None else f"; again in {self.after_s:g} s"
        return kind(text.format(where=self.where, said=self.said, status=self.status, later=later))


def refusal(where: str, status: int, headers: Mapping[str, str], content: bytes) -> Refusal:
    """What an answer that is no success says."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = None
    found = from_problem(where, said if isinstance(said, dict) else {}, status)
    after = headers.get("retry-after", "")
    return found._replace(after_s=float(after)) if after.isascii() and after.isdigit() else found


def from_problem(where: str, said: Mapping[str, Any], status: int = 0) -> Refusal:
    kind = said.get("kind")
    return Refusal(
        where,
        status or (said["status"] if isinstance(said.get("status"), int) else 500),
        _line(said.get("code", ""))[:100],
        _line(said.get("detail", "it did not say why")),
        kind[:40] if isinstance(kind, str) else None,
    )


def no_server(where: str, status: int) -> BackendUnavailable:
    hint = {502: "a proxy whose server is down", 503: "a proxy whose server is down", 504: "a proxy whose server hangs"}
    what = hint.get(status, "no fumehood server")
    return BackendUnavailable(f"what answers at {where} is {what} (HTTP {status}): check SANDBOX_REMOTE_URL")


def unreachable(where: str, error: BaseException) -> BackendUnavailable:
    """It was never spoken to."""
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return BackendUnavailable(
            f"the certificate of {where} is not to be trusted ({cause.verify_message}): check SANDBOX_REMOTE_URL, or"
            " name the authority's certificate in SSL_CERT_FILE"
        )
    if isinstance(cause, ssl.SSLError):
        return BackendUnavailable(
            f"no TLS with {where} ({cause.reason or cause}): use http:// in SANDBOX_REMOTE_URL if it is on this machine"
            " and speaks no TLS"
        )
    why = "connection refused" if was_refused(error) else str(cause) or str(error) or type(error).__name__
    return BackendUnavailable(
        f"no server at {where} ({_line(why)}): start it with `fumehood serve`, or check SANDBOX_REMOTE_URL"
    )


def was_refused(error: BaseException) -> bool:
    """Nobody listens there."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ConnectionRefusedError):
            return True
        found = found.__cause__ or found.__context__
    return False


def gone(where: str, error: BaseException | None, doing: str) -> str:
    why = "the connection was closed" if error is None else str(error) or type(error).__name__
    return f"the server at {where} went away {doing} ({_line(why.partition(' without ')[0])})"


def lost(where: str, error: BaseException | None, doing: str) -> SandboxLost:
    """It may have run."""
    return SandboxLost(f"{gone(where, error, doing)}: see its log, or start it again with `fumehood serve`")


def too_much(where: str, most: int) -> SandboxLost:
    return SandboxLost(
        f"the server at {where} answered with more than {most:,} bytes: check SANDBOX_REMOTE_URL, and use the same"
        " version of fumehood on both sides"
    )


def silent(where: str, seconds: float) -> SandboxLost:
    return SandboxLost(
        f"the server at {where} said nothing for {seconds:g} s while the program ran: see its log, and whether the"
        " network still leads to it"
    )


def _line(text: object) -> str:
    """Of a stranger, fit for a message."""
    said = str(text) if isinstance(text, (str, int)) else ""  # of what is nested it could be too deep
    return "".join(ch if ch.isprintable() else " " for ch in said[:MAX_DETAIL])


def _cause(error: BaseException) -> BaseException:
    """httpx says it in words; the system's own error is behind it."""
    while not isinstance(error, OSError):
        behind = error.__cause__ or error.__context__
        if behind is None:
            return error
        error = behind
    return error
