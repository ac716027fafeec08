"""All that is fuzzed."""

from __future__ import annotations

from . import (
    addresses,
    container_frames,
    container_hello,
    control_frames,
    displays,
    edits,
    file_paths,
    guest_frames,
    import_screen,
    installer_output,
    output_text,
    proc_files,
    redaction,
    remote_answers,
    requirement_lines,
    server_peers,
    server_requests,
    server_sockets,
    settings,
    tool_calls,
)
from .target import Target

_SAID_BY_PROGRAMS = (
    guest_frames,
    control_frames,
    container_frames,
    proc_files,
    displays,
    output_text,
    file_paths,
    edits,
)
_SAID_BY_MODELS = (redaction, requirement_lines, import_screen, tool_calls)
_SAID_BY_OTHERS = (
    container_hello,
    installer_output,
    settings,
    addresses,
    remote_answers,
    server_peers,
    server_requests,
    server_sockets,
)
TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET for module in (*_SAID_BY_PROGRAMS, *_SAID_BY_MODELS, *_SAID_BY_OTHERS)
}
