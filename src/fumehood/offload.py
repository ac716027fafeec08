"""Work that grows with what a program produced, done beside the event loop, which serves every session.

In threads of its own: the loop's default ones read and write files for everybody, and must not wait for this.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Below these it is done before a thread would have begun.
SMALL_CHARS = 16 * 1024
SMALL_VALUES = 200

_WORKERS = 2  # more would only take turns
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pid = 0


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
    call = partial(work, *args, **kwargs)
    try:
        future = asyncio.get_running_loop().run_in_executor(_workers(), call)
    except RuntimeError:  # the interpreter is shutting down and starts no more threads
        return call()
    return await asyncio.shield(future)


def _workers() -> ThreadPoolExecutor:
    global _lock, _pool, _pid
    if _pid != os.getpid():  # a fork has no threads of its parent's
        _lock, _pool, _pid = threading.Lock(), None, os.getpid()
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_WORKERS, "fumehood-offload")
        return _pool
