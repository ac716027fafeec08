"""Whoever dies, nothing is left after the next start; and nothing of anybody else's is touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from engine_api import ask, containers_of

from fumehood import get_sandbox, open_session
from fumehood.backends.docker import sweep
from support import wait_until

WAITS = """
import sys
from fumehood import get_sandbox, open_session
session = open_session(type="docker", warm_cells=1)
print(session.run("1").exit_code, flush=True)
sys.stdin.read()
"""


def test_a_killed_host_leaves_nothing_after_the_next_start(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"0\n"
        assert containers_of(docker, host.pid)
        host.send_signal(signal.SIGKILL)
    # Without anybody's help: the guests find the end of their input.
    assert wait_until(lambda: all(each["State"] != "running" for each in containers_of(docker, host.pid)), 10)
    again = "from fumehood import get_sandbox; get_sandbox(type='docker', warm_cells=0).check()"
    subprocess.run([sys.executable, "-c", again], check=True, timeout=60)
    assert containers_of(docker, host.pid) == []


def test_a_process_that_ends_without_closing_leaves_nothing(docker: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"0\n"
        assert host.stdin is not None
        host.stdin.close()
        assert host.wait(30) == 0
    assert wait_until(lambda: containers_of(docker, host.pid) == [], 3)


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


def test_a_container_serves_one_program(docker: str) -> None:
    look = "import re; print(re.search('/containers/([0-9a-f]{64})/', open('/proc/self/mountinfo').read())[1])"
    with get_sandbox(type="docker", warm_cells=1) as sandbox:
        used = [sandbox.execute(look).stdout.strip() for _ in range(4)]
        assert len(set(used)) == 4
        assert all(used)
        assert wait_until(lambda: not running(docker) & set(used))


def test_waiting_containers_are_ready_for_the_next_program(docker: str) -> None:
    with get_sandbox(type="docker", warm_cells=2) as sandbox:
        for _ in range(2):
            sandbox.execute("pass")
        assert wait_until(lambda: len(running(docker)) == 2)
        time.sleep(0.3)
        assert len(running(docker)) == 2


# ---- who may be swept


def labels(**changed: Any) -> dict[str, str]:
    names = {"owner": sweep.OWNER, "namespace": sweep.NAMESPACE, "expires": sweep.EXPIRES}
    own = {**sweep.own_labels(), sweep.EXPIRES: str(int(time.time()) + 60)}
    return own | {names[name]: str(value) for name, value in changed.items()}


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


def test_what_a_dead_owner_left_is_swept() -> None:
    boot, pid, started = sweep.own_labels()[sweep.OWNER].split(":")
    assert sweep.is_left_over(labels(owner=dead_owner()))
    assert sweep.is_left_over(labels(owner=f"{boot}:{pid}:{int(started) + 1}"))  # somebody else came to its number
    assert sweep.is_left_over(labels(expires=int(time.time()) - 1))


def test_a_sweep_removes_what_is_left_and_nothing_else(docker: str) -> None:
    image = {"Image": "antigravity-sandbox:latest", "Cmd": ["true"]}
    made = {
        name: ask(docker, "POST", "/containers/create", {**image, "Labels": given})["Id"]
        for name, given in (
            ("dead", labels(owner=dead_owner())),
            ("expired", labels(owner="elsewhere:1:1", expires=1)),
            ("elsewhere", labels(owner="elsewhere:1:1")),
            ("unlabelled", {}),
        )
    }
    try:
        code = "from fumehood import get_sandbox; get_sandbox(type='docker', warm_cells=0).check()"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        left = {each["Id"] for each in ask(docker, "GET", "/containers/json?all=1")}
        assert {name for name, identity in made.items() if identity in left} == {"elsewhere", "unlabelled"}
    finally:
        for name in ("elsewhere", "unlabelled"):
            ask(docker, "DELETE", f"/containers/{made[name]}?force=1")
