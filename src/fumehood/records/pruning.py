"""Removing old records, with a sign-off in the head, so that `verify` can tell it from tampering."""

from __future__ import annotations

import bisect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..errors import BadArgument, RecordsError
from . import files
from .chain import Head, Pruned, walk
from .head import now, settle, stamp, write

_BATCH = 2000  # writers wait for one batch at most


def prune(
    directory: Path, *, keep: int | None = None, older_than: timedelta | None = None, max_bytes: int | None = None
) -> int:
    """Remove the oldest records: all but `keep`, those older, or until the rest fits. Returns how many went."""
    if (keep is not None and keep < 0) or (max_bytes is not None and max_bytes < 0):
        raise BadArgument("what to keep cannot be negative")
    try:
        before = None if older_than is None else stamp(datetime.now(UTC) - older_than)
    except OverflowError:
        raise BadArgument("that age is out of range") from None
    total = 0
    try:
        with files.directory(Path(directory)) as dir_fd:
            while True:
                with files.locked(dir_fd):
                    head, lost = settle(dir_fd)
                    if lost:
                        raise RecordsError(
                            f"{directory}: {lost}, so nothing is removed. "
                            "The next execution that is stored makes a new head and says so in its record."
                        )
                    gone = prune_once(dir_fd, head, keep=keep, before=before, max_bytes=max_bytes)
                total += gone
                if gone < _BATCH:
                    return total
    except FileNotFoundError:
        return total
    except OSError as error:
        raise RecordsError(f"{directory} cannot be pruned: {error}") from error


def prune_once(
    dir_fd: int,
    head: Head,
    *,
    keep: int | None = None,
    before: str | None = None,
    max_bytes: int | None = None,
    spare_newest: bool = False,
) -> int:
    """The same under a lock that the caller holds, one batch of it."""
    names, _ = files.names(dir_fd)
    total = _total(dir_fd, head, names)
    drop = 0
    if keep is not None:
        drop = max(drop, len(names) - keep)
    if before is not None:
        drop = max(drop, bisect.bisect_left(names, before))
    if max_bytes is not None:
        drop = max(drop, _until_fits(dir_fd, names, total - files.room(dir_fd, max_bytes)))
    if spare_newest:
        drop = min(drop, len(names) - 1)
    drop = min(drop, _BATCH)
    if drop <= 0:
        if not head.counts_blocks or total != head.total_bytes:  # or every writer would count again
            write(dir_fd, replace(head, total_bytes=total, counts_blocks=True))
        return 0
    # Looked at before they go, so that removing them removes no trace of tampering.
    at = walk((files.read_entry(dir_fd, name) for name in names[:drop]), head)
    broken = len(at.problems) + (head.pruned.broken if head.pruned else 0)
    pruned = Pruned(at.sequence, at.hash, now(), broken)
    left = total - sum(files.disk_bytes(dir_fd, name) for name in names[:drop])
    # The sign-off goes first: dying half-way leaves records that the sign-off covers, not a hole.
    write(dir_fd, replace(head, total_bytes=max(0, left), pruned=pruned, counts_blocks=True))
    return sum(files.remove(dir_fd, name) for name in names[:drop])


def _total(dir_fd: int, head: Head, names: list[str]) -> int:
    """What the records take. The head knows, unless some came or went without it."""
    if head.counts_blocks and len(names) == head.sequence - head.start[0]:
        return head.total_bytes
    return sum(files.disk_bytes(dir_fd, name) for name in names)


def _until_fits(dir_fd: int, names: list[str], excess: int) -> int:
    drop = 0
    while excess > 0 and drop < len(names):
        excess -= files.disk_bytes(dir_fd, names[drop])
        drop += 1
    return drop
