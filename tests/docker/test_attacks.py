"""Attacks on a guest that is PID 1 and shares its user id with the program: what only the host can tell."""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from escape import test_attacks
from escape.test_attacks import (
    assert_alive,
    flooding,
    run,
    starts_a_process,
    test_a_pid_1_without_resources_is_still_a_result,
    test_killing_everyone_ends_only_the_program,
    test_nobody_but_the_program_says_when_it_is_done,
    test_noise_on_every_descriptor_changes_nothing,
    test_nothing_stays_from_one_execution_to_the_next,
)
from escape.test_sessions import (
    PATIENT,
    test_a_closed_channel_holds_nobody_up,
    test_a_frame_that_is_too_long_ends_the_interpreter_alone,
    test_a_race_with_the_copy_never_reaches_the_host_s_files,
    test_an_endless_stream_of_frames_is_bounded,
    test_forged_frames_decide_nothing_but_their_own_run,
    test_half_a_frame_holds_nobody_up,
    test_many_files_and_deep_directories_do_not_stop_the_host,
    test_nothing_outlives_its_end,
    test_the_host_s_disk_is_not_filled_by_outputs,
    test_the_interpreter_is_interrupted_by_nobody_but_the_host,
    timed_out,
)
from fumehood import get_sandbox, open_session
from support import HANG_S

__all__ = [  # run here with the fixtures below
    "test_a_closed_channel_holds_nobody_up",
    "test_a_frame_that_is_too_long_ends_the_interpreter_alone",
    "test_a_pid_1_without_resources_is_still_a_result",
    "test_a_race_with_the_copy_never_reaches_the_host_s_files",
    "test_an_endless_stream_of_frames_is_bounded",
    "test_forged_frames_decide_nothing_but_their_own_run",
    "test_half_a_frame_holds_nobody_up",
    "test_killing_everyone_ends_only_the_program",
    "test_many_files_and_deep_directories_do_not_stop_the_host",
    "test_nobody_but_the_program_says_when_it_is_done",
    "test_noise_on_every_descriptor_changes_nothing",
    "test_nothing_outlives_its_end",
    "test_nothing_stays_from_one_execution_to_the_next",
    "test_the_host_s_disk_is_not_filled_by_outputs",
    "test_the_interpreter_is_interrupted_by_nobody_but_the_host",
]

pytestmark = pytest.mark.usefixtures("docker")


@pytest.fixture(scope="module")
def sandbox(docker_host: str) -> Iterator[Any]:
    settings: dict[str, Any] = {"type": "docker", "require": "sealed", "store_code": "never", "warm_cells": 1}
    with get_sandbox(docker_host=docker_host, timeout_sec=HANG_S, **settings) as sandbox:
        yield sandbox


@pytest.fixture
def session(docker: str, tmp_path: Path) -> Iterator[Any]:
    settings: dict[str, Any] = {"output_dir": str(tmp_path / "output"), "session_id": "x", "warm_cells": 0, **PATIENT}
    with open_session(
        "docker", "sealed", docker_host=docker, docker_memory_limit="1g", store_code="never", **settings
    ) as session:
        yield session


# ---- PID 1 kept busy, and out of memory


def wakes_pid_1_without_end() -> None:
    for _ in range(40):
        if os.fork() == 0:
            break
    else:
        print("flooding", flush=True)
    while True:
        os.kill(1, signal.SIGCHLD)


def test_a_pid_1_that_is_woken_without_end_still_ends_the_program(sandbox: Any) -> None:
    timed_out(lambda timeout: run(sandbox, wakes_pid_1_without_end, timeout=timeout), "flooding\n")
    assert_alive(sandbox)


def fills_memory_with_files() -> None:
    """No process of its own is large, so the kernel may well choose PID 1."""
    Path("/proc/self/oom_score_adj").write_text("0")
    for path in ("/workspace/f", "/tmp/f", "/dev/shm/f"):
        if os.fork() == 0:
            try:
                with open(path, "wb", 0) as file:
                    while True:
                        file.write(b"x" * 65536)
            except OSError:
                pass
            os.execv("/bin/sleep", ["sleep", "3600"])
    print("filling", flush=True)
    time.sleep(3600)


def test_memory_full_of_files_is_a_result(sandbox: Any) -> None:
    result = run(sandbox, fills_memory_with_files)
    assert (result.exit_code, result.meta["reason"]) == (137, "memory"), result
    assert_alive(sandbox)


LOSES_A_CHILD_TO_THE_LIMIT = """
import os, signal, time
if os.fork() == 0:
    keep = bytearray(b"x") * (400 << 20)
os.wait()
time.sleep(0.8)  # the host asks what was used meanwhile
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_hit_the_limit_is_told_once_and_not_forgotten(docker: str) -> None:
    with open_session("docker", docker_host=docker, warm_cells=0) as session:
        result = session.run(LOSES_A_CHILD_TO_THE_LIMIT)
    assert (result.exit_code, result.meta["reason"], result.meta["state"]) == (137, "memory", "lost"), result


# ---- one program of a session against the next


def waits_for_the_next_program() -> None:
    """Writes down who it is and how many filters it has when its memory can first be written to."""
    if os.fork():
        return
    with open("/tmp/seen", "w", 1) as seen:
        following = os.getpid() + 1
        while True:
            for pid in (following, following + 1, following + 2):  # one may have gone by
                try:
                    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                seen.write(f"{pid} {status.split('Seccomp_filters:')[1].split()[0]}\n")
                os.close(memory)
                following = pid + 1
                break


UNTIL_IT_IS_SEEN = """
import os, time
while f"{os.getpid()} " not in open("/tmp/seen").read():
    time.sleep(0.01)
"""


def test_a_daemon_never_writes_into_a_program_that_has_no_filter_yet(docker: str) -> None:
    text = f"import os, time\nfrom pathlib import Path\n{inspect.getsource(waits_for_the_next_program)}"
    with open_session("docker", docker_host=docker, docker_cpu_limit=2, warm_cells=0) as session:
        session.run(f"{text}\nwaits_for_the_next_program()")
        for _ in range(10):
            assert session.exec(["python", "-c", UNTIL_IT_IS_SEEN]).exit_code == 0
        seen = session.run("print(open('/tmp/seen').read())").stdout.splitlines()
    filters = [line.split()[1] for line in seen if line]
    assert len(filters) >= 10  # it did look, and programs of one session may
    assert set(filters) == {"2"}  # the engine's and ours


# ---- files, and what the kernel counts per user: all containers have the same


def fills_every_place_with_files() -> None:
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/sandbox"):
        made = 0
        try:
            while True:
                open(f"{place}/{made}", "w").close()
                made += 1
        except OSError:
            print(place, made)


def test_places_without_a_free_inode_leave_a_session_that_answers(docker: str) -> None:
    text = f"{inspect.getsource(fills_every_place_with_files)}\nfills_every_place_with_files()"
    with open_session("docker", docker_host=docker, warm_cells=0, inodes=200) as session:
        filled = session.run(text).stdout.splitlines()
        assert [int(line.split()[1]) <= 200 for line in filled] == [True] * 4
        assert session.run("print('alive')").stdout == "alive\n"
        assert session.exec(["echo", "alive"]).stdout == "alive\n"


@pytest.mark.parametrize(
    "work",
    [
        test_attacks.floods_pending_signals,
        test_attacks.floods_descriptors_in_flight,
        test_attacks.floods_pipes,
    ],
)
def test_a_greedy_container_does_not_starve_its_neighbours(work: Callable[[], None], sandbox: Any) -> None:
    with flooding(sandbox, work):
        for _ in range(3):
            assert starts_a_process(sandbox)


def opens_terminals() -> None:
    try:
        os.openpty()
        print("opened")
    except OSError:
        print("refused")


def test_a_container_has_no_share_of_the_host_s_terminals(sandbox: Any) -> None:
    assert run(sandbox, opens_terminals).stdout == "refused\n"  # the control arm gives each of its attacks one
