"""Nothing outlives the result of its run, whatever it does to get away: at every level, without control groups too.

All of it runs in a pid namespace of its own, so that what does get away there ends with the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.engine.engine import shared
from fumehood.errors import IsolationUnavailable
from fumehood.types import Limits
from support import HANG_S

Elsewhere = Callable[[str, str], str]


@pytest.fixture(params=["sealed", "confined", "process"])
def level(request: pytest.FixtureRequest) -> str:
    try:
        shared(request.param, None).check(Limits(), network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    return str(request.param)


NO_GROUPS = """
from fumehood.engine import cgroup_home, cgroups
cgroups.find_home = lambda: cgroup_home.Unavailable('find cgroup', 2, 'as if there were none')
"""
TIMED = """
def timed(call):
    for timeout in (1, 8, 64):
        result = call(timeout)
        if result.stdout: return result
"""


def wait_for_all_but(allowed: set[int], within_s: float) -> set[int]:
    """Who lives then."""
    import os
    import time

    from fumehood.guest.procfs import STATE, read, stat

    def last() -> bytes:  # the number of the latest process: who hops is gone before one looks
        return read("/proc/sys/kernel/ns_last_pid")

    until = time.monotonic() + within_s
    while True:
        before = last()
        time.sleep(0.1)
        everybody = {int(name) for name in os.listdir("/proc") if name.isdigit()} - allowed - {os.getpid()}
        left = {pid for pid in everybody if stat(pid)[: STATE + 1] not in ([], [b"Z"])}
        if before != last():
            left.add(0)
        if not left or time.monotonic() > until:
            return left


HOPS = """
import os, time
def fork():
    while True:
        try:
            return os.fork()
        except BlockingIOError:  # more dead than its limit allows: somebody must wait for them first
            time.sleep(0.001)
def hop():
    while True:
        if fork():
            os._exit(0)
r, w = os.pipe()
for n in range(16):
    if fork() == 0:
        os.setsid()
        os.write(w, b'.')
        hop()
os.read(r, 1)
print('ran', flush=True)
"""
KILLS = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    time.sleep(3600)
print('ran', flush=True)
"""
STAYS = "time.sleep(3600)\n"
SIGNALS_AT = {  # to its supervisor
    "killed": "os.kill(os.getppid(), signal.SIGKILL)\n",
    "stopped": "while True: os.kill(os.getppid(), signal.SIGSTOP)\n",
}


def script(level: str, rest: str, groups: str = NO_GROUPS) -> str:
    """Without groups: the tree is held together by its supervisor alone, as for an ordinary user."""
    return f"""
import fumehood, sys
{groups}
{TIMED}
{inspect.getsource(wait_for_all_but)}
settings = dict(isolation={level!r}, store_code='never', warm_cells=0)
with fumehood.get_sandbox(**settings) as sandbox:
    sandbox.execute('1')
    from fumehood.engine.engine import shared
    zygotes = {{root.zygote._pid for root in shared({level!r}, None)._roots.values()}}
    assert not wait_for_all_but(zygotes, {HANG_S})
{rest}
assert not (left := wait_for_all_but(zygotes, {HANG_S})), left
print('nothing is left')
"""


def test_a_chain_of_forks_outlives_who_started_it(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The control arm: without a sandbox it goes on."""
    code = f"""
import os, signal, subprocess, sys
{inspect.getsource(wait_for_all_but)}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead must not use up the machine's process numbers
running = subprocess.Popen([sys.executable, '-c', {HOPS.replace("16", "1") + STAYS!r}], stdout=-1)
assert running.stdout.readline() == b'ran\\n'
running.kill()
running.wait()
print(bool(wait_for_all_but(set(), 0.5)))
"""
    assert elsewhere(code, str(tmp_path)) == "True\n"


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
@pytest.mark.parametrize(("ends", "groups"), [("well", NO_GROUPS), ("by time", NO_GROUPS), ("well", "")])
def test_a_chain_of_forks_ends_with_its_execution(
    elsewhere: Elsewhere, public_path: Path, level: str, ends: str, groups: str
) -> None:
    public_path.chmod(0o1777)
    code = HOPS + (STAYS if ends == "by time" else "")
    call = "timed" if ends == "by time" else f"(lambda call: call({HANG_S}))"
    rest = f"""
    result = {call}(lambda timeout: sandbox.execute({code!r}, timeout=timeout))
    assert result.stdout == 'ran\\n', result
    assert result.meta['timed_out'] == {ends == "by time"}, result
"""
    assert elsewhere(script(level, rest, groups), str(public_path)) == "nothing is left\n"


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
def test_a_chain_of_forks_ends_with_its_session(elsewhere: Elsewhere, public_path: Path, level: str) -> None:
    public_path.chmod(0o1777)
    rest = f"""
    with fumehood.open_session(**settings) as session:
        for result in session.exec(['python', '-c', {HOPS!r}]), session.run({HOPS!r}):
            assert result.stdout == 'ran\\n', result
"""
    assert elsewhere(script(level, rest), str(public_path)) == "nothing is left\n"


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
def test_an_interrupt_leaves_the_interpreter_and_nobody_else(
    elsewhere: Elsewhere, public_path: Path, level: str
) -> None:
    """What a run has started must not act between two calls once it was stopped."""
    public_path.chmod(0o1777)
    rest = f"""
    from fumehood import execution
    execution.INTERRUPT_GRACE_S = {HANG_S}
    with fumehood.open_session(**settings) as session:
        assert session.run('x = 1').exit_code == 0
        known = {{int(name) for name in os.listdir('/proc') if name.isdigit()}}
        result = timed(lambda timeout: session.run({HOPS + STAYS!r}, timeout))
        assert result.meta['timed_out'] and result.stdout == 'ran\\n', result
        assert result.meta['state'] == 'kept', result
        assert not (left := wait_for_all_but(known, {HANG_S})), left
        assert session.run('print(x)').stdout == '1\\n'
"""
    assert elsewhere(script(level, rest), str(public_path)) == "nothing is left\n"


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it", level="process")
@pytest.mark.parametrize("how", list(SIGNALS_AT))
def test_nothing_outlives_a_supervisor_that_its_program_signals(
    elsewhere: Elsewhere, public_path: Path, how: str
) -> None:
    """At level process, where nothing keeps it from that."""
    public_path.chmod(0o1777)
    rest = f"""
    result = timed(lambda timeout: sandbox.execute({KILLS + SIGNALS_AT[how] + STAYS!r}, timeout=timeout))
    assert result.stdout == 'ran\\n', result
    assert result.exit_code != 0
    with fumehood.open_session(**settings) as session:
        result = timed(lambda timeout: session.run({KILLS + SIGNALS_AT[how] + STAYS!r}, timeout))
        assert result.stdout == 'ran\\n' and result.exit_code != 0, result
"""
    assert elsewhere(script("process", rest), str(public_path)) == "nothing is left\n"


HOST = """
import fumehood
{groups}
with fumehood.open_session(isolation={level!r}, store_code='never', warm_cells=0) as session:
    session.run({code!r})
    while True:
        session.run('1')
        print('again', flush=True)
"""


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
def test_nothing_outlives_a_host_that_is_killed_between_two_words_of_its_session(
    elsewhere: Elsewhere, public_path: Path, level: str
) -> None:
    public_path.chmod(0o1777)
    host = HOST.format(groups=NO_GROUPS, level=level, code=HOPS)
    code = f"""
import signal, subprocess, sys
{inspect.getsource(wait_for_all_but)}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for words in range(1, 4):
    host = subprocess.Popen([sys.executable, '-c', {host!r}], stdout=-1)
    for _ in range(words):
        assert host.stdout.readline() == b'again\\n'
    host.kill()
    assert not (left := wait_for_all_but(set(), {HANG_S})), left
print('nothing is left')
"""
    assert elsewhere(code, str(public_path)) == "nothing is left\n"
