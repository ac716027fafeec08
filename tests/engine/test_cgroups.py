"""Control groups: real ones where this machine lets us make them, and the texts of machines that we do not have."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_view import open_descriptors

import fumehood
from fumehood import in_use
from fumehood.engine import cgroup_home, cgroups, diagnose
from fumehood.engine.cgroup_home import Home, Unavailable
from fumehood.engine.cgroups import Group, Groups
from fumehood.engine.engine import shared
from fumehood.engine.order import program
from fumehood.engine.plan import Without
from fumehood.engine.root import Root
from fumehood.engine.zygotes import Zygote, ZygoteGone
from fumehood.errors import IsolationUnavailable
from fumehood.types import Command, Exited, Limits, Output
from support import HANG_S, wait_until

SMALL = Limits(memory_bytes=32 << 20, processes=3)
NOBODYS_PID = 4194305  # more than the kernel has


# ---- real groups


@pytest.fixture
def groups() -> Iterator[Groups]:
    made = Groups()
    if not isinstance(made.home, Home) or made.home.missing:
        made.remove()
        pytest.skip(f"no groups of our own on this machine: {made.home}")
    yield made
    made.remove()
    for path in made.home.directories.values():
        assert not os.path.exists(path), "a group was left behind"


@contextmanager
def closing_groups() -> Iterator[Groups]:
    made = Groups()
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def home(groups: Groups) -> Home:
    assert isinstance(groups.home, Home)
    return groups.home


@pytest.fixture
def group(groups: Groups) -> Iterator[Group]:
    made = groups.free()
    assert made is not None
    yield made
    made.clear()


def enter(group: Group, pid: int) -> None:
    for path in set(group.paths.values()):
        Path(path, "cgroup.procs").write_text(str(pid))


@contextmanager
def waiting_child(code: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `code` when a line comes on its standard input, after it has been put where it should run."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"input()\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def go(child: subprocess.Popen[str]) -> str:
    return child.communicate("go\n", timeout=HANG_S)[0]


def value(group: Group, controller: str, name: str) -> str:
    return Path(group.paths[controller], name).read_text().strip()


def test_limits_are_in_the_kernels_files(home: Home, group: Group) -> None:
    group.arm(SMALL)
    assert value(group, "pids", "pids.max") == str(SMALL.processes + 1), "the supervisor counts as well"
    assert value(group, "memory", "memory.max" if home.version == 2 else "memory.limit_in_bytes") == str(32 << 20)


def test_limits_go_up_and_down_with_the_next_execution(home: Home, group: Group) -> None:
    name = "memory.max" if home.version == 2 else "memory.limit_in_bytes"
    for size in (64 << 20, 16 << 20, 128 << 20):
        group.arm(Limits(memory_bytes=size))
        assert value(group, "memory", name) == str(size)


def test_who_goes_through_the_doors_is_counted_in_every_controller(home: Home, group: Group) -> None:
    doors = group.doors[1:] if home.version == 2 else group.doors
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import os; [os.write(door, b'0') for door in {doors}]; print(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=doors,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        for controller in group.paths:
            assert value(group, controller, "cgroup.procs") == str(child.pid)
        child.communicate(b"\n")


def test_no_program_inherits_a_door(group: Group) -> None:
    assert group.doors
    assert not [door for door in group.doors if os.get_inheritable(door)]


def test_nothing_was_hit_when_nothing_happened(group: Group) -> None:
    group.arm(SMALL)
    with waiting_child("print('fine')") as child:
        enter(group, child.pid)
        assert go(child) == "fine\n"
    assert group.hits() == (False, False)
    assert not group.ran_out_of_memory()


def test_a_kill_for_memory_is_seen_once(group: Group) -> None:
    group.arm(SMALL)
    with waiting_child("x = bytearray(64 << 20); print('survived')") as child:
        enter(group, child.pid)
        assert go(child) == ""
        assert child.returncode == -signal.SIGKILL
    assert group.hits() == (True, False)
    assert group.ran_out_of_memory()
    group.arm(SMALL)
    assert group.hits() == (False, False), "the next execution starts from nothing"


TOUCHES = f"""
import sys
sys.path.insert(0, {str(Path(fumehood.__file__).parents[1])!r})
from fumehood.engine import _syscalls
print('ready', flush=True)  # what it imports is not on trial
input()
_syscalls.touch_memory(2 * 256 * {os.sysconf("SC_PAGE_SIZE")})
print('touched')
"""


@pytest.mark.parametrize("is_held_back", [True, False])
def test_who_meets_the_limit_of_memory_is_held_back_and_not_killed(group: Group, is_held_back: bool) -> None:
    group.arm(cgroups._TRIAL if is_held_back else Limits(memory_bytes=64 << 20))
    with waiting_child(TOUCHES) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        enter(group, child.pid)
        assert go(child) == "touched\n"
    assert group.hits() == (False, False)
    assert group.has_refused_memory() == is_held_back


def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_heeds_memory", None)


def test_the_limit_of_memory_is_on_trial_once_in_a_process(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    group = groups.on_trial()
    assert group is not None
    assert not group.is_free()
    monkeypatch.setattr(group, "has_refused_memory", lambda: True)
    groups.judge(group)
    assert groups.counts("memory")
    assert groups.free() is group, "it has done nobody any harm"
    assert groups.on_trial() is None
    with closing_groups() as others:
        assert others.on_trial() is None
        assert others.counts("memory")


def test_a_limit_of_memory_that_holds_back_nobody_is_none(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    before = dict(groups.home.directories) if isinstance(groups.home, Home) else {}
    group = groups.on_trial()
    assert group is not None
    monkeypatch.setattr(group, "has_refused_memory", lambda: False)
    groups.judge(group)
    with closing_groups() as others:
        for made in groups, others:
            assert (made.counts("memory"), made.counts("pids")) == (False, True)
            assert isinstance(made.home, Home)
            assert made.home.missing["memory"].step == "be held back by a memory control group"
    other = groups.free()
    assert other is not None
    assert "memory" not in other.paths
    assert os.path.exists(before["memory"]) == (before["memory"] in groups.home.directories.values())


def test_a_judgement_holds_for_groups_that_were_there_before(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    with closing_groups() as others:
        group = groups.on_trial()
        assert group is not None
        monkeypatch.setattr(group, "has_refused_memory", lambda: False)
        groups.judge(group)
        assert others.on_trial() is None
        assert not others.counts("memory")


def test_where_nobody_came_in_the_limit_is_not_to_blame(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    group = groups.on_trial()
    assert group is not None
    groups.judge(group)
    assert groups.counts("memory")


def test_a_limit_that_the_kernel_calls_none_has_held_back_nobody(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cgroups, "_try_read", lambda path: "max\n" if path.endswith(("max", "limit_in_bytes")) else "7\n"
    )
    assert not group.has_refused_memory()


def test_without_any_limit_that_holds_there_are_no_groups(groups: Groups, home: Home) -> None:
    own = groups.free()
    assert own is not None
    own.remove()
    paths = set(home.directories.values())
    home.without("pids")
    assert home.without("memory") == home.missing["memory"]
    assert not any(map(os.path.exists, paths))
    assert not home.held


FORKS = """
import os, time
for _ in range(8):
    try:
        if os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
    except BlockingIOError:
        print('refused', flush=True)
        break
"""


def test_a_refused_process_is_seen_and_clearing_ends_the_rest(group: Group) -> None:
    group.arm(SMALL)
    with waiting_child(FORKS + "time.sleep(3600)") as child:
        enter(group, child.pid)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "refused\n"
        assert group.hits() == (False, True)
        assert len(value(group, "pids", "cgroup.procs").split()) == SMALL.processes + 1
        group.clear()
        assert wait_until(lambda: value(group, "pids", "cgroup.procs") == "")


def test_a_group_is_free_when_its_occupant_is_gone(group: Group) -> None:
    assert group.is_free()
    with waiting_child("") as child:
        group.occupy(os.pidfd_open(child.pid))
        assert not group.is_free()
        go(child)
        assert group.is_free(HANG_S)
        assert group.is_free(), "and stays so"


def test_a_group_that_nothing_holds_together_is_free_only_when_cleared(group: Group) -> None:
    with waiting_child("") as child:
        group.hold()
        group.occupy(os.pidfd_open(child.pid))
        go(child)
        assert not group.is_free(0.1)
        group.clear()
        assert group.is_free()


def test_two_groups_have_limits_of_their_own(home: Home) -> None:
    one, two = Group(home, "one"), Group(home, "two")
    one.arm(Limits(processes=5))
    two.arm(Limits(processes=50))
    assert (value(one, "pids", "pids.max"), value(two, "pids", "pids.max")) == ("6", "51")
    one.remove()
    two.remove()


def test_there_are_as_many_groups_as_cells_alive_at_once(groups: Groups) -> None:
    one = groups.free()
    assert one is not None
    assert groups.free() is one, "nobody is in it"
    with waiting_child("") as child:
        one.occupy(os.pidfd_open(child.pid))
        two = groups.free()
        assert two is not None
        assert two is not one
    assert one.is_free(HANG_S)
    assert groups.free() is one, "used again"


def test_a_home_carries_its_owners_number_and_goes_away_with_its_groups(groups: Groups, home: Home) -> None:
    before = {fd: path for fd, path in open_descriptors().items() if fd not in home.held.values()}
    group = groups.free()
    for path in home.directories.values():
        assert os.path.basename(path).startswith(f"fumehood-{os.getpid()}-")
        assert os.path.isdir(path)
    assert group is not None
    groups.remove()
    for path in (*home.directories.values(), *group.paths.values()):
        assert not os.path.exists(path)
    assert open_descriptors() == before
    groups.remove()


def test_a_forked_child_lets_go_and_leaves_the_groups_to_its_parent(groups: Groups, group: Group) -> None:
    groups.let_go()
    assert group.doors == []
    assert all(os.path.isdir(path) for path in group.paths.values())


def test_a_dead_owners_groups_are_swept_by_the_next(home: Home) -> None:
    for path in set(home.directories.values()):
        left = f"{os.path.dirname(path)}/fumehood-{NOBODYS_PID}-abc"
        os.makedirs(f"{left}/0")
        in_use.sweep(os.path.dirname(path), cgroup_home.remove)
        assert not os.path.exists(left)
        assert os.path.exists(path), "ours is in use"


IN_SESSIONS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
print('ran', flush=True)
time.sleep(3600)
"""


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("level", ["sealed", "confined"])
def test_for_the_scheduler_a_program_is_one_however_many_sessions_it_starts(level: str) -> None:
    """On its own the kernel gives each session as much as any other, the host's included."""
    try:
        cell = shared(level, None).start(Command(("python", "main.py"), IN_SESSIONS.encode()), Limits(), network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    try:
        assert cell.read(HANG_S) == Output("stdout", b"ran\n")
        assert cell._group is not None
        inside = Path(cell._group.paths["cpu"], "cgroup.procs").read_text("ascii").split()
        assert len(inside) == 5, "its supervisor, the program, its children"
    finally:
        cell.close()


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("level", ["sealed", "confined"])
def test_a_group_is_free_when_its_zygote_dies_before_it_answers(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(zygote: Zygote, _: int) -> list[int]:
        os.kill(zygote._pid, signal.SIGKILL)
        raise ConnectionResetError("the zygote went away")

    root = Root(level, False, None, Without())
    try:
        monkeypatch.setattr(Zygote, "_wait_answer", die)
        with pytest.raises(ZygoteGone):
            root.make_cell(Limits())
        assert [group.is_free() for group in root.zygote.groups._groups] == [True]
    finally:
        root.close()


USE_UP = {
    "processes": "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(3600)",
    "memory": "held = bytearray(1 << 30)",
}


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("reason", USE_UP)
def test_the_next_cell_does_not_take_what_the_last_one_met(reason: str) -> None:
    """Its host may come late to read the end of a program, after the next cell has been made."""
    command = Command(("python", "main.py"), USE_UP[reason].encode())
    root = Root("sealed", False, None, Without())
    try:
        cell = root.make_cell(Limits(memory_bytes=64 << 20, processes=16))
        assert cell.wait_ready(HANG_S), cell.failure
        cell.feed(program(command, root.environment_of(cell)), b"")
        assert cell.is_gone(HANG_S)
        following = root.make_cell(Limits())
        assert following._group is not cell._group
        event = cell.read(HANG_S)
        while isinstance(event, Output):
            event = cell.read(HANG_S)
        assert isinstance(event, Exited)
        assert event.reason == reason
        cell.close()
        following.close()
        assert [group.is_free() for group in root.zygote.groups._groups] == [True, True]
    finally:
        root.close()


# ---- removing, on plain directories


def test_what_cannot_be_removed_stays_without_a_fuss(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "file").write_text("the kernel's files cannot be unlinked, plain ones keep a directory")
    cgroup_home.remove(str(tmp_path / "group"))
    cgroup_home.remove(str(tmp_path / "never was"))
    assert (tmp_path / "group").is_dir()


# ---- where we are: /proc/self/cgroup and mountinfo of several machines

V1 = (
    "9:name=systemd:/\n8:pids:/user/a\n4:memory:/jobs/x\n1:cpu,cpuacct:/\n",
    (
        "24 1 0:22 / /sys rw,nosuid - sysfs sysfs rw\n"
        "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
        "33 30 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
        "34 30 0:30 / /sys/fs/cgroup/pids rw,nosuid shared:10 - cgroup cgroup rw,pids\n"
        "35 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
    ),
)
HYBRID = (
    "12:pids:/user.slice/user-1000.slice\n5:memory:/user.slice/user-1000.slice\n0::/user.slice/user-1000.slice/x.scope\n",
    V1[1] + "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n",
)
V2 = (
    "0::/user.slice/user-1000.slice/session-2.scope\n",
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
)
DOCKER_V2 = ("0::/\n", "30 24 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n")
DOCKER_V1 = (
    "8:pids:/docker/abc\n4:memory:/docker/abc/deeper\n",
    (
        "33 30 0:29 /docker/abc /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n"
        "34 30 0:30 /docker/abc /sys/fs/cgroup/pids ro master:10 - cgroup cgroup rw,pids\n"
    ),
)
SYSTEMD_ONLY = (
    "1:name=systemd:/a\n0::/a\n",
    "31 30 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n",
)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        pytest.param(
            V1,
            {
                "memory": "/sys/fs/cgroup/memory/jobs/x",
                "pids": "/sys/fs/cgroup/pids/user/a",
                **dict.fromkeys(("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct"),
            },
            id="v1",
        ),
        pytest.param(
            HYBRID,
            {
                "memory": "/sys/fs/cgroup/memory/user.slice/user-1000.slice",
                "pids": "/sys/fs/cgroup/pids/user.slice/user-1000.slice",
            },
            id="hybrid",
        ),
        pytest.param(V2, {"": "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"}, id="v2"),
        pytest.param(DOCKER_V2, {"": "/sys/fs/cgroup"}, id="container-v2"),
        pytest.param(
            DOCKER_V1, {"memory": "/sys/fs/cgroup/memory/deeper", "pids": "/sys/fs/cgroup/pids"}, id="container-v1"
        ),
        pytest.param(SYSTEMD_ONLY, {}, id="no-controllers"),
        pytest.param(("", ""), {}, id="nothing"),
    ],
)
def test_our_own_groups_are_found(
    machine: tuple[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"/proc/self/cgroup": machine[0], "/proc/self/mountinfo": machine[1]}
    monkeypatch.setattr(cgroup_home, "read", texts.__getitem__)
    assert cgroup_home._own_groups() == expected


def test_a_mount_of_a_group_with_a_longer_name_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/self/cgroup": "4:memory:/docker/abcdef\n",
        "/proc/self/mountinfo": "33 30 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    }
    monkeypatch.setattr(cgroup_home, "read", texts.__getitem__)
    assert cgroup_home._own_groups() == {"memory": "/sys/fs/cgroup/memory"}


def test_a_mount_without_a_source_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/cgroup": V1[0], "/proc/self/mountinfo": "40 30 0:9 / /odd rw - tmpfs  rw\n" + V1[1]}
    monkeypatch.setattr(cgroup_home, "read", texts.__getitem__)
    assert set(cgroup_home._own_groups()) == {"memory", "pids", "cpu", "cpuacct"}


def test_a_machine_without_proc_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "no /proc here", path)

    monkeypatch.setattr(cgroup_home, "read", refuse)
    found = cgroup_home.find_home()
    assert isinstance(found, Unavailable)
    assert (found.step, found.errno) == ("find cgroup", errno.ENOENT)
    assert found.fix


# ---- v2, on a tree of plain files that stand for the kernel's


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories get their files when they are made, as in the real file system."""
    own = tmp_path / "cgroup"

    def populate(path: object, *_: object, exist_ok: bool = False) -> None:
        directory = Path(str(path))
        if directory.exists() and exist_ok:
            return
        mkdir(directory)
        for name in ("cgroup.procs", "cgroup.subtree_control", "memory.max", "memory.swap.max", "pids.max"):
            (directory / name).write_text("")
        (directory / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
        (directory / "pids.events").write_text("max 0\n")
        (directory / "cgroup.controllers").write_text("cpu memory pids\n")
        (directory / "cgroup.type").write_text("domain\n")

    mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", populate)
    monkeypatch.setattr(os, "makedirs", populate)
    populate(own)
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"": str(own)})
    return own


def test_v2_has_one_directory_for_both_controllers(unified: Path) -> None:
    found = cgroup_home.find_home()
    assert isinstance(found, Home)
    assert found.version == 2
    assert found.missing == {}
    assert found.mechanism == "cgroup v2"
    (path,) = set(found.directories.values())
    assert os.path.dirname(path) == str(unified)
    assert (unified / "cgroup.subtree_control").read_text().startswith("+cpu"), "the last that was asked for"


def test_v2_limits_go_to_v2_files_and_swap_is_no_way_around(unified: Path) -> None:  # noqa: ARG001
    found = cgroup_home.find_home()
    assert isinstance(found, Home)
    group = Group(found, "0")
    group.arm(SMALL)
    assert value(group, "memory", "memory.max") == str(32 << 20)
    assert value(group, "memory", "memory.swap.max") == "0"
    assert value(group, "pids", "pids.max") == "4"
    directory, procs = group.doors
    assert os.readlink(f"/proc/self/fd/{directory}") == group.paths["memory"], "a cell is born into it"
    os.write(procs, b"0")
    assert value(group, "pids", "cgroup.procs") == "0"
    group.let_go()


def test_v2_hits_are_read_from_events(unified: Path) -> None:  # noqa: ARG001
    found = cgroup_home.find_home()
    assert isinstance(found, Home)
    group = Group(found, "0")
    path = Path(group.paths["memory"])
    (path / "memory.events").write_text("oom 3\noom_kill 3\n")
    (path / "pids.events").write_text("max 7\n")
    group.arm(SMALL)
    assert group.hits() == (False, False), "what was before does not count"
    (path / "memory.events").write_text("oom 9\noom_kill 3\noom_group_kill 9\n")
    assert group.hits() == (False, False), "only a kill is a kill"
    (path / "memory.events").write_text("oom 9\noom_kill 4\n")
    assert group.hits() == (True, False)
    (path / "pids.events").write_text("max 8\n")
    assert group.hits() == (True, True)
    group.let_go()


def test_v2_that_gives_one_controller_says_which_is_missing(unified: Path) -> None:
    (unified / "cgroup.controllers").write_text("memory\n")
    found = cgroup_home.find_home()
    assert isinstance(found, Home)
    assert set(found.directories) == {"memory"}
    assert found.missing["pids"].errno == errno.ENOENT
    assert str(unified) in found.directories["memory"]


def test_v2_steps_aside_once_where_processes_and_controllers_may_not_meet(
    unified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's rule: a group with processes gives no controllers to its children."""
    (unified / "cgroup.procs").write_text(f"{os.getpid()}\n")
    place = [unified]  # where this process is
    write = cgroup_home.write

    def as_the_kernel_does(path: str, text: str) -> None:
        directory = Path(path).parent
        if path.endswith("cgroup.subtree_control") and directory == place[0]:
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        if path.endswith("cgroup.procs") and text == str(os.getpid()):
            (place[0] / "cgroup.procs").write_text("")
            place[0] = directory
        write(path, text)

    monkeypatch.setattr(cgroup_home, "write", as_the_kernel_does)
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"": str(place[0])})
    assert isinstance(cgroup_home.find_home(), Home)
    assert place[0] == unified / "fumehood-host"
    assert isinstance(cgroup_home.find_home(), Home), "a second zygote"
    assert place[0] == unified / "fumehood-host", "deeper with every zygote"


def test_v2_with_somebody_else_in_our_group_is_left_as_it_is(unified: Path) -> None:
    (unified / "cgroup.procs").write_text("1\n")
    found = cgroup_home.find_home()
    assert isinstance(found, Unavailable)
    assert errno.errorcode[found.errno] == "EBUSY"
    assert [path.name for path in unified.iterdir() if path.is_dir()] == []


# ---- no rights


def test_a_directory_that_we_may_not_write_is_a_reason_not_an_exception(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory").write_text("not a directory: every group beneath it is refused")
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"memory": str(tmp_path / "memory")})
    for marks, fix in (((), "Delegate=yes"), ((str(tmp_path),), "--memory")):
        monkeypatch.setattr(diagnose, "_CONTAINER_MARKS", marks)
        found = cgroup_home.find_home()
        assert isinstance(found, Unavailable)
        assert found.step == "make a memory control group"
        assert errno.errorcode[found.errno] == "ENOTDIR"
        assert fix in found.fix


def test_v1_that_has_only_one_controller_uses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"pids": str(tmp_path)})
    found = cgroup_home.find_home()
    assert isinstance(found, Home)
    assert set(found.directories) == {"pids"}
    assert found.missing["memory"].step == "find memory controller"


def test_one_controller_is_counted_and_the_other_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"pids": str(tmp_path)})
    groups = Groups()
    assert groups.counts("pids")
    assert not groups.counts("memory")
    groups.remove()
    assert list(tmp_path.iterdir()) == []


def test_where_there_are_no_groups_there_is_none_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_home, "_own_groups", dict)
    groups = Groups()
    assert groups.free() is None
    assert groups.version == 0
    assert not groups.counts("memory")
    groups.let_go()
    groups.remove()


def test_two_homes_made_at_once_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup_home, "_own_groups", lambda: {"pids": str(tmp_path)})
    paths = set()
    for _ in range(3):
        found = cgroup_home.find_home()
        assert isinstance(found, Home)
        paths.add(found.directories["pids"])
    assert len(paths) == 3
