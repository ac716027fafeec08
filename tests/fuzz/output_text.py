"""What a program prints, on its way to a terminal, a client and a result."""

from __future__ import annotations

import io

from fumehood.cli import terminal
from fumehood.execution import TRUNCATED, shorten, whole_characters
from fumehood.server.follow import _Text, mime

from .target import Target, fields, piece, text


def check(data: bytes) -> None:
    """How it is cut into pieces, then the output."""
    how, printed = fields(data, 2)
    size = piece(how, printed)
    stream, told = _Text("stdout"), []
    for start in range(0, len(printed), size):
        told.append(stream.add(printed[start : start + size]))
    told.append(stream.rest())
    parts = [each for each in told if each is not None]
    assert b"".join((part.text or "").encode() if part.base64 is None else part.base64 for part in parts) == printed
    assert printed.startswith(whole_characters(printed))
    shown = text(printed)
    assert not any(ord(ch) < 32 or 127 <= ord(ch) < 160 for ch in terminal.safe(shown) if ch not in "\n\t")
    assert terminal.safe(terminal.safe(shown)) == terminal.safe(shown)
    terminal.well_formed(shown).encode()
    terminal.write(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), shown)
    assert len(shorten(shown, 100).encode("utf-8", "surrogatepass")) <= 100 + len(TRUNCATED)
    assert mime(shown).isascii()


TARGET = Target("output_text", check)
