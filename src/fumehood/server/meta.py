"""What `meta` of an execution's answer holds, for /openapi.json. Which of it is there depends on what ran."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from ..types import Reason


class Usage(TypedDict):
    cpu_s: float
    max_rss_bytes: int


class LeftOut(TypedDict):
    """Something that is there and not in `files`: a file, a link, a directory that was not looked into.

    Its name is shown with escapes where it is odd. The last may be `…`, with how many more there are.
    """

    path: str
    why: str


class Changes(TypedDict, total=False):
    """Paths as the program sees them."""

    created: list[str]
    changed: list[str]
    deleted: list[str]


class _Always(TypedDict):
    execution_id: str
    reason: Reason
    runtime: str
    truncated: bool
    stdout_truncated: bool
    stderr_truncated: bool
    timed_out: bool
    timeout: float | None
    timeout_clamped: bool
    blocked_imports: list[str]
    resource_limits: dict[str, float | None]
    isolation: dict[str, Any]  # the receipt
    usage: Usage


class ResultMeta(_Always, total=False):
    """How the program ran. `isolation` is the receipt: `level`, and each axis by name."""

    state: Literal["kept", "lost", "not_kept"]  # of a session's variables
    began_anew: bool
    lost: bool
    skipped: bool
    queued_s: float  # until there was a place for it
    session_id: str
    run_id: str
    step: int
    packages: list[str]
    fallback: dict[str, str]
    files: Changes
    files_truncated: bool
    files_left_out: list[LeftOut]
    output_files: list[str]
    total_output_files: int
    results_truncated: bool
    results_dropped: int
    limits_clamped: list[str]
