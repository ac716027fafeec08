"""Program text before it runs, read on the host."""

from __future__ import annotations

from fumehood import screen
from fumehood.errors import BadArgument

from .target import Target, text

_BLOCKED = ("os", "subprocess", "urllib.request")


def check(data: bytes) -> None:
    try:
        found = screen.find(text(data), _BLOCKED)
    except BadArgument:
        return
    assert all(finding.module in _BLOCKED for finding in found)
    screen.message(found)


TARGET = Target("import_screen", check)
