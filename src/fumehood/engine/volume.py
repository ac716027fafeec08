"""What the programs of one session share: their files, their limits, and an interpreter that keeps its variables."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..descriptors import allow
from ..errors import FumehoodError, SandboxLost
from ..types import Command, FileStat, Limits
from . import housekeeper, lend, plan, private
from .cell import Cell
from .cgroups import Group
from .diagnose import not_made
from .files import Files
from .interpreter import Interpreter
from .order import program
from .root import Root
from .turns import turns
from .zygotes import SetupFailed, ZygoteGone

_INSIDE = {"/workspace": "workspace", "/mnt/data": "workspace", "/tmp": "tmp"}
_DESCRIPTORS = 12  # that each holds at most
_BORN_S = 60.0  # only a hang takes so long, on a busy machine too
_numbers = itertools.count(1)
_MOST_SPARES = 16  # cells that wait for a command, of all sessions
_SPARE_PROCESSES = 2  # a cell's supervisor, and who will be the command
_ROOM_FOR_SPARES = 64 << 20  # bytes: a smaller limit is for the programs alone
_MOST_LEFT = 8  # volumes that may wait for their end
_alive: weakref.WeakSet[Volume] = weakref.WeakSet()
_left: set[Volume] = set()  # to the housekeeper, to be cleared away


class Wanted(NamedTuple):
    """What a volume should have."""

    limits: Limits
    datasets: Sequence[tuple[str, str]] = ()  # (name there, path on this machine)
    packages: str | None = None  # a directory on this machine
    progress: lend.Progress | None = None


def open_volume(root: Root, wanted: Wanted, *, keeps_spares: bool = False) -> Volume:
    """`keeps_spares`: one that waits for the next command, once there was one."""
    housekeeper.start()
    allow(_DESCRIPTORS * (len(_alive) + 8) + 256)  # who opens many means to
    root.zygote.check()
    group = root.zygote.take_group(wanted.limits)
    try:
        if root.level != "sealed":
            return _open(root, wanted, group)
        volume = _sealed(root, wanted, group)
        volume.keeps_spares = keeps_spares and wanted.limits.memory_bytes >= _ROOM_FOR_SPARES
        return volume
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
        self.keeps_spares = False
        self._cells: set[Cell] = set()
        self._spares: dict[type[Cell], Cell] = {}  # those of them that wait to be used
        self._interpreter: Interpreter | None = None
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._births = 0  # cells that are being made
        self._all_born = threading.Condition(self._lock)
        self._closed = False
        _alive.add(self)

    def has_spare(self, kind: type[Cell]) -> bool:
        spare = self._spares.get(kind)
        return spare is not None and spare.is_waiting()

    def prepare(self, kind: type[Cell]) -> bool:
        """Have one wait for the next call. Not for the thread of a call: it takes as long as making one does."""
        if not self.keeps_spares or kind in self._spares:
            return False
        cell = None
        try:
            cell = kind()
            with self._staying_open():
                self._make_room(kind, _SPARE_PROCESSES)
                self._make(cell, waits=True)
            if not cell.wait_ready(_BORN_S):
                raise SandboxLost("it was closed meanwhile")
        except (FumehoodError, ZygoteGone, SetupFailed, OSError):
            if cell is not None:  # whoever needs one meets the same, and tells its caller
                self._forget(cell)
            self._make_room(kind, 0)
            return False
        if self.group is not None and all(other.is_idle for other in list(self._cells)):
            self.group.take_cpu_s()  # that is nobody's run
        with self._lock:
            if not self._closed:
                self._spares[kind] = cell
                return True
        self._forget(cell)
        return False

    def _make_room(self, kind: type[Cell], processes: int) -> None:
        """An interpreter that waits is the session's own, and in its limit."""
        if self.group is not None and kind is Cell and not self._closed:
            self.group.make_room(processes)

    def drop_spares(self) -> None:
        with self._lock:
            spares = list(self._spares.values())
            self._spares.clear()
        for cell in spares:
            self._forget(cell)
        self._make_room(Cell, 0)

    def start(self, command: Command) -> Cell:
        """A command beside the interpreter, in a cell of its own."""
        return self.start_waiting(command) or self._begin(Cell(), command)

    def start_waiting(self, command: Command) -> Cell | None:
        """`start` in a cell that waits, if there is one: nothing is made, so that an event loop can afford it."""
        spare = self._take_spare(Cell)
        return None if spare is None else self._begin(spare, command)

    def use_spare_interpreter(self, command: Command) -> Interpreter | None:
        """`make_interpreter` of one that waits, if this is the first."""
        if self._interpreter is not None or not self._making.acquire(blocking=False):
            return None
        try:
            spare = self._take_spare(Interpreter)
            return self._begin_interpreter(spare, command) if isinstance(spare, Interpreter) else None
        finally:
            self._making.release()

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
        return self._begin_interpreter(interpreter, command)

    def _begin_interpreter(self, interpreter: Interpreter, command: Command) -> Interpreter:
        self._begin(interpreter, command._replace(argv=("python",), script=None, stdin=b""))
        self._interpreter = interpreter
        return interpreter

    def read(self, path: str, max_bytes: int) -> bytes:
        return self._files.read(path, max_bytes)

    def write(self, path: str, data: bytes) -> None:
        self._files.write(path, data)

    def beneath(self, path: str, leave_out: str) -> list[FileStat]:
        return self._files.beneath(path, leave_out=leave_out)

    @property
    def closes_soon(self) -> bool:
        """Whether `close_soon` waits for nobody."""
        return self.directory is None and not self._births and all(cell.is_idle for cell in list(self._cells))

    def close_soon(self) -> None:
        """Kill all that runs; the rest is left to a thread, where the kernel holds all of it together."""
        if not self._end():
            return
        if self.directory is None and housekeeper.is_at_work() and len(_left) < _MOST_LEFT:
            _left.add(self)
            housekeeper.later(self._clear)
        else:
            self._clear()

    def close(self) -> None:
        if self._end():
            self._clear()

    def _end(self) -> bool:
        """False if somebody has done that already."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return False
            self._all_born.wait_for(lambda: not self._births, _BORN_S)
            cells = list(self._cells)
        for cell in cells:
            cell.kill(measures=not cell.is_idle)
        return True

    def _clear(self) -> None:
        for cell in list(self._cells):
            self._forget(cell)
        self._spares.clear()
        self._files.close()
        if self.directory is None:
            self._remove()  # first: what lies in its files is charged to the group
        if self.group is not None:
            self._root.zygote.give_back(self.group)
        if self.directory is not None:
            self._remove()  # last: nobody is left who could write there
        _left.discard(self)

    def bury(self) -> None:
        """`close` for the garbage collector, which may come while this thread holds a lock that closing needs."""
        housekeeper.later(self.close)

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        self._closed = True
        self._files.close()

    def _begin(self, cell: Cell, command: Command) -> Cell:
        try:
            with self._staying_open():
                if cell not in self._cells:
                    self._make(cell)
                if self.keeps_spares and not isinstance(cell, Interpreter):
                    cell.when_closed(functools.partial(housekeeper.suggest, self._prepare_for_a_command))
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

    def _make(self, cell: Cell, *, waits: bool = False) -> None:
        where = self.number, self.directory, self.packages
        self._root.make_cell_in(cell, self.limits, self.group, *where, waits=waits)
        self._cells.add(cell)
        cell.when_closed(lambda: self._cells.discard(cell))

    def _take_spare(self, kind: type[Cell]) -> Cell | None:
        spare = self._spares.pop(kind, None)
        if spare is not None:
            self._make_room(kind, 0)
        if spare is not None and not spare.is_waiting():
            housekeeper.later(functools.partial(self._forget, spare))
            spare = None
        return spare

    def _prepare_for_a_command(self) -> None:
        if not self._closed and sum(Cell in volume._spares for volume in list(_alive)) < _MOST_SPARES:
            self.prepare(Cell)

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


def _is_busy() -> bool:
    """Whether a call of this process goes on."""
    return turns.are_taken or any(not cell.is_idle for volume in list(_alive) for cell in list(volume._cells))


def _drop_spares() -> None:
    for volume in list(_alive):
        volume.drop_spares()


def _close_all() -> None:
    housekeeper.stop()
    for volume in list(_alive):
        volume.close()


def _after_fork() -> None:
    _left.clear()
    for volume in list(_alive):
        volume.abandon()
    _alive.clear()


housekeeper.ask_if_busy(_is_busy)
housekeeper.when_quiet(_drop_spares)
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
