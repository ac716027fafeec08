"""What the programs of one session share: their files, their limits, and an interpreter that keeps its variables."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..descriptors import allow
from ..errors import SandboxLost
from ..threads import begin
from ..types import Command, FileStat, Limits
from . import lend, plan, private
from .cell import Cell
from .cgroups import Group
from .diagnose import not_made
from .files import Files
from .interpreter import Interpreter
from .order import program
from .root import Root
from .zygotes import SetupFailed, ZygoteGone

_INSIDE = {"/workspace": "workspace", "/mnt/data": "workspace", "/tmp": "tmp"}
_DESCRIPTORS = 12  # that each holds at most
_BURIED_S = 5.0
_BORN_S = 60.0  # only a hang takes so long, on a busy machine too
_numbers = itertools.count(1)
_alive: weakref.WeakSet[Volume] = weakref.WeakSet()
_graves: queue.SimpleQueue[Volume | None] = queue.SimpleQueue()
_undertaker: threading.Thread | None = None


class Wanted(NamedTuple):
    """What a volume should have."""

    limits: Limits
    datasets: Sequence[tuple[str, str]] = ()  # (name there, path on this machine)
    packages: str | None = None  # a directory on this machine
    progress: lend.Progress | None = None


def open_volume(root: Root, wanted: Wanted) -> Volume:
    _hire()
    allow(_DESCRIPTORS * (len(_alive) + 8) + 256)  # who opens many means to
    root.zygote.check()
    group = root.zygote.take_group(wanted.limits)
    try:
        make = _sealed if root.level == "sealed" else _open
        return make(root, wanted, group)
    except BaseException:
        if group is not None:
            group.clear()
        raise


def _sealed(root: Root, wanted: Wanted, group: Group | None) -> Volume:
    limits, datasets, packages, progress = wanted
    owner = plan.UNPRIVILEGED_ID if root.caller.drops else None
    trees = lend.lend(datasets, packages, reader=owner, disk_bytes=limits.disk_bytes, progress=progress)
    number = next(_numbers)
    order = {
        "make_volume": number,
        "steps": plan.plan_volume(root.plan, limits),
        "targets": [*([plan.DATA] if datasets else []), *([plan.PACKAGES] if packages is not None else [])],
    }
    try:
        top = root.zygote.make_volume(order, trees)
    except BaseException:  # an interrupt, perhaps: it may be there all the same
        _drop(root, number)
        raise
    finally:
        for tree in trees:
            os.close(tree)
    return Volume(
        root,
        limits,
        Files(top, _INSIDE, owner=owner),
        group,
        number=number,
        packages=plan.PACKAGES if packages is not None else None,
        remove=functools.partial(_drop, root, number),
    )


def _drop(root: Root, number: int) -> None:
    try:
        root.zygote.drop_volume(number)
    except (ZygoteGone, SetupFailed):
        pass  # and all its volumes with it


def _open(root: Root, wanted: Wanted, group: Group | None) -> Volume:
    """Without a root of its own: the paths are real ones, and what would be lent is copied."""
    limits, datasets, packages, progress = wanted
    directory = root.private_directory()
    try:
        private.add_session_parts(directory, root.owner)
        for name, path in datasets:
            lend.copy(path, f"{directory}/tmp/data/{name}", name, root.owner, progress)
        top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        private.remove(directory)
        raise
    prefixes = {f"{directory}/{name}": name for name in ("workspace", "tmp")}
    return Volume(
        root,
        limits,
        Files(top, prefixes | _INSIDE, owner=root.owner),
        group,
        directory=directory,
        packages=packages,
        remove=functools.partial(private.remove, directory),
    )


class Volume:
    def __init__(
        self,
        root: Root,
        limits: Limits,
        files: Files,
        group: Group | None,
        *,
        number: int | None = None,
        directory: str | None = None,
        packages: str | None = None,
        remove: Callable[[], None],
    ):
        self._root = root
        self.limits = limits
        self.group = group
        self.number = number  # the zygote's name for it, at level sealed
        self.directory = directory  # where its files are, at the other levels
        self._files = files
        self.packages = packages
        self._remove = remove
        self._cells: set[Cell] = set()
        self._interpreter: Interpreter | None = None
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._births = 0  # cells that are being made
        self._all_born = threading.Condition(self._lock)
        self._closed = False
        _alive.add(self)

    def start(self, command: Command) -> Cell:
        """A command beside the interpreter, in a cell of its own."""
        return self._begin(Cell(), command)

    def waiting_interpreter(self) -> Interpreter | None:
        interpreter = self._interpreter
        return None if interpreter is None or interpreter.is_dead or interpreter.is_gone(0) else interpreter

    def make_interpreter(self, command: Command) -> Interpreter:
        """In place of one that died, if there was one."""
        with self._making:
            waiting = self.waiting_interpreter()  # made for a call that was given up
            return waiting or self._make_interpreter(command)

    def _make_interpreter(self, command: Command) -> Interpreter:
        interpreter = Interpreter()
        if self._interpreter is not None:
            interpreter.replaces_untold = not self._interpreter.death_was_told
            self._forget(self._interpreter)
        self._begin(interpreter, command._replace(argv=("python",), script=None, stdin=b""))
        self._interpreter = interpreter
        return interpreter

    def read(self, path: str, max_bytes: int) -> bytes:
        return self._files.read(path, max_bytes)

    def write(self, path: str, data: bytes) -> None:
        self._files.write(path, data)

    def beneath(self, path: str, leave_out: str) -> list[FileStat]:
        return self._files.beneath(path, leave_out=leave_out)

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            self._all_born.wait_for(lambda: not self._births, _BORN_S)
            cells = list(self._cells)
        for cell in cells:
            cell.kill()
        for cell in cells:
            self._forget(cell)
        self._files.close()
        if self.directory is None:
            self._remove()  # first: what lies in its files is charged to the group
        if self.group is not None:
            self._root.zygote.give_back(self.group)
        if self.directory is not None:
            self._remove()  # last: nobody is left who could write there

    def bury(self) -> None:
        """`close` for the garbage collector, which may come while this thread holds a lock that closing needs."""
        _graves.put(self)

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        self._closed = True
        self._files.close()

    def _begin(self, cell: Cell, command: Command) -> Cell:
        try:
            with self._staying_open():
                self._root.make_cell_in(cell, self.limits, self.group, self.number, self.directory, self.packages)
                self._cells.add(cell)
                cell.when_closed(lambda: self._cells.discard(cell))
                environment = self._root.environment_of(cell)
                if self.packages is not None:
                    own = command.env.get("PYTHONPATH")
                    environment["PYTHONPATH"] = f"{self.packages}:{own}" if own else self.packages
                    command = command._replace(env={k: v for k, v in command.env.items() if k != "PYTHONPATH"})
                cell.feed(program(command, environment, serves=isinstance(cell, Interpreter)), command.stdin)
        except BaseException as error:
            self._forget(cell)
            if isinstance(error, ZygoteGone):
                raise SandboxLost("the sandbox went away with its zygote, and its files; start anew") from None
            if isinstance(error, SetupFailed):
                raise not_made(error.failure) from error
            raise
        return cell

    @contextlib.contextmanager
    def _staying_open(self) -> Iterator[None]:
        """Nobody closes it meanwhile: a cell would find its volume gone."""
        with self._lock:
            if self._closed:
                raise SandboxLost("the sandbox is closed")
            self._births += 1
        try:
            yield
        finally:
            with self._lock:
                self._births -= 1
                self._all_born.notify_all()

    def _forget(self, cell: Cell) -> None:
        cell.close()
        self._cells.discard(cell)


def _hire() -> None:
    global _undertaker
    if _undertaker is None:
        thread = threading.Thread(target=_dig, name="fumehood-volumes", daemon=True)
        if begin(thread):
            _undertaker = thread
        else:  # whoever opens the next volume does its work
            with contextlib.suppress(queue.Empty):
                while (volume := _graves.get_nowait()) is not None:
                    volume.close()


def _dig() -> None:
    while (volume := _graves.get()) is not None:
        volume.close()


def _close_all() -> None:
    if _undertaker is not None:
        _graves.put(None)
        _undertaker.join(_BURIED_S)  # a directory half removed would stay
    for volume in list(_alive):
        volume.close()


def _after_fork() -> None:
    global _undertaker, _graves
    _undertaker, _graves = None, queue.SimpleQueue()
    for volume in list(_alive):
        volume.abandon()
    _alive.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
