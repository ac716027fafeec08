"""Where the kernel refuses, the engine says what it fell back to and why. The refusals here are the kernel's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from process_view import children, open_descriptors, opened_since

import fumehood
from fumehood.engine import cgroups, engine, launch, plan, zygotes
from fumehood.engine.cell import Cell
from fumehood.engine.cgroup_home import Home
from fumehood.engine.engine import Engine
from fumehood.engine.zygotes import Zygote
from fumehood.errors import BadArgument, EngineFailed, IsolationUnavailable, SandboxLost
from fumehood.types import AXES, Command, Exited, Limits, Output
from support import HANG_S, wait_until, zombies

LIMITS = Limits(processes=32)
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 20_000 + os.getpid() % 40_000  # an ordinary user: no name, no groups, no rights, and nobody else's processes

is_root = os.geteuid() == 0


# ---- programs that want too much

MEMORY_BOMB = """
import time
held = []
while True:
    held.append(b'x' * 4_000_000)
    time.sleep(0.005)
"""
SHORT_BOMB = """
import time
held = []
for _ in range(40):
    held.append(b'x' * 4_000_000)
    time.sleep(0.005)
time.sleep(3600)
"""
SHARED_BOMB = """
import mmap, time
held = []
for _ in range(64):
    held.append(mmap.mmap(-1, 4 << 20))
    held[-1].write(b'x' * (4 << 20))
    time.sleep(0.005)
time.sleep(3600)
"""
MEMFD_BOMB = """
import os, time
fd = os.memfd_create('x')
for _ in range(64):
    os.write(fd, b'x' * (4 << 20))
    time.sleep(0.005)
"""
FORKS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        time.sleep(3600)
"""
THREADS = """
import threading, time
for _ in range(20):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
"""


# ---- a host of its own: an interpreter in surroundings that refuse something

PRELUDE = """
import json, os, sys, traceback
from fumehood import get_sandbox
from fumehood.errors import FumehoodError
def say(result):
    return {"stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code,
            "reason": result.meta["reason"], "isolation": result.meta["isolation"]}
def execute(code, **settings):
    with get_sandbox(store_code="never", **settings) as sandbox:
        return say(sandbox.execute(code, timeout=280))
try:
    said = main()
except FumehoodError as error:
    said = {"error": type(error).__name__, "text": str(error),
            **{name: getattr(error, name, None) for name in ("step", "errno", "fix")}}
except BaseException as error:
    said = {"error": type(error).__name__, "text": traceback.format_exc()}
print(json.dumps(said))
"""

# Runs as root, makes the surroundings, becomes the user and then the interpreter.
SETUP = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fumehood.engine import _syscalls as calls
from fumehood.engine.flags import NEWNS, NEWUSER
def write(path, text):
    with open(path, "w") as file: file.write(text)
def own_mounts():
    calls.unshare(NEWNS)
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
def own_users(mapping="0 0 65536"):
    ready, go = os.pipe(), os.pipe()
    parent = os.getpid()
    if os.fork() == 0:  # a namespace with many ids can only be mapped from outside
        os.read(ready[0], 1)
        write(f"/proc/{parent}/uid_map", mapping)
        write(f"/proc/{parent}/gid_map", mapping)
        os.write(go[1], b".")
        os._exit(0)
    calls.unshare(NEWUSER)
    os.write(ready[1], b".")
    os.read(go[0], 1)
    os.wait()
def become(number):
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
"""


@pytest.fixture(scope="module")
def readable_source() -> Iterator[str]:
    """Our own modules where an ordinary user may read them."""
    directory = tempfile.mkdtemp(prefix="test-of-fumehood-", dir="/tmp")
    os.chmod(directory, 0o755)
    shutil.copytree(
        os.path.dirname(fumehood.__file__), f"{directory}/fumehood", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
    os.mkdir(f"{directory}/tmp")
    os.chmod(f"{directory}/tmp", 0o1777)
    yield directory
    shutil.rmtree(directory)


class Host:
    def __init__(self, source: str):
        self._source = source
        self._tmp = f"{source}/tmp"

    def run(self, setup: str, main: str) -> Any:
        """What `main()` returned in an interpreter started in these surroundings."""
        code = "def main():\n" + textwrap.indent(textwrap.dedent(main).strip(), "    ") + "\n" + PRELUDE
        command = [SYSTEM_PYTHON, "-c", code]
        environment = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "PYTHONPATH": self._source, "TMPDIR": self._tmp}
        launcher = (
            f"{SETUP}\n{textwrap.dedent(setup)}\nos.chdir('/')\nos.execve({command[0]!r}, {command!r}, {environment!r})"
        )
        done = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-c", launcher, self._source], capture_output=True, encoding="utf-8", timeout=HANG_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def host(readable_source: str) -> Host:
    if not is_root:
        pytest.skip("only root can set up what this host shall refuse")
    if not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip(f"no {SYSTEM_PYTHON}, and an ordinary user may not read {sys.executable}")
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
    )
    if version.stdout.strip() != b"True":
        pytest.skip(f"{SYSTEM_PYTHON} is older than 3.11")
    made = Host(readable_source)
    try:
        assert made.run("own_mounts()\nown_users()", "return 1") == 1
    except AssertionError as refused:
        pytest.skip(f"this root may not make namespaces: {refused}")
    return made


ORDINARY = f"become({NOBODY})"
NO_NAMESPACES = f"own_users()\nwrite('/proc/sys/user/max_user_namespaces', '0')\nbecome({NOBODY})"
MASKED_KEYS = f"own_mounts()\ncalls.mount('/dev/null', '/proc/keys', None, calls.MS_BIND)\nbecome({NOBODY})"
MASKED_SYS = f"own_mounts()\ncalls.mount('none', '/proc/sys', 'tmpfs')\nbecome({NOBODY})"
LIKE_DOCKER = f"""
own_mounts()
calls.mount('/dev/null', '/proc/keys', None, calls.MS_BIND)
calls.mount('/proc/sys', '/proc/sys', None, calls.MS_BIND)
calls.set_mount_attributes(-1, '/proc/sys', calls.MOUNT_ATTR_RDONLY, recursive=False)
become({NOBODY})
"""
MASKS = pytest.mark.parametrize(
    "mask",
    [
        pytest.param(MASKED_KEYS, id="keys"),
        pytest.param(
            MASKED_SYS,
            id="sys",
        ),
        pytest.param(
            LIKE_DOCKER,
            id="like-docker",
        ),
    ],
)
NO_GROUPS = """
own_mounts()
calls.set_mount_attributes(-1, '/sys/fs/cgroup', calls.MOUNT_ATTR_RDONLY, recursive=True)
"""


@pytest.fixture
def sealed_host(host: Host) -> Host:
    found = host.run(ORDINARY, "return execute('', isolation='sealed')")
    if "error" in found:
        pytest.skip(f"an ordinary user has no sealed sandbox here: {found['text']}")
    return host


# ---- namespaces refused


def test_without_user_namespaces_auto_gives_confined_and_says_why(host: Host) -> None:
    found = host.run(NO_NAMESPACES, "return execute('print(40 + 2)')")
    assert found["stdout"] == "42\n"
    receipt = found["isolation"]
    assert receipt["level"] == "confined"
    assert set(receipt) == {"level", *AXES}
    for axis in ("syscalls", "privileges", "network"):
        assert (receipt[axis]["step"], receipt[axis]["errno"]) == ("namespaces", "ENOSPC")
        assert "user.max_user_namespaces" in receipt[axis]["fix"]


FEW_NAMESPACES = f"own_users()\nwrite('/proc/sys/user/max_user_namespaces', '6')\nbecome({NOBODY})"
USES_UP = """
import select, signal
from fumehood.engine import _syscalls as calls, engine
from fumehood.engine.flags import NEWUSER
def use_up(take):
    ready, go = os.pipe()
    holding = []
    while True:
        holding.append(os.fork())
        if holding[-1] == 0:
            calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
            kept = []
            try:
                take(kept)
                os.write(go, b'.')
            except OSError as error:
                os.write(go, b'!')
            signal.pause()
        if os.read(ready, 1) == b'!':
            return holding
def a_namespace(kept):
    calls.unshare(NEWUSER)
def a_million_watches(kept):
    pipes = [os.pipe() for _ in range(500)]
    for _ in range(1000):
        kept.append(select.epoll())
        for pair in pipes:
            for fd in pair:
                kept[-1].register(fd, select.EPOLLIN | select.EPOLLOUT)
def release(holding):
    for pid in holding:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
def attempt():
    try:
        return execute('print(1)', warm_cells=0)['isolation']['level']
    except FumehoodError as error:
        return f'{type(error).__name__}: {error}'
def attempt_until(wanted, prepare=lambda: None):  # what has ended is counted for a while
    while True:
        prepare()
        said = attempt()
        if wanted(said): return said
"""


def test_a_passing_lack_of_namespaces_is_an_error_and_no_weaker_level(sealed_host: Host) -> None:
    main = """
    holding = use_up(a_namespace)
    said = [attempt()]
    release(holding)
    said.append(attempt_until(lambda said: not said.startswith('EngineFailed')))
    for each in list(engine._engines.values()):
        for root in each._roots.values():
            root.zygote.close()
    holding = []
    said.append(attempt_until(lambda said: said != 'sealed', lambda: holding.extend(use_up(a_namespace))))
    release(holding)
    said.append(attempt_until(lambda said: not said.startswith('EngineFailed')))
    return said
    """
    first, second, third, fourth = sealed_host.run(FEW_NAMESPACES, USES_UP + textwrap.dedent(main))
    for said in (first, third):
        assert said.startswith("EngineFailed: ")
        assert "user.max_user_namespaces" in said
    assert (second, fourth) == ("sealed", "sealed")


def test_what_a_process_was_given_once_it_never_gets_weaker(host: Host) -> None:
    """As if its zygote had died, and the administrator taken namespaces away meanwhile."""
    main = "from fumehood.engine import engine\nengine._given.add('sealed')\nreturn execute('print(1)')"
    found = host.run(NO_NAMESPACES, main)
    assert found["error"] == "EngineFailed"
    for part in ("ENOSPC", "had level sealed before", "user.max_user_namespaces"):
        assert part in found["text"]
    less = main.replace("print(1)'", "print(1)', isolation='confined'")
    assert host.run(NO_NAMESPACES, less)["isolation"]["level"] == "confined"


def test_a_level_that_was_asked_for_by_name_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_given", set())
    monkeypatch.setattr(engine, "_engines", {})
    with fumehood.get_sandbox(isolation="process", store_code="never", warm_cells=0) as sandbox:
        sandbox.check()
    assert engine._given == {"process"}
    for root in [root for made in engine._engines.values() for root in made._roots.values()]:
        root.close()


def test_programs_run_when_the_user_has_no_epoll_watches_left(sealed_host: Host) -> None:
    """Which a program can take from it. What cannot be had is said by its name."""
    main = """
    import asyncio, resource
    from fumehood import open_session
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    loop = asyncio.new_event_loop()
    holding = use_up(a_million_watches)
    said = [attempt()]
    try:
        with get_sandbox(store_code="never") as sandbox:
            said.append(loop.run_until_complete(sandbox.execute_async('print(1)')).stdout)
        with open_session(store_code="never") as session:
            said.append(session.run('print(1)').stdout)
    except FumehoodError as error:
        said.append(f'{type(error).__name__}: {error}')
    finally:
        release(holding)
    said.append(attempt())
    return said
    """
    found = sealed_host.run(ORDINARY, USES_UP + textwrap.dedent(main))
    assert len(found) == 4, found
    first, looked, refused, last = found
    assert (first, looked, last) == ("sealed", "1\n", "sealed")
    assert refused.startswith("EngineFailed: ")
    assert "fs.epoll.max_user_watches" in refused


@pytest.mark.parametrize("how", ["require='sealed'", "isolation='sealed'"])
def test_without_user_namespaces_what_is_required_is_refused_with_step_errno_and_fix(host: Host, how: str) -> None:
    found = host.run(NO_NAMESPACES, f"return execute('print(1)', {how})")
    assert found["error"] == "IsolationUnavailable"
    assert (found["step"], found["errno"]) == ("namespaces", "ENOSPC")
    assert "user.max_user_namespaces" in found["fix"]
    assert "cannot give level sealed" in found["text"]
    assert "ENOSPC" in found["text"]
    assert "fumehood doctor" in found["text"]


def test_without_user_namespaces_less_can_still_be_required(host: Host) -> None:
    found = host.run(NO_NAMESPACES, "return execute('print(1)', require='confined')")
    assert found["isolation"]["level"] == "confined"
    found = host.run(NO_NAMESPACES, "return execute('print(1)', isolation='process')")
    assert found["isolation"]["level"] == "process"


def test_a_refusal_is_heard_even_by_a_host_that_listens_late(host: Host) -> None:
    """The zygote has said it and is gone before the host looks."""
    main = """
    import time
    from fumehood.engine import root
    soon, late = root._filter, [True]
    def is_zombie(pid):
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
        return state == "Z" and parent == str(os.getpid())
    def zombies():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if is_zombie(pid):
                    yield pid
            except OSError:
                pass
    def listen_late(*arguments, **named):
        while late and not list(zombies()):
            time.sleep(0.01)
        late.clear()
        return soon(*arguments, **named)
    root._filter = listen_late
    return execute("print(1)")
    """
    found = host.run(NO_NAMESPACES, main)
    assert found.get("stdout") == "1\n", found.get("text")
    assert found["isolation"]["syscalls"]["step"] == "namespaces"


def test_root_of_a_namespace_that_holds_only_root_still_runs_programs(host: Host) -> None:
    """As in `unshare -r`: root by name, with nobody else to become."""
    found = host.run("own_users('0 0 1')", "return execute('print(1)')")
    assert found.get("stdout") == "1\n", found.get("text")


def test_root_without_capabilities_still_runs_programs(host: Host) -> None:
    """As in a container with --cap-drop=ALL whose user is root."""
    found = host.run("calls.drop_capabilities()", "return execute('print(1)')")
    assert found.get("stdout") == "1\n", found.get("text")


def test_a_program_directory_that_cannot_be_given_away_is_not_left_behind(host: Host) -> None:
    main = """
    before = os.listdir(os.environ["TMPDIR"])
    try:
        execute("print(1)", isolation="confined")
    except Exception:
        pass
    return sorted(set(os.listdir(os.environ["TMPDIR"])) - set(before))
    """
    assert host.run("calls.drop_capabilities()", main) == []


# ---- another filter that asks, as in a container of LXD


def test_under_a_filter_that_asks_nobody_counts_sockets_and_it_is_said(sealed_host: Host) -> None:
    """The kernel lets one of them ask."""
    asked = """
calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
allow = (0x7FFF0000 << 32 | 6).to_bytes(8, 'little')
os.set_inheritable(calls.install_seccomp(allow, listens=True), True)
"""
    main = "return execute('import socket; print(len([socket.socket() for _ in range(600)]))', require='sealed')"
    found = sealed_host.run(ORDINARY, main)
    assert "socket buffers beside, up to" in found["isolation"]["memory"]["mechanism"]
    assert "No buffer space available" in found["stderr"]
    found = sealed_host.run(ORDINARY + asked, main)
    assert (found["isolation"]["level"], found["stdout"]) == ("sealed", "600\n")
    assert "socket buffers are not counted" in found["isolation"]["memory"]["mechanism"]


# ---- a masked /proc, as in a container


@MASKS
def test_behind_a_masked_proc_a_program_runs_without_one(sealed_host: Host, mask: str) -> None:
    found = sealed_host.run(mask, "return execute('import os; print(os.listdir(\"/proc\"))')")
    assert found.get("stdout") == "[]\n", found.get("text") or found
    assert found["isolation"]["level"] == "sealed"
    assert "no /proc" in found["isolation"]["processes"]["mechanism"]


def test_behind_a_masked_proc_memory_is_still_bounded(sealed_host: Host) -> None:
    found = sealed_host.run(MASKED_KEYS, "return execute('', isolation='sealed', memory_mb=64)")
    if found["isolation"]["memory"]["level"] != "none":  # else it is said that nothing bounds it
        found = sealed_host.run(MASKED_KEYS, f"return execute({SHORT_BOMB!r}, isolation='sealed', memory_mb=64)")
        assert found["reason"] == "memory", found


LEAVES_A_CHILD = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        with open('ticks', 'a') as file: file.write('.')
        time.sleep(0.001)
while not os.path.exists('ticks'): time.sleep(0.001)
print('ran', flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("setup", [ORDINARY, MASKED_KEYS], ids=["with a /proc", "behind a masked one"])
def test_an_interrupt_ends_what_the_run_has_started(sealed_host: Host, setup: str) -> None:
    main = f"""
        import fumehood, time
        with fumehood.open_session(store_code='never') as session:
            session.run('x = 1')
            for timeout in (2, 8, 64):
                first = session.run({LEAVES_A_CHILD!r}, timeout=timeout)
                if first.stdout: break
            session.run('import os, signal, time; os.kill(-1, signal.SIGCONT)')  # nor is it only stopped
            ticks = [session.run('time.sleep(0.05); print(os.path.getsize("ticks"), x)').stdout for _ in range(2)]
            return [first.stdout, first.meta['timed_out'], *ticks]
        """
    said, timed_out, before, after = sealed_host.run(setup, main)
    assert (said, timed_out) == ("ran\n", True)
    assert before == after != ""
    assert after.endswith(" 1\n"), "its variables are kept"


def test_behind_a_masked_proc_that_leaves_memory_unbounded_nothing_is_called_sealed(sealed_host: Host) -> None:
    main = "return execute('print(1)', require='sealed')"
    found = sealed_host.run(LIKE_DOCKER, main.replace(", require='sealed'", ""))
    if found["isolation"]["memory"]["level"] != "none":
        pytest.skip("an ordinary user has control groups here")
    assert (found["stdout"], found["isolation"]["level"]) == ("1\n", "sealed")
    found = sealed_host.run(LIKE_DOCKER, main)
    assert found["error"] == "IsolationUnavailable"
    assert "nothing bounds memory" in found["text"]
    assert "systempaths=unconfined" in found["fix"]
    assert sealed_host.run(LIKE_DOCKER, main.replace("sealed", "confined"))["stdout"] == "1\n"


@pytest.mark.parametrize("mask", [MASKED_KEYS, MASKED_SYS, LIKE_DOCKER], ids=["keys", "sys", "like-docker"])
def test_behind_a_masked_proc_a_program_runs(host: Host, mask: str) -> None:
    found = host.run(mask, "return execute('print(1)')")
    assert found.get("stdout") == "1\n", found.get("text")


# ---- no groups: an ordinary user


def test_an_ordinary_user_is_told_that_memory_is_only_watched(sealed_host: Host) -> None:
    found = sealed_host.run(ORDINARY, "return execute('import os; print(os.getuid())')")
    receipt = found["isolation"]
    assert (found["stdout"], receipt["level"]) == ("1000\n", "sealed")
    if "cgroup" in receipt["memory"]["mechanism"]:
        pytest.skip("an ordinary user may make groups here")
    assert receipt["memory"]["level"] == "process"
    assert "watch" in receipt["memory"]["mechanism"]
    assert receipt["memory"]["errno"] in ("EACCES", "EROFS", "EPERM")
    assert receipt["memory"]["step"]
    assert receipt["memory"]["fix"]
    assert "RLIMIT_NPROC" in receipt["processes"]["mechanism"]


@pytest.mark.parametrize("level", ["sealed", "confined", "process"])
@pytest.mark.parametrize("bomb", [pytest.param(MEMORY_BOMB, id="private"), pytest.param(SHARED_BOMB, id="shared")])
def test_the_watch_ends_a_memory_bomb(host: Host, level: str, bomb: str) -> None:
    found = host.run(ORDINARY, f'return execute({bomb!r}, isolation="{level}", memory_mb=64)')
    if found.get("error") == "IsolationUnavailable":
        pytest.skip(f"no {level} here: {found['text']}")
    assert found["reason"] == "memory", found
    assert found["exit_code"] == 128 + signal.SIGKILL
    assert "SANDBOX_MEMORY_MB" in found["stderr"]


def test_where_memory_is_only_watched_none_can_hide_in_a_file_without_a_name(sealed_host: Host) -> None:
    found = sealed_host.run(ORDINARY, f'return execute({MEMFD_BOMB!r}, isolation="sealed", memory_mb=64)')
    assert found["reason"] == "error", found
    assert "Operation not permitted" in found["stderr"]


@pytest.mark.parametrize("program", [pytest.param(FORKS, id="processes"), pytest.param(THREADS, id="threads")])
def test_without_groups_the_limit_of_processes_holds_and_has_its_name(sealed_host: Host, program: str) -> None:
    found = sealed_host.run(ORDINARY, f"return execute({program!r}, processes=8)")
    assert found["exit_code"] == 1, found
    assert found["reason"] == "processes", found
    assert "SANDBOX_PROCESSES" in found["stderr"]


def test_root_with_read_only_groups_falls_back_to_the_watch(host: Host) -> None:
    found = host.run(NO_GROUPS, f"return execute({MEMORY_BOMB!r}, memory_mb=64)")
    memory = found["isolation"]["memory"]
    assert found["reason"] == "memory", found
    assert "watch" in memory["mechanism"]
    assert memory["errno"] == "EROFS"


# ---- a mount that is out of the ordinary


def test_a_mount_without_a_source_does_not_cost_the_groups(host: Host) -> None:
    plain = host.run("own_mounts()", "return execute('print(1)')")
    odd = host.run("own_mounts()\ncalls.mount('', '/mnt', 'tmpfs')", "return execute('print(1)')")
    assert odd.get("stdout") == "1\n", odd.get("text")
    assert odd["isolation"]["memory"]["mechanism"] == plain["isolation"]["memory"]["mechanism"]


# ---- an engine of one's own


class Own(Engine):
    """Not shared with other tests, and gone after one."""

    def __init__(self, isolation: str = "auto", require: str | None = None):
        super().__init__(isolation, require)

    @property
    def zygote(self) -> Zygote:
        return self._roots[False].zygote

    @property
    def zygote_pid(self) -> int:
        return self.zygote._pid

    def __enter__(self) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        for root in self._roots.values():
            root.zygote.close()
        self._roots.clear()


@pytest.fixture
def own_engine(request: pytest.FixtureRequest) -> Iterator[Own]:
    level = getattr(request, "param", "sealed")
    with Own(level) as made:
        try:
            made.check(LIMITS, network=False)
        except IsolationUnavailable as missing:
            pytest.skip(f"no {level} sandbox on this machine: {missing}")
        yield made


@pytest.mark.parametrize("heeds", [True, False])
def test_a_limit_of_memory_counts_only_if_it_held_somebody_back(monkeypatch: pytest.MonkeyPatch, heeds: bool) -> None:
    monkeypatch.setattr(cgroups, "_heeds_memory", None)
    if not heeds:
        monkeypatch.setattr(cgroups.Group, "has_refused_memory", lambda _: False)
    with Own("sealed") as made:
        try:
            axis = made.check(LIMITS, network=False).axes["memory"]
        except IsolationUnavailable as missing:
            pytest.skip(f"no sealed sandbox on this machine: {missing}")
        if axis.step is not None and "held back" not in axis.step:
            pytest.skip("no control group counts memory here")
        assert axis.level == ("sealed" if heeds else "process"), axis
        assert ("gVisor" in (axis.fix or "")) == (not heeds)
        exited = finish(start(made, MEMORY_BOMB, LIMITS._replace(memory_bytes=64 << 20)))[1]
        assert exited.reason == "memory"


def test_a_filter_is_made_for_the_limits_that_another_zygote_found_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was judged while this one was being built, which took the limit for one that counts."""
    waited = zygotes.Zygote.wait_up

    def wait_up(zygote: zygotes.Zygote) -> None:
        waited(zygote)
        monkeypatch.setattr(cgroups, "_heeds_memory", False)

    monkeypatch.setattr(cgroups, "_heeds_memory", None)
    monkeypatch.setattr(zygotes.Zygote, "wait_up", wait_up)
    with Own("sealed") as made:
        try:
            axis = made.check(LIMITS, network=False).axes["memory"]
        except IsolationUnavailable as missing:
            pytest.skip(f"no sealed sandbox on this machine: {missing}")
        if "held back" not in (axis.step or ""):
            pytest.skip("no control group counts memory here")
        assert finish(start(made, "import os; os.memfd_create('x')"))[1].exit_code == 1, "memory that nobody would see"


def test_without_a_descriptor_left_no_limit_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that tries it was made; there was no room for what stands for it."""
    monkeypatch.setattr(cgroups, "_heeds_memory", None)
    asked = zygotes.Zygote._ask

    def ask(zygote: zygotes.Zygote, order: dict[str, Any], fds: list[int]) -> list[int]:
        for fd in asked(zygote, order, fds):
            os.close(fd)
        return []

    monkeypatch.setattr(zygotes.Zygote, "_ask", ask)
    refused = []
    with Own("process") as made:
        try:
            made.check(LIMITS, network=False)
        except EngineFailed as error:
            refused.append(str(error))
    if not refused:
        pytest.skip("no control group counts memory here")
    assert "descriptor" in refused[0]


def start(made: Engine, code: str, limits: Limits = LIMITS) -> Any:
    return made.start(Command(("python", "main.py"), code.encode()), limits, network=False)


def finish(cell: Any) -> tuple[str, Exited]:
    said = b""
    try:
        while True:
            event = cell.read(HANG_S)
            assert event is not None, "it hangs"
            if isinstance(event, Exited):
                return said.decode(), event
            assert isinstance(event, Output)
            said += event.data
    finally:
        cell.close()


# ---- limits do not choose the level

LOWEST = Limits(8 << 20, cpu_s=1, processes=1, open_files=16, file_bytes=1 << 20, disk_bytes=1 << 20, inodes=1)


@pytest.mark.parametrize("field", [*Limits._fields, None])
def test_the_lowest_limits_get_the_strongest_level(own_engine: Own, field: str | None) -> None:
    limits = LOWEST if field is None else Limits()._replace(**{field: getattr(LOWEST, field)})
    with Own() as made:
        found = made.check(limits, network=False)
    usual = own_engine.check(Limits(), network=False)
    assert found.level == usual.level == "sealed"
    assert [found.axes[axis].level for axis in AXES] == [usual.axes[axis].level for axis in AXES]


@pytest.mark.usefixtures("own_engine")
def test_limits_that_leave_no_room_for_a_sandbox_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "OWN_INODES", 0)
    with Own() as made:
        with pytest.raises(EngineFailed, match="private_tree failed with ENOSPC, but not with the default limits"):
            made.check(LOWEST, network=False)
        assert made.check(LIMITS, network=False).level == "sealed"


# ---- zygotes that die

LEVELS = pytest.mark.parametrize("own_engine", ["sealed", "confined", "process"], indirect=True)


@LEVELS
def test_a_zygote_killed_between_executions_is_replaced(own_engine: Own) -> None:
    for _ in range(2):
        before = own_engine.zygote_pid
        os.kill(before, signal.SIGKILL)
        said, exited = finish(start(own_engine, "print('after')"))
        assert (said, exited.reason) == ("after\n", "ok")
        assert own_engine.zygote_pid != before


def test_a_zygote_that_another_thread_started_is_given_up_at_once_when_it_dies(
    own_engine: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was slower than that thread must not meet the dead one twice."""
    known = [None]  # as it was when this thread looked; when it has the lock, the other's is there
    monkeypatch.setattr(own_engine, "_known", lambda network: known.pop() if known else own_engine._roots.get(network))
    monkeypatch.setattr(engine, "_ATTEMPTS", 2)
    os.kill(own_engine.zygote_pid, signal.SIGKILL)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")


def check_went_with_its_zygote(cell: Cell) -> None:
    """A sealed one cannot help it, so the layer above is told that it may run the program again."""
    if cell.receipt.level == "sealed":
        with pytest.raises(SandboxLost):
            finish(cell)
        return
    said, exited = finish(cell)
    assert (said, exited.exit_code, exited.reason) == ("", 128 + signal.SIGKILL, "signal")


@LEVELS
def test_a_zygote_killed_during_an_execution_ends_it_with_a_result(own_engine: Own) -> None:
    cell = start(own_engine, "import time; print('begun', flush=True); time.sleep(3600)")
    assert cell.read(HANG_S) == Output("stdout", b"begun\n")
    os.kill(own_engine.zygote_pid, signal.SIGKILL)
    check_went_with_its_zygote(cell)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")


@LEVELS
def test_a_zygote_replaced_by_one_caller_does_not_break_the_result_of_another(own_engine: Own) -> None:
    """The first one's group is removed with its zygote, before its result was read."""
    one = start(own_engine, "import time; print('begun', flush=True); time.sleep(3600)")
    assert one.read(HANG_S) == Output("stdout", b"begun\n")
    os.kill(own_engine.zygote_pid, signal.SIGKILL)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")
    check_went_with_its_zygote(one)


def test_a_zygote_that_waits_for_the_end_of_its_cells_is_gone(own_engine: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends them first, and on a busy machine that takes its time."""
    assert not own_engine.zygote.is_gone()
    fields = zygotes.stat(own_engine.zygote_pid)
    fields[6] = b"%d" % (int(fields[6]) | 0x4)  # PF_EXITING
    monkeypatch.setattr(zygotes, "stat", lambda _: fields)
    assert own_engine.zygote.is_gone()


def test_a_stopped_zygote_is_made_to_go_on(own_engine: Own) -> None:
    stopped = own_engine.zygote
    os.kill(own_engine.zygote_pid, signal.SIGSTOP)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")
    assert own_engine.zygote is stopped


def test_a_zygote_that_stays_stopped_is_given_up_and_replaced(own_engine: Own) -> None:
    """Long before the deadline of one that is only slow, which no test lives to see."""
    stopped = own_engine.zygote_pid
    own_engine.zygote._launched.send = lambda _: None  # type: ignore[method-assign]
    os.kill(stopped, signal.SIGSTOP)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")
    assert own_engine.zygote_pid != stopped


def test_a_zygote_that_is_slow_is_waited_for(own_engine: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it does not answer for many looks either, and it is not stopped."""
    slow = own_engine.zygote
    slow._socket.settimeout(0.01)
    looks = []

    def asleep(pid: int) -> list[bytes]:
        looks.append(pid)
        if len(looks) == 5:
            os.kill(pid, signal.SIGCONT)
        return [b"S"]

    os.kill(own_engine.zygote_pid, signal.SIGSTOP)
    monkeypatch.setattr(zygotes, "stat", asleep)
    said, exited = finish(start(own_engine, "print('after')"))
    assert (said, exited.reason) == ("after\n", "ok")
    assert len(looks) >= 5
    assert own_engine.zygote is slow


def test_nothing_is_left_open_by_a_zygote_that_died(own_engine: Own) -> None:
    """The new one has a socket, a file for its messages and a group, as the old one had."""
    finish(start(own_engine, ""))
    before, dead = open_descriptors(), zombies()
    gone = own_engine.zygote
    theirs = {gone._socket.fileno(), gone._launched.messages, *group_descriptors(gone)}
    os.kill(own_engine.zygote_pid, signal.SIGKILL)
    finish(start(own_engine, ""))
    new = own_engine.zygote
    ours = {new._socket.fileno(), new._launched.messages}

    def left() -> tuple[set[str], set[str]]:
        now = {path for fd, path in open_descriptors().items() if fd not in ours | set(group_descriptors(new))}
        return now - {path for fd, path in before.items() if fd not in theirs}, zombies() - dead

    assert wait_until(lambda: not any(left())), left()


def group_descriptors(zygote: Zygote) -> list[int]:
    home = zygote.groups.home
    held = home.held.values() if isinstance(home, Home) else ()
    return [*held, *(fd for group in zygote.groups._groups for fd in (*group.doors, group._occupant))]


# ---- interpreters that do not start


def check_fails(monkeypatch: pytest.MonkeyPatch, executable: str | Path, match: str, level: str = "auto") -> None:
    monkeypatch.setattr(sys, "executable", str(executable))
    with Own(level) as made, pytest.raises(EngineFailed, match=match):
        start(made, "print(1)")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


HEARS = "head -c 1 <&3 >/dev/null"  # takes what it is told


@pytest.mark.parametrize("level", ["auto", "sealed", "confined", "process"])
def test_a_missing_interpreter_is_the_engines_failure(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_fails(monkeypatch, "/nowhere/bin/python3", r"/nowhere/bin/python3.*Is this Python installed\?", level)


def test_an_interpreter_that_ends_at_once_is_the_engines_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fails(monkeypatch, shutil.which("false") or "/bin/false", "ended while starting")


def test_what_a_dying_interpreter_said_is_in_the_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = script(tmp_path / "python3", f"{HEARS}; echo 'libpython: no such file' >&2; exit 127")
    check_fails(monkeypatch, broken, "ended while starting: libpython: no such file")


def test_what_an_interpreter_said_that_did_not_listen_is_in_the_message_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = script(tmp_path / "python3", "sleep 0.2; echo 'libpython: no such file' >&2; exit 127")
    check_fails(monkeypatch, broken, "ended while starting: libpython: no such file")


def test_an_interpreter_that_says_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fumehood.engine.zygotes._START_S", 0.5)
    check_fails(monkeypatch, script(tmp_path / "python3", "exec sleep 3600"), "did not start")


def test_a_failed_start_leaves_no_process_and_no_descriptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, dead = open_descriptors(), zombies()
    broken = script(tmp_path / "python3", f"{HEARS}; exit 1")
    for _ in range(3):
        check_fails(monkeypatch, broken, "ended while starting")
    assert wait_until(lambda: not opened_since(before, open_descriptors())), opened_since(before, open_descriptors())
    assert wait_until(lambda: zombies() <= dead)


def test_threads_that_start_at_once_share_no_interpreter_and_lose_none() -> None:
    before, dead = open_descriptors(), zombies()
    together = threading.Barrier(8)

    def one() -> launch.Launched:
        together.wait(HANG_S)
        launch.launch_ahead()
        return launch.launch(launch.host_executable())

    with ThreadPoolExecutor(8) as threads:
        launched = [each.result(HANG_S) for each in [threads.submit(one) for _ in range(8)]]
    launched.append(launch.launch(launch.host_executable()))  # the one ahead of the next caller, if there is one
    assert len({each.pid for each in launched}) == len(launched)
    for each in launched:
        each.end()
    assert wait_until(lambda: not opened_since(before, open_descriptors())), opened_since(before, open_descriptors())
    assert wait_until(lambda: zombies() <= dead)


# ---- machines we have no table for


def test_a_machine_without_a_table_of_calls_has_the_process_level_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.uname()
    other = os.uname_result((real.sysname, real.nodename, real.release, real.version, "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: other)
    monkeypatch.setattr(engine, "_given", set())
    with Own() as made:
        cell = start(made, "print(1)")
        receipt = cell.receipt
        assert finish(cell)[0] == "1\n"
    assert receipt.level == "process"
    assert receipt.axes["syscalls"].step == "seccomp"
    for level in ("sealed", "confined"):
        with Own(require=level) as made, pytest.raises(IsolationUnavailable, match="riscv64") as caught:
            start(made, "print(1)")
        assert caught.value.step == "seccomp"


# ---- what is asked


def test_an_unknown_isolation_is_a_bad_argument() -> None:
    with pytest.raises(BadArgument, match="auto, process, confined, sealed, not 'strong'"):
        engine.shared("strong", None)


def test_what_is_required_must_not_be_more_than_what_is_asked_for() -> None:
    with Own("process", "sealed") as made:
        with pytest.raises(IsolationUnavailable, match="SANDBOX_ISOLATION=process asks for less"):
            start(made, "print(1)")


def test_the_same_isolation_shares_one_engine() -> None:
    assert engine.shared("auto", None) is engine.shared("auto", None)
    assert engine.shared("auto", "sealed") is not engine.shared("auto", None)


@pytest.mark.parametrize("network", [False, True])
def test_a_check_gives_the_receipt_of_an_execution(own_engine: Own, network: bool) -> None:
    checked = own_engine.check(LIMITS, network=network)
    cell = own_engine.start(Command(("python", "main.py"), b""), LIMITS, network=network)
    finish(cell)
    assert checked == cell.receipt
    assert (checked.axes["network"].level == "none") == network


def test_with_and_without_network_are_roots_of_their_own(own_engine: Own) -> None:
    own_engine.check(LIMITS, network=True)
    assert set(own_engine._roots) == {False, True}
    for root in own_engine._roots.values():
        assert root.level == "sealed"


def test_other_limits_are_other_receipts(own_engine: Own) -> None:
    small = start(own_engine, "", Limits(memory_bytes=64 << 20, processes=7))
    large = start(own_engine, "", Limits(memory_bytes=128 << 20, processes=70))
    finish(small)
    finish(large)
    assert "64 MiB" in small.receipt.axes["memory"].mechanism
    assert "128 MiB" in large.receipt.axes["memory"].mechanism
    assert small.receipt.axes["processes"].mechanism.endswith("at most 7")
    assert large.receipt.axes["processes"].mechanism.endswith("at most 70")


FORKED = """
import os, sys
from fumehood import get_sandbox
with get_sandbox(store_code="never", timeout_sec=280) as sandbox:
    assert sandbox.execute("print(1)").stdout == "1\\n"
    if os.fork() == 0:
        sys.exit(0 if sandbox.execute("print(2)").stdout == "2\\n" else 1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert sandbox.execute("print(3)").stdout == "3\\n"
"""


def test_a_forked_child_has_zygotes_of_its_own(own_engine: Own) -> None:
    mine = own_engine.zygote_pid
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(fumehood.__file__).parents[1]), "HOME": "/nonexistent"},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    assert own_engine.zygote_pid == mine


only_root_can_look = pytest.mark.skipif(not is_root, reason="a zygote is out of reach, also for its own user")


@only_root_can_look
def test_nothing_of_ours_is_in_the_environment_of_a_zygote(own_engine: Own) -> None:
    assert os.environ
    assert Path(f"/proc/{own_engine.zygote_pid}/environ").read_bytes() == b""


@only_root_can_look
def test_a_zygote_holds_no_descriptor_of_the_host_but_its_own(own_engine: Own, tmp_path: Path) -> None:
    canary = os.open(tmp_path / "canary", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(canary, True)
    try:
        os.kill(own_engine.zygote_pid, signal.SIGKILL)
        finish(start(own_engine, ""))
        held = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{own_engine.zygote_pid}/fd")]
        assert not [path for path in held if "canary" in path]
    finally:
        os.close(canary)


# ---- others with the user id that root's programs have

WRITES = "import os, sys; os.close(os.open(f'/proc/{sys.argv[1]}/mem', os.O_RDWR)); print('could write')"
WAITS = "print('ready', flush=True); input()"
AS_NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "stdin": -1, "stdout": -1, "stderr": -1}


@pytest.mark.attack("zygotes and PID 1 are not dumpable", control="itself", level="sealed")
@pytest.mark.skipif(not is_root, reason="only root's programs have another user's id")
def test_who_has_the_id_of_roots_programs_cannot_write_what_they_are_forked_from() -> None:
    def attack(pid: int) -> str:
        with subprocess.Popen([SYSTEM_PYTHON, "-c", WRITES, str(pid)], **AS_NOBODY) as attacker:
            said, error = attacker.communicate(timeout=HANG_S)
        return (said or error.splitlines()[-1]).decode()

    with subprocess.Popen([SYSTEM_PYTHON, "-c", WAITS], **AS_NOBODY) as control:
        assert control.stdout is not None
        assert control.stdout.readline() == b"ready\n"
        won = attack(control.pid)
        control.kill()
    if not won.startswith("could"):
        pytest.skip(f"not even one's own can be written here: {won}")
    with Own("sealed") as made:
        cell = start(made, "import time; print(1, flush=True); time.sleep(3600)")
        assert cell.read(HANG_S) == Output("stdout", b"1\n")
        for pid in (made.zygote_pid, *children(made.zygote_pid)):
            assert "Permission" in attack(pid), pid
        cell.close()
