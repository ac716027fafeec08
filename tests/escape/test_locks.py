"""Locks, leases and watches on what a sandbox is shown or lent: they meet neither the host's nor another sandbox's."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.packages import Layer
from fumehood.sync_session import SyncStream
from support import HANG_S

from .arms import syscall
from .test_sessions import opened

PRELUDE = "import ctypes, errno, fcntl, os, signal\nfrom typing import Any\n" + inspect.getsource(syscall)
INSIDE = "/tmp/data/data.db"
LOOP = """
import json, sys
scope = {}
for line in sys.stdin:
    exec(json.loads(line), scope)
    print(repr(scope['won']), flush=True)
"""


def text_of(work: Callable[..., Any], *args: Any) -> str:
    return f"{PRELUDE}\n{inspect.getsource(work)}\nwon = {work.__name__}({', '.join(map(repr, args))})\n"


class Outside:
    """The control arm: an interpreter that nothing keeps from the file itself."""

    def __init__(self) -> None:
        own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        command = ["unshare", *own, "-m", "-p", "-f", "--kill-child", sys.executable, "-I", "-u", "-c", LOOP]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def attempt(self, work: Callable[..., Any], *args: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(text_of(work, *args)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=HANG_S)


def attempt(session: Any, work: Callable[..., Any], *args: Any) -> str:
    """By the session's interpreter, which keeps what it opened."""
    result = session.run(f"{text_of(work, *args)}\nprint(repr(won))", HANG_S)
    assert result.exit_code == 0, result
    return str(result.stdout).strip()


@pytest.fixture
def outside() -> Iterator[Outside]:
    arm = Outside()
    yield arm
    arm.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A database that belongs to whom programs run as: a lease is for the owner of a file."""
    path = tmp_path / "data.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("create table t (x)")
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    return path


@pytest.fixture
def session(source: Path) -> Iterator[Any]:
    with opened(datasets={"data": source}) as session:
        yield session


# ---- the attacks


def locks(path: str) -> list[str]:
    """What could be locked at once, and stays so."""
    global file
    file = open(path, "rb")  # noqa: SIM115
    won = []
    for name, lock, kind in (("flock", fcntl.flock, fcntl.LOCK_EX), ("fcntl", fcntl.lockf, fcntl.LOCK_SH)):
        try:
            lock(file, kind | fcntl.LOCK_NB)
            won.append(name)
        except OSError:
            pass
    return won


def leases(path: str) -> str:
    import errno
    import signal

    signal.signal(signal.SIGIO, signal.SIG_IGN)
    global leased
    leased = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(leased, 1024, fcntl.F_RDLCK)  # F_SETLEASE
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "leased"


def watches(path: str) -> bool:
    global watch
    watch = syscall(294, 26, os.O_NONBLOCK)  # inotify_init1
    return isinstance(syscall(254, 27, watch, path.encode(), 0xFFF), int)  # inotify_add_watch


def has_seen() -> bool:
    try:
        return bool(os.read(watch, 4096))
    except BlockingIOError:
        return False


def opens(path: str) -> bool:
    with open(path, "rb") as file:
        return bool(file.read(1))


# ---- what the host notices


def held_up(path: Path) -> list[str]:
    """What somebody on the host cannot do at once."""
    found = []
    with open(path, "r+b") as file:
        for name, lock in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock(file, fcntl.LOCK_UN)
            except BlockingIOError:
                found.append(name)
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as database:
        try:
            database.execute("insert into t values (1)")
        except sqlite3.OperationalError as error:
            found.append(str(error))
    return found


def test_a_lock_on_a_dataset_holds_up_nobody_on_the_host(session: Any, outside: Outside, source: Path) -> None:
    assert attempt(session, locks, INSIDE) == "['flock', 'fcntl']"
    assert held_up(source) == []
    assert outside.attempt(locks, str(source)) == "['flock', 'fcntl']"
    assert held_up(source) == ["flock", "fcntl", "database is locked"]


def test_there_is_no_lease_on_a_dataset(session: Any, outside: Outside, source: Path) -> None:
    assert attempt(session, leases, INSIDE) == "'EPERM'"
    os.close(os.open(source, os.O_WRONLY | os.O_NONBLOCK))
    assert outside.attempt(leases, str(source)) == "'leased'"
    with pytest.raises(BlockingIOError):
        os.open(source, os.O_WRONLY | os.O_NONBLOCK)


def test_a_watch_on_a_dataset_does_not_see_the_host(session: Any, outside: Outside, source: Path) -> None:
    assert attempt(session, watches, INSIDE) == "True"
    assert outside.attempt(watches, str(source)) == "True"
    with source.open("ab") as file:
        file.write(b"more")
    assert attempt(session, has_seen) == "False"
    assert outside.attempt(has_seen) == "True"
    assert attempt(session, opens, INSIDE) == "True"
    assert attempt(session, has_seen) == "True"  # the watch does work


def test_two_sessions_do_not_meet_in_a_dataset(session: Any, source: Path) -> None:
    with opened(datasets={"data": source}, session_id="other") as other:
        assert attempt(session, locks, INSIDE) == "['flock', 'fcntl']"
        assert attempt(session, watches, INSIDE) == "True"
        assert attempt(other, opens, INSIDE) == "True"
        assert attempt(session, has_seen) == "False"
        assert attempt(other, locks, INSIDE) == "['flock', 'fcntl']"
        beside = session.exec(["python", "-"], HANG_S, stdin=f"{text_of(locks, INSIDE)}\nprint(won)")
        assert beside.stdout == "['fcntl']\n", beside  # the control arm: in one session they do meet


def test_two_sessions_do_not_meet_in_packages(
    tmp_path: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    module = layer / "lent_module.py"
    module.write_text("value = 42\n")
    for path in (layer, module):
        path.chmod(0o755)
    lent = Layer(str(layer), ("lent-module",))
    monkeypatch.setattr("fumehood.packages.ensure", lambda *_: lent)
    with opened(requirements=["lent-module"]) as one, opened(requirements=["lent-module"], session_id="other") as other:
        inside = one.run("import lent_module; print(lent_module.__file__)").stdout.strip()
        assert attempt(one, watches, os.path.dirname(inside)) == "True"
        for held in (one, other):
            assert attempt(held, locks, inside) == "['flock', 'fcntl']"
        assert outside.attempt(locks, str(module)) == "['flock', 'fcntl']"
        assert attempt(one, has_seen) == "True"  # its own
        assert attempt(other, opens, inside) == outside.attempt(opens, str(module)) == "True"
        assert attempt(one, has_seen) == "False"


# ---- the trees of the root


@pytest.fixture
def installed() -> Iterator[Path]:
    """A file beside the installed packages, which nobody else knows."""
    path = Path(sysconfig.get_path("purelib"), f"of_test_locks_{secrets.token_hex(8)}.txt")
    path.write_text("installed")
    path.chmod(0o644)
    yield path
    path.unlink()


def can_lock(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_lock_on_an_installed_file_meets_nobody_s(outside: Outside, installed: Path) -> None:
    with opened() as one, opened(session_id="other") as other:
        for session in (one, other):
            assert attempt(session, locks, str(installed)) == "['flock', 'fcntl']"
        assert can_lock(installed)
        assert outside.attempt(locks, str(installed)) == "['flock', 'fcntl']"
        assert not can_lock(installed)


def test_a_lock_on_an_installed_file_tells_another_execution_nothing(installed: Path) -> None:
    code = f"{text_of(locks, str(installed))}\nprint(won, flush=True)\n"
    with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
        beside = f"import subprocess, sys\n{code}subprocess.run([sys.executable, '-c', {code!r}])"
        with SyncStream(sandbox.stream(f"{code}import time; time.sleep(3600)", timeout=HANG_S)) as first:
            assert next(first).data == b"['flock', 'fcntl']\n"
            result = sandbox.execute(beside, timeout=HANG_S)
    assert result.stdout == "['flock', 'fcntl']\n['fcntl']\n", result  # the control arm: in one sandbox they do meet


@pytest.mark.parametrize("what", ["package", "program", "library cache"])
def test_a_watch_on_the_system_does_not_see_the_host(outside: Outside, installed: Path, what: str) -> None:
    path = {"package": installed, "program": Path("/usr/bin/env"), "library cache": Path("/etc/ld.so.cache")}[what]
    with opened() as session:
        assert attempt(session, watches, str(path)) == "True"
        assert outside.attempt(watches, str(path)) == "True"
        assert opens(str(path))
        assert outside.attempt(has_seen) == "True"
        assert attempt(session, has_seen) == "False"
        assert attempt(session, opens, str(path)) == "True"
        assert attempt(session, has_seen) == "True"
