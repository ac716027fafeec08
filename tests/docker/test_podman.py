"""The same backend on Podman's socket."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_api import PATIENT, containers_of

from docker_engine import IMAGE, clear_up, client_of, end_leftovers
from escape.test_sessions import timed_out
from fumehood import BackendUnavailable, execution, get_sandbox, open_session
from support import HANG_S, wait_until

# Podman asks for more processes than a root without CAP_SYS_RESOURCE may give.
HOOK = """#!/usr/bin/python3 -I
import json, sys
spec = json.load(sys.stdin)
spec["process"]["rlimits"] = [each for each in spec["process"].get("rlimits", ()) if each["type"] != "RLIMIT_NPROC"]
json.dump(spec, sys.stdout)
"""


@pytest.fixture
def podman(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service of the tests' own, with the runner image of their Docker engine: one test at a time has it."""
    if os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs root, podman and runc (apt-get install podman)")
    home = Path(docker_host.removeprefix("unix://")).parent.parent / "cache" / "podman"
    (home / "hooks").mkdir(parents=True, exist_ok=True)
    hook = home / "hooks" / "hook.py"
    hook.write_text(HOOK, encoding="utf-8")
    hook.chmod(0o755)
    when = {"version": "1.0.0", "hook": {"path": str(hook)}, "when": {"always": True}, "stages": ["precreate"]}
    (home / "hooks" / "hook.json").write_text(json.dumps(when))
    command = [
        *("podman", "--root", f"{home}/root", "--runroot", f"{home}/run", "--tmpdir", f"{home}/tmp"),
        *("--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"),
        *("--hooks-dir", f"{home}/hooks"),
    ]
    address = f"unix://{home}/podman.sock"
    with open(home / "lock", "w") as lock, open(home / "podman.log", "wb") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end_leftovers(home)
        ours, theirs = (
            subprocess.run(
                [*docker, "image", "inspect", "-f", "{{.Id}}", IMAGE], env=env, capture_output=True, encoding="utf-8"
            )
            for docker, env in ((command, None), (["docker"], client_of(docker_host)))
        )
        if ours.stdout.strip() != theirs.stdout.strip().removeprefix("sha256:"):
            saving = subprocess.Popen(["docker", "save", IMAGE], env=client_of(docker_host), stdout=subprocess.PIPE)
            with saving:
                subprocess.run(
                    [*command, "load"], stdin=saving.stdout, check=True, stdout=log, stderr=log, timeout=3 * HANG_S
                )
            subprocess.run([*command, "image", "prune", "-f"], check=True, stdout=log, stderr=log, timeout=HANG_S)
        (home / "podman.sock").unlink(missing_ok=True)
        service = subprocess.Popen(
            [*command, "system", "service", "--time", "0", address], stdout=log, stderr=log, umask=0o022
        )
        monkeypatch.setenv("DOCKER_HOST", address)
        try:
            assert wait_until((home / "podman.sock").exists), (home / "podman.log").read_text()
            yield address
        finally:
            subprocess.run([*command, "rm", "-fa"], stdout=log, stderr=log, timeout=HANG_S)
            service.terminate()
            service.wait(HANG_S)
            clear_up(home, "libpod_parent")


def test_a_container_of_podmans_is_sealed(podman: str) -> None:
    """All but the number of files, which only the memory bounds; and the receipt says so."""
    with get_sandbox(type="docker", require="sealed", warm_cells=0) as sandbox:
        receipt = sandbox.check()
        assert {name: axis.step for name, axis in receipt.axes.items() if axis.level != "sealed"} == {
            "disk": "tmpfs_inodes"
        }
        places = ("/", "/run", "/var/tmp", "/etc", "/opt", "/dev", "/dev/mqueue")
        result = sandbox.execute(f"import os; print([p for p in {places} if os.access(p, os.W_OK)])")
        assert (result.exit_code, result.stdout) == (0, "['/dev/mqueue']\n")  # where a limit of none holds
        assert sandbox.execute("keep = b'x' * (400 << 20)").meta["reason"] == "memory"
        late = "print('up', flush=True); import time; time.sleep(3600)"
        timed_out(lambda timeout: sandbox.execute(late, timeout=timeout), "up\n")
    assert wait_until(lambda: containers_of(podman, os.getpid()) == [])


def test_a_session_on_podman(podman: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "INTERRUPT_GRACE_S", HANG_S)  # on a busy machine one that stops late is killed else
    with open_session(type="docker", warm_cells=1) as session:
        session.write("/workspace/a.txt", "text")
        assert session.run("x = open('a.txt').read()").exit_code == 0
        assert session.run("while True: pass", 1).meta["timed_out"] is True
        assert session.run("print(x)").stdout == "text\n"
        assert session.exec(["sh", "-c", "id -u"]).stdout == "1000\n"
    assert wait_until(lambda: containers_of(podman, os.getpid()) == [])


def test_a_killed_host_leaves_nothing_on_podman_after_the_next_start(podman: str) -> None:
    code = f"""{PATIENT}
from fumehood import open_session
session = open_session(type="docker", warm_cells=1)
print(session.run("1").exit_code, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"0\n"
        assert containers_of(podman, host.pid)
        host.send_signal(signal.SIGKILL)
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        sandbox.check()
    assert containers_of(podman, host.pid) == []


@pytest.mark.usefixtures("podman")
def test_a_runtime_that_podman_does_not_take_is_told() -> None:
    with get_sandbox(type="docker", docker_runtime="runsc", warm_cells=0) as sandbox:
        with pytest.raises(BackendUnavailable, match="DOCKER_RUNTIME is 'runsc' and the engine used"):
            sandbox.execute("print(1)")


@pytest.mark.usefixtures("podman")
def test_an_image_that_podman_does_not_have_is_told() -> None:
    with get_sandbox(type="docker", docker_image="no-such-image:latest", warm_cells=0) as sandbox:
        with pytest.raises(BackendUnavailable, match="fumehood image build"):
            sandbox.execute("print(1)")
