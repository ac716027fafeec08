"""What the programs of one session share, on the real kernel: files, limits, an interpreter; and what they do not."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from process_view import descriptors, opened_since

from fumehood.engine.engine import Engine, shared
from fumehood.engine.volume import Volume
from fumehood.errors import BadArgument, FileError, IsolationUnavailable, SandboxLost
from fumehood.types import Command, Display, Exited, Limits, Output
from harness.attacks import BOUNDED_FRAMES, OWN_CHANNEL
from support import HANG_S, wait_until

LIMITS = Limits(memory_bytes=256 << 20, processes=64, disk_bytes=16 << 20, inodes=512)


@pytest.fixture(params=["sealed", "confined", "process"])
def engine(request) -> Engine:
    engine = shared(request.param, None)
    try:
        engine.check(LIMITS, network=False)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    engine.level = request.param
    return engine


@pytest.fixture
def sealed() -> Engine:
    try:
        engine = shared("sealed", "sealed")
        engine.check(LIMITS, network=False)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    return engine


@pytest.fixture
def opened():
    volumes: list[Volume] = []

    def open_one(engine: Engine, limits: Limits = LIMITS, **named) -> Volume:
        volumes.append(engine.open_volume(limits, network=False, **named))
        return volumes[-1]

    yield open_one
    for volume in volumes:
        volume.close()


def ended(cell) -> tuple[str, str, list[dict], Exited]:
    texts = {"stdout": b"", "stderr": b""}
    shown = []
    while not isinstance(event := cell.read(HANG_S), Exited):
        assert event is not None, "it did not end"
        if isinstance(event, Output):
            texts[event.stream] += event.data
        elif isinstance(event, Display):
            shown.append(dict(event.data))
    return texts["stdout"].decode("utf-8", "replace"), texts["stderr"].decode("utf-8", "replace"), shown, event


def command(volume: Volume, *argv: str, stdin: bytes = b"") -> tuple[str, str, Exited]:
    cell = volume.start(Command(argv, stdin=stdin))
    try:
        out, err, _, exited = ended(cell)
    finally:
        cell.close()
    return out, err, exited


def run(volume: Volume, code: str):
    interpreter = volume.waiting_interpreter() or volume.make_interpreter(Command(("python",), keeps_state=True))
    interpreter.begin(code)
    return ended(interpreter)


def text(shown: list[dict]) -> list[str]:
    return [bundle["text/plain"] for bundle in shown]


def test_files_and_variables_stay(engine, opened):
    volume = opened(engine)
    assert text(run(volume, "open('a.txt', 'w').write('one'); x = 41")[2]) == []
    out, err, exited = command(volume, "sh", "-c", "cat a.txt; echo two > b.txt")
    assert (out, err, exited.exit_code) == ("one", "", 0)
    assert text(run(volume, "x + 1, open('b.txt').read()")[2]) == ["(42, 'two\\n')"]
    assert volume.read("/workspace/b.txt", 100) == b"two\n"
    volume.write("/workspace/new/c.txt", b"three")
    assert command(volume, "cat", "new/c.txt")[0] == "three"
    out, err, _ = command(volume, "python", "-c", "open('new/c.txt', 'a').write('!'); print(open('new/c.txt').read())")
    assert (out, err) == ("three!\n", "")


def test_a_command_gets_its_input_and_keeps_its_exit_code(engine, opened):
    volume = opened(engine)
    out, _, exited = command(volume, "sh", "-c", "cat; exit 7", stdin=b"given")
    assert (out, exited.exit_code, exited.reason) == ("given", 7, "error")
    assert command(volume, "no-such-program")[2].exit_code == 127


def test_an_interrupted_run_keeps_its_variables_and_ends_what_it_started(engine, opened):
    volume = opened(engine)
    run(volume, "x = 1")
    interpreter = volume.waiting_interpreter()
    marker = a_long_time()
    begin(interpreter, f"import subprocess; x = 2; subprocess.Popen(['sleep', '{marker}'])\n{{}}\nwhile True: pass")
    interpreter.interrupt()
    _, err, _, exited = ended(interpreter)
    assert "KeyboardInterrupt" in err
    assert (exited.exit_code, exited.state_lost) == (130, False)
    assert text(run(volume, "x")[2]) == ["2"]
    assert wait_until(lambda: marker not in commands())


def begin(interpreter, code: str) -> None:
    """Until the program says that it has come to `{}`, from where it does not end by itself."""
    interpreter.begin(code.format("print('on', flush=True)"))
    assert interpreter.read(HANG_S) == Output("stdout", b"on\n")


def a_long_time() -> str:
    """Seconds to sleep, by which a process is known among all of this machine."""
    return f"3600.{secrets.randbelow(10**12):012}"


def commands() -> str:
    """The command lines of all processes."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    found.append(file.read().decode("utf-8", "replace"))
            except OSError:
                pass
    return "\n".join(found)


def test_an_interpreter_that_ended_is_replaced_and_says_so(engine, opened):
    volume = opened(engine)
    run(volume, "x = 1; open('kept', 'w').write('file')")
    exited = run(volume, "import os; os._exit(3)")[3]
    assert (exited.exit_code, exited.state_lost) == (3, True)
    out, _, shown, exited = run(volume, "print(open('kept').read()); 'x' in dir()")
    assert (out, text(shown), exited.state_lost) == ("file\n", ["False"], False)


def test_killing_a_run_takes_the_interpreter(engine, opened):
    volume = opened(engine)
    run(volume, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    interpreter = volume.waiting_interpreter()
    begin(interpreter, "import time\n{}\nwhile True: time.sleep(1)")
    interpreter.kill()
    exited = ended(interpreter)[3]
    assert exited.exit_code == 137
    assert exited.state_lost
    assert interpreter.is_dead


SAY = """
import os
for fd in range(3, 1100):
    try:
        os.write(fd, {data})
    except OSError:
        pass
"""
FORGED = b'{"id": 2, "event": "done", "exit_code": 1000000000000000000000000000000, "interrupted": 5}'
NESTED = b"[" * 200_000


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(SAY.format(data="b'\\xff' * 64"), id="noise"),
        pytest.param("import os; os.closerange(3, 1100)", id="closed"),
        pytest.param(SAY.format(data=struct.pack("<I", len(FORGED)) + FORGED), id="forged"),
        pytest.param(SAY.format(data=f"{struct.pack('<I', len(NESTED))} + b'[' * {len(NESTED)}"), id="nested"),
    ],
)
@pytest.mark.attack(
    BOUNDED_FRAMES,
    without=OWN_CHANNEL,
)
def test_a_program_that_speaks_on_the_channel_harms_only_itself(sealed, opened, attack):
    """It finds the channel and says what it likes there: the run ends somehow, and the next one is served."""
    volume = opened(sealed)
    run(volume, "print('MARKER')")
    interpreter = volume.waiting_interpreter()
    interpreter.begin(attack)
    ended(interpreter)
    served = [run(volume, "print('served')")[0] for _ in range(2)]
    assert any(text.endswith("served\n") for text in served), served


def test_the_memory_limit_is_the_sessions(sealed, opened):
    volume = opened(sealed, LIMITS._replace(memory_bytes=64 << 20))
    run(volume, "x = 1")
    exited = run(volume, "y = b'x' * (200 << 20)")[3]
    assert exited.reason == "memory"
    assert text(run(volume, "2 + 2")[2]) == ["4"]


def test_the_disk_limit_is_the_sessions_and_the_host_is_told(sealed, opened):
    volume = opened(sealed)
    assert command(volume, "sh", "-c", "head -c 12000000 /dev/zero > big")[2].exit_code == 0
    with pytest.raises(FileError) as caught:
        volume.write("/workspace/more", b"x" * (8 << 20))
    assert caught.value.kind == "full"
    assert [entry.path for entry in volume.beneath("/workspace", "/tmp/data")] == ["/workspace/big"]
    assert command(volume, "rm", "big")[2].exit_code == 0
    volume.write("/workspace/more", b"x" * (8 << 20))


def test_files_that_the_host_writes_belong_to_the_program(engine, opened):
    volume = opened(engine)
    volume.write("/workspace/d/a.sh", b"echo hi")
    out, err, _ = command(volume, "sh", "-c", "chmod 700 d/a.sh && mv d e && sh e/a.sh && rm -r e")
    assert (out, err) == ("hi\n", "")


DIES_LATER = """
import os, threading, time
def die():
    while not os.path.exists('die'): time.sleep(0.01)
    os._exit(5)
threading.Thread(target=die).start()
"""


def test_an_interpreter_that_died_between_runs_is_replaced_and_the_next_run_says_so(engine, opened):
    volume = opened(engine)
    run(volume, DIES_LATER)
    first = volume.waiting_interpreter()
    assert first is not None
    volume.write("/workspace/die", b"")
    assert first.is_gone(HANG_S)
    run(volume, "x = 1")
    second = volume.waiting_interpreter()
    assert second is not first
    assert second.replaces_untold
    assert run(volume, "import os; os._exit(5)")[3].state_lost
    assert text(run(volume, "'x' in dir()")[2]) == ["False"]
    assert not volume.waiting_interpreter().replaces_untold


def test_a_file_that_is_replaced_keeps_its_mode(engine, opened):
    volume = opened(engine)
    assert command(volume, "sh", "-c", "echo 'echo one' > r.sh; chmod 755 r.sh")[2].exit_code == 0
    volume.write("/workspace/r.sh", b"#!/bin/sh\necho two\n")
    assert command(volume, "sh", "-c", "stat -c %a r.sh; sh -c ./r.sh || cat r.sh")[0].startswith("755\n")


@pytest.mark.attack(
    "the host goes there as the program's own user", without="nothing to escape from: root reads everything"
)
def test_the_host_reads_no_more_than_the_program_may(sealed, opened, tmp_path):
    """As root it could: a file of somebody else's, with no right for others, that a mount shows inside."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox is that same user")
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "secret").write_text("of root")
    (layer / "secret").chmod(0o600)
    volume = opened(sealed, packages=str(layer))
    assert "Permission denied" in command(volume, "cat", "/run/packages/secret")[1]
    volume._files._tree._prefixes = {"/tmp": "run/packages"}  # as if it lay beneath /tmp, like a virtualenv may
    with pytest.raises(FileError) as caught:
        volume.read("/tmp/secret", 100)
    assert caught.value.kind == "denied"


def test_what_a_killed_process_left_behind_is_swept(tmp_path, monkeypatch):
    from fumehood.engine import private
    from fumehood.engine.layout import discover

    monkeypatch.setattr(private.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(private, "_swept", 0)
    gone = tmp_path / "fumehood-4194305-abc"  # a higher number than the kernel gives to a process
    gone.mkdir()
    (gone / "file").write_text("left")
    used, other = private.make(discover("/usr/bin/python3"), None), tmp_path / "fumehood-notes"
    assert not gone.exists()
    gone.mkdir()
    other.mkdir()
    monkeypatch.setattr(private, "_swept", 0)
    made = private.make(discover("/usr/bin/python3"), None)
    assert not gone.exists()
    assert os.path.isdir(used)
    assert other.exists()
    for directory in (made, used):
        private.remove(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["fumehood-notes"]


def test_removing_a_directory_that_is_gone_touches_nothing_above_it(tmp_path):
    from fumehood.engine import private

    tmp_path.chmod(0o755)
    private.remove(str(tmp_path / "gone"))
    stubborn = tmp_path / "stubborn"
    (stubborn / "inner").mkdir(parents=True)
    (stubborn / "inner").chmod(0)
    stubborn.chmod(0)
    private.remove(str(stubborn))
    assert not stubborn.exists()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("moment", ["unlink", "fstat"])
def test_removing_follows_no_link_that_takes_a_directorys_place(tmp_path, monkeypatch, moment):
    """Put there by a program that is still at work: before it is opened, and before it is made writable."""
    from fumehood.engine import private

    other, top = tmp_path / "other", tmp_path / "top"
    inner = top / "inner"
    other.mkdir()
    (other / "kept").write_text("kept")
    other.chmod(0o500)
    inner.mkdir(parents=True)
    inner.chmod(0)
    look = getattr(os, moment)
    number = inner.stat().st_ino

    def swapping(what, **named):
        try:
            return look(what, **named)
        finally:
            is_inner = what == "inner" if moment == "unlink" else os.stat(what).st_ino == number
            if is_inner and not (top / "moved").exists():
                inner.rename(top / "moved")
                inner.symlink_to(other)

    monkeypatch.setattr(private.os, moment, swapping)
    private.remove(str(top))
    monkeypatch.undo()
    assert not top.exists()
    assert stat.S_IMODE(other.stat().st_mode) == 0o500
    assert os.listdir(other) == ["kept"]


@pytest.mark.parametrize("level", ["sealed", "confined", "process"])
def test_a_session_that_was_dropped_as_the_process_ends_leaves_no_directory(level, public_path):
    code = f"import fumehood; fumehood.open_session(isolation={level!r}, store_code='never').run('1')"
    public_path.chmod(0o1777)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(public_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
    )
    if "IsolationUnavailable" in done.stderr:
        pytest.skip(f"no {level} sandbox on this machine")
    assert done.returncode == 0, done.stderr
    assert os.listdir(public_path) == []


# --- datasets


def test_a_dataset_is_there_read_only_and_not_copied(sealed, opened, tmp_path):
    source = tmp_path / "sales.csv"
    source.write_text("a,b\n1,2\n")
    for directory in (tmp_path, *tmp_path.parents):
        if str(directory).startswith("/tmp/pytest"):
            directory.chmod(0o700)
    source.chmod(0o644)
    volume = opened(sealed, datasets=[("sales.csv", str(source)), ("again.csv", str(source))])
    out, err, exited = command(
        volume, "sh", "-c", "cat /tmp/data/sales.csv; ls /tmp/data; echo x > /tmp/data/sales.csv"
    )
    assert out == "a,b\n1,2\nagain.csv\nsales.csv\n"
    assert "Read-only file system" in err
    assert exited.exit_code != 0
    for attempt in ("rm -f /tmp/data/sales.csv", "touch /tmp/data/new", "mv /tmp/data /tmp/elsewhere"):
        assert command(volume, "sh", "-c", attempt)[2].exit_code != 0
    source.write_text("changed\n")  # the same file, not a copy
    assert command(volume, "cat", "/tmp/data/sales.csv")[0] == "changed\n"
    assert volume.read("/tmp/data/again.csv", 100) == b"changed\n"
    assert source.read_text() == "changed\n"


LARGE = """
import mmap, os
path, size = '/tmp/data/large.bin', {size}
with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
    print(file.seek(0, 2) == len(memory) == os.stat(path).st_size == size, memory[-4:])
    with open('/tmp/part', 'wb') as part:
        try: print(os.sendfile(part.fileno(), file.fileno(), size - 4, 4), open('/tmp/part', 'rb').read())
        except OSError as error:  # EINVAL: where nobody counts what it leaves in buffers
            print(error.errno - 18, os.pread(file.fileno(), 4, size - 4))
"""


def test_a_large_dataset_is_read_and_mapped_where_it_lies(sealed, opened, tmp_path):
    size = 20 << 30
    source = tmp_path / "large.bin"
    with source.open("wb") as file:
        file.truncate(size - 4)
        file.seek(0, 2)
        file.write(b"tail")
    source.chmod(0o644)
    volume = opened(sealed, datasets=[("large.bin", str(source))])
    out, err, _ = command(volume, "python", "-c", LARGE.format(size=size))
    assert (out, err) == ("True b'tail'\n4 b'tail'\n", "")


def test_of_the_way_to_a_dataset_nothing_is_told(sealed, opened, public_path):
    directory = public_path / "a:b,c\\d e"
    directory.mkdir(0o755)
    for name in ("sibling.csv", "f:,\\.csv"):
        (directory / name).write_text(name)
        (directory / name).chmod(0o644)
    (public_path / "link.csv").symlink_to(directory / "f:,\\.csv")
    volume = opened(sealed, datasets=[("data.csv", str(public_path / "link.csv"))])
    assert command(volume, "cat", "/tmp/data/data.csv")[0] == "f:,\\.csv"
    out = command(volume, "sh", "-c", "ls -a /tmp/data; cat /proc/self/mountinfo")[0]
    assert out.startswith(".\n..\ndata.csv\n")
    assert "/tmp/data/data.csv" in out
    assert "sibling" not in out
    assert public_path.name not in out


NO_OVERLAY = """
import subprocess
from pathlib import Path
from fumehood import open_session

def mount(*words):
    subprocess.run(["mount", *words], check=True)

os.umask(0o022)
top = Path(os.environ["TMPDIR"])
for name in ("mounted.csv", "beneath.csv"):
    (top / name).write_text(name)
mount("--bind", str(top / "mounted.csv"), str(top / "beneath.csv"))
for name in ("bottom", "nothing", "first", "second"):
    (top / name).mkdir()
(top / "bottom" / "deep.csv").write_text("deep.csv")
for lower, place in (("bottom", "first"), ("first", "second")):  # the kernel stacks no more than two
    mount("-t", "overlay", "overlay", str(top / place), "-o", f"lowerdir={top / lower}:{top / 'nothing'}")
files = {"mounted": top / "beneath.csv", "deep": top / "second" / "deep.csv"}
with open_session("local", "sealed", datasets=files, store_code="never") as session:
    print(*session.exec(["cat", *session.datasets.values()]).stdout.split("csv"))
"""


@pytest.mark.usefixtures("sealed")
def test_a_dataset_without_an_overlay_is_lent_all_the_same(elsewhere, public_path):
    assert elsewhere(NO_OVERLAY, str(public_path)) == "mounted. deep. \n"


def test_a_dataset_that_only_root_may_read_is_copied(sealed, opened, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox is that same user")
    source = tmp_path / "private.csv"
    source.write_text("secret\n")
    source.chmod(0o600)
    volume = opened(sealed, datasets=[("private.csv", str(source))])
    assert command(volume, "cat", "/tmp/data/private.csv")[0] == "secret\n"
    assert stat.S_IMODE(source.stat().st_mode) == 0o600
    source.write_bytes(b"x" * (17 << 20))
    with pytest.raises(BadArgument, match=r"chmod o\+r|SANDBOX_DISK_MB"):
        opened(sealed, datasets=[("private.csv", str(source))])


def test_a_large_copy_tells_how_it_goes(engine, opened, tmp_path):
    if engine.level == "sealed" and os.geteuid() != 0:
        pytest.skip("an ordinary user's dataset is lent at this level, not copied")
    source = tmp_path / "large.bin"
    with source.open("wb") as file:
        file.truncate(60 << 20)
    source.chmod(0o600)
    told: list[str] = []
    opened(engine, LIMITS._replace(disk_bytes=100 << 20), datasets=[("large.bin", str(source))], progress=told.append)
    assert told
    assert told[-1] == "copying large.bin: 60 of 60 MB"


def test_a_dataset_that_vanished_is_named(engine, opened, tmp_path):
    with pytest.raises(BadArgument, match=r"gone\.csv.*No such file"):
        opened(engine, datasets=[("gone.csv", str(tmp_path / "gone.csv"))])
    with pytest.raises(BadArgument, match="not a regular file"):
        opened(engine, datasets=[("dir.csv", str(tmp_path))])


def test_packages_come_first_on_the_path(engine, opened, public_path):
    (public_path / "only_here.py").write_text("value = 'from the layer'")
    (public_path / "only_here.py").chmod(0o644)
    volume = opened(engine, packages=str(public_path))
    assert text(run(volume, "import only_here; only_here.value")[2]) == ["'from the layer'"]
    out, err, _ = command(volume, "python", "-c", "import only_here; print(only_here.value)")
    assert (out, err) == ("from the layer\n", "")


# --- apart, and gone

HEADLESS = """
import ctypes, os, platform, threading, time
child = os.fork()
if child == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b'{name}')  # PR_SET_NAME
    threading.Thread(target=lambda: (open('{flag}', 'w').close(), time.sleep(3600))).start()
    ctypes.CDLL(None).syscall({{'x86_64': 60}}.get(platform.machine(), 93), 0)  # ends the first thread alone
while not os.path.exists('{flag}') or open(f'/proc/{{child}}/stat').read().rpartition(')')[2].split()[0] != 'Z':
    time.sleep(0.01)
print(os.path.exists('{flag}'), open(f'/proc/{{child}}/comm').read().strip())
"""


def test_a_daemon_whose_first_thread_is_dead_ends_with_the_command(engine, opened):
    volume = opened(engine)
    name = f"h{secrets.token_hex(6)}"
    assert command(volume, "python", "-c", HEADLESS.format(flag="up", name=name))[0] == f"True {name}\n"
    assert wait_until(lambda: not headless(name))


def headless(wanted: str) -> set[str]:
    """Processes of that name whose first thread is dead and whose others are not."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            name, fields = stat.split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == wanted and fields.split()[0] == "Z" and int(fields.split()[17]) > 1:
            found.add(pid)
    return found


@pytest.mark.attack(
    "a mount namespace of its own for each session",
    control="test_a_neighbour_s_files_and_processes_are_out_of_reach",
)
def test_volumes_do_not_see_one_another(sealed, opened):
    one, other = opened(sealed), opened(sealed)
    one.write("/workspace/canary", b"one")
    one.write("/tmp/canary", b"one")
    run(one, "canary = 1")
    look = (
        "find / -xdev -name 'canary*' 2>/dev/null; find /tmp /workspace /mnt /run /dev/shm -name 'canary*' 2>/dev/null"
    )
    assert command(one, "sh", "-c", look)[0].count("canary") >= 2
    assert command(other, "sh", "-c", look)[0] == ""
    assert text(run(other, "'canary' in dir()")[2]) == ["False"]
    mounts = command(other, "cat", "/proc/self/mountinfo")[0]
    assert mounts.count(" - tmpfs private ") == command(one, "cat", "/proc/self/mountinfo")[0].count(
        " - tmpfs private "
    )


def test_a_single_execution_sees_no_volume(sealed, opened):
    volume = opened(sealed)
    volume.write("/workspace/canary", b"one")
    cell = sealed.start(
        Command(("python", "main.py"), b"import os; print(os.listdir('/workspace'), os.path.exists('/tmp/output'))"),
        LIMITS,
        network=False,
    )
    assert ended(cell)[0] == "[] False\n"
    cell.close()


def test_closing_leaves_no_descriptor_group_process_or_directory(engine, opened):
    opened(engine).close()
    before, marker = descriptors(), a_long_time()
    for _ in range(5):
        volume = engine.open_volume(LIMITS, network=False)
        run(volume, f"import subprocess; p = subprocess.Popen(['sleep', '{marker}'])")
        assert wait_until(lambda: marker in commands())
        volume.write("/workspace/a", b"a")
        volume.close()
        volume.close()
        assert volume.directory is None or not os.path.exists(volume.directory)
    assert wait_until(lambda: not opened_since(before, descriptors())), opened_since(before, descriptors())
    assert wait_until(lambda: marker not in commands())


def test_a_volume_that_lost_its_zygote_says_so():
    engine = Engine("sealed", "sealed")
    try:
        volume = engine.open_volume(LIMITS, network=False)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    run(volume, "x = 1")
    zygote = engine._roots[False].zygote
    os.kill(zygote._pid, signal.SIGKILL)
    assert wait_until(zygote.is_gone)
    with pytest.raises(SandboxLost):
        run(volume, "x")
    with pytest.raises(SandboxLost):
        volume.start(Command(("true",)))
    volume.close()
    again = engine.open_volume(LIMITS, network=False)
    assert text(run(again, "6 * 7")[2]) == ["42"]
    again.close()
    engine._roots[False].close()
