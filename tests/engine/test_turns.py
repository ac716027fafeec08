"""More calls at once than there are descriptors for: all are served, one after another if need be."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from fumehood import IsolationUnavailable, get_sandbox
from fumehood.engine import turns as module
from fumehood.engine.turns import Turns
from support import HANG_S, wait_until

CALLS = 120  # each takes nine or more
CROWD = """
import collections, json, resource, threading
soft, hard = {limits}
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from fumehood import get_sandbox
said = collections.Counter()
with get_sandbox(isolation={level!r}, require={level!r}, store_code='never', timeout_sec=280) as sandbox:
    def call():
        try: said[sandbox.execute('print(1)').stdout] += 1
        except BaseException as error: said[repr(error)] += 1
    threads = [threading.Thread(target=call) for _ in range({calls})]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(json.dumps(said))
"""


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("level", ["sealed", "process"])
@pytest.mark.parametrize("hard", [256, 1024], ids=["held", "raised"])
def test_a_crowd_is_served_whatever_the_limit_of_descriptors(hard: int, level: str) -> None:
    try:
        with get_sandbox(isolation=level, require=level) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no {level} sandbox on this machine: {missing}")
    code = CROWD.format(limits=(256, hard), level=level, calls=CALLS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"1\n": CALLS}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """As many as may be: room for another comes only with an end."""
    turns = Turns()
    monkeypatch.setattr(turns, "_has_room", lambda: turns._starting + turns._running < module._FEW)
    for _ in range(module._FEW):
        turns.begin()
        turns.started()
    return turns


def test_who_waits_is_let_in_when_another_ends(full: Turns) -> None:
    let_in = []

    def wait() -> None:
        full.begin()
        let_in.append(1)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        assert wait_until(lambda: len(full._changed._waiters) == 3 - len(let_in))  # type: ignore[attr-defined]
        assert len(let_in) == number
        full.end()
        assert wait_until(lambda: len(let_in) > number)  # noqa: B023
    for thread in threads:
        thread.join()


def test_who_is_interrupted_while_it_waits_lets_the_next_one_go_on(
    full: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []

    def interrupted(_: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(full._changed, "wait", interrupted)
    monkeypatch.setattr(full._changed, "notify", lambda: woken.append(1))
    with pytest.raises(KeyboardInterrupt):
        full.begin()
    assert woken == [1]
    assert (full._starting, full._running) == (0, module._FEW)


def test_nobody_waits_forever(full: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose caller holds all the others would: it is let in, and says what it lacks."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    full.begin()
    assert full._starting == 1
