"""Attacks from inside a session: on its neighbours, on what it was lent, on the host that reads its files and words."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import inspect
import json
import mmap
import os
import re
import resource
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import open_session, outputs
from fumehood.errors import FileError, IsolationUnavailable
from fumehood.guest.wire import MAX_FRAME
from fumehood.packages import Layer
from harness.attacks import BOUNDED_FRAMES, BY_DESCRIPTORS, ORDERS_BY_SOCKET, OWN_CHANNEL
from support import HANG_S, wait_until

from . import arms
from .arms import syscall, wait_for_pid_1
from .test_attacks import ATTACKS, CORPUS

PRELUDE = (
    "from __future__ import annotations\n"
    "import ctypes, errno, fcntl, glob, json, mmap, os, socket, struct, subprocess, sys, threading, time\n"
    "from pathlib import Path\nfrom typing import Any\n"
    + inspect.getsource(syscall)
    + inspect.getsource(wait_for_pid_1)
)
MB = 1024 * 1024
PATIENT: dict[str, float] = {"timeout_sec": HANG_S, "session_idle_sec": 24 * 3600}


class Inside:
    """A session as a sandbox that executes: by its interpreter, or by a command beside it."""

    def __init__(self, session: Any, verb: str = "run") -> None:
        self.session, self.verb = session, verb

    def execute(self, code: str, timeout: float = HANG_S) -> Any:
        if self.verb == "run":
            return self.session.run(code, timeout)
        return self.session.exec(["python", "-"], timeout, stdin=code)


def opened(**settings: Any) -> Any:
    kind: dict[str, Any] = {"isolation": "sealed", "store_code": "never", **PATIENT}
    session = open_session("local", "sealed", **kind, **settings)
    try:
        session.check()
    except IsolationUnavailable as missing:
        session.close()
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    return session


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(output_dir=str(tmp_path_factory.mktemp("output"))) as session:
        yield session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with opened(output_dir=str(tmp_path / "output"), session_id="x") as session:
        yield session


def text_of(work: Callable[..., Any], *args: Any) -> str:
    call = f"{work.__name__}({', '.join(map(repr, args))})"
    return f"{PRELUDE}\n{inspect.getsource(work)}\nwon = {call}\n"


def attacked(session: Any, work: Callable[..., Any], *args: Any, verb: str = "run") -> arms.Outcome:
    """Runs an attack inside; it must have run to its end."""
    outcome, result = arms.in_the_sandbox(Inside(session, verb), text_of(work, *args))
    assert outcome.ran, f"the attack never ran: {result}"
    assert outcome.finished, f"the attack did not report: {result}"
    assert outcome.was_refused, f"the attack is broken: {outcome.error}"
    return outcome


def assert_alive(session: Any) -> None:
    result = session.run("print('alive')", HANG_S)
    assert (result.stdout, result.exit_code, result.meta["reason"]) == ("alive\n", 0, "ok"), result


def timed_out(run: Callable[[float], Any], marker: str) -> Any:
    """The result of a run that its time-out ended after it had printed the marker, however slow this machine is."""
    for timeout in (2, 8, 32, 128):
        result = run(timeout)
        assert result.meta["timed_out"], result
        if result.stdout:
            break
    assert result.stdout == marker, result
    return result


def alive(marker: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


# ---- the whole corpus, whose control arms stand beside it


@pytest.mark.attack(corpus=CORPUS)
@pytest.mark.parametrize("verb", ["run", "exec"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_session_holds_as_a_single_execution_does(name: str, verb: str, shared: Any) -> None:
    outcome, result = arms.in_the_sandbox(Inside(shared, verb), ATTACKS[name].text)
    assert result.meta["isolation"]["level"] == "sealed"
    assert outcome.ran, f"the attack never ran: {result}"
    assert outcome.finished, f"the attack did not report: {result}"
    assert not outcome.won, outcome.shown
    assert outcome.was_refused, f"the attack is broken: {outcome.error}"


# ---- neighbours


def plants(canary: str) -> str:
    for place in ("/workspace", "/tmp", "/tmp/output", "/dev/shm"):
        Path(place, canary).write_text(canary)
    global kept, listener
    kept = open("/workspace/" + canary)  # noqa: SIM115
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/tmp/" + canary + ".sock")
    subprocess.Popen([canary, "3600"], executable="/bin/sleep")  # noqa: F821
    return ""


def looks_for_a_neighbour(canary: str) -> list[str]:
    """By what /proc shows of processes, by mounts, by namespaces, by new roots. The ways that led somewhere."""
    found = set()

    def look(place: str, how: str) -> None:
        for sub in ("", "workspace", "tmp", "dev/shm"):
            try:
                if canary in os.listdir(os.path.join(place, sub)):
                    found.add(how)
            except OSError:
                pass

    for process in (*glob.glob("/proc/[0-9]*"), "/proc/self"):  # noqa: F821
        for name in ("root", "cwd"):
            look(f"{process}/{name}", "proc")
        try:
            for fd in os.listdir(f"{process}/fd"):
                look(f"{process}/fd/{fd}", "fd")
                if canary in os.readlink(f"{process}/fd/{fd}"):
                    found.add("open file")
        except OSError:
            pass
        if canary.encode() in Path(f"{process}/cmdline").read_bytes():
            found.add("process")
        for name in ("mnt", "user", "pid", "ipc", "net"):
            try:
                fd = os.open(f"{process}/ns/{name}", os.O_RDONLY)
            except OSError:
                continue
            if syscall(308, 268, fd, 0) == 0:  # setns
                look("/", f"setns {name}")
            os.close(fd)
    for line in open("/proc/self/mountinfo"):  # noqa: SIM115
        look(line.split()[4], "mount")
    for place in ("/run", "/var/tmp", "/mnt", "/proc/1/root", "/proc/self/task", "/sys/fs/cgroup"):
        look(place, "place")
    for flags in (0x20000, 0x10000000, 0x10020000):  # a mount namespace, a user namespace, both
        if os.fork() == 0:
            won = syscall(272, 97, flags) == 0 and any(
                syscall(165, 40, b"none", b"/tmp", kind, 0, None) == 0 for kind in (b"proc", b"tmpfs", b"sysfs")
            )
            os._exit(bool(won))
        if os.wait()[1]:
            found.add(f"unshare {flags:#x}")
    os.makedirs("/tmp/new/old", exist_ok=True)
    if syscall(155, 41, b"/tmp/new", b"/tmp/new/old") == 0:
        found.add("pivot_root")
    return sorted(found)


@pytest.mark.attack("a mount namespace of its own for each session", control="itself")
@pytest.mark.parametrize("verb", ["run", "exec"])
def test_a_neighbour_s_files_and_processes_are_out_of_reach(session: Any, verb: str) -> None:
    canary = "canary" + secrets.token_hex(8)
    with opened(session_id="neighbour") as neighbour:
        assert neighbour.run(text_of(plants, canary)).exit_code == 0
        assert wait_until(lambda: alive(canary))
        outcome = attacked(session, looks_for_a_neighbour, canary, verb=verb)
        assert not outcome.won, outcome.shown
        # the control arm: where the canary is, the same look finds it by each of its ways
        control = attacked(neighbour, looks_for_a_neighbour, canary)
        assert control.shown == "['mount', 'open file', 'place', 'proc', 'process']", control.shown


# ---- what was lent


def changes_a_file(path: str) -> list[str]:
    won = []
    kept = os.path.exists(path)
    if not kept:  # the control arm has one of its own
        Path(path).write_text("precious" * 1000)
    mode = os.stat(path).st_mode

    def maps() -> None:
        with mmap.mmap(os.open(path, os.O_RDWR), 4, mmap.MAP_SHARED) as memory:
            memory[0] = 88

    def reopens(flags: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        again = os.open(f"/proc/self/fd/{fd}", flags)
        os.write(again, b"X")

    def maps_what_was_read() -> None:
        fd = os.open(path, os.O_RDONLY)
        with mmap.mmap(fd, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            memory[0] = 88

    def sets_flags() -> None:
        fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, struct.pack("l", 0x40))  # FS_IOC_SETFLAGS, no dump

    def moves_over() -> None:
        other = os.path.join(os.path.dirname(path), "other")
        Path(other).write_text("x")
        os.rename(other, path)

    def moves_over_from_elsewhere() -> None:
        Path("/tmp/other").write_text("x")
        os.rename("/tmp/other", path)

    def remounts() -> None:
        flags = 32 | 4096  # MS_REMOUNT | MS_BIND
        if syscall(165, 40, b"none", os.path.dirname(path).encode(), None, flags, None) != 0:
            raise OSError(1, "remount")
        os.close(os.open(path, os.O_RDWR))

    attempts = {
        "map": maps,
        "open to write": lambda: os.write(os.open(path, os.O_WRONLY), b"X"),
        "append": lambda: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"X"),
        "truncate": lambda: os.truncate(path, 1),
        "chmod": lambda: os.chmod(path, mode),
        "touch": lambda: os.utime(path),
        "label": lambda: os.setxattr(path, "user.x", b"x"),
        "map what was read": maps_what_was_read,
        "reopen": lambda: reopens(os.O_RDWR),
        "reopen to append": lambda: reopens(os.O_WRONLY | os.O_APPEND),
        "flags": sets_flags,
        "remount": remounts,
        "link": lambda: os.link(path, os.path.join(os.path.dirname(path), "linked")),
        "move over": moves_over,
        "move over from elsewhere": moves_over_from_elsewhere,
        "move away": lambda: os.rename(path, "/tmp/away") or os.rename("/tmp/away", path),
        "remove": lambda: os.unlink(path),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            won.append(name)
        except (OSError, ValueError, PermissionError):
            pass
    return won


def state(path: Path) -> tuple[Any, ...]:
    found = path.stat()
    return path.read_bytes(), found.st_mode, found.st_uid, found.st_mtime_ns, found.st_ctime_ns, os.listxattr(path)


@pytest.mark.attack("a read-only clone of the mount", control="test_the_same_attempts_change_a_file_that_is_not_lent")
@pytest.mark.parametrize("verb", ["run", "exec"])
@pytest.mark.parametrize("owner", ["mine", "the program's", "a virtual copy"])
def test_a_lent_dataset_cannot_be_changed(tmp_path: Path, verb: str, owner: str) -> None:
    source = tmp_path / "data.csv"
    source.write_text("precious,data\n" * 1000)
    source.chmod(0o600 if owner == "a virtual copy" else 0o666)
    if owner == "the program's":
        if os.geteuid() != 0:
            pytest.skip("as an ordinary user the program's files are the caller's own already")
        os.chown(source, 65534, 65534)
    before = state(source)
    with opened(datasets={"data": source}) as session:
        outcome = attacked(session, changes_a_file, "/tmp/data/data.csv", verb=verb)
        assert not outcome.won, outcome.shown
        assert session.exec(["cat", "/tmp/data/data.csv"]).meta["stdout_truncated"]
        with pytest.raises(FileError):
            session.write("/tmp/data/data.csv", "x")
        with pytest.raises(FileError):
            session.write("/tmp/data/new.csv", "x")
    assert state(source) == before
    assert os.listdir(tmp_path) == ["data.csv"]


def test_the_same_attempts_change_a_file_that_is_not_lent() -> None:
    control = arms.in_a_throwaway_namespace(text_of(changes_a_file, "/tmp/target"), {})
    assert control.won, control
    for name in ("open to write", "truncate", "chmod", "map", "reopen", "move over", "remove"):
        assert f"'{name}'" in control.shown, control.shown


@pytest.mark.attack("a read-only clone of the mount", control="test_the_same_attempts_change_a_file_that_is_not_lent")
def test_a_layer_of_packages_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer is given by hand: what fills it is another matter."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "lent_module.py").write_text("value = 42\n" * 500)
    for path, mode in ((tmp_path, 0o755), (layer, 0o777), (layer / "lent_module.py", 0o666)):
        path.chmod(mode)
    before = state(layer / "lent_module.py")

    lent = Layer(str(layer), ("lent-module",))
    monkeypatch.setattr("fumehood.packages.ensure", lambda *_: lent)
    with opened(requirements=["lent-module"]) as session:
        where = session.run("import lent_module; print(lent_module.value, lent_module.__file__)").stdout.split()
        assert where[0] == "42", where
        for verb in ("run", "exec"):
            outcome = attacked(session, changes_a_file, where[1], verb=verb)
            assert not outcome.won, outcome.shown
    assert state(layer / "lent_module.py") == before
    assert os.listdir(layer) == ["lent_module.py"]


# ---- the host that copies


def swaps(secret: str) -> None:
    """What is copied is now a file, now a link, a pipe or a directory; and so is the way to it."""
    os.makedirs("/tmp/output/way", exist_ok=True)
    Path("/tmp/output/steady.txt").write_text("steady")
    if os.fork():
        return
    os.setsid()
    rounds = 0
    target, folder = Path(secret), str(Path(secret).parent)
    while True:
        rounds += 1
        for kind in ("file", "link", "hard", "pipe", "folder"):
            spare = f"/tmp/spare{rounds % 7}"
            try:
                if kind == "file":
                    Path(spare).write_text(f"own {rounds}")
                elif kind == "link":
                    os.symlink(target, spare)
                elif kind == "hard":
                    os.link("/etc/passwd", spare)
                elif kind == "pipe":
                    os.mkfifo(spare)
                else:
                    os.mkdir(spare)
                os.rename(spare, "/tmp/output/plot.png")
            except OSError:
                pass
            for path in (spare, "/tmp/output/plot.png"):
                try:
                    os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
                except OSError:
                    pass
        try:
            os.rename("/tmp/output/way", "/tmp/aside")
            os.symlink(folder, "/tmp/output/way")
            os.unlink("/tmp/output/way")
            os.rename("/tmp/aside", "/tmp/output/way")
            Path("/tmp/output/way", target.name).write_text(f"own {rounds}")
        except OSError:
            pass
        if rounds % 50 == 0:
            Path("/tmp/rounds.new").write_text(str(rounds))
            os.rename("/tmp/rounds.new", "/tmp/rounds")


ROUNDS = "print(open('/tmp/rounds').read() if __import__('os').path.exists('/tmp/rounds') else 0)"


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="the project has no careless reader to compare with",
)
@pytest.mark.parametrize("looks", [40, pytest.param(2000, marks=pytest.mark.soak)])
def test_a_race_with_the_copy_never_reaches_the_host_s_files(session: Any, tmp_path: Path, looks: int) -> None:
    secret = tmp_path / "host" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("the host's secret")
    for path in (tmp_path, secret.parent, secret):
        path.chmod(0o755)
    assert session.run(text_of(swaps, str(secret))).exit_code == 0
    looked = copies = rounds = 0
    while looked < looks or copies <= 3 or rounds <= 100:  # until the race was on
        result = session.run(ROUNDS)
        assert result.exit_code == 0, result
        looked, rounds = looked + 1, int(result.stdout)
        copies += len(result.meta.get("copied_files", ()))
        for name in ("/tmp/output/plot.png", "/tmp/output/way/secret.txt"):
            try:
                assert re.fullmatch(rb"own \d+|by the host|", session.read(name)), name
            except FileError:
                pass
            try:
                session.write(name, "by the host")
            except FileError:
                pass
    for path in (tmp_path / "output").rglob("*"):
        assert not path.is_symlink()
        if path.is_file():
            assert b"secret" not in path.read_bytes(), path
            assert b"root:" not in path.read_bytes(), path
    assert secret.read_text() == "the host's secret"
    assert os.listdir(secret.parent) == ["secret.txt"]


@pytest.mark.attack("caps on each file, each call and their number", without="it would fill the disk")
@pytest.mark.parametrize("unit", [MB // 32, pytest.param(MB, marks=pytest.mark.soak)], ids=["small", "in full"])
def test_the_host_s_disk_is_not_filled_by_outputs(
    session: Any, tmp_path: Path, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full, half a gigabyte is written; a part of each size and each limit shows the same."""
    assert (outputs.MAX_FILE_BYTES, outputs.MAX_CALL_BYTES) == (100 * MB, 500 * MB)
    monkeypatch.setattr(outputs, "MAX_FILE_BYTES", 100 * unit)
    monkeypatch.setattr(outputs, "MAX_CALL_BYTES", 500 * unit)
    code = f"""
import os
print('ran')
for name, size in (('huge.txt', 101 * {unit}), ('fits.txt', 2 * {unit})):
    with open(f'/tmp/output/{{name}}', 'wb') as file: file.truncate(size)
for number in range(40):
    with open(f'/tmp/output/{{number:02}}.txt', 'wb') as file: file.truncate(90 * {unit})
"""
    result = session.run(code)
    assert result.stdout == "ran\n", result
    assert result.meta["total_output_files"] == 42
    copied = [path for path in (tmp_path / "output").rglob("*") if path.is_file()]
    assert 0 < len(copied) <= 20
    assert sum(path.stat().st_size for path in copied) <= 500 * unit
    assert "huge.txt" not in {path.name for path in copied}
    assert any("huge.txt" in warning for warning in result.meta["output_warnings"])


@pytest.mark.attack("disk", without="it would fill the disk")
def test_many_files_and_deep_directories_do_not_stop_the_host(session: Any) -> None:
    code = """
import os
print('ran', flush=True)
os.chdir('/tmp/output')
for depth in range(300):
    os.mkdir('d'); os.chdir('d')
open('deepest.txt', 'w').close()
os.chdir('/tmp/output')
try:
    for number in range(20_000): open(f'{number}.txt', 'w').close()
except OSError: pass
"""
    result = session.run(code)
    assert result.stdout == "ran\n", result
    assert result.meta["total_output_files"] > 1000
    assert len(result.meta["output_files"]) == 20
    assert_alive(session)


# ---- the host that listens


def channel_of() -> list[int]:
    """The descriptors of the interpreter that are sockets: one of them is its channel."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            pass
    return found


def forges(frames: list[Any]) -> int:
    found = channel_of()
    print("writes", len(found), flush=True)  # first: a forged end is an end
    for fd in found:
        for frame in frames:
            body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
            os.write(fd, struct.pack("<I", len(body)) + body)
    return len(found)


def forging(session: Any, frames: list[Any]) -> Any:
    text = f"{PRELUDE}\n{inspect.getsource(channel_of)}\n{inspect.getsource(forges)}\n"
    session.run(text)
    return session.run(f"wrote = forges({frames!r})")


FORGED: dict[str, list[Any]] = {
    "a result of later runs": [{"id": n, "event": "done", "exit_code": 0, "interrupted": False} for n in range(3, 50)],
    "no result": [{"id": 2, "event": "done"}],
    "odd types": [
        {"id": 2, "event": "display", "data": 1},
        {"id": 2, "event": "display", "data": {"text/plain": {"a": [1, None]}, "": "", "x" * 1000: 1}},
        {"id": "2", "event": 3},
        {"id": True, "event": "done", "exit_code": 0},
        {"id": 2, "event": "done", "exit_code": True},
    ],
    "an exit code beyond all": [{"id": 2, "event": "done", "exit_code": 10**30, "interrupted": "yes"}],
    "no JSON": [b"", b"{", b"\xff\xfe", b"null", b"[]", b'"x"', b"NaN", b'{"id": 1e999}'],
    "nested": [b"[" * 100_000, b'{"a":' * 50_000, b'{"id":2,"event":"display","data":' + b"[" * 90_000],
    "many": [{"id": 2, "event": "display", "data": {"text/plain": "x"}}] * 5000,
    "surrogates": [b'{"id":2,"event":"display","data":{"text/plain":"\\ud800","text/html":"\\u0000"}}'],
}


@pytest.mark.attack(
    BOUNDED_FRAMES,
    without=OWN_CHANNEL,
)
@pytest.mark.parametrize("what", FORGED)
def test_forged_frames_decide_nothing_but_their_own_run(session: Any, what: str) -> None:
    with opened(session_id="other") as other:
        other.run("x = 42")
        result = forging(session, FORGED[what])
        assert result.stdout in ("writes 1\n", "writes 2\n"), result
        assert type(result.exit_code) is int
        assert -1 <= result.exit_code <= 255
        assert result.meta["reason"] in ("ok", "error", "timeout", "signal")
        assert len(result.meta["results"]) <= 1000
        json.dumps(result.meta["results"]).encode()
        later = session.run("print('own words')")
        if later.meta["state"] == "kept":
            assert (later.stdout, later.exit_code) == ("own words\n", 0), later
        assert_alive(session)
        assert other.run("print(x)").stdout == "42\n"


@pytest.mark.attack(
    BOUNDED_FRAMES,
    without=OWN_CHANNEL,
)
def test_a_frame_that_is_too_long_ends_the_interpreter_alone(session: Any) -> None:
    code = f"{PRELUDE}\n{inspect.getsource(channel_of)}\nprint('ran', flush=True)\n"
    code += f"[os.write(fd, struct.pack('<I', {MAX_FRAME + 1})) for fd in channel_of()]\ntime.sleep(3600)"
    session.run("open('a', 'w').write('kept');")
    result = session.run(code)
    assert (result.stdout, result.meta["state"], result.meta["timed_out"]) == ("ran\n", "lost", False), result
    assert session.run("print(open('a').read())").stdout == "kept\n"


@pytest.mark.attack(
    BOUNDED_FRAMES,
    without=OWN_CHANNEL,
)
def test_an_endless_stream_of_frames_is_bounded(session: Any) -> None:
    text = f"{PRELUDE}\n{inspect.getsource(channel_of)}\n"
    text += """
print('ran', flush=True)
body = json.dumps({'id': 1, 'event': 'display', 'data': {'text/plain': 'x' * (4 << 20)}}).encode()
while True:
    for fd in channel_of(): os.write(fd, struct.pack('<I', len(body)) + body)
"""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = session.run(text)
    assert (result.stdout, result.meta["state"], result.meta["timed_out"]) == ("ran\n", "lost", False), result
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert_alive(session)


@pytest.mark.attack("the deadline on the host's clock", without=OWN_CHANNEL)
def test_half_a_frame_holds_nobody_up(session: Any) -> None:
    text = f"{PRELUDE}\n{inspect.getsource(channel_of)}\n"
    text += "print('ran', flush=True)\n[os.write(fd, struct.pack('<I', 1000) + b'{') for fd in channel_of()];"
    timed_out(lambda timeout: session.run(text, timeout), "ran\n")
    assert_alive(session)


@pytest.mark.attack("the end of the channel is the end of the interpreter", without=OWN_CHANNEL)
def test_a_closed_channel_holds_nobody_up(session: Any) -> None:
    session.run("open('a', 'w').write('kept');")
    result = session.run("import os; print('ran', flush=True); os.closerange(3, 70000)\nimport time; time.sleep(3600)")
    assert (result.stdout, result.meta["timed_out"]) == ("ran\n", False), result
    assert session.run("print(open('a').read())").stdout == "kept\n"


# ---- staying alive


def daemonizes(marker: str) -> str:
    """Forked twice, in sessions of its own, deaf to signals, with nothing open."""
    import signal

    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                os.closerange(0, 4096)
                os.chdir("/")
                os.execv("/bin/sleep", ["sleep", marker])
            os._exit(0)
        os.wait()
    while sum(marker.encode() in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")) < 3:
        time.sleep(0.01)
    os.write(1, b"up\n")
    return ""


def new_marker() -> str:
    return f"{secrets.randbelow(10**9) + 10**6}.375"


@pytest.mark.attack("processes", control="test_a_chain_of_forks_outlives_who_started_it")
@pytest.mark.parametrize("ending", ["close", "time-out", "command", "command's time-out", "cancelled stream"])
def test_nothing_outlives_its_end(session: Any, ending: str) -> None:
    marker = new_marker()
    code = text_of(daemonizes, marker)
    endless = f"{code}\nwhile True: time.sleep(1)"
    if ending == "close":
        assert session.run(code).stdout == "up\n"
        assert alive(marker)
        session.close()
    elif ending == "time-out":
        assert timed_out(lambda timeout: session.run(endless, timeout), "up\n").exit_code == -1
    elif ending == "command":
        assert session.exec(["python", "-"], HANG_S, stdin=code).stdout == "up\n"
    elif ending == "command's time-out":
        run = functools.partial(session.exec, ["python", "-"], stdin=endless)
        assert timed_out(lambda timeout: run(timeout=timeout), "up\n").exit_code == -1
    else:
        with session.stream(endless, HANG_S) as stream:
            assert next(stream).data == b"up\n"
            assert alive(marker)
    assert wait_until(lambda: not alive(marker))


@pytest.mark.attack(
    ORDERS_BY_SOCKET,
    without=OWN_CHANNEL,
)
def test_the_interpreter_is_interrupted_by_nobody_but_the_host(session: Any) -> None:
    """Signals that mean something between host and supervisor, sent from inside."""
    code = f"""
{PRELUDE}
x = 42
print('ran', flush=True)
for number in range(34, 65):
    if os.fork() == 0:  # the interpreter itself may end itself as it likes
        try: os.kill(1, number)
        finally: os._exit(0)
    os.wait()
wait_for_pid_1()
print('whole')
"""
    result = session.run(code)
    assert (result.stdout, result.exit_code) == ("ran\nwhole\n", 0), result
    assert session.run("print(x)").stdout == "42\n"


USED_INSIDE = (ctypes, fcntl, mmap)
