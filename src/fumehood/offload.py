"""Work that grows with what a program produced, done beside the event loop, which serves every session.

In threads of its own: the others read and write files for everybody, and must not wait for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from .thread_pool import Workers

P = ParamSpec("P")
T = TypeVar("T")

# Below these it is done before a thread would have begun.
SMALL_CHARS = 16 * 1024
SMALL_VALUES = 200

_workers = Workers(2, "fumehood-offload")  # more would only take turns


def is_small(*values: object) -> bool:
    """Whether it is done soon, whatever is done with these. Looks at no more of them than a small one has."""
    chars, count, left = SMALL_CHARS, SMALL_VALUES, [*values]
    while left:
        value = left.pop()
        if isinstance(value, (str, bytes)):
            chars -= len(value)
        elif isinstance(value, (Mapping, list, tuple)):
            count -= len(value)
            if count >= 0:
                left += value
                left += value.values() if isinstance(value, Mapping) else ()
        if chars < 0 or count < 0:
            return False
    return True


async def offload(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, from a thread. It is done to its end, also if nobody waits for it any more."""
    future = _workers.submit(partial(work, *args, **kwargs))
    return await asyncio.shield(asyncio.wrap_future(future))
