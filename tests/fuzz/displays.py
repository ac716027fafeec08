"""What a run displays: JSON of the program's own making, on its way to results, records and clients."""

from __future__ import annotations

import json

from fumehood.bundles import MAX_BYTES, Bundles
from fumehood.server import wire

from .target import Target


def check(data: bytes) -> None:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return
    bundles = Bundles()
    for each in said if isinstance(said, list) else [said]:
        kept = bundles.add(each)
        if kept is not None:
            assert all(mime.isascii() and mime.isprintable() and "/" in mime for mime in kept)
            assert json.loads(json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()) == kept
            event = wire.encode(wire.Display(kept))
            assert b"\n" not in event
            assert len(event) < 20 * (len(data) + 100)
    assert bundles.size <= MAX_BYTES


TARGET = Target("displays", check, is_json=True)
