"""Writing records. Whatever is wrong with the directory, an execution never fails for it."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadArgument
from . import files
from .chain import Head, seal
from .head import settle, stamp_after, write
from .pruning import prune_once

POLICIES = ("always", "on_error", "never")

_log = logging.getLogger("fumehood.records")
_warned: set[str] = set()
_counting = threading.Lock()
_lost = 0
_shared: int | None = None  # the descriptor of a count that processes share
_COUNT_BYTES = 8
_PROBE_BYTES = 64 * 1024


def lost() -> int:
    """How many records this process was to store and could not."""
    return _lost


def lost_by_all() -> int:
    """The same of all processes that count together."""
    return _lost if _shared is None else int.from_bytes(os.pread(_shared, _COUNT_BYTES, 0), "little")


def count_together(path: str) -> None:
    """From now on, with the other processes that name this file."""
    global _shared
    _shared = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _add_shared(0)  # its block is there before a disk is full


def _add_shared(number: int) -> None:
    assert _shared is not None
    fcntl.flock(_shared, fcntl.LOCK_EX)  # for microseconds
    try:
        os.pwrite(_shared, (lost_by_all() + number).to_bytes(_COUNT_BYTES, "little"), 0)
    finally:
        fcntl.flock(_shared, fcntl.LOCK_UN)


def takes(directory: Path) -> bool:
    """Whether a small record could be written there now; nothing is left of the attempt."""
    name = f".probe-{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        with files.directory(_absolute(directory), create=True) as dir_fd:
            files.write_temp(dir_fd, name, bytes(_PROBE_BYTES))
            return files.remove(dir_fd, name)
    except (OSError, ValueError):
        return False


class Store:
    """The records of one directory, by one policy. Any number of threads and processes may write at once."""

    def __init__(self, directory: Path, *, policy: str, max_bytes: int = 0) -> None:
        if policy not in POLICIES:
            raise BadArgument(f"record policy {policy!r} is not one of {', '.join(POLICIES)}")
        self.directory = _absolute(Path(directory))
        self.policy = policy
        self.max_bytes = max_bytes  # 0: no cap
        self._lock_timeout_s: float | None = None

    def wants(self, *, failed: bool) -> bool:
        """Whether the policy keeps such an execution."""
        return self.policy == "always" or (self.policy == "on_error" and failed)

    def save(self, record: Mapping[str, Any], failed: bool) -> Path | None:
        """Store it if the policy says so. Trouble is one warning per directory and None."""
        if not self.wants(failed=failed):
            return None
        try:
            with (
                files.directory(self.directory, create=True) as dir_fd,
                files.locked(dir_fd, timeout_s=self._lock_timeout_s),
            ):
                self._lock_timeout_s = None
                head = _append(dir_fd, record)
                self._keep_to_size(dir_fd, head)
        except TimeoutError as error:
            self._lock_timeout_s = 0.05  # not the whole wait for every execution
            self._lose(error)
            return None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            self._lose(error)
            return None
        return self.directory / head.name

    def _keep_to_size(self, dir_fd: int, head: Head) -> None:
        if self.max_bytes <= 0:
            return
        if head.counts_blocks and head.total_bytes <= files.room(dir_fd, self.max_bytes):
            return
        try:
            # Somewhat below the cap, so that not every record has to look at the whole directory.
            prune_once(dir_fd, head, max_bytes=self.max_bytes - self.max_bytes // 64, spare_newest=True)
        except OSError as error:
            self._warn(error)

    def _lose(self, error: Exception) -> None:
        global _lost
        with _counting:
            _lost += 1
            if _shared is not None:
                _add_shared(1)
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        if (key := str(self.directory)) not in _warned:
            _warned.add(key)
            _log.warning(
                "records are not stored: cannot write to %s (%s). "
                "Set SANDBOX_ARTIFACTS_DIR to the absolute path of a directory that can be written, "
                "or SANDBOX_STORE_CODE=never.",
                self.directory,
                error,
            )


def _absolute(directory: Path) -> Path:
    try:
        return directory.absolute()
    except FileNotFoundError:  # the working directory was deleted: saving will say so
        return directory


def _append(dir_fd: int, record: Mapping[str, Any]) -> Head:
    head, lost = settle(dir_fd)
    if lost:
        record = {**record, "recovered": lost}
    number = head.sequence + 1
    name, digest, data = seal(record, sequence=number, previous=head.hash, stored=stamp_after(head.name))
    # The head goes first: dying between the two renames leaves a pending record that the next writer puts in place.
    taken = files.write_temp(dir_fd, files.PENDING, data)
    try:
        head = replace(head, sequence=number, hash=digest, name=name, total_bytes=head.total_bytes + taken)
        write(dir_fd, head)
    except BaseException:
        files.remove(dir_fd, files.PENDING)
        raise
    files.rename(dir_fd, files.PENDING, name)
    return head
