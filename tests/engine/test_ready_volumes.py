"""What is made ahead for sessions: each is used once, by one session, and nothing of it counts against its limits."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from process_view import descendants, wait_for_housekeeper

from fumehood import open_session
from fumehood.engine import housekeeper, ready_volumes
from fumehood.engine import volume as volumes
from fumehood.engine.cell import Cell
from fumehood.engine.interpreter import Interpreter
from fumehood.engine.volume import Volume
from fumehood.errors import IsolationUnavailable
from support import HANG_S, wait_until

SETTINGS = {"isolation": "sealed", "require": "sealed", "store_code": "never", "timeout_sec": HANG_S}


@pytest.fixture(autouse=True)
def _sealed_and_nothing_ready() -> Iterator[None]:
    try:
        with open_session(warm_cells=0, **SETTINGS) as session:
            session.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    ready_volumes._drop_all()
    yield
    ready_volumes._drop_all()


def ready() -> list[Volume]:
    return [volume for kept in list(ready_volumes._ready.values()) for volume in list(kept.values())]


def with_spare(kind: type[Cell]) -> list[Volume]:
    return [volume for volume in list(volumes._alive) if volume.has_spare(kind)]


def births(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that calls have made for themselves, from now on."""
    made: list[Cell] = []
    begin = Volume._begin

    def noting(self: Volume, cell: Cell, command: Any) -> Cell:
        if cell not in self._cells:
            made.append(cell)
        return begin(self, cell, command)

    monkeypatch.setattr(Volume, "_begin", noting)
    return made


def test_the_next_command_finds_a_cell_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(**SETTINGS) as session:
        assert session.exec(["echo", "1"]).stdout == "1\n"
        for number in range(3):
            assert wait_until(lambda: with_spare(Cell))
            made = births(monkeypatch)
            ran = session.exec(["sh", "-c", "echo $0 $VALUE; cat", str(number)], env={"VALUE": "x"}, stdin="in")
            assert ran.stdout == f"{number} x\nin"
            assert made == []
            monkeypatch.undo()
        assert wait_until(lambda: with_spare(Cell))
        assert session.exec(["sh", "-c", "exit 3"]).exit_code == 3


def test_a_cell_that_waits_and_dies_is_replaced() -> None:
    with open_session(**SETTINGS) as session:
        session.exec(["true"])
        assert wait_until(lambda: with_spare(Cell))
        (volume,) = with_spare(Cell)
        spare = volume._spares[Cell]
        spare.kill()
        assert wait_until(lambda: not spare.is_waiting())
        assert session.exec(["echo", "1"]).stdout == "1\n"


def test_a_session_that_runs_no_command_has_no_cell_for_one() -> None:
    with open_session(**SETTINGS) as session:
        assert session.run("print(1)").stdout == "1\n"
        assert wait_until(ready)  # the thread has come to it
        assert with_spare(Cell) == []


def test_the_next_session_finds_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(**SETTINGS) as first:
        first.run("x = 1; open('/workspace/left', 'w').write('1')")
        assert wait_until(ready)
        (waiting,) = ready()
        made = births(monkeypatch)
        with open_session(**SETTINGS) as second:
            ran = second.run("import os\nprint(os.listdir('/workspace'), 'x' in globals())")
            assert ran.stdout == "[] False\n"
            assert made == []
            assert waiting not in ready()
            second.run("open('/workspace/right', 'w').write('1')")
        assert first.run("import os; print(x, os.listdir('/workspace'))").stdout == "1 ['left']\n"
    assert wait_until(lambda: waiting._closed and not waiting._cells)


def test_no_place_serves_two_sessions() -> None:
    seen = []
    for _ in range(4):
        with open_session(**SETTINGS) as session:
            seen.append(session.run("import os; print(os.path.exists('/tmp/mark')); open('/tmp/mark', 'w')").stdout)
        assert wait_until(ready)
    assert seen == ["False\n"] * 4


def test_what_waits_does_not_count_against_the_limit_of_processes() -> None:
    """Each waiting cell is two processes in the group of its session."""
    code = "import threading, time\ndone = threading.Event()\nthreads = []\ntry:\n"
    code += "    for _ in range(100):\n        thread = threading.Thread(target=done.wait)\n"
    code += "        thread.start()\n        threads.append(thread)\nexcept RuntimeError: pass\n"
    code += "print(len(threads))\ndone.set()\n[thread.join() for thread in threads]; None"
    with open_session(processes=20, **SETTINGS) as session:
        before = int(session.run(code).stdout)
        session.exec(["true"])
        assert wait_until(lambda: with_spare(Cell))
        assert int(session.run(code).stdout) == before
        assert 15 < before < 20


def test_nothing_is_made_ahead_where_no_cell_shall_wait() -> None:
    with open_session(warm_cells=0, **SETTINGS) as session:
        session.exec(["true"])
        session.run("1")
    wait_for_housekeeper()
    assert (ready(), with_spare(Cell), with_spare(Interpreter)) == ([], [], [])


def test_nor_for_a_session_with_little_memory() -> None:
    with open_session(memory_mb=32, **SETTINGS) as session:
        session.exec(["true"])
        wait_for_housekeeper()
        assert (ready(), with_spare(Cell)) == ([], [])


def test_after_a_quiet_while_nothing_waits() -> None:
    with open_session(**SETTINGS) as session:
        session.exec(["true"])
        assert wait_until(lambda: with_spare(Cell) and ready())
        for call in housekeeper._when_quiet:
            call()
        assert (ready(), with_spare(Cell)) == ([], [])
        assert session.exec(["echo", "1"]).stdout == "1\n"


def test_nothing_of_a_closed_session_runs_on() -> None:
    before = set(descendants())
    with open_session(**SETTINGS) as session:
        session.run("import subprocess; subprocess.Popen(['sleep', '3600'])")
        session.exec(["true"])
    ready_volumes._drop_all()
    wait_for_housekeeper()
    ready_volumes._drop_all()
    assert wait_until(lambda: not set(descendants()) - before)


def test_suggestions_wait_for_calls_and_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    housekeeper.start()
    wait_for_housekeeper()
    monkeypatch.setattr(housekeeper, "_PATIENCE_S", HANG_S)
    busy, did = [True], list[int]()
    monkeypatch.setattr(housekeeper, "_is_busy", [lambda: bool(busy)])
    for number in range(100):
        housekeeper.suggest(functools.partial(did.append, number))
    cleared = threading.Event()
    housekeeper.later(cleared.set)
    assert cleared.wait(HANG_S)
    assert did == []
    busy.clear()
    wait_for_housekeeper()
    assert 0 < len(did) <= housekeeper._MOST_SUGGESTIONS  # of the others nobody has heard


def test_a_suggestion_is_not_put_off_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    housekeeper.start()
    wait_for_housekeeper()
    monkeypatch.setattr(housekeeper, "_is_busy", [lambda: True])
    done = threading.Event()
    housekeeper.suggest(done.set)
    assert done.wait(HANG_S)
