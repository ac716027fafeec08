"""Finds the strongest level this host can give by doing it, and starts programs at that level."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BadArgument, EngineFailed, IsolationUnavailable
from ..types import LEVELS, Command, Exited, Level, Limits, Receipt
from .cell import Cell
from .cgroups import Group
from .diagnose import errno_name, fix_for
from .frames import Failure
from .plan import Without
from .root import Root
from .zygotes import SetupFailed, ZygoteGone, close_all

_READY_S = 15.0
_ATTEMPTS = 3
_DISPENSABLE = {"proc": "proc", "root_proc": "proc", "bound_kernel_objects": "bounds", "become": "become"}


class Engine:
    """All sandboxes of this process that ask for the same isolation share one."""

    def __init__(self, isolation: str, require: str | None):
        self._isolation = isolation
        self._require = require
        self._lock = threading.Lock()
        self._roots: dict[bool, Root] = {}  # by whether the host's network is wanted
        self._owner = os.getpid()

    def start(self, command: Command, limits: Limits, *, network: bool) -> Cell:
        """The program is on its way when this returns."""
        for _ in range(_ATTEMPTS):
            root = self._known(network)
            try:
                if root is None:
                    return self._first(command, limits, network)
                return _start(root, command, limits)
            except ZygoteGone:
                if root is not None:
                    self._drop(network, root)
            except SetupFailed as error:
                raise EngineFailed(
                    f"a sandbox could not be made: {error.failure.step} failed with {errno_name(error.failure.errno)}; "
                    f"{fix_for(error.failure.step, error.failure.errno)}"
                ) from error
        raise EngineFailed("the engine's zygote keeps going away; see `fumehood doctor`, and try again")

    def check(self, limits: Limits, *, network: bool) -> Receipt:
        """Make a sandbox for real and say what it enforces."""
        cell = self.start(Command(("python", "main.py"), b""), limits, network=network)
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
            self._owner = os.getpid()
        return self._roots.get(network)

    def _first(self, command: Command, limits: Limits, network: bool) -> Cell:
        """The first execution is also the trial: a program is read only behind the last lock."""
        with self._lock:
            root = self._roots.get(network)
            if root is None:
                root, cell = self._find(command, limits, network)
                self._roots[network] = root
                return cell
        return _start(root, command, limits)

    def _drop(self, network: bool, root: Root) -> None:
        with self._lock:
            if self._roots.get(network) is root:
                del self._roots[network]
        root.zygote.close()

    def _find(self, command: Command, limits: Limits, network: bool) -> tuple[Root, Cell]:
        first: Failure | None = None
        for level in reversed(LEVELS):
            if self._isolation not in ("auto", level):
                continue
            if self._require is not None and LEVELS.index(level) < LEVELS.index(self._require):
                break
            found = _try(level, first, command, limits, network)
            if not isinstance(found, Failure):
                return found
            first = first or found
        raise self._refusal(first)

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


def _try(
    level: Level, failure: Failure | None, command: Command, limits: Limits, network: bool
) -> tuple[Root, Cell] | Failure:
    """Every step for real, again without what this host cannot give and a cell can do without."""
    without = Without()
    while True:
        found = _prove(level, failure, command, limits, network, without)
        if not isinstance(found, Failure):
            return found
        poorer = without._replace(**{_DISPENSABLE[found.step]: True}) if found.step in _DISPENSABLE else without
        if poorer == without:
            return found
        without = poorer


def _prove(
    level: Level, failure: Failure | None, command: Command, limits: Limits, network: bool, without: Without
) -> tuple[Root, Cell] | Failure:
    try:
        root = Root(level, network, failure, without)
    except SetupFailed as error:
        return error.failure
    cell = None
    try:
        cell = _start(root, command, limits)
        if cell.wait_ready(_READY_S):
            return root, cell
        refused = cell.failure
        if refused is None:
            raise EngineFailed(f"a sandbox ended or hung while it was made, in {_READY_S:.0f} s; see `fumehood doctor`")
        if refused.step == "internal":
            raise EngineFailed(f"a sandbox could not be made, which is a defect in fumehood: {refused.detail}")
    except SetupFailed as error:
        refused = error.failure
    except BaseException:
        if cell is not None:
            cell.close()
        root.zygote.close()
        raise
    if cell is not None:
        cell.close()
    root.zygote.close()
    return refused


def _start(root: Root, command: Command, limits: Limits) -> Cell:
    directory: str | None = None
    release: Callable[[Group | None], None] | None = None
    if root.level != "sealed":
        from . import private  # tempfile and shutil would cost every sealed first call

        try:
            directory = private.make(root.layout, root.owner)
        except OSError as error:
            step = "become" if root.owner is not None else "private_directory"
            raise SetupFailed(Failure(step, error.errno or 0, str(error))) from error

        def release(group: Group | None) -> None:
            if group is not None:
                group.clear()
            private.remove(directory)

    try:
        cell, group = root.zygote.make_cell(root.order(limits, directory), limits)
    except BaseException:
        if release is not None:
            release(None)
        raise
    cell.belong(
        sealed=root.level == "sealed",
        group=group,
        receipt=root.receipt(limits),
        on_close=functools.partial(release, group) if release is not None else None,
    )
    environment = {} if directory is None else root.environment(directory)
    cell.feed(_program(command, environment), command.stdin)
    return cell


def _program(command: Command, environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "argv": list(command.argv),
        "script": command.script,
        "inline": command.script is not None and command.argv[0] == "python",
        "env": {**environment, **command.env},
        "files": dict(command.files),
        "cpu_s": max(1, math.ceil(command.cpu_s)) if command.cpu_s else 0,
    }


_engines: dict[tuple[str, str | None], Engine] = {}
_engines_lock = threading.Lock()


def shared(isolation: str, require: str | None) -> Engine:
    """One engine for each isolation asked for: its zygotes are worth keeping while this process lives."""
    if isolation not in ("auto", *LEVELS):
        raise BadArgument(f"isolation must be auto, {', '.join(LEVELS)}, not {isolation!r}")
    with _engines_lock:
        return _engines.setdefault((isolation, require), Engine(isolation, require))


def _renew_lock() -> None:
    global _engines_lock
    _engines_lock = threading.Lock()


atexit.register(close_all)
os.register_at_fork(after_in_child=_renew_lock)
