"""What goes over the wire: requests, replies and events. Every field is bounded, and unknown ones are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .meta import LeftOut, ResultMeta
from .problems import ProblemBody

_MAX = 2**31 - 1
Seconds = Annotated[float, Meta(gt=0, description="Seconds; more than the server allows is cut to that.")]
Count = Annotated[int, Meta(ge=1, le=_MAX, description="More than the server allows is cut to that.")]
Level = Literal["process", "confined", "sealed"]
Path = Annotated[str, Meta(min_length=1, max_length=1024)]
Texts = Annotated[list[str], Meta(max_length=1000)]
Requirements = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=100, examples=[["polars>=1"]])
]
Code = Annotated[str, Meta(examples=["print('hello')"], description="Program text.")]
Argv = Annotated[list[str], Meta(min_length=1, max_length=1000, examples=[["ls", "-l"]])]
Environment = Annotated[dict[str, str], Meta(max_length=1000)]
SessionId = Annotated[str, Meta(min_length=1, max_length=100)]


class Limits(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a program may use at most; a request only narrows what the server allows."""

    memory_mb: Count | None = None
    processes: Count | None = None
    disk_mb: Count | None = None
    file_mb: Count | None = None
    open_files: Count | None = None
    inodes: Count | None = None
    output_kb: Count | None = None
    output_kill_mb: Count | None = None
    cpu_sec: Annotated[float, Meta(gt=0, le=1e7)] | None = None


class Narrowing(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every request may narrow."""

    limits: Limits | None = None
    network: bool | None = None
    require: Level | None = None


class SentFile(Struct, forbid_unknown_fields=True):
    """A file for the program: relative paths are beneath /workspace."""

    path: Path
    content_base64: bytes


class ExecuteRequest(Narrowing, kw_only=True):
    """Exactly one of code and command."""

    code: Code | None = None
    command: Argv | None = None
    language: Annotated[str, Meta(max_length=64)] | None = None
    requirements: Requirements | None = None
    files: Annotated[list[SentFile], Meta(max_length=200)] | None = None
    timeout: Seconds | None = None
    session_id: SessionId | None = None
    stdin_base64: bytes | None = None
    args: Texts | None = None
    env: Environment | None = None


class RunRequest(Struct, forbid_unknown_fields=True):
    """Python for the session's interpreter, which remembers."""

    code: Code
    timeout: Seconds | None = None
    requirements: Requirements | None = None


class ExecRequest(Struct, forbid_unknown_fields=True):
    """A command beside the session's interpreter."""

    command: Argv
    timeout: Seconds | None = None
    stdin_base64: bytes | None = None
    env: Environment | None = None


class SessionRequest(Narrowing, kw_only=True):
    """What a session is to be like."""

    requirements: Requirements | None = None
    idle: Seconds | None = None  # without a call, until it ends


class EditRequest(Struct, forbid_unknown_fields=True):
    """The one passage `old` of a text file becomes `new`."""

    path: Path
    old: Annotated[str, Meta(min_length=1)]
    new: str


class DirectoryQuery(Struct, forbid_unknown_fields=True):
    directory: Path | None = None


class PathQuery(Struct, forbid_unknown_fields=True):
    path: Path


class HistoryQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[str, Meta(max_length=64, description="An execution id: only older ones.")] | None = None


class FileReply(Struct):
    """A file that the program left in its output directory."""

    path: str
    size: int
    mime: str
    content_base64: bytes


class ExecuteReply(Struct, kw_only=True):
    """What came out of one execution."""

    execution_id: str
    session_id: str | None
    stdout: str
    stderr: str
    exit_code: int
    duration: float
    meta: ResultMeta
    results: list[dict[str, Any]]
    files: list[FileReply]


class Places(Struct):
    """Where things are, as the program sees them."""

    workspace: str
    tmp: str
    data: str
    output: str


class SessionReply(Struct, kw_only=True):
    """A session as it is now."""

    session_id: str
    state: Literal["open"]
    busy: bool
    created_at: str
    expires_at: str
    idle_seconds: float
    backend: str
    requirements: list[str]
    places: Places
    receipt: dict[str, Any]
    limits_clamped: list[str]
    owner: str | msgspec.UnsetType = msgspec.UNSET  # whose it is, for an admin


class SessionsReply(Struct, omit_defaults=True):
    """`unreachable`: workers that did not say in time which sessions they have."""

    sessions: list[SessionReply]
    unreachable: list[str] = []


class FileInfo(Struct, omit_defaults=True):
    """`version` differs when the content may have changed."""

    path: str
    size: int
    mime: str
    version: str = ""


class FilesReply(Struct, omit_defaults=True):
    """`left_out`: what is there and cannot be asked for."""

    files: list[FileInfo]
    left_out: list[LeftOut] = []


class TicketReply(Struct):
    """Opens the WebSocket once."""

    ticket: str
    expires_in: float


class HistoryEntry(Struct, kw_only=True):
    """One stored step. `title` is the first line of its code, its command or its file."""

    execution_id: str
    time: str
    kind: str
    title: str
    language: str
    exit_code: int
    reason: str
    duration: float
    level: str
    session_id: str | None


class Load(Struct):
    """What this token's owner has on the worker that answers, and how much it may have there."""

    running: int
    queued: int
    max_running: int
    max_queue: int


class InfoReply(Struct, kw_only=True):
    """What this server is and allows."""

    version: str
    protocol: int
    instance: str
    backend: str
    level: str
    receipt: dict[str, Any]
    limits: dict[str, Any]
    languages: list[str]
    network: bool
    policy: dict[str, Any]
    yours: Load


class Started(Struct, tag_field="type", tag="started"):
    """`receipt` is what is enforced; there is none where nothing was started. `handle` is for …/cancel."""

    execution_id: str
    receipt: dict[str, Any] | None = None
    handle: str | None = None  # of a one-shot


class Output(Struct, tag_field="type", tag="output", omit_defaults=True):
    """`text`, or `base64` where the bytes are not UTF-8."""

    stream: Literal["stdout", "stderr"]
    text: str | None = None
    base64: bytes | None = None


class Display(Struct, tag_field="type", tag="display"):
    """Something to look at, by MIME type."""

    data: dict[str, Any]


class File(Struct, tag_field="type", tag="file"):
    path: str
    size: int
    mime: str


class Result(ExecuteReply, tag_field="type", tag="result", kw_only=True):
    """The last event: the same as the JSON reply."""


class Failure(Struct, tag_field="type", tag="error"):
    """Or this one: what would have been the error answer."""

    error: dict[str, Any]


class Visualization(Struct, tag_field="type", tag="visualization"):
    """An image in the output directory."""

    path: str


class Progress(Struct, tag_field="type", tag="progress"):
    text: str


class Ended(Struct, tag_field="type", tag="ended"):
    """The session is over; so is this WebSocket."""


Event = Started | Output | Display | File | Result | Failure
SessionEvent = Event | Visualization | Progress | Ended

encode = msgspec.json.Encoder().encode


def too_slow() -> Failure:
    """For a WebSocket whose other end does not read."""
    body = ProblemBody(
        title="Too slow",
        status=408,
        detail="events came faster than they were read: connect again with a new ticket",
        code="too_slow",
        request_id="",
    )
    return Failure(msgspec.to_builtins(body))
