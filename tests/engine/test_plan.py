"""The plan is data. What it says, and in which order, is the sandbox."""

from __future__ import annotations

import marshal
import os
from typing import Any

import pytest

from fumehood.engine import _syscalls as sys_calls
from fumehood.engine import plan
from fumehood.engine.flags import NEWCGROUP, NEWIPC, NEWNET, NEWNS, NEWPID, NEWUSER, NEWUTS
from fumehood.engine.jail import _ATTRIBUTES, Jail
from fumehood.engine.layout import Layout
from fumehood.engine.plan import OWN_INODES, Caller, CellPlan, ZygotePlan
from fumehood.guest.rlimits import NUMBERS
from fumehood.types import LEVELS, Limits

ROOT, USER = Caller(0, 0), Caller(1234, 5678)
CALLERS = pytest.mark.parametrize("caller", [ROOT, USER], ids=["root", "user"])
LIMITS = Limits(memory_bytes=1 << 26, processes=9, open_files=77, file_bytes=1234, disk_bytes=5 << 20, inodes=99)
FILTER = b"\x06\x00\x00\x00\x00\x00\x00\x00"


def layout(*trees: str, links: tuple[tuple[str, str], ...] = (), virtual: bool = False, files: tuple[str, ...] = ()):
    return Layout(
        executable="/opt/py/bin/python3.11",
        is_virtual=virtual,
        trees=trees or ("/usr", "/opt/py"),
        links=links,
        devices=("/dev/null", "/dev/urandom"),
        files=frozenset(files),
    )


def zygote(caller: Caller = ROOT, shown: Layout | None = None, **options: Any) -> ZygotePlan:
    return plan.plan_zygote("sealed", shown or layout(), caller, **options)


def sealed(caller: Caller = ROOT, made: ZygotePlan | None = None, **changes: Any) -> CellPlan:
    without = plan.Without(proc=not changes.pop("has_proc", True))
    options = {"network": False, "counted": True, **changes}
    return plan.plan_sealed_cell(caller, made or zygote(caller), LIMITS, FILTER, without, **options)


def opened(level: str, caller: Caller = ROOT, **changes: Any) -> CellPlan:
    options = {
        "seccomp": FILTER if level == "confined" else None,
        "readable": ("/usr",),
        "drop_root": True,
        "landlock": True,
        "keeps_signals": True,
        "others": None,
        **changes,
    }
    return plan.plan_open_cell(level, caller, LIMITS, "/private", **options)  # type: ignore[arg-type]


def names(steps: tuple[plan.Step, ...]) -> list[str]:
    return [step[0] for step in steps]


def step(steps: tuple[plan.Step, ...], name: str) -> plan.Step:
    (only,) = [step for step in steps if step[0] == name]
    return only


def rlimits(steps: tuple[plan.Step, ...]) -> dict[str, int]:
    return dict(step(steps, "limits")[1])


EVERY_PLAN: dict[str, tuple[plan.Step, ...]] = {
    **{f"zygote-{who}": zygote(caller).steps for who, caller in (("root", ROOT), ("user", USER))},
    **{
        f"sealed-{who}-{network}-{has_proc}-{counted}": sealed(
            caller, network=network, has_proc=has_proc, counted=counted
        ).cell_steps
        for who, caller in (("root", ROOT), ("user", USER))
        for network in (False, True)
        for has_proc in (False, True)
        for counted in (False, True)
    },
    **{
        f"{level}-{who}-{drop}": opened(level, caller, drop_root=drop).program_steps
        for level in ("confined", "process")
        for who, caller in (("root", ROOT), ("user", USER))
        for drop in (False, True)
    },
    "open-cell": opened("process").cell_steps,
}


# ---- every plan


def test_every_step_has_someone_who_does_it() -> None:
    for plan_name, steps in EVERY_PLAN.items():
        for name in names(steps):
            assert callable(getattr(Jail, f"step_{name}", None)), f"{name} of {plan_name}"


def test_a_plan_crosses_a_process_boundary_unchanged() -> None:
    for plan_name, steps in EVERY_PLAN.items():
        assert marshal.loads(marshal.dumps(steps)) == steps, plan_name


def test_no_step_is_taken_twice() -> None:
    for plan_name, steps in EVERY_PLAN.items():
        assert len(set(names(steps))) == len(steps), plan_name


@pytest.mark.parametrize("level", LEVELS)
def test_planning_asks_nothing_of_the_machine(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a plan is pure")

    for name in ("stat", "lstat", "listdir", "scandir", "open", "readlink", "getcwd", "geteuid"):
        monkeypatch.setattr(os, name, refuse)
    made = plan.plan_zygote(level, layout(), USER)  # type: ignore[arg-type]
    if level == "sealed":
        sealed(USER, made)
    else:
        opened(level, USER)


# ---- the zygote


@pytest.mark.parametrize("level", ["confined", "process"])
def test_only_a_sealed_zygote_has_namespaces(level: str) -> None:
    assert plan.plan_zygote(level, layout(), ROOT) == ZygotePlan(0, (("adopt_orphans",),))  # type: ignore[arg-type]


def test_an_ordinary_users_zygote_maps_its_own_id_before_anything_else() -> None:
    made = zygote(USER)
    assert made.steps[0] == ("map_ids", 1234, 1234, 5678)
    assert made.flags == NEWUSER | NEWNS | NEWPID | NEWUTS
    assert not {"become", "unshare"} & set(names(made.steps))


def test_roots_zygote_builds_as_root_and_is_never_root_again() -> None:
    made = zygote(ROOT)
    assert made.flags == NEWNS | NEWPID | NEWUTS
    nobody = plan.UNPRIVILEGED_ID
    assert made.steps[-4:] == (
        ("become", nobody, nobody),
        ("unshare", NEWUSER | NEWNS),
        ("map_ids", nobody, nobody, nobody),
        ("undumpable",),
    )
    assert nobody == 65534


@CALLERS
def test_the_hosts_mounts_are_cut_off_before_the_first_mount(caller: Caller) -> None:
    order = names(zygote(caller).steps)
    for later in ("open_trees", "new_root", "attach_trees", "root_proc", "enter_root"):
        assert order.index("private_mounts") < order.index(later)


@CALLERS
def test_trees_are_opened_before_the_new_root_covers_them_and_attached_before_it_is_entered(caller: Caller) -> None:
    order = names(zygote(caller).steps)
    wanted = ["open_trees", "new_root", "skeleton", "attach_trees", "show_parked", "root_proc", "enter_root"]
    assert [name for name in order if name in wanted] == wanted


def test_trees_stand_at_their_own_paths_and_devices_are_marked() -> None:
    (trees,) = step(zygote().steps, "open_trees")[1:]
    assert trees == (
        ("/usr", "/usr", "files"),
        ("/opt/py", "/opt/py", "files"),
        ("/dev/null", "/dev/null", "device"),
        ("/dev/urandom", "/dev/urandom", "device"),
    )


def test_each_cell_has_overlays_of_what_is_run_and_imported_and_of_nothing_else() -> None:
    parts = [f"/tmp/env/{name}" for name in ("bin", "lib", "include", "share", "pyvenv.cfg")]
    shown = layout("/usr", "/bin", "/opt/py", "/etc/ssl/certs", *parts, files=("/tmp/env/pyvenv.cfg",))
    assert zygote(shown=shown).overlaid == ("/usr", "/bin", "/opt/py", "/run/trees/0/lib")


def test_every_tree_has_something_to_be_mounted_on() -> None:
    shown = layout("/usr", "/etc/ssl/openssl.cnf", "/tmp/venv/pyvenv.cfg", files=("/etc/ssl/openssl.cnf",))
    made = zygote(shown=shown._replace(files=frozenset({"/etc/ssl/openssl.cnf", "/tmp/venv/pyvenv.cfg"})))
    _, directories, _, files = step(made.steps, "skeleton")
    (trees,) = step(made.steps, "open_trees")[1:]
    for source, target, kind in trees:
        if kind == "device" or source in ("/etc/ssl/openssl.cnf", "/tmp/venv/pyvenv.cfg"):
            assert (target, "") in files
            assert kind == "device" or os.path.dirname(target) in directories
        else:
            assert target in directories


def test_a_file_of_the_skeleton_is_written_once() -> None:
    _, _, links, files = step(zygote(resolv_conf="nameserver 1.1.1.1\n").steps, "skeleton")
    paths = [path for path, _ in (*links, *files)]
    assert len(paths) == len(set(paths))


def test_the_skeletons_etc_names_only_the_sandbox() -> None:
    _, _, _, files = step(zygote(resolv_conf="nameserver 10.9.8.7\n").steps, "skeleton")
    texts = dict(files)
    assert texts["/etc/passwd"].count("\n") == 1
    assert texts["/etc/passwd"].startswith("sandbox:x:1000:1000:")
    assert texts["/etc/group"] == "sandbox:x:1000:\n"
    assert "127.0.0.1 localhost" in texts["/etc/hosts"]
    assert texts["/etc/resolv.conf"] == "nameserver 10.9.8.7\n"


def test_python_is_a_link_unless_a_virtualenv_brings_its_own() -> None:
    _, _, plain, _ = step(zygote().steps, "skeleton")
    assert ("/run/bin/python", "/opt/py/bin/python3.11") in plain
    assert ("/run/bin/python3", "/opt/py/bin/python3.11") in plain
    _, _, virtual, _ = step(zygote(shown=layout(virtual=True)).steps, "skeleton")
    assert not [link for link in virtual if link[0].startswith("/run/bin")]


@CALLERS
def test_a_zygote_that_starts_anew_finds_our_modules_in_its_root_and_nothing_else_does(caller: Caller) -> None:
    (trees,) = step(zygote(caller, package="/src/fumehood").steps, "open_trees")[1:]
    assert ("/src/fumehood", "/run/engine/fumehood", "files") in trees
    (trees,) = step(zygote(caller).steps, "open_trees")[1:]
    assert not [tree for tree in trees if "fumehood" in tree[1]]


@CALLERS
def test_the_hosts_proc_is_lent_only_where_no_other_can_be_mounted(caller: Caller) -> None:
    made = zygote(caller, has_proc=False)
    assert ("/proc", "/proc", "proc") in step(made.steps, "open_trees")[1]
    assert "root_proc" not in names(made.steps)
    assert "/proc" not in [source for source, _, _ in step(zygote(caller).steps, "open_trees")[1]]
    order = names(sealed(caller, made, has_proc=False).cell_steps)
    assert order.index("map_ids") < order.index("no_proc") < order.index("seccomp"), "covered before a program is read"


@pytest.mark.parametrize("kind", ["files", "device"])
def test_no_tree_of_the_host_is_writable_or_gives_privileges(kind: str) -> None:
    assert _ATTRIBUTES[kind] & sys_calls.MOUNT_ATTR_RDONLY
    assert _ATTRIBUTES[kind] & sys_calls.MOUNT_ATTR_NOSUID


# ---- trees beneath places that are private


@pytest.mark.parametrize("cover", ["/tmp", "/workspace", "/mnt", "/home/sandbox", "/dev/shm", "/var/tmp"])
def test_a_virtualenv_beneath_a_private_place_is_parked_and_uncovered_again(cover: str) -> None:
    parts = (f"{cover}/a/.venv/bin", f"{cover}/a/.venv/lib", f"{cover}/a/.venv/pyvenv.cfg")
    shown = layout("/usr", *parts, virtual=True, files=(parts[2],), links=((f"{cover}/a/.venv/lib64", "lib"),))
    made = zygote(shown=shown)
    (trees,) = step(made.steps, "open_trees")[1:]
    places = {source: target for source, target, _ in trees}
    ((place, path),) = made.uncovered
    assert path == f"{cover}/a/.venv"
    assert not any(place == private or place.startswith(f"{private}/") for private in plan._COVERED)
    assert [places[part] for part in parts] == [f"{place}/bin", f"{place}/lib", f"{place}/pyvenv.cfg"]
    _, _, links, _ = step(made.steps, "skeleton")
    assert (f"{place}/lib64", "lib") in links
    assert step(made.steps, "show_parked")[1] == made.uncovered
    assert step(sealed(made=made).cell_steps, "uncover")[1] == made.uncovered


def test_a_tree_that_lies_directly_in_a_private_place_is_parked_by_itself() -> None:
    made = zygote(shown=layout("/usr", "/tmp/py", "/tmp/other"))
    assert {path for _, path in made.uncovered} == {"/tmp/py", "/tmp/other"}, "never the whole of /tmp"


@pytest.mark.parametrize("path", ["/home/someone/venv", "/opt/venv", "/tmpfs/venv", "/mnt2/venv", "/root/.venv"])
def test_a_virtualenv_elsewhere_stays_where_it_is(path: str) -> None:
    made = zygote(shown=layout("/usr", f"{path}/bin", virtual=True))
    assert made.uncovered == ()
    (trees,) = step(made.steps, "open_trees")[1:]
    assert (f"{path}/bin", f"{path}/bin", "files") in trees
    assert "uncover" not in names(sealed(made=made).cell_steps)


def test_two_virtualenvs_are_parked_apart() -> None:
    made = zygote(shown=layout("/tmp/a/bin", "/tmp/a/lib", "/tmp/b/bin"))
    assert sorted(path for _, path in made.uncovered) == ["/tmp/a", "/tmp/b"]
    assert len({place for place, _ in made.uncovered}) == 2


def test_what_is_uncovered_comes_after_what_covers_it() -> None:
    order = names(sealed(made=zygote(shown=layout("/tmp/v/bin"))).cell_steps)
    assert order.index("private_tree") < order.index("uncover") < order.index("drop_capabilities")


# ---- sealed cells


SEALED = [
    pytest.param(sealed(caller, network=network, has_proc=has_proc, counted=counted), id=f"{who}-{network}-{has_proc}")
    for who, caller in (("root", ROOT), ("user", USER))
    for network in (False, True)
    for has_proc, counted in ((False, False), (True, True))
]


@pytest.mark.parametrize("cell", SEALED)
def test_ids_come_first_and_the_filter_last(cell: CellPlan) -> None:
    order = names(cell.cell_steps)
    assert order[:3] == ["dumpable", "map_ids", "undumpable"]
    assert order.count("dumpable") == 1
    assert order[-1] == "seccomp"
    assert cell.program_steps == (), "nothing is left for the program's own process to lock"


@pytest.mark.parametrize("cell", SEALED)
def test_nothing_that_needs_a_capability_follows_their_loss(cell: CellPlan) -> None:
    order = names(cell.cell_steps)
    assert order[order.index("drop_capabilities") :] == [
        "drop_capabilities",
        "no_new_privileges",
        "seccomp",
    ]


def test_inside_it_is_always_the_same_user() -> None:
    assert sealed(ROOT).cell_steps[1] == ("map_ids", 1000, 65534, 65534)
    assert sealed(USER).cell_steps[1] == ("map_ids", 1000, 1234, 5678)


def test_the_door_to_more_namespaces_is_shut_while_the_hosts_proc_is_still_there() -> None:
    steps = sealed(has_proc=False).cell_steps
    assert ("user_namespaces", 0) in step(steps, "bound_kernel_objects")[1]
    assert names(steps).index("bound_kernel_objects") < names(steps).index("no_proc")


def test_without_network_there_is_an_own_one() -> None:
    cell = sealed(network=False)
    assert cell.flags == NEWUSER | NEWNS | NEWPID | NEWIPC | NEWUTS | NEWNET
    assert step(cell.cell_steps, "unshare") == ("unshare", NEWCGROUP), "once it is in its group"
    assert "loopback" in names(cell.cell_steps)


def test_with_network_only_that_namespace_is_left_out() -> None:
    cell = sealed(network=True)
    assert cell.flags == sealed().flags & ~NEWNET
    assert set(names(sealed().cell_steps)) - set(names(cell.cell_steps)) == {"loopback"}


def test_where_proc_cannot_be_mounted_there_is_none_rather_than_the_hosts() -> None:
    assert "proc" in names(sealed(has_proc=True).cell_steps)
    order = names(sealed(has_proc=False).cell_steps)
    assert "no_proc" in order
    assert "proc" not in order


def test_one_sized_file_system_holds_all_that_is_writable() -> None:
    _, size, inodes, binds = step(sealed().cell_steps, "private_tree")
    assert (size, inodes) == (LIMITS.disk_bytes, LIMITS.inodes + OWN_INODES)
    assert {target for _, target in binds if target} == {"/workspace", "/tmp", "/home/sandbox", "/dev/shm"}
    assert sealed().disk == "/mnt"
    assert sealed().workspace == "/workspace"
    assert sealed().program == "/mnt/program"


# ---- open cells


def test_a_supervisor_outside_adopts_and_dies_with_its_zygote() -> None:
    for level in ("confined", "process"):
        cell = opened(level)
        assert names(cell.cell_steps) == [
            *("adopt_orphans", "die_with_parent"),
            *("no_new_privileges", "keep_signals_inside"),
        ]
        assert names(opened(level, keeps_signals=False).cell_steps) == ["adopt_orphans", "die_with_parent"]
        assert ("die_with_parent", 9) in cell.program_steps
        assert cell.flags == 0
        assert cell.disk is None


@CALLERS
def test_confined_gives_up_rights_then_files_then_calls(caller: Caller) -> None:
    order = names(opened("confined", caller).program_steps)
    wanted = ["limits", "shed_capabilities", "no_new_privileges", "die_with_parent", "landlock", "seccomp"]
    assert [name for name in order if name != "become"] == wanted


def test_root_becomes_nobody_before_anything_else_where_nobody_can_run_the_interpreter() -> None:
    for level in ("confined", "process"):
        assert opened(level, ROOT).program_steps[0] == ("become", 65534, 65534)
        assert "become" not in names(opened(level, ROOT, drop_root=False).program_steps)
        assert "become" not in names(opened(level, USER).program_steps)


def test_root_that_stays_root_loses_its_capabilities_for_good() -> None:
    order = names(opened("confined", ROOT, drop_root=False).program_steps)
    assert "shed_capabilities" in order


def test_landlock_lets_a_program_write_to_its_own_directory_and_to_devices() -> None:
    _, readable, writable = step(opened("confined").program_steps, "landlock")
    assert readable == ("/usr",)
    assert writable[0] == "/private"
    assert all(path.startswith("/dev/") for path in writable[1:])
    assert "landlock" not in names(opened("confined", landlock=False).program_steps)


def test_process_has_no_filter_and_no_file_fence() -> None:
    assert not {"seccomp", "landlock"} & set(names(opened("process", seccomp=FILTER).program_steps))
    assert "no_new_privileges" in names(opened("process").program_steps)


# ---- limits


def test_limits_are_the_ones_asked_for_and_known_to_the_kernel() -> None:
    found = rlimits(sealed(counted=False).cell_steps)
    assert found["core"] == 0
    assert found["file"] == LIMITS.file_bytes
    assert found["open_files"] == LIMITS.open_files
    assert set(found) <= set(NUMBERS)
    assert "memory" not in found, "an address space limit breaks polars and node"


def test_the_kernel_counts_processes_by_user_only_where_no_group_does() -> None:
    assert "processes" not in rlimits(sealed(counted=True).cell_steps)
    assert rlimits(sealed(counted=False).cell_steps)["processes"] == LIMITS.processes + 1, "its supervisor is one"


def test_an_ordinary_users_other_processes_do_not_count_against_an_open_cell() -> None:
    for level in ("confined", "process"):
        assert "processes" not in rlimits(opened(level, USER, others=None).program_steps)
        assert rlimits(opened(level, USER, others=7).program_steps)["processes"] == LIMITS.processes + 7 + 1


# ---- the environment


def test_the_environment_is_what_is_promised_and_nothing_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_CANARY", "secret")
    monkeypatch.setenv("LANG", "de_DE")
    monkeypatch.setenv("HOME", "/home/secret")
    found = plan.environment(layout(), "/h", "/t", "/l", 3)
    assert found == {
        "HOME": "/h",
        "LANG": "C.UTF-8",
        "LOGNAME": "sandbox",
        "MPLCONFIGDIR": "/h/.config/matplotlib",
        "OMP_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "PATH": "/l:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "POLARS_MAX_THREADS": "3",
        "TMPDIR": "/t",
        "TZ": "UTC",
        "USER": "sandbox",
        "XDG_CACHE_HOME": "/h/.cache",
    }


def test_a_virtualenvs_programs_come_first() -> None:
    found = plan.environment(layout(virtual=True), "/h", "/t", "/l", 1)
    assert found["PATH"].split(":")[0] == "/opt/py/bin"
