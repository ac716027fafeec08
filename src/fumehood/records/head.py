"""The head file on disk: read, replaced, repaired."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta

from . import files
from .chain import Entry, Head, Pruned, unseal


def write(dir_fd: int, head: Head) -> None:
    """Under the lock. In place where that is safe: making a file costs a hundred times more than writing one."""
    data = head.dump()
    if not files.overwrite(dir_fd, files.HEAD, data):
        files.write_temp(dir_fd, files.HEAD_TEMP, data)
        files.rename(dir_fd, files.HEAD_TEMP, files.HEAD)


def load(dir_fd: int) -> Head:
    """The head, or FileNotFoundError, or ValueError if it is damaged."""
    return Head.load(files.read(dir_fd, files.HEAD))


def settle(dir_fd: int) -> tuple[Head, str | None]:
    """For a writer: the head, with a write that was interrupted finished; and, if it was lost, what to say of that."""
    try:
        head = load(dir_fd)
    except FileNotFoundError:
        lost = "the head file was missing"
    except (IsADirectoryError, ValueError) as error:
        lost = f"the head file was damaged ({error})"
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        lost = "the head file was a symlink"
    else:
        if pending(dir_fd, head):
            files.rename(dir_fd, files.PENDING, head.name)
        return head, None
    names, _ = files.names(dir_fd)
    return rebuild(dir_fd, names), lost if names else None


def pending(dir_fd: int, head: Head) -> Entry | None:
    """The last record, if its writer died just before giving it its name."""
    if not head.name or files.exists(dir_fd, head.name):
        return None
    try:
        entry = unseal(head.name, files.read(dir_fd, files.PENDING))
    except (OSError, ValueError):
        return None
    return entry if entry.record and not entry.error and entry.record["hash"] == head.hash else None


def rebuild(dir_fd: int, names: list[str]) -> Head:
    """The best guess from the records that are left."""
    total = sum(files.disk_bytes(dir_fd, name) for name in names)
    first, last = _first_intact(dir_fd, names), _first_intact(dir_fd, names[::-1])
    if first is None or last is None or first.record is None or last.record is None:
        return Head(total_bytes=total)
    gone = first.record["sequence"] - 1
    pruned = Pruned(gone, first.record["previous"], now()) if gone else None
    number = max(last.record["sequence"], gone)  # somebody who reorders could make it less
    return Head(number, last.record["hash"], last.name, total, pruned)


def _first_intact(dir_fd: int, names: list[str]) -> Entry | None:
    entries = (files.read_entry(dir_fd, name) for name in names)
    return next((entry for entry in entries if entry.record and not entry.error), None)


def now() -> str:
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """The time in a record's file name; names in order are times in order."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond:06d}Z"


def stamp_after(name: str) -> str:
    """Now, but later than the last record even if the clock went back: names in order are the chain in order."""
    if (current := now()) > name[: len(current)]:
        return current
    try:
        return stamp(datetime.fromisoformat(name.partition("_")[0]) + timedelta(microseconds=1))
    except (ValueError, OverflowError):  # not a date: the head was tampered with, which the chain shows
        return current
