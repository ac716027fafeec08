"""Finds the strongest level this host can give by doing it, and starts programs at that level."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..descriptors import exhausted
from ..errors import BadArgument, EngineFailed, IsolationUnavailable
from ..interrupts import acquire
from ..types import LEVELS, Command, Exited, Level, Limits, Receipt
from .cell import Cell
from .diagnose import errno_name, fix_for, is_shortage, not_made, what_failed
from .frames import Failure
from .order import program
from .plan import Without
from .root import Root
from .turns import turns
from .zygotes import PreloadFailed, SetupFailed, ZygoteGone, close_all

if TYPE_CHECKING:
    from .lend import Progress
    from .pool import Pool
    from .volume import Volume

_READY_S = 60.0  # only a hang takes so long, on a busy machine too
_ATTEMPTS = 3
_KEEPS_GOING = "the engine's zygote keeps going away; see `fumehood doctor`, and try again"
_NOTHING = Command(("python", "main.py"), b"")
_USUAL = Limits()
_DISPENSABLE = {
    "proc": "proc",
    "root_proc": "proc",
    "bound_kernel_objects": "bounds",
    "become": "become",
    "asking_seccomp": "asking",
}


class Engine:
    """All sandboxes of this process that ask for the same isolation share one, which `shared` gives."""

    def __init__(self, isolation: str, require: str | None, preload: tuple[str, ...] = (), *, is_shared: bool = False):
        self._is_shared = is_shared
        self._isolation = isolation
        self._preload = preload
        self._require = require
        self._lock = threading.Lock()
        self._roots: dict[bool, Root] = {}  # by whether the host's network is wanted
        self._users: dict[tuple[Limits, bool, bool], int] = {}
        self._owner = os.getpid()

    def start(
        self, command: Command, limits: Limits, *, network: bool, warm_cells: int = 0, shows: bool = False
    ) -> Cell:
        """The program is on its way when this returns. `shows`: its files are to be read."""
        waiting = self.start_waiting(command, limits, network=network, warm_cells=warm_cells, shows=shows)
        if waiting is not None:
            return waiting
        turns.begin()
        try:
            cell = self._start(command, limits, network, warm_cells, shows)
        except BaseException:
            turns.give_up()
            raise
        turns.started()
        cell.when_closed(turns.end)
        return cell

    def _start(self, command: Command, limits: Limits, network: bool, warm_cells: int, shows: bool) -> Cell:
        for _ in range(_ATTEMPTS):
            root = self._known(network)
            try:
                if root is None and shows:
                    self.check(limits, network=network)  # finds the level, by doing it
                    continue
                if root is None:
                    first = self._first(command, limits, network)
                    if isinstance(first, Cell):
                        return first
                    root = first
                return _start(root, command, limits, warm_cells, shows)
            except ZygoteGone:
                if root is not None:
                    self._drop(network, root)
            except SetupFailed as error:
                raise not_made(error.failure) from error
        raise EngineFailed(_KEEPS_GOING)

    def start_waiting(
        self, command: Command, limits: Limits, *, network: bool, warm_cells: int, shows: bool = False
    ) -> Cell | None:
        """`start` in a cell that waits, if there is one: nothing is made, so that an event loop can afford it."""
        root = self._known(network)
        pool = None if root is None else _pool(root, limits, warm_cells, shows)
        cell = None if pool is None else pool.take_waiting()
        if root is None or pool is None or cell is None:
            return None
        turns.begin_at_once()
        cell.when_closed(turns.end)
        return _fed(root, cell, command, pool)

    def open_volume(
        self,
        limits: Limits,
        *,
        network: bool,
        datasets: Sequence[tuple[str, str]] = (),
        packages: str | None = None,
        progress: Progress | None = None,
        makes_ahead: bool = False,
    ) -> Volume:
        """A place whose files, and one interpreter, outlive the programs that run there.

        `makes_ahead`: cells for its commands, and the next one of its kind.
        """
        from .volume import Wanted, open_volume  # much that a single execution does without

        for _ in range(_ATTEMPTS):
            root = self._known(network)
            if root is None:
                self.check(limits, network=network)  # finds the level, by doing it
                continue
            try:
                volume = open_volume(root, Wanted(limits, datasets, packages, progress), keeps_spares=makes_ahead)
                if volume.keeps_spares and not datasets and packages is None:
                    _make_another(root, limits)
                return volume
            except ZygoteGone:
                self._drop(network, root)
            except SetupFailed as error:
                raise not_made(error.failure) from error
        raise EngineFailed(_KEEPS_GOING)

    def take_volume(self, limits: Limits, *, network: bool) -> Volume | None:
        """One that waits, if there is one: nothing is made, so that an event loop can afford it."""
        root = self._known(network)
        if root is None:
            return None
        from .ready_volumes import take

        volume = take(root, limits)
        if volume is not None:
            _make_another(root, limits)
        return volume

    def lease(self, limits: Limits, *, network: bool, step: int, shows: bool = False) -> None:
        """Tell that a user of this kind of sandbox has come (1) or gone (-1); with the last its waiting cells go."""
        root = self._known(network)
        kind = limits.built_in(), network, shows
        with self._lock:
            self._users[kind] = self._users.get(kind, 0) + step
            if self._users[kind] <= 0:
                del self._users[kind]
        if root is not None and not any(kind in engine._users for engine in (self, *_others_with(root, network))):
            root.end_pool(limits, shows=shows)

    def check(self, limits: Limits, *, network: bool) -> Receipt:
        """Make a sandbox for real and say what it enforces."""
        cell = self._start(_NOTHING, limits, network, warm_cells=0, shows=False)
        try:
            while not isinstance(event := cell.read(_READY_S), Exited):
                if event is None:
                    raise EngineFailed(f"a sandbox did not answer in {_READY_S:.0f} s; the kernel may hang in a step")
            return cell.receipt
        finally:
            cell.close()

    # --- levels

    def _known(self, network: bool) -> Root | None:
        if self._owner != os.getpid():  # forked: the parent's zygotes are not ours
            self._lock = threading.Lock()
            self._roots = {}
            self._users = {}
            self._owner = os.getpid()
        return self._roots.get(network) or self._take_anothers(network)

    def _first(self, command: Command, limits: Limits, network: bool) -> Cell | Root:
        """The first execution is also the trial: a program is read only behind the last lock.

        The root, if another thread was faster.
        """
        acquire(self._lock)
        try:
            known = self._roots.get(network)
            if known is not None:
                return known
            self._roots[network], cell = self._find(command, limits, network)
            return cell
        except OSError as error:  # of a module of ours, say, that is loaded now
            if (said := exhausted(error)) is None:
                raise
            raise EngineFailed(said) from error
        finally:
            self._lock.release()

    def _drop(self, network: bool, root: Root) -> None:
        with self._lock:
            if self._roots.get(network) is root:
                del self._roots[network]
        root.close()

    def _take_anothers(self, network: bool) -> Root | None:
        """One that another engine has found, if it is what this one would find: they share its waiting cells."""
        if not self._is_shared or self._isolation not in ("auto", "sealed"):
            return None
        for engine in list(_engines.values()):
            if engine._preload != self._preload or engine._owner != os.getpid():
                continue
            root = engine._roots.get(network)
            if root is None or root.level != "sealed" or root.is_closed:
                continue
            if self._require != "sealed" or _bounds_memory(root, _USUAL):
                return self._roots.setdefault(network, root)
        return None

    def _find(self, command: Command, limits: Limits, network: bool) -> tuple[Root, Cell]:
        first: Failure | None = None
        for level in reversed(LEVELS):
            if self._isolation not in ("auto", level):
                continue
            if self._require is not None and LEVELS.index(level) < LEVELS.index(self._require):
                break
            found = self._try(level, first, command, limits, network)
            if not isinstance(found, Failure):
                _given.add(level)
                return found
            if found.errno == errno.EAGAIN:  # too many processes just now: no reason for a weaker level
                raise not_made(found)
            if limits != _USUAL and self._works(level, first, network):
                raise EngineFailed(f"{what_failed(found)}, but not with the default limits: raise the lowest of yours")
            if is_shortage(found.step, found.errno):
                raise not_made(found)
            if self._isolation == "auto" and level in _given:
                raise EngineFailed(
                    f"{what_failed(found)}, though this process had level {level} before, and it takes no weaker one:"
                    f" {fix_for(found.step, found.errno)}"
                )
            first = first or found
        raise self._refusal(first)

    def _works(self, level: Level, failure: Failure | None, network: bool) -> bool:
        """Whether this host can give the level with the default limits: low ones must not choose a weaker level."""
        found = self._try(level, failure, _NOTHING, _USUAL, network)
        if isinstance(found, Failure):
            return False
        root, cell = found
        cell.close()
        root.close()
        return True

    def _try(
        self, level: Level, failure: Failure | None, command: Command, limits: Limits, network: bool
    ) -> tuple[Root, Cell] | Failure:
        """Every step for real, again without what this host cannot give and a cell can do without."""
        without = Without()
        while True:
            try:
                found = _prove(level, failure, command, limits, network, without, self._preload, self._require)
            except PreloadFailed as error:
                self._drop_preload(error.module, error.why)
                continue
            if not isinstance(found, Failure):
                for module, why in found[0].zygote.not_imported.items():
                    self._drop_preload(module, why)
                return found
            if found.step not in _DISPENSABLE or is_shortage(found.step, found.errno):
                return found
            poorer = without._replace(**{_DISPENSABLE[found.step]: True})
            if poorer == without:
                return found
            without = poorer

    def _drop_preload(self, module: str, why: str) -> None:
        import logging  # only when something is wrong

        self._preload = tuple(name for name in self._preload if name != module)
        logging.getLogger("fumehood.engine").warning(
            "%s cannot be preloaded and is left out: %s. Mend it, or take it out of SANDBOX_PRELOAD", module, why
        )

    def _refusal(self, failure: Failure | None) -> IsolationUnavailable:
        required = self._require or self._isolation
        if failure is None:
            return IsolationUnavailable(
                f"level {required} is required, but SANDBOX_ISOLATION={self._isolation} asks for less: "
                "change one of the two"
            )
        fix = fix_for(failure.step, failure.errno)
        return IsolationUnavailable(
            f"this host cannot give level {required}: step {failure.step} failed with {errno_name(failure.errno)} "
            f"({failure.detail}). {fix[0].upper()}{fix[1:]}. `fumehood doctor` shows what it can give",
            step=failure.step,
            errno=errno_name(failure.errno),
            fix=fix,
        )


def _bounds_memory(root: Root, limits: Limits) -> bool:
    return root.receipt(limits).axes["memory"].level != "none"


def _others_with(root: Root, network: bool) -> list[Engine]:
    """The engines that `shared` gave which have it."""
    return [engine for engine in list(_engines.values()) if engine._roots.get(network) is root]


def _prove(
    level: Level,
    failure: Failure | None,
    command: Command,
    limits: Limits,
    network: bool,
    without: Without,
    preload: tuple[str, ...],
    require: str | None,
) -> tuple[Root, Cell] | Failure:
    try:
        root = Root(level, network, failure, without, preload)
    except SetupFailed as error:
        return error.failure
    if require == "sealed" and not _bounds_memory(root, limits):
        root.close()
        return Failure("proc", errno.EPERM, "and with neither it nor a control group nothing bounds memory")
    cell = None
    try:
        if root.preload:
            _try_preload(root, limits, lambda alone: Root(level, network, failure, without, (alone,)))
        cell = _start(root, command, limits)
        if cell.wait_ready(_READY_S):
            return root, cell
        refused = cell.failure
        if refused is None:
            raise EngineFailed(f"a sandbox ended or hung while it was made, in {_READY_S:.0f} s; see `fumehood doctor`")
        if refused.step == "internal":
            raise not_made(refused)
    except SetupFailed as error:
        refused = error.failure
    except BaseException:
        if cell is not None:
            cell.close()
        root.close()
        raise
    if cell is not None:
        cell.close()
    root.close()
    return refused


def _try_preload(root: Root, limits: Limits, make_root: Callable[[str], Root]) -> None:
    """Whether programs can be forked from what was imported; if not, which module is to blame."""
    if _imports_in_a_cell(root, limits):
        return
    for module in root.preload:
        alone = make_root(module)
        try:
            works = _imports_in_a_cell(alone, limits)
        finally:
            alone.close()
        if not works:
            raise PreloadFailed(module, "a sandbox forked from it fails or hangs")
    raise PreloadFailed(root.preload[-1], "a sandbox forked from it and the modules before it fails or hangs")


def _imports_in_a_cell(root: Root, limits: Limits) -> bool:
    names = [name for name in root.preload if name not in root.zygote.not_imported]
    code = "".join(f"import {name}\n" for name in names)
    try:
        cell = _start(root, Command(("python", "main.py"), code.encode()), limits)
    except ZygoteGone:
        return False
    try:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            try:
                event = cell.read(deadline - time.monotonic())
            except EngineFailed:
                if cell.failure is not None:  # this host's doing, not the module's
                    raise SetupFailed(cell.failure) from None
                return False
            if isinstance(event, Exited):
                return event.exit_code == 0
        return False
    finally:
        cell.close()


def _start(root: Root, command: Command, limits: Limits, warm_cells: int = 0, shows: bool = False) -> Cell:
    pool = _pool(root, limits, warm_cells, shows)
    if pool is None:
        return _fed(root, root.make_cell(limits, shows=shows), command)
    try:
        cell = pool.take() or root.make_cell(limits, shows=shows)
    except BaseException:
        pool.done()
        raise
    return _fed(root, cell, command, pool)


def _make_another(root: Root, limits: Limits) -> None:
    from .ready_volumes import make_later

    make_later(root, limits)


def _pool(root: Root, limits: Limits, warm_cells: int, shows: bool) -> Pool | None:
    return root.pool(limits, warm_cells, shows=shows) if warm_cells and root.level == "sealed" else None


def _fed(root: Root, cell: Cell, command: Command, pool: Pool | None = None) -> Cell:
    if pool is not None:
        cell.when_closed(functools.partial(pool.done, cell))
        cell.while_it_runs, cell.close_later = pool.nudge, pool.close_later
    cell.feed(program(command, root.environment_of(cell)), command.stdin)
    return cell


_given: set[Level] = set()  # who leaves the choice to us gets none that is weaker
_engines: dict[tuple[str, str | None, tuple[str, ...]], Engine] = {}
_engines_lock = threading.Lock()


def shared(isolation: str, require: str | None, preload: tuple[str, ...] = ()) -> Engine:
    """One engine for each isolation asked for: its zygotes are worth keeping while this process lives."""
    if isolation not in ("auto", *LEVELS):
        raise BadArgument(f"isolation must be auto, {', '.join(LEVELS)}, not {isolation!r}")
    with _engines_lock:
        key = (isolation, require, preload)
        return _engines.setdefault(key, Engine(*key, is_shared=True))


def _renew_lock() -> None:
    global _engines_lock
    _engines_lock = threading.Lock()


atexit.register(close_all)
os.register_at_fork(after_in_child=_renew_lock)
