"""Replacing a passage of a file whose content a program wrote."""

from __future__ import annotations

from fumehood import edits
from fumehood.errors import BadArgument, FileError

from .target import Target, fields, text


def check(data: bytes) -> None:
    """The old passage, the new one, then how often each half of the file stands there, and the file."""
    old_bytes, new_bytes, times, content = fields(data, 4)
    old, new = text(old_bytes), text(new_bytes)
    content = content * (1 + (times[0] if times else 0))
    try:
        edits.check(old, new)
        found = edits.edited(content, old, new, "/tmp/a")
    except (FileError, BadArgument):
        found = None
    if found is not None:
        before, after = content.decode().split(old, 1)
        assert found.decode() == before + new + after
    if old:
        whole = content.decode("utf-8", "replace")
        assert edits.occurrences(whole, old) == sum(whole.startswith(old, at) for at in range(len(whole)))
        if len(old) < 2000 and len(whole) < 20_000:
            assert edits._counted(whole, old) == edits.occurrences(whole, old)


TARGET = Target("edits", check)
