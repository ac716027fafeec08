"""What an interpreter says over its channel: the program can write there whatever it likes."""

from __future__ import annotations

from fumehood.bundles import Bundles
from fumehood.engine.channel import Channel, TooMuch
from fumehood.guest.wire import BUNDLE_BYTES, FRAME
from fumehood.server import wire
from fumehood.types import Display

from .target import Target, fields, piece

_ID = b"@ID@"  # stands for the run's own id, which only a program that has seen the request knows
_MOST_HELD = BUNDLE_BYTES + (1 << 17)


def check(data: bytes) -> None:
    """The first field says how large the pieces are, and whether the second is framed line by line."""
    how, said = fields(data, 2)
    channel = Channel()
    run = channel.begin("").partition(b'"id": ')[2].partition(b",")[0]
    told = said.replace(_ID, run)
    if b"L" in how:
        told = b"".join(FRAME.pack(len(line)) + line for line in told.split(b"\n"))
    size = piece(how, told)
    bundles, ends = Bundles(), 0
    try:
        for start in range(0, len(told), size):
            for shown in channel.hear(told[start : start + size]):
                ends += shown is None
                if isinstance(shown, Display):
                    wire.encode(wire.Display(bundles.add(shown.data) or {}))
            assert len(channel._received) <= _MOST_HELD + size
    except TooMuch:
        pass
    assert ends <= 1
    assert (channel.done is None) == (ends == 0)
    assert channel.done in (None, *range(256))
    if run not in told:
        assert not channel.has_begun


TARGET = Target("guest_frames", check)
