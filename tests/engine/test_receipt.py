"""A receipt covers every axis, explains every weaker one, and claims nothing that was not done."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

import pytest

from fumehood.engine import receipt
from fumehood.engine.cgroup_home import Home, Unavailable
from fumehood.engine.frames import Failure
from fumehood.engine.receipt import Enforced
from fumehood.types import AXES, LEVELS, Limits, Receipt

LIMITS = Limits(memory_bytes=64 << 20, processes=9)
_MEMORY = Unavailable("make a memory group", errno.EACCES, "delegate a memory group")
_PIDS = Unavailable("make a pids group", errno.EROFS, "delegate a pids group")
HOMES = {
    "v1": Home(1, {"memory": "/m", "pids": "/p"}, {}, {}),
    "v2": Home(2, {"memory": "/g", "pids": "/g"}, {}, {}),
    "memory-only": Home(1, {"memory": "/m"}, {"pids": _PIDS}, {}),
    "pids-only": Home(1, {"pids": "/p"}, {"memory": _MEMORY}, {}),
    "none": Unavailable("find cgroup", errno.ENOENT, "mount cgroups"),
}
FAILURE = Failure("map_ids", errno.EPERM, "it said no")
STRENGTH = {"none": -1, "process": 0, "confined": 1, "sealed": 2}


def enforced(level: str, **changes: object) -> Enforced:
    plain: dict[str, object] = {
        "level": level,
        "network": False,
        "seccomp": level != "process",
        "landlock": 0,
        "own_proc": level == "sealed",
        "counts_sockets": level == "sealed",
        "fences_metadata": level == "confined",
        "became_unprivileged": False,
        "is_root": False,
        "groups": HOMES["v1"],
        "failure": None if level == "sealed" else FAILURE,
        "fix": None if level == "sealed" else "ask the administrator",
    }
    return Enforced(**{**plain, **changes})  # type: ignore[arg-type]


def every() -> list[tuple[str, Enforced]]:
    found = []
    for level, network, home, landlock, failed, root in itertools.product(
        LEVELS, (False, True), HOMES, (0, 1, 6), (False, True), (False, True)
    ):
        if (landlock and level != "confined") or (failed and level == "sealed"):
            continue
        case = enforced(
            level,
            network=network,
            groups=HOMES[home],
            landlock=landlock,
            failure=FAILURE if failed else None,
            fix="ask the administrator" if failed else None,
            is_root=root,
            became_unprivileged=root and level == "sealed",
        )
        found.append((f"{level}-{network}-{home}-{landlock}-{failed}-{root}", case))
    return found


def in_every_case(*levels: str, refused: bool = False) -> Callable[[Callable[[Enforced], None]], Callable[[], None]]:
    """The test holds in each case of these levels; a failure names the case."""

    def decorate(test: Callable[[Enforced], None]) -> Callable[[], None]:
        def run() -> None:
            chosen = [(name, case) for name, case in every() if case.level in levels and (case.failure or not refused)]
            assert len(chosen) > 10
            for name, case in chosen:
                try:
                    test(case)
                except AssertionError as error:
                    error.add_note(f"in the case {name}")
                    raise

        run.__name__ = test.__name__
        return run

    return decorate


def written(case: Enforced) -> Receipt:
    return receipt.write(case, LIMITS)


@in_every_case(*LEVELS)
def test_every_axis_is_there_and_no_other(case: Enforced) -> None:
    found = written(case)
    assert set(found.axes) == set(AXES)
    assert found.level == case.level
    assert all(axis.mechanism for axis in found.axes.values())


@in_every_case(*LEVELS)
def test_an_axis_that_failed_says_at_which_step_with_what_and_what_to_do(case: Enforced) -> None:
    for axis in written(case).axes.values():
        given = [axis.step, axis.errno, axis.fix]
        assert all(given) or not any(given), axis


@in_every_case(*LEVELS, refused=True)
def test_where_a_level_was_refused_every_weaker_axis_says_why(case: Enforced) -> None:
    for name, axis in written(case).axes.items():
        if axis.level != "sealed":
            assert axis.step, f"{name} is {axis.level} and does not say why"


@in_every_case("process", "confined")
def test_nothing_but_a_sealed_cell_claims_to_be_sealed(case: Enforced) -> None:
    for name, axis in written(case).axes.items():
        assert axis.level != "sealed", name


@in_every_case(*LEVELS)
def test_the_network_is_claimed_only_where_it_was_taken_away(case: Enforced) -> None:
    axis = written(case).axes["network"]
    if case.network or (case.level != "sealed" and not case.seccomp):
        assert axis.level == "none"
        assert "host's network" in axis.mechanism
    else:
        assert axis.level == case.level


@in_every_case(*LEVELS)
def test_memory_is_by_group_only_where_there_is_one_for_memory(case: Enforced) -> None:
    axis = written(case).axes["memory"]
    assert "64 MiB" in axis.mechanism
    if isinstance(case.groups, Home) and "memory" in case.groups.directories:
        assert axis.mechanism.startswith(f"cgroup v{case.groups.version}")
    else:
        assert axis.mechanism.startswith("watch")
        assert axis.level == "process"
        reason = case.groups.missing["memory"] if isinstance(case.groups, Home) else case.groups
        assert (axis.step, axis.fix) == (reason.step, reason.fix)
        assert axis.errno == errno.errorcode[reason.errno]


@in_every_case(*LEVELS)
def test_a_bound_on_processes_is_claimed_only_where_something_counts_them(case: Enforced) -> None:
    axis = written(case).axes["processes"]
    if isinstance(case.groups, Home) and "pids" in case.groups.directories:
        assert axis.mechanism.endswith(f"cgroup v{case.groups.version}, at most 9")
    elif case.level == "sealed":
        assert axis.mechanism.endswith("RLIMIT_NPROC, at most 9")
    elif case.is_root and not case.became_unprivileged:
        assert axis.mechanism.endswith("no bound on their number")
        assert axis.step
    else:
        assert axis.mechanism.endswith("RLIMIT_NPROC, at most 9 more of this user")
        assert axis.step


@in_every_case(*LEVELS)
def test_files_of_the_host_are_fenced_only_by_a_root_or_by_landlock(case: Enforced) -> None:
    axis = written(case).axes["files"]
    if case.level == "sealed":
        assert axis.level == "sealed"
    elif case.landlock:
        assert axis.level == "confined"
        assert f"Landlock ABI {case.landlock}" in axis.mechanism
    else:
        assert axis.level == "none"
        assert "visible" in axis.mechanism


@in_every_case("process")
def test_no_axis_of_a_plain_process_names_a_lock_it_lacks(case: Enforced) -> None:
    text = " ".join(axis.mechanism for axis in written(case).axes.values())
    for word in ("namespace", "seccomp", "Landlock", "capabilities"):
        assert word not in text


def test_a_missing_landlock_is_named_for_what_it_is() -> None:
    axis = written(enforced("confined")).axes["files"]
    assert (axis.step, axis.errno) == ("landlock", "ENOSYS")
    assert axis.fix is not None
    assert "CONFIG_SECURITY_LANDLOCK" in axis.fix


def test_abstract_sockets_are_scoped_from_the_sixth_landlock_on() -> None:
    assert "abstract sockets" not in written(enforced("confined", landlock=5)).axes["ipc"].mechanism
    assert "abstract sockets" in written(enforced("confined", landlock=6)).axes["ipc"].mechanism


def test_a_sealed_cell_with_the_hosts_network_does_not_claim_its_abstract_sockets() -> None:
    assert "network namespace" in written(enforced("sealed")).axes["ipc"].mechanism
    assert "network namespace" not in written(enforced("sealed", network=True)).axes["ipc"].mechanism


def test_root_that_could_not_become_someone_else_is_called_root() -> None:
    stays = {"is_root": True, "became_unprivileged": False}
    assert written(enforced("process", **stays)).axes["privileges"].mechanism == "root, no_new_privs"
    assert "root without capabilities" in written(enforced("confined", **stays)).axes["privileges"].mechanism
    became = enforced("confined", is_root=True, became_unprivileged=True)
    assert "unprivileged user" in written(became).axes["privileges"].mechanism


def test_a_missing_proc_is_said() -> None:
    assert "no /proc" in written(enforced("sealed", own_proc=False)).axes["processes"].mechanism
    assert "own /proc" in written(enforced("sealed", own_proc=True)).axes["processes"].mechanism


def test_a_watch_that_cannot_see_is_not_claimed() -> None:
    axis = written(enforced("sealed", own_proc=False, groups=HOMES["none"])).axes["memory"]
    assert axis.level == "none"


def test_as_data_it_leaves_out_what_there_is_none_of() -> None:
    found = written(enforced("sealed")).as_dict()
    assert found["level"] == "sealed"
    assert set(found) == {"level", *AXES}
    assert set(found["files"]) == {"level", "mechanism"}


@pytest.mark.parametrize("level", LEVELS)
def test_no_axis_is_stronger_than_the_level(level: str) -> None:
    """But for the limits, which a group gives to every level alike."""
    for name, axis in written(enforced(level, landlock=6 if level == "confined" else 0)).axes.items():
        if name != "memory":
            assert STRENGTH[axis.level] <= STRENGTH[level], name


def test_landlock_is_said_to_leave_modes_and_times_where_nobody_fences_them() -> None:
    for fenced in (False, True):
        case = enforced("confined", landlock=7, fences_metadata=fenced)
        assert ("contents only" in receipt.write(case, LIMITS).axes["files"].mechanism) == (not fenced)
