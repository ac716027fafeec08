"""Many at once, cancelled, inside event loops and after forks."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from marked import alive, new_marker
from support import HANG_S, open_fds, wait_until, zombies

from .conftest import ALL_TARGETS, WARM, Target
from .test_programs import nothing_left


@pytest.fixture(params=[*ALL_TARGETS, *WARM], ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def test_cancel_from_another_thread_kills_the_tree(box):
    marker = new_marker()
    cancel, ended = threading.Event(), threading.Event()
    code = f"import subprocess; print('up', flush=True); subprocess.run(['sleep', '{marker}'])"

    def cancel_when_running() -> None:
        wait_until(lambda: alive(marker) or ended.is_set())
        cancel.set()

    thread = threading.Thread(target=cancel_when_running)
    thread.start()
    try:
        result = box.run(code, cancel=cancel)
    finally:
        ended.set()
        thread.join()
    assert (result.meta["reason"], result.exit_code, result.stdout) == ("cancelled", 137, "up\n")
    assert nothing_left(box, marker)


def test_an_execution_that_was_cancelled_before_it_started_ends_at_once(box):
    cancel = threading.Event()
    cancel.set()
    result = box.run("import time; time.sleep(3600)", cancel=cancel)
    assert (result.meta["reason"], result.exit_code) == ("cancelled", 137)


@pytest.mark.parametrize("count", [16, pytest.param(240, marks=pytest.mark.soak)])
def test_eight_threads_at_once_each_get_their_own_result(box, count):
    box.run("")
    programs = [f"import time; time.sleep(0.1); print({n}); exit({n})" for n in range(count)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(box.run, programs))
    assert [(result.stdout, result.stderr, result.exit_code) for result in results] == [
        (f"{n}\n", "", n) for n in range(count)
    ]


def test_the_synchronous_call_works_inside_a_running_event_loop(box):
    async def scenario():
        return box.sandbox.execute("print('x')", timeout=HANG_S)

    assert asyncio.run(scenario()).exit_code == 0


def test_a_forked_process_can_execute_too(box):
    box.run("")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if box.sandbox.execute("print('x')", timeout=HANG_S).exit_code == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert box.run("print('x')").exit_code == 0


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_many_executions_leave_no_descriptor_or_zombie(box, count):
    box.run("")
    before, dead = open_fds(), zombies()
    each = {"sealed": 10, "docker": 3}.get(box.target.level, 0)  # descriptors of one that waits, and of its group
    waiting = 2 * each if box.target.warm else 0
    for _ in range(count + waiting):
        assert box.run("pass").exit_code == 0
    assert wait_until(lambda: open_fds() <= before + 1 + waiting), (open_fds(), before)
    assert wait_until(lambda: zombies() <= dead)
