"""Finds the strongest level this host can give by doing it, and starts programs at that level."""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadArgument, EngineFailed, IsolationUnavailable
from ..types import LEVELS, Command, Exited, Level, Limits, Receipt
from . import plan, receipt, seccomp
from .cell import Cell
from .cgroups import Group, Home
from .diagnose import errno_name, fix_for
from .frames import Failure
from .layout import Layout, discover
from .zygotes import SetupFailed, Zygote, ZygoteGone, close_all

_READY_S = 15.0
_ATTEMPTS = 3
_READABLE = ("/proc", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/resolv.conf")


@dataclass(slots=True)
class _Root:
    """A zygote that works, and what was learned when it was tried."""

    level: Level
    zygote: Zygote
    plan: plan.ZygotePlan
    layout: Layout
    has_proc: bool = True
    landlock: int = 0
    drops_root: bool = False
    failure: Failure | None = None  # why no stronger level


class Engine:
    """All sandboxes of this process that ask for the same isolation share one."""

    def __init__(self, isolation: str, require: str | None):
        self._isolation = isolation
        self._require = require
        self._lock = threading.Lock()
        self._roots: dict[bool, _Root] = {}  # by whether the host's network is wanted
        self._owner = os.getpid()

    def start(self, command: Command, limits: Limits, *, network: bool) -> Cell:
        """The program is on its way when this returns."""
        for _ in range(_ATTEMPTS):
            root = self._known(network)
            try:
                if root is None:
                    return self._first(command, limits, network)
                return self._start(root, command, limits, network)
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
        """Make a sandbox for real, if none was made yet, and say what it enforces."""
        cell = self.start(Command(("python", "main.py"), b""), limits, network=network)
        try:
            while not isinstance(event := cell.read(_READY_S), Exited):
                if event is None:
                    raise EngineFailed(f"a sandbox did not answer in {_READY_S:.0f} s; the kernel may hang in a step")
            return cell.receipt
        finally:
            cell.close()

    def close(self) -> None:
        with self._lock:
            for root in self._roots.values():
                root.zygote.close()
            self._roots.clear()

    # --- levels

    def _known(self, network: bool) -> _Root | None:
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
        return self._start(root, command, limits, network)

    def _drop(self, network: bool, root: _Root) -> None:
        with self._lock:
            if self._roots.get(network) is root:
                del self._roots[network]
        root.zygote.close()

    def _find(self, command: Command, limits: Limits, network: bool) -> tuple[_Root, Cell]:
        wanted = tuple(reversed(LEVELS)) if self._isolation == "auto" else (self._isolation,)
        first: Failure | None = None
        for level in LEVELS[::-1]:
            if level not in wanted:
                continue
            if self._require is not None and LEVELS.index(level) < LEVELS.index(self._require):
                break
            found = self._try(level, first, command, limits, network)
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
        self, level: Level, failure: Failure | None, command: Command, limits: Limits, network: bool
    ) -> tuple[_Root, Cell] | Failure:
        """Every step for real."""
        layout = discover()
        zygote_plan = plan.plan_zygote(level, layout, _caller(), _resolv_conf() if network else "")
        blueprint = {
            "flags": zygote_plan.flags,
            "steps": zygote_plan.steps,
            "packages": layout.user_packages,
        }
        if level != "process" and not seccomp.supported(os.uname().machine):
            return Failure("seccomp", 0, f"no table of system calls for {os.uname().machine}")
        try:
            zygote = Zygote(layout.executable, blueprint)
        except SetupFailed as error:
            return error.failure
        root = _Root(level, zygote, zygote_plan, layout, failure=failure)
        if level != "sealed":
            root.drops_root = _caller().is_root and _others_can_run(layout.executable)
        if level == "confined":
            root.landlock = zygote.landlock_abi
        try:
            return self._prove(root, command, limits, network)
        except BaseException:
            zygote.close()
            raise

    def _prove(self, root: _Root, command: Command, limits: Limits, network: bool) -> tuple[_Root, Cell] | Failure:
        while True:
            cell = None
            try:
                cell = self._start(root, command, limits, network)
                if cell.wait_ready(_READY_S):
                    return root, cell
                failure = cell.failure
            except SetupFailed as error:
                failure = error.failure
            if cell is not None:
                cell.close()
            if failure is None:
                raise EngineFailed(
                    f"a sandbox did not answer in {_READY_S:.0f} s; the kernel may hang in one of the steps"
                )
            if failure.step == "proc" and root.has_proc:
                root.has_proc = False  # rather none than the host's
                continue
            root.zygote.close()
            return failure

    # --- one cell

    def _start(self, root: _Root, command: Command, limits: Limits, network: bool) -> Cell:
        release: Callable[[Group | None], None] | None = None
        if root.level == "sealed":
            home, tmp, links = plan.HOME, plan.TMP, plan.LINKS
            order = _sealed_order(root.plan, limits, network, root.has_proc, _watched(root.zygote))
        else:
            from . import private  # tempfile and shutil would cost every sealed first call

            directory = private.make(root.layout, plan.UNPRIVILEGED_ID if root.drops_root else None)
            home, tmp, links = f"{directory}/home", f"{directory}/tmp", f"{directory}/bin"
            order = self._open_order(root, limits, network, directory)

            def release(group: Group | None) -> None:
                if group is not None:
                    group.kill(root.zygote.pids)
                private.remove(directory)

        try:
            cell, group = root.zygote.make_cell(order, limits)
        except BaseException:
            if release is not None:
                release(None)
            raise
        cell.belong(
            sealed=root.level == "sealed",
            group=group,
            receipt=self._receipt(root, limits, network),
            on_close=functools.partial(release, group) if release is not None else None,
        )
        environment = plan.environment(root.layout, home, tmp, links, _cores())
        cell.feed(_program(command, environment), command.stdin)
        return cell

    def _open_order(self, root: _Root, limits: Limits, network: bool, directory: str) -> bytes:
        counted = isinstance(root.zygote.home, Home) and "pids" in root.zygote.home.directories
        readable = (
            *root.layout.trees,
            *root.layout.devices,
            "/proc",
            "/etc/hosts",
            "/etc/nsswitch.conf",
            "/etc/resolv.conf",
        )
        cell = plan.plan_open_cell(
            root.level,
            _caller(),
            limits,
            directory,
            seccomp=_filter(network) if root.level == "confined" else None,
            readable=readable,
            drop_root=root.drops_root,
            landlock=bool(root.landlock),
            counted=counted,
        )
        return _order(cell, limits, sealed=False, watch=_watched(root.zygote))

    def _receipt(self, root: _Root, limits: Limits, network: bool) -> Receipt:
        caller = _caller()
        failure = root.failure
        return _cached_receipt(
            root.level,
            network,
            root.level != "process",
            root.landlock,
            root.has_proc,
            caller.is_root and (root.level == "sealed" or root.drops_root),
            caller.is_root,
            _Same(root.zygote.home),
            "sealed" if self._isolation == "auto" else self._isolation,
            failure,
            limits,
        )


class _Same:
    """A cache key by identity, for what cannot be hashed."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


@functools.lru_cache(maxsize=64)
def _cached_receipt(
    level: Level,
    network: bool,
    filtered: bool,
    landlock: int,
    own_proc: bool,
    became_unprivileged: bool,
    is_root: bool,
    groups: _Same,
    wanted: Level,
    failure: Failure | None,
    limits: Limits,
) -> Receipt:
    fix = fix_for(failure.step, failure.errno) if failure is not None else None
    enforced = receipt.Enforced(
        level, network, filtered, landlock, own_proc, became_unprivileged, is_root, groups.value, wanted, failure, fix
    )
    return receipt.write(enforced, limits)


@functools.lru_cache(maxsize=64)
def _sealed_order(zygote: plan.ZygotePlan, limits: Limits, network: bool, has_proc: bool, watch: bool) -> bytes:
    cell = plan.plan_sealed_cell(_caller(), zygote, limits, _filter(True), network=network, has_proc=has_proc)
    return _order(cell, limits, sealed=True, watch=watch)


def _order(cell: plan.CellPlan, limits: Limits, *, sealed: bool, watch: bool) -> bytes:
    return marshal.dumps(
        {
            "flags": cell.flags,
            "cell_steps": cell.cell_steps,
            "program_steps": cell.program_steps,
            "workspace": cell.workspace,
            "sealed": sealed,
            "disk": cell.disk,
            "watch_memory": limits.memory_bytes if watch else None,
            "processes": limits.processes,
        }
    )


def _program(command: Command, environment: Mapping[str, str]) -> dict[str, Any]:
    inline = command.script is not None and command.argv[0] == "python"
    return {
        "argv": list(command.argv),
        "script": command.script,
        "inline": inline,
        "env": {**environment, **command.env},
        "files": dict(command.files),
        "cpu_s": int(command.cpu_s) + 1 if command.cpu_s else 0,
    }


@functools.cache
def _filter(can_open_network: bool) -> bytes:
    return seccomp.compile_filter(os.uname().machine, can_open_network=can_open_network)


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _caller() -> plan.Caller:
    return plan.Caller(os.geteuid(), os.getegid())


def _watched(zygote: Zygote) -> bool:
    return not (isinstance(zygote.home, Home) and "memory" in zygote.home.directories)


def _resolv_conf() -> str:
    try:
        with open("/etc/resolv.conf") as file:
            return file.read(4096)
    except OSError:
        return ""


def _others_can_run(executable: str) -> bool:
    """Whether a user without rights could still start this interpreter: pyenv beneath /root cannot be."""
    path = os.path.realpath(executable)
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


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
