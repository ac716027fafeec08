"""Waiting with a limit, for backends that are driven by an event loop."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Not by asyncio.timeout: in a task that is being cancelled, Python 3.11.2 takes its end for the cancellation."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=within_s)
    finally:
        waiting.cancel()
    return event.is_set()
