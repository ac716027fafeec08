"""One program of a container, without a container."""

from __future__ import annotations

import os

import pytest

from fumehood.guest import wire
from fumehood.guest.program import Program


class Link:
    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        del number
        self.sent.append((kind, payload))


def test_what_is_printed_while_an_earlier_word_is_looked_at_comes_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link()
    program = Program(link, 1, {"serves": True, "order": b""})  # type: ignore[arg-type]
    theirs = program._open_streams()
    read = os.read

    def read_late(fd: int, size: int) -> bytes:
        if fd == program.stdin and not link.sent:  # the program goes on as we come to look
            os.write(theirs[1], b"printed")
            os.write(theirs[0], b"done")
        return read(fd, size)

    monkeypatch.setattr(os, "read", read_late)
    os.write(theirs[0], b"began")
    program.hear(program.stdin)
    program.hear(program.stdin)
    for fd in theirs:
        os.close(fd)
    program.close()
    assert link.sent[:3] == [(wire.CHANNEL, b"began"), (wire.STDOUT, b"printed"), (wire.CHANNEL, b"done")]
