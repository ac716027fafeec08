"""The directory in which packages are installed, and the programs that do it: how long, and how much they may write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from . import tells_exit
from .errors import PackageError
from .one_line import one_line

MAX_DEPTH = 100  # directories in each other
MEMORY_BYTES = 4 << 30
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024
_POLL_S = 0.05
_ENDING_S = 5.0  # only who hangs in the kernel takes so long
_BLOCK = 4096
_WHILE = 2  # times as much as may be left in the end: wheels lie beside what is unpacked of them
# No directory in which somebody could have planted a module, a requirement or a configuration.
_CWD = "/"
_TELLS_EXIT = (sys.executable, "-I", "-S", tells_exit.__file__)


class Room(NamedTuple):
    """What one set of packages may take."""

    size_bytes: int
    files: int  # and directories


class Taken(NamedTuple):
    size_bytes: int
    files: int
    largest: str = ""
    is_too_deep: bool = False


class TooLarge(Exception):
    """Whoever was at work was ended."""

    def __init__(self, taken: Taken) -> None:
        super().__init__(str(taken))
        self.taken = taken


class Installation:
    """`directory` is its own: everything is written there."""

    def __init__(self, directory: str, room: Room, timeout_s: float, tick: Callable[[], None]) -> None:
        self.site = os.path.join(directory, "site")
        self.wheels = os.path.join(directory, "wheels")  # that were built here
        self.room = room
        self._directory = directory
        self._temporary = os.path.join(directory, "tmp")
        self._deadline = time.monotonic() + timeout_s
        self._tick = tick
        for path in (self.site, self.wheels, self._temporary):
            os.mkdir(path)

    def run(self, command: Sequence[str], *, builds: bool = False) -> tuple[int, str]:
        """Exit code and output. TooLarge when there is more in the directory than may ever be."""
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile(dir=self._temporary) as output:
            try:
                process = subprocess.Popen(
                    [
                        *(*_TELLS_EXIT, str(told.fileno()), str(self.room.size_bytes)),
                        str(-1 if builds else MEMORY_BYTES),  # a compiler takes what it needs
                        *("env", f"TMPDIR={self._temporary}", *command),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(told.fileno(),),
                    cwd=_CWD,
                    start_new_session=True,
                )
            except OSError as error:
                said = f"the installation cannot be started on this machine: {error}. Mend that"
                raise PackageError(said) from error
            try:
                self._follow(process)
            finally:
                if process.poll() is None:
                    _end(process)
            output.seek(max(0, output.tell() - _MAX_OUTPUT_BYTES))
            lines = output.read().decode("utf-8", "replace").splitlines()
            code = int(os.pread(told.fileno(), 8, 0) or 1)
        return code, "\n".join(map(one_line, lines)) + "\n"  # in part it is what a package says

    def check(self) -> None:
        """What is left in the end."""
        self._check(self.site, self.room)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        most = Room(self.room.size_bytes * _WHILE, self.room.files * _WHILE)
        pause_s = _POLL_S
        while process.poll() is None:
            now = time.monotonic()
            if now > self._deadline:
                raise PackageError(
                    "the installation took too long and was ended: is the index slow or out of reach? "
                    "Try again, ask for less at once, or install from a directory of wheels (SANDBOX_WHEELHOUSE)"
                )
            self._check(self._directory, most)
            pause_s = max(_POLL_S, time.monotonic() - now)
            try:
                process.wait(pause_s)
            except subprocess.TimeoutExpired:
                self._tick()

    def _check(self, directory: str, most: Room) -> None:
        taken = measure(directory, most)
        if taken.size_bytes > most.size_bytes or taken.files > most.files or taken.is_too_deep:
            raise TooLarge(taken)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: who is still ending could write where the caller removes."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _ENDING_S
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(_POLL_S / 10)


def measure(directory: str, most: Room) -> Taken:
    """What is in it, in whole blocks, a file with two names once. It stops at the first that is too much."""
    size = files = 0
    largest, largest_size = "", -1
    seen: set[tuple[int, int]] = set()
    for entry, depth in _entries(directory):
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # it was moved
        files += 1
        if found.st_nlink == 1 or (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            size += -(-found.st_size // _BLOCK) * _BLOCK
        if found.st_size > largest_size:
            largest, largest_size = entry.name, found.st_size
        if size > most.size_bytes or files > most.files or depth > MAX_DEPTH:
            return Taken(size, files, one_line(largest), depth > MAX_DEPTH)
    return Taken(size, files, one_line(largest))


def _entries(directory: str) -> Iterator[tuple[os.DirEntry[str], int]]:
    pending = [(directory, 0)]
    while pending:
        path, depth = pending.pop()
        try:
            with os.scandir(path) as found:
                for entry in found:
                    yield entry, depth
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
        except (FileNotFoundError, NotADirectoryError):
            continue


def remove(directory: str) -> None:
    """All of it, as far as it goes. Without recursion: a package may nest deeper than Python does."""
    pending, directories = [directory], []
    while pending:
        path = pending.pop()
        directories.append(path)
        with suppress(OSError), os.scandir(path) as found:
            for entry in list(found):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)
    for path in reversed(directories):
        with suppress(OSError):
            os.rmdir(path)
