"""Reading records back, and checking that they are all there and as they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from ..errors import RecordsError
from . import files
from .chain import Entry, Head, Problem, Pruned, end, walk
from .head import load, pending, rebuild

Progress = Callable[[int, int], None]  # how many records are done, and of how many

_TRIES = 5
_TOLD_EVERY = 500


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    directory: str
    records: int = 0
    sequence: int = 0  # the number of the last record
    head: str | None = None  # its hash; keep it elsewhere to be able to prove the chain later
    pruned: Pruned | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    expected_at: int | None = None  # the number of the record whose hash was expected

    @property
    def ok(self) -> bool:
        return not self.problems


def load_all(directory: Path, *, newest_first: bool = True, text: str | None = None) -> Iterator[Entry]:
    """Every file named like a record, read one at a time. What cannot be read is an entry with an error.

    `text`: without the records that have it nowhere.
    """
    wanted = None if text is None else files.escaped(text)
    try:
        with files.directory(Path(directory)) as dir_fd:
            names, _ = files.names(dir_fd)
            for name in reversed(names) if newest_first else names:
                entry = files.read_entry_with(dir_fd, name, wanted) if wanted else files.read_entry(dir_fd, name)
                if entry and (entry.record or files.exists(dir_fd, name)):
                    yield entry  # else pruned since we looked
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(directory, error) from error


def verify(directory: Path, *, expect: str | None = None, progress: Progress | None = None) -> Report:
    """Walk the whole chain. `expect`: a head hash noted earlier, which must be part of it."""
    try:
        with files.directory(Path(directory)) as dir_fd:
            for _ in range(_TRIES):
                report, start = _verify(dir_fd, str(directory), expect, progress)
                if report.ok or start == _start(_head(dir_fd)):  # else a prune went on meanwhile: look again
                    break
    except FileNotFoundError:
        report = Report(str(directory))
    except OSError as error:
        raise _unreadable(directory, error) from error
    if expect is not None and report.expected_at is None:
        report.problems.append(Problem("head", f"no record here has the expected hash {expect}"))
    return report


def _verify(
    dir_fd: int, directory: str, expect: str | None, progress: Progress | None
) -> tuple[Report, tuple[int, str] | None]:
    head, names, others = _snapshot(dir_fd)
    report = Report(directory)
    if others:
        more = "" if len(others) <= 5 else " …"
        report.notes.append(f"ignored, not records: {', '.join(others[:5])}{more}")
    known = head is not None
    if head is None:
        head = rebuild(dir_fd, names)
        if names:
            what = f"the head file is missing or damaged: nothing says which of {len(names)} record(s) was the last"
            report.problems.append(Problem("head", what))
    last = pending(dir_fd, head)
    at = walk(chain(_entries(dir_fd, names, progress), [last] if last else []), head, look_for=expect)
    if known:
        end(at, head)
        report.sequence, report.head, report.pruned = head.sequence, head.hash, head.pruned
    if last:
        report.notes.append("the last record awaits its name: its writer was interrupted; the next one finishes it")
    if at.leftovers:
        report.notes.append(f"{at.leftovers} pruned record(s) still here: the next prune removes them")
    if head.pruned and head.pruned.broken:
        what = f"{head.pruned.broken} problem(s) were found among the records pruned until {head.pruned.at}"
        report.problems.append(Problem("missing", what))
    report.records, report.expected_at = at.records, at.found
    report.problems += at.problems
    return report, head.start if known else None


def _entries(dir_fd: int, names: list[str], progress: Progress | None) -> Iterator[Entry]:
    for number, name in enumerate(names):
        if progress and number % _TOLD_EVERY == 0:
            progress(number, len(names))
        yield files.read_entry(dir_fd, name)


def _snapshot(dir_fd: int) -> tuple[Head | None, list[str], list[str]]:
    """Head and names of one moment. Reading the records themselves needs no lock: they never change."""
    try:
        with files.locked(dir_fd, create=False):
            return (_head(dir_fd), *files.names(dir_fd))
    except OSError:  # no lock file, or not ours to lock: compare before and after instead
        pass
    for _ in range(_TRIES):
        head = _head(dir_fd)
        listed = files.names(dir_fd)
        if head == _head(dir_fd):
            break
    return (head, *listed)


def _head(dir_fd: int) -> Head | None:
    try:
        return load(dir_fd)
    except (OSError, ValueError):
        return None


def _start(head: Head | None) -> tuple[int, str] | None:
    return head.start if head else None


def _unreadable(directory: Path, error: OSError) -> RecordsError:
    return RecordsError(f"the records in {directory} cannot be read: {error.strerror or error}")
