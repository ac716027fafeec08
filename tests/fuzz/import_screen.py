"""Program text before it runs, read on the host."""

from __future__ import annotations

from fumehood import screen
from fumehood.cli.shell_input import Statements
from fumehood.errors import BadArgument

from .target import Target, text

_BLOCKED = ("os", "subprocess", "urllib.request")


def check(data: bytes) -> None:
    _check_shell(data)
    try:
        found = screen.find(text(data), _BLOCKED)
    except BadArgument:
        return
    assert all(finding.module in _BLOCKED for finding in found)
    screen.message(found)


def _check_shell(data: bytes) -> None:
    """The same text as lines that were typed."""
    statements = Statements()
    done = [each for line in text(data).split("\n") for each in statements.feed(line)]
    assert "\n".join([*done, statements.rest()]).split() == text(data).split()


TARGET = Target("import_screen", check)
