"""Whoever dies, nothing is left after the next start; and nothing of anybody else's is touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engine_api import PATIENT, ask, containers_of, created

from docker_engine import Daemon
from fumehood import get_sandbox, open_session
from fumehood.backends.docker import container, pool, sweep
from fumehood.backends.docker.client import Refused
from fumehood.backends.docker.container import Container
from support import HANG_S, wait_until

ONE_WAITS = """
def one_waits():
    return any(map(len, next(iter(pool._hubs.values()))._waiting.values()))
"""
WAITS = f"""{PATIENT}{ONE_WAITS}
import sys, time
from fumehood import get_sandbox, open_session
session = open_session(type="docker", warm_cells=1)
exit_code = session.run("1").exit_code
while not one_waits(): time.sleep(0.01)
print(exit_code, flush=True)
sys.stdin.read()
"""
CHECKS = PATIENT + "from fumehood import get_sandbox; get_sandbox(type='docker', warm_cells=0).check()"


def test_a_killed_host_leaves_nothing_after_the_next_start(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"0\n"
        assert containers_of(docker, host.pid)
        host.send_signal(signal.SIGKILL)
    # Without anybody's help: the guests find the end of their input.
    assert wait_until(lambda: all(each["State"] != "running" for each in containers_of(docker, host.pid)))
    subprocess.run([sys.executable, "-c", CHECKS], check=True, timeout=HANG_S)
    assert containers_of(docker, host.pid) == []


def test_a_process_that_ends_without_closing_leaves_nothing(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"0\n"
        assert host.stdin is not None
        host.stdin.close()
        assert host.wait(HANG_S) == 0
    assert wait_until(lambda: containers_of(docker, host.pid) == [])


@pytest.mark.parametrize("driver", ["direct", "async"])
def test_closing_leaves_nothing(docker: str, driver: str) -> None:
    if driver == "direct":
        with get_sandbox(type="docker", warm_cells=2) as sandbox:
            assert [sandbox.execute("print(1)").stdout for _ in range(3)] == ["1\n"] * 3
    else:
        sandbox = get_sandbox(type="docker", warm_cells=2)
        assert asyncio.run(sandbox.execute_async("print(1)")).stdout == "1\n"
    assert containers_of(docker, os.getpid()) == []


def test_garbage_leaves_nothing(docker: str) -> None:
    session = open_session(type="docker", warm_cells=0)
    session.run("1")
    del session
    assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


def running(address: str) -> set[str]:
    return {each["Id"] for each in containers_of(address, os.getpid()) if each["State"] == "running"}


def waiting() -> int:
    """Containers that have said hello: they run a moment before."""
    return sum(len(each) for hub in list(pool._hubs.values()) for each in list(hub._waiting.values()))


# Prints the container's own identity.
LOOK = "import re; print(re.search('/containers/([0-9a-f]{64})/', open('/proc/self/mountinfo').read())[1])"


def test_a_container_serves_one_program(docker: str) -> None:
    with get_sandbox(type="docker", warm_cells=1) as sandbox:
        used = [sandbox.execute(LOOK).stdout.strip() for _ in range(4)]
        assert len(set(used)) == 4
        assert all(used)
        assert wait_until(lambda: not running(docker) & set(used))


def test_waiting_containers_are_ready_for_the_next_program(docker: str) -> None:
    with get_sandbox(type="docker", warm_cells=2) as sandbox:
        used = {sandbox.execute(LOOK).stdout.strip() for _ in range(2)}
        assert wait_until(lambda: waiting() == 2)
        ready = running(docker) - used
        assert len(ready) == 2
        assert sandbox.execute(LOOK).stdout.strip() in ready


def test_a_program_takes_the_container_that_is_being_made(docker: str) -> None:
    """One that is begun ahead is never passed by with another."""
    with created(docker, f"{sweep.OWNER}={sweep.own_labels()[sweep.OWNER]}") as made:
        with get_sandbox(type="docker", warm_cells=1) as sandbox:
            assert [sandbox.execute("print(1)").stdout for _ in range(4)] == ["1\n"] * 4
            assert wait_until(lambda: waiting() == 1)
    assert len(made) == 5


# ---- several at once


def test_two_engines_at_once_in_one_process(docker: str, daemon: Daemon) -> None:
    with (
        get_sandbox(type="docker", docker_host=docker, warm_cells=1) as one,
        get_sandbox(type="docker", docker_host=daemon.address, warm_cells=1) as other,
        open_session(type="docker", docker_host=daemon.address, warm_cells=0) as session,
    ):
        session.run("x = 1")
        for _ in range(2):
            assert [one.execute("print(1)").stdout, other.execute("print(2)").stdout] == ["1\n", "2\n"]
        assert containers_of(docker, os.getpid())
        other.close()
        assert one.execute("print(1)").stdout == "1\n"
        assert session.run("print(x)").stdout == "1\n"  # it has the engine that was closed by another
    for address in (docker, daemon.address):
        assert wait_until(lambda address=address: containers_of(address, os.getpid()) == [])


def test_settings_that_differ_at_once_in_one_process(docker: str) -> None:
    with (
        get_sandbox(type="docker", docker_memory_limit="96m", warm_cells=1) as small,
        get_sandbox(type="docker", docker_memory_limit="256m", warm_cells=1) as large,
    ):
        code = "keep = b'x' * (150 << 20); print(len(keep))"
        for _ in range(2):
            assert small.execute(code).meta["reason"] == "memory"
            assert large.execute(code).exit_code == 0
    assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


def test_a_loop_that_ends_takes_its_waiting_containers_with_it(docker: str) -> None:
    sandbox = get_sandbox(type="docker", warm_cells=2)

    async def run() -> None:
        for _ in range(2):
            assert (await sandbox.execute_async("print(1)")).stdout == "1\n"
        assert await asyncio.to_thread(wait_until, lambda: running(docker))

    for _ in range(2):
        asyncio.run(run())
        assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


ABRUPT = f"""{PATIENT}{ONE_WAITS}
import asyncio, gc, os, sys
from fumehood import get_sandbox
sandbox = get_sandbox(type="docker", warm_cells=1)
loop = asyncio.new_event_loop()
assert loop.run_until_complete(sandbox.execute_async("print(1)")).stdout == "1\\n"
async def until_one_waits():
    while not one_waits():
        await asyncio.sleep(0.01)
loop.run_until_complete(until_one_waits())
loop.close()
if sys.argv[1] == "again":
    assert asyncio.run(sandbox.execute_async("print(1)")).stdout == "1\\n"
    sandbox.close()
    del sandbox, loop
    gc.collect()
"""


@pytest.mark.parametrize("then", ["again", "end"])
def test_a_loop_that_is_closed_by_force_leaves_nothing_behind_its_process(docker: str, then: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ABRUPT, then], stderr=subprocess.PIPE, encoding="utf-8") as host:
        said = host.communicate(timeout=HANG_S)[1]
    assert host.returncode == 0, said
    assert "Exception ignored" not in said, said  # asyncio's own complaint about the loop is right
    assert wait_until(lambda: containers_of(docker, host.pid) == [])


FORKS = f"""{PATIENT}
import gc, os, sys, time
from fumehood import get_sandbox, open_session
sandbox = get_sandbox(type="docker", warm_cells=1)
session = open_session(type="docker", warm_cells=0)
session.run("x = 41")
assert sandbox.execute("print(1)").stdout == "1\\n"
child = os.fork()
if child == 0:
    assert sandbox.execute("print(2)").stdout == "2\\n"
    with open_session(type="docker", warm_cells=0) as own:
        assert own.run("print(3)").stdout == "3\\n"
    del sandbox, session
    gc.collect()
    sys.exit(0)  # with all that is done at the end of a process
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert session.run("print(x + 1)").stdout == "42\\n"
assert sandbox.execute("print(1)").stdout == "1\\n"
print(child, flush=True)
"""


def test_a_forked_child_has_its_own_and_leaves_the_parents_alone(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, encoding="utf-8") as host:
        said, _ = host.communicate(timeout=HANG_S)
    assert host.returncode == 0
    for pid in (host.pid, int(said)):
        assert wait_until(lambda pid=pid: containers_of(docker, pid) == [])


LEAVES_A_CHILD = f"""{PATIENT}
import os, sys, time
from fumehood import open_session
session = open_session(type="docker", warm_cells=0)
session.run("1")
child = os.fork()
if child == 0:
    time.sleep(3600)
    os._exit(0)
print(child, flush=True)
time.sleep(3600)
"""


def test_a_child_does_not_keep_the_containers_of_a_killed_parent(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVES_A_CHILD], stdout=subprocess.PIPE, encoding="utf-8") as host:
        assert host.stdout is not None
        child = int(host.stdout.readline())
        try:
            assert [each["State"] for each in containers_of(docker, host.pid)] == ["running"]
            host.kill()
            assert wait_until(lambda: [each["State"] for each in containers_of(docker, host.pid)] != ["running"])
        finally:
            os.kill(child, signal.SIGKILL)


# ---- removing one


class Answers:
    """An engine that gives these answers to DELETE, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked = 0

    async def ask(self, verb: str, path: str, **_: str) -> None:
        assert (verb, path.rpartition("/")[0]) == ("DELETE", "/containers")
        self.asked += 1
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status != 204:
            raise Refused(status, "as scripted")


def removed(engine: Answers, *, creation_was_cancelled: bool = False) -> bool:
    async def remove() -> bool:
        made = Container(engine)  # type: ignore[arg-type]
        made._creating = asyncio.get_running_loop().create_future()
        if creation_was_cancelled:
            made._creating.cancel()
        else:
            made._creating.set_result(None)
        return await made.remove()

    return asyncio.run(remove())


@pytest.mark.parametrize(
    ("statuses", "is_removed", "asked"),
    [((204,), True, 1), ((404,), True, 1), ((409, 409, 404), True, 3), ((500,), False, 1)],
)
def test_a_container_that_is_being_removed_is_waited_for(statuses: Any, is_removed: bool, asked: int) -> None:
    engine = Answers(*statuses)
    assert removed(engine) is is_removed
    assert engine.asked == asked


def test_a_container_that_is_never_gone_is_not_called_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_GOING_S", 0.2)
    engine = Answers(409)
    assert not removed(engine)
    assert engine.asked > 1


def test_a_container_whose_making_was_given_up_is_removed_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_COMING_S", HANG_S)
    engine = Answers(404, 404, 204)
    assert removed(engine, creation_was_cancelled=True)
    assert engine.asked == 3
    monkeypatch.setattr(container, "_COMING_S", 0.2)
    assert removed(Answers(404), creation_was_cancelled=True)


# ---- who may be swept


def labels(**changed: Any) -> dict[str, str]:
    names = {"owner": sweep.OWNER, "namespace": sweep.NAMESPACE, "expires": sweep.EXPIRES}
    own = {**sweep.own_labels(), sweep.EXPIRES: str(int(time.time()) + 3600)}
    return own | {names[name]: str(value) for name, value in changed.items()}


def owner_of(pid: int) -> str:
    boot = sweep.own_labels()[sweep.OWNER].split(":")[0]
    return f"{boot}:{pid}:{Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()[19]}"


def dead_owner() -> str:
    boot, _, started = sweep.own_labels()[sweep.OWNER].split(":")
    with subprocess.Popen(["true"]) as ended:
        pass
    return f"{boot}:{ended.pid}:{started}"


def test_what_is_in_use_is_never_swept() -> None:
    assert not sweep.is_left_over(labels())
    assert not sweep.is_left_over({})
    assert not sweep.is_left_over(labels(owner="x"))
    assert not sweep.is_left_over(labels(owner=f"another-boot:{dead_owner().split(':', 1)[1]}"))
    assert not sweep.is_left_over(labels(owner=dead_owner(), namespace="pid:[1]"))
    assert not sweep.is_left_over(labels(expires=int(time.time()) - 1))  # a clock may be wrong; its owner lives


def test_what_belongs_to_another_user_who_lives_is_never_swept() -> None:
    assert not sweep.is_left_over(labels(owner=owner_of(1)))
    assert sweep.is_left_over(labels(owner=f"{owner_of(1)}1"))


def test_what_a_dead_owner_left_is_swept() -> None:
    boot, pid, started = sweep.own_labels()[sweep.OWNER].split(":")
    assert sweep.is_left_over(labels(owner=dead_owner()))
    assert sweep.is_left_over(labels(owner=f"{boot}:{pid}:{int(started) + 1}"))  # somebody else came to its number
    assert sweep.is_left_over(labels(owner="another-boot:1:1", expires=int(time.time()) - 1))
    assert sweep.is_left_over(labels(namespace="pid:[1]", expires=int(time.time()) - 1))


def test_a_sweep_removes_what_is_left_and_nothing_else(docker: str) -> None:
    image = {"Image": "antigravity-sandbox:latest", "Cmd": ["true"]}
    made = {
        name: ask(docker, "POST", "/containers/create", {**image, "Labels": given})["Id"]
        for name, given in (
            ("dead", labels(owner=dead_owner())),
            ("expired", labels(owner="elsewhere:1:1", expires=1)),
            ("elsewhere", labels(owner="elsewhere:1:1")),
            ("in another namespace", labels(owner=dead_owner(), namespace="pid:[1]")),
            ("of another who lives", labels(owner=owner_of(os.getppid()), expires=1)),
            ("unlabelled", {}),
        )
    }
    try:
        subprocess.run([sys.executable, "-c", CHECKS], check=True, timeout=HANG_S)
        left = {each["Id"] for each in ask(docker, "GET", "/containers/json?all=1")}
        assert {name for name, identity in made.items() if identity in left} == made.keys() - {"dead", "expired"}
    finally:
        for identity in made.values():
            with contextlib.suppress(AssertionError):  # it was swept
                ask(docker, "DELETE", f"/containers/{identity}?force=1")
