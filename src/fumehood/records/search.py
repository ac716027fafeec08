"""Finding one record among many: by its file's name where that says enough, else by reading as few as possible."""

from __future__ import annotations

import errno
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..errors import RecordsError
from . import files
from .chain import NAME_HASH_DIGITS, Entry
from .head import stamp

_HASH_AT = len("20261115T175012.000000Z_")
_TIME_DIGITS = 12  # an execution id begins with the milliseconds at which it was made
_TELLING = 12  # so many characters fit a second record by chance only
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
_TAIL_BYTES = 2048
_RUN_ID = re.compile(rb'"run_id":(?:"([^"\\]*)"|null)')


def find(directory: Path, prefix: str, *, at_most: int | None = None) -> list[Entry]:
    """The records whose execution id, hash or file name begins so; a whole one is the only answer. Newest first."""
    found: list[Entry] = []
    try:
        with files.directory(Path(directory)) as dir_fd:
            names, _ = files.names(dir_fd)
            for entry in _matching(dir_fd, names, prefix):
                if prefix in _known_by(entry):
                    return [entry]
                if at_most is None or len(found) < at_most:
                    found.append(entry)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordsError(f"the records in {directory} cannot be read: {error.strerror or error}") from error
    return sorted(found, key=lambda entry: entry.name, reverse=True)


def _matching(dir_fd: int, names: list[str], prefix: str) -> Iterator[Entry]:
    named = {name for name in names if name.startswith(prefix) or name.startswith(prefix[:NAME_HASH_DIGITS], _HASH_AT)}
    some = False
    for name in sorted(named, reverse=True):
        entry = files.read_entry(dir_fd, name)
        if _begins(entry, prefix) and (entry.record or files.exists(dir_fd, name)):
            some = True
            yield entry
    # No execution is stored before it has its id, and most are soon after.
    first = bisect_left(names, earliest_name(prefix))
    text = files.escaped(prefix)
    for part in (names[first:], names[:first][::-1]):
        if some and len(prefix) >= _TELLING:
            return
        for name in part:
            candidate = None if name in named else files.read_entry_with(dir_fd, name, text)
            if candidate and _begins(candidate, prefix):
                some = True
                yield candidate


def run_of(dir_fd: int, name: str) -> str | None:
    """Probably the `run_id` of a record, from its last bytes: parsing all of it takes ten times as long.

    Keys are sorted, and the few after it have short values. No text holds the pattern: its quotes would be escaped.
    An OSError says that it could not be read now.
    """
    try:
        found = _RUN_ID.findall(files.tail(dir_fd, name, _TAIL_BYTES))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link, which nobody follows
            return None
        raise
    return found[-1].decode("ascii", "replace") or None if found else None


def with_id(dir_fd: int, names: list[str], execution_id: str, is_over: Callable[[], bool]) -> Entry | None:
    """The record of this execution among these, which are in order. None is stored before it has its id.

    A TimeoutError when `is_over` says so before all were looked at.
    """
    text = files.escaped(execution_id)
    for name in names[bisect_left(names, earliest_name(execution_id)) :]:
        if is_over():
            raise TimeoutError
        entry = files.read_entry_with(dir_fd, name, text)
        if entry is not None and entry.record is not None and entry.record.get("execution_id") == execution_id:
            return entry
    return None


def _begins(entry: Entry, prefix: str) -> bool:
    return any(text.startswith(prefix) for text in _known_by(entry))


def _known_by(entry: Entry) -> tuple[str, str, str]:
    record = entry.record or {}
    return str(record.get("execution_id", "")), str(record.get("hash", "")), entry.name


def earliest_name(prefix: str) -> str:
    """What the names of records begin with that were stored when such an execution id was made, or later."""
    latest = "~"
    if not _HEX.fullmatch(prefix):
        return latest
    milliseconds = int(prefix[:_TIME_DIGITS].ljust(_TIME_DIGITS, "0"), 16)
    try:
        return stamp(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return latest
