"""A zygote at one level, what was learned when it was tried, and the orders it is given."""

from __future__ import annotations

import functools
import marshal
import os
from collections.abc import Callable
from typing import TypeVar

from ..descriptors import exhausted
from ..errors import EngineFailed
from ..guest.rlimits import most_open_files, no_core
from ..types import Level, Limits, Receipt
from . import plan, receipt
from .cell import Cell
from .cgroups import Group
from .diagnose import fix_for
from .frames import Failure
from .launch import PACKAGE_HOME, boot, host_executable
from .layout import discover
from .pool import Pool
from .zygotes import SetupFailed, Zygote

K = TypeVar("K")
V = TypeVar("V")

_KINDS = 64  # of limits, whose orders are kept
_SCOPES_SIGNALS = 6  # the Landlock ABI from which on it does
_READABLE = ("/proc", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/resolv.conf")


class Root:
    def __init__(
        self,
        level: Level,
        network: bool,
        failure: Failure | None,
        without: plan.Without,
        preload: tuple[str, ...] = (),
    ):
        self.level = level
        self.is_closed = False
        self._when_closed: list[Callable[[], None]] = []
        self.preload = preload if level == "sealed" else ()
        self._without = without
        self.zygote = Zygote(host_executable())
        try:
            self._build(level, network, failure)
        except BaseException:
            self.zygote.close()
            raise

    def _build(self, level: Level, network: bool, failure: Failure | None) -> None:
        self.layout = discover(host_executable())
        self._network = network
        self._failure = failure  # why no stronger level
        self.caller = plan.Caller(os.geteuid(), os.getegid(), not self._without.become, no_core(), most_open_files())
        again = level == "sealed" and _is_within_reach(self.layout.executable, self.caller)
        self.plan = plan.plan_zygote(
            level,
            self.layout,
            self.caller,
            resolv_conf=_resolv_conf() if network else "",
            package=f"{PACKAGE_HOME}/fumehood" if again else None,
            has_proc=not self._without.proc,
            preloads=bool(self.preload),
        )
        self._cores = len(os.sched_getaffinity(0))
        self._orders: dict[tuple[Limits, bool, bool], bytes] = {}
        self._plans_in_volumes: dict[Limits, plan.CellPlan] = {}
        self._receipts: dict[Limits, Receipt] = {}
        self._pools: dict[tuple[Limits, bool], Pool] = {}  # by whether their cells show their files
        self.zygote.become(
            {
                "flags": self.plan.flags,
                "steps": self.plan.steps,
                "overlaid": self.plan.overlaid,
                "packages": self.layout.user_packages,
                "preload": list(self.preload),
                "env": self._environment(None) if level == "sealed" else {},
                "again": boot(self.layout.executable, plan.ENGINE) if again else None,
            }
        )
        drops = self.caller.drops and level != "sealed" and _others_can_run(self.layout.executable)
        self.owner = plan.UNPRIVILEGED_ID if drops else None  # whose the program's directory is, if not ours
        self._filter = self._compile_filter()  # while the root is built
        self.zygote.wait_up()
        if not self.zygote.try_groups():
            self._filter = self._compile_filter()
        self._landlock = self.zygote.landlock_abi if level == "confined" else 0

    def _compile_filter(self) -> bytes | None:
        return _filter(
            self.level,
            self._network,
            counted=self.zygote.groups.counts("memory"),
            can_watch_files=self.level == "sealed" and not self._without.bounds,
            asks=self._asks,
        )

    def make_cell(self, limits: Limits, *, waits: bool = False, shows: bool = False) -> Cell:
        """A cell that has been born and gets ready for a program while the caller goes on.

        One that `waits` has time to spare: it does ahead what else the first lines of a program would pay for.
        One that `shows` lets its program's files be read until it is closed.
        """
        directory = None if self.level == "sealed" else self.private_directory()
        group: Group | None = None

        def clear() -> None:
            if directory is not None:
                from . import private

                if group is not None:
                    group.clear()
                private.remove(directory)

        cell = None
        try:
            cell = Cell()
            if shows:
                self._let_show(cell, directory)
            group = self.zygote.make_cell(self._order_for(limits, directory, waits, shows), limits, cell)
        except BaseException:
            if cell is not None:
                cell.close()
            clear()
            raise
        self._adopt(cell, directory, group, limits)
        cell.when_closed(clear)
        return cell

    def _adopt(
        self, cell: Cell, directory: str | None, group: Group | None, limits: Limits, *, shares_group: bool = False
    ) -> None:
        cell.directory = directory
        cell.belong(
            sealed=directory is None,
            group=group,
            receipt=self.receipt(limits),
            is_orphan=self.zygote.is_gone,
            kill_orphans=self.zygote.kill_orphans,
            shares_group=shares_group,
        )

    def _let_show(self, cell: Cell, directory: str | None) -> None:
        if directory is None:
            cell.show({plan.TMP: "."}, plan.UNPRIVILEGED_ID if self.caller.drops else None)
            return
        from . import private

        private.add_session_parts(directory, self.owner)
        top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        cell.show({f"{directory}/tmp": "tmp", plan.TMP: "tmp"}, self.owner, top)

    def make_cell_in(
        self,
        cell: Cell,
        limits: Limits,
        group: Group | None,
        volume: int | None,
        directory: str | None,
        shown: str | None,
        *,
        waits: bool = False,
    ) -> None:
        """Like `make_cell`, with the files of a volume or of a directory, and in their group."""
        try:
            if directory is not None:
                open_cell = self._open_cell(limits, directory, () if shown is None else (shown,))
                order = self._order(open_cell, limits, directory)
            else:
                plan_in_volume = self._plans_in_volumes.get(limits)
                if plan_in_volume is None:
                    plan_in_volume = self._sealed_cell(limits, in_volume=True)
                    _remember(self._plans_in_volumes, limits, plan_in_volume)
                order = self._order(plan_in_volume, limits, volume=volume, waits=waits)
        except BaseException:
            cell.close()
            raise
        self.zygote.make_cell(order, limits, cell, group, is_shared=True)
        self._adopt(cell, directory, group, limits, shares_group=True)

    def pool(self, limits: Limits, maximum: int, *, shows: bool = False) -> Pool:
        """The one for these limits: they are built into a cell."""
        limits = limits.built_in()
        pool = self._pools.get((limits, shows))
        if pool is None:
            make = functools.partial(self.make_cell, limits, waits=True, shows=shows)
            pool = self._pools.setdefault((limits, shows), Pool(make, maximum))
        pool.grow_to(maximum)
        return pool

    def end_pool(self, limits: Limits, *, shows: bool = False) -> None:
        pool = self._pools.pop((limits.built_in(), shows), None)
        if pool is not None:
            pool.close()

    def when_closed(self, call: Callable[[], None]) -> None:
        self._when_closed.append(call)

    def close(self) -> None:
        self.is_closed = True
        while self._when_closed:
            self._when_closed.pop()()
        for pool in list(self._pools.values()):
            pool.close()
        self.zygote.close()

    def environment_of(self, cell: Cell) -> dict[str, str]:
        """What its program finds beyond what the zygote has already."""
        return {} if cell.directory is None else self._environment(cell.directory)

    def private_directory(self) -> str:
        from . import private  # tempfile and shutil would cost every sealed first call

        try:
            return private.make(self.layout, self.owner)
        except OSError as error:
            if (said := exhausted(error)) is not None:
                raise EngineFailed(said) from error
            step = "become" if self.owner is not None else "private_directory"
            raise SetupFailed(Failure(step, error.errno or 0, str(error))) from error

    def _order_for(self, limits: Limits, directory: str | None, waits: bool, shows: bool) -> bytes:
        """What the zygote is told for one cell."""
        if directory is not None:
            return self._order(self._open_cell(limits, directory), limits, directory)
        known = self._orders.get((limits, waits, shows))
        if known is None:
            cell = self._sealed_cell(limits, shows=shows)
            known = self._order(cell, limits, waits=waits)
            _remember(self._orders, (limits, waits, shows), known)
        return known

    def _sealed_cell(self, limits: Limits, *, in_volume: bool = False, shows: bool = False) -> plan.CellPlan:
        assert self._filter is not None
        return plan.plan_sealed_cell(
            self.caller,
            self.plan,
            limits,
            self._filter,
            self._without,
            network=self._network,
            counted=self.zygote.groups.counts("pids"),
            asks=bool(self._asks),
            in_volume=in_volume,
            shows=shows,
        )

    def _environment(self, directory: str | None) -> dict[str, str]:
        if directory is None:
            return plan.environment(self.layout, plan.HOME, plan.TMP, plan.LINKS, self._cores)
        return plan.environment(self.layout, f"{directory}/home", f"{directory}/tmp", f"{directory}/bin", self._cores)

    def receipt(self, limits: Limits) -> Receipt:
        known = self._receipts.get(limits)
        if known is None:
            enforced = receipt.Enforced(
                level=self.level,
                network=self._network,
                seccomp=self.level != "process",
                landlock=self._landlock,
                own_proc=not self._without.proc,
                counts_sockets="network" in self._asks,
                fences_metadata=self.level == "confined" and ("metadata" in self._asks or self.owner is not None),
                became_unprivileged=self.caller.drops and (self.level == "sealed" or self.owner is not None),
                is_root=self.caller.is_root,
                groups=self.zygote.groups.home,
                failure=self._failure,
                fix=fix_for(self._failure.step, self._failure.errno) if self._failure is not None else None,
            )
            known = receipt.write(enforced, limits)
            _remember(self._receipts, limits, known)
        return known

    def _open_cell(self, limits: Limits, directory: str, shown: tuple[str, ...] = ()) -> plan.CellPlan:
        return plan.plan_open_cell(
            self.level,
            self.caller,
            limits,
            directory,
            seccomp=self._filter,
            readable=(*self.layout.trees, *self.layout.devices, *_READABLE, *shown),
            drop_root=self.owner is not None,
            landlock=bool(self._landlock),
            keeps_signals=self._keeps_signals,
            others=None if self.zygote.groups.counts("pids") else _tasks_of(self.owner or self.caller.uid),
            asks=bool(self._asks),
        )

    def _order(
        self,
        cell: plan.CellPlan,
        limits: Limits,
        directory: str | None = None,
        *,
        waits: bool = False,
        volume: int | None = None,
    ) -> bytes:
        return marshal.dumps(
            {
                "flags": cell.flags,
                "volume": volume,
                "groups": self.zygote.groups.version,
                "cell_steps": cell.cell_steps,
                "program_steps": cell.program_steps,
                "directory": directory,
                "waits": waits,
                "workspace": cell.workspace,
                "program": cell.program,
                "sealed": self.level == "sealed",
                "disk": cell.disk,
                "watch_memory": limits.memory_bytes if self._watches() else None,
                "processes": None if self.zygote.groups.counts("pids") else limits.processes,
                "sockets": plan.most_sockets(limits),
            }
        )

    @property
    def _keeps_signals(self) -> bool:
        """Whether a supervisor can reach its own processes and nobody else: the kernel then kills them all at once."""
        return self.level != "sealed" and self.zygote.landlock_abi >= _SCOPES_SIGNALS

    @property
    def _asks(self) -> tuple[str, ...]:
        """What a program's filter asks about: sockets of its own network, and what else nobody counts or fences."""
        if self._without.asking:
            return ()
        if self.level == "confined":
            return ("metadata",) if self.owner is None else ()  # who has an id of its own owns no file of the host
        if self.level != "sealed" or self._without.proc:
            return ()
        counted = self.zygote.groups.counts("memory")
        if self._network:
            return ("epolls", "locks") if counted else ("epolls", "locks", "shared_memory")
        return ("epolls", "locks", "network", *(() if counted else ("unix", "shared_memory")))

    def _watches(self) -> bool:
        """Whether the supervisor must add up the tree's memory, and can."""
        return not self.zygote.groups.counts("memory") and not self._without.proc


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Of a few kinds: whoever brings other limits each time must not fill our memory."""
    for oldest in list(known)[: max(0, len(known) + 1 - _KINDS)]:
        known.pop(oldest, None)
    known[key] = value


def _filter(
    level: Level, network: bool, *, counted: bool, can_watch_files: bool, asks: tuple[str, ...]
) -> bytes | None:
    if level == "process":
        return None
    from . import seccomp  # its tables load while the interpreter starts

    machine = os.uname().machine
    if not seccomp.supported(machine):
        raise SetupFailed(Failure("seccomp", 0, f"no table of system calls for {machine}"))
    # A cell with its own network namespace may open what it likes there; without one the filter is the fence.
    return seccomp.compile_filter(
        machine,
        can_open_network=network or level == "sealed",
        can_hold_unmapped_memory=counted,
        can_watch_files=can_watch_files,
        asks=asks,
    )


def _tasks_of(uid: int) -> int:
    """Threads of that user now."""
    total = 0
    try:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass  # gone meanwhile
    except OSError as error:
        raise EngineFailed(exhausted(error) or f"cannot count this user's processes: {error.strerror}") from error
    return total


def _resolv_conf() -> str:
    try:
        with open("/etc/resolv.conf") as file:
            return file.read(4096)
    except OSError as error:
        if (said := exhausted(error)) is not None:
            raise EngineFailed(said) from error
        return ""


def _is_within_reach(executable: str, caller: plan.Caller) -> bool:
    """Whether a program could change the file it runs from through /proc/self/exe, which leads to the host's mount."""
    status = os.stat(executable)
    owner = plan.UNPRIVILEGED_ID if caller.drops else caller.uid
    return status.st_uid == owner or bool(status.st_mode & 0o022)


def _others_can_run(executable: str) -> bool:
    """Whether a user without rights could still start this interpreter: pyenv beneath /root cannot be."""
    path = os.path.realpath(executable)
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True
