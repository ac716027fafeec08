"""Every probe of the corpus in the containers of the Docker backend, and where nothing of ours holds it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_arm import ControlArm

from escape import arms, test_probes
from escape.probes import PRELUDE
from escape.test_attacks import ATTACKS
from escape.test_probes import RUNNABLE, Canaries, planted
from escape.test_sessions import Inside
from fumehood import get_sandbox, open_session
from support import HANG_S

_HOST_FILES = ("/etc/shadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/etc/machine-id")

# An image has these too: what counts is whether the host's content shows. Why, and how that is told.
JUDGED_BY_CONTENT = {
    "fsr03": (
        "an image may have a /etc/shadow of its own",
        f"""
import hashlib
won = [path for path in {_HOST_FILES} if rd(path) and hashlib.sha256(rd(path)).hexdigest() in {{DIGESTS}}]
""",
    ),
    "prc08": (
        "the engine mounts a read-only /sys, and the guest reads its own control group there",
        """
import glob
groups = '/sys/fs/cgroup/*/' if os.path.exists('/sys/fs/cgroup/cgroup.controllers') else '/sys/fs/cgroup/*/*/'
won = glob.glob(groups)  # beneath one's own there are none
won += [path for path in glob.glob('/sys/*') + glob.glob('/sys/fs/cgroup/*/*') if os.access(path, os.W_OK)]
for path in ('/sys/kernel', '/sys/kernel/debug', '/sys/firmware', '/sys/module'):
    won += [path] if os.path.isdir(path) and os.listdir(path) else []
""",
    ),
    "prc10": (
        "an image may have a /etc/machine-id of its own",
        """
import hashlib
won = socket.gethostname() == '{HOSTNAME}' or hashlib.sha256(rd('/etc/machine-id')).hexdigest() in {DIGESTS}
""",
    ),
}

# What more than the corpus asks for, and a container does not give.
GAPS = {
    "finds_a_mount_that_keeps_setuid_or_devices": "the root is the image's, read-only; no_new_privs makes setuid"
    " files harmless there, and no device can be made",
    "makes_itself_hard_to_kill_for_the_oom_killer": "a program may take back what made it go before PID 1; then the"
    " container ends, which is a result as well",
}

# The directory must be beneath one that the image has, and open to all: else its own permissions would hide the path.
_COMMON = Path("/var/tmp")
_ABSENT = {"fsr01", "fsr05", "fsw01"}

STAGES = test_probes.STAGES | {
    "fsw06": {"WS": "/srv"},  # a link stays within one file system
    "ipc03": {"OWN_KEYRING": "yes"},  # a container's session keyring is a new one
}


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    with planted(_COMMON) as canaries:
        contents = [path.read_bytes() for path in map(Path, _HOST_FILES) if os.access(path, os.R_OK)]
        digests = [hashlib.sha256(content).hexdigest() for content in contents if content]
        canaries.values["DIGESTS"] = repr(digests)
        yield canaries


@pytest.fixture(scope="module")
def sandbox(docker_host: str, canaries: Canaries) -> Iterator[Any]:
    del canaries  # they must exist before anything is started that could inherit them
    settings: dict[str, Any] = {"type": "docker", "require": "sealed", "store_code": "never", "warm_cells": 2}
    with get_sandbox(docker_host=docker_host, timeout_sec=HANG_S, **settings) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def control_arm(tmp_path_factory: pytest.TempPathFactory, canaries: Canaries) -> Iterator[ControlArm]:
    shown = ["/etc/passwd", "/etc/shadow", str(canaries.host_directory.parent), str(canaries.workspace)]
    arm = ControlArm(tmp_path_factory.mktemp("arm"), shown)
    yield arm
    arm.close()


def code_of(name: str) -> str:
    return PRELUDE + (JUDGED_BY_CONTENT[name][1] if name in JUDGED_BY_CONTENT else RUNNABLE[name]["code"])


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_container_holds(name: str, sandbox: Any, canaries: Canaries) -> None:
    attack = arms.fill(code_of(name), test_probes.inside(canaries))
    outcome, result = arms.in_the_sandbox(sandbox, attack)
    test_probes.assert_held(name, outcome, result, canaries)
    if name in _ABSENT:
        assert outcome.errno_name == "ENOENT"


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_probe_wins_without_protection(name: str, docker: str, control_arm: ControlArm, canaries: Canaries) -> None:
    try:
        outcome = control_arm.run(docker, code_of(name), canaries.values | STAGES.get(name, {}))
        test_probes.assert_won(name, outcome, canaries)
    finally:
        canaries.clear()


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("verb", ["run", "exec"])
def test_a_session_holds_what_a_cell_holds(verb: str) -> None:
    """Beyond the corpus, one after the other in one container; the control arms are those of the cell."""
    lost = {}
    with open_session("docker", "sealed", store_code="never", warm_cells=0) as session:
        for name, attack in ATTACKS.items():
            outcome, result = arms.in_the_sandbox(Inside(session, verb), attack.text)
            assert outcome.finished, f"{name} did not report: {result}"
            assert outcome.was_refused, f"{name} is broken: {outcome.error}"
            if outcome.won != (name in GAPS):
                lost[name] = outcome.shown
    assert not lost, "held or not, against what the table of gaps says"


def test_pid_1_starves_without_protection(docker: str, control_arm: ControlArm, canaries: Canaries) -> None:
    outcome = control_arm.run(docker, ATTACKS["starves_pid_1_by_scheduling"].text, canaries.values)
    for name in ("setpriority", "sched_setscheduler", "sched_setattr", "sched_setaffinity", "ioprio_set"):
        assert repr(name) in outcome.shown, outcome


def test_a_container_takes_no_watches_from_the_host_s_user(
    docker: str, sandbox: Any, control_arm: ControlArm, canaries: Canaries
) -> None:
    """Whoever has the user id 1000 there has few of them."""
    attack = arms.fill(PRELUDE + "won = libc.inotify_init() >= 0", canaries.values)
    outcome, _ = arms.in_the_sandbox(sandbox, attack)
    assert outcome.finished
    assert not outcome.won
    assert outcome.errno_name == "EMFILE"
    assert control_arm.run(docker, attack, canaries.values).won


def test_the_tables_name_only_what_exists() -> None:
    assert JUDGED_BY_CONTENT.keys() | _ABSENT <= RUNNABLE.keys()
    assert GAPS.keys() <= ATTACKS.keys()
