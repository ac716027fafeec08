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
    output_text,
    proc_files,
    redaction,
    remote_answers,
    requirement_lines,
    server_requests,
    server_sockets,
    settings,
    tool_calls,
)
from .target import Target

_MODULES = (
    *(
        guest_frames,
        control_frames,
        container_frames,
        container_hello,
        proc_files,
        displays,
        output_text,
        file_paths,
        edits,
        redaction,
    ),
    *(
        requirement_lines,
        import_screen,
        settings,
        tool_calls,
        remote_answers,
        server_requests,
        server_sockets,
        addresses,
    ),
)
TARGETS: dict[str, Target] = {module.TARGET.name: module.TARGET for module in _MODULES}
