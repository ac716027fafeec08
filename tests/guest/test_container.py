"""The first process of a container: what it does for its host, and what the programs beside it cannot do to it."""

from __future__ import annotations

import errno
import json
import marshal
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
from first_process import USER, Container, Lost, make_base, why_not

from fumehood.backends.docker.sandbox import _stat
from fumehood.guest import wire
from fumehood.guest.rlimits import no_core
from fumehood.guest.wire import HEADER
from support import HANG_S, wait_until

DAEMON = """
import os, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            time.sleep(3600)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def base():
    base = make_base()
    try:
        if (why := why_not(base)) is not None:
            pytest.skip(why)
        yield base
    finally:
        shutil.rmtree(base)


@pytest.fixture
def start(base):
    made = []

    def make(**options):
        made.append(Container(base, **options))
        return made[-1]

    yield make
    for container in made:
        container.close()


@pytest.fixture
def container(start):
    container = start()
    yield container
    assert container.last_words() == ""  # nothing of ours broke


def wait_for_processes(container, count):
    """What was killed may take its time to be gone."""
    assert wait_until(lambda: container.count_processes() == count), container.processes()


# --- programs


def test_hello_says_what_holds_it(container):
    hello = container.hello
    assert hello["protocol"] == wire.PROTOCOL
    assert hello["machine"] == os.uname().machine
    assert hello["capabilities"]["effective"] == hello["capabilities"]["permitted"] == 0
    assert hello["limits"]["open_files"] > 0
    assert hello["mounts"][container.files][0] == "tmpfs"
    assert "lo" in hello["interfaces"]
    assert len(json.dumps({**hello, "mounts": {}, "interfaces": []})) < 16384  # this machine may have many of those


def test_a_python_program_runs_by_fork(container):
    ran = container.run("import sys\nprint(6 * 7)\nprint('no', file=sys.stderr)")
    assert (ran.stdout, ran.stderr, ran.exit_code, ran.flags) == (b"42\n", b"no\n", 0, 0)
    assert ran.cpu_ns > 0
    assert ran.max_rss > 1 << 20


def test_a_traceback_points_into_the_program(container):
    ran = container.run("1 / 0")
    assert ran.exit_code == 1
    assert b"main.py" in ran.stderr
    assert b"fumehood/guest" not in ran.stderr


def test_a_command_runs(container):
    ran = container.run(["sh", "-c", "pwd; echo no >&2; exit 3"])
    assert (ran.stdout, ran.stderr, ran.exit_code) == (f"{container.files}/workspace\n".encode(), b"no\n", 3)
    assert container.run(["/bin/nothing-here"]).exit_code == 127


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(255)", 255),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 6)", 128 + 40),
    ],
)
def test_every_end_has_its_code(container, code, exit_code):
    assert container.run(code).exit_code == exit_code


def test_the_program_gets_its_environment_files_and_input(container):
    code = "import os, sys\nprint(os.environ['NEW'], open('a/b').read(), sys.stdin.read())"
    assert container.run(code, b"in", env={"NEW": "1"}, files={"a/b": b"file"}).stdout == b"1 file in\n"
    assert container.run(["sh", "-c", "echo $NEW; cat a/b -"], b" in", env={"NEW": "2"}).stdout == b"2\nfile in"
    assert container.run("import os\nprint(os.environ.get('NEW'))").stdout == b"None\n"


def test_the_program_finds_nothing_of_ours_in_its_interpreter(container):
    code = (
        "import sys\nprint([name for name in sys.modules if 'fumehood' in name], [p for p in sys.path if 'first' in p])"
    )
    assert container.run(code + "\nimport fumehood").stdout.startswith(b"[] ['" + container.files.encode())
    assert b"ModuleNotFoundError" in container.run("import fumehood").stderr


def test_programs_follow_one_another_and_share_files(container):
    container.run("open('kept', 'w').write('x' * 10)\nvariable = 1")
    assert container.run("print(len(open('kept').read()), 'variable' in globals())").stdout == b"10 False\n"


def test_input_of_megabytes_is_fed_as_it_is_taken(container):
    data = os.urandom(3 << 20)
    assert container.run(["cat"], data).stdout == data


@pytest.mark.parametrize("code", ["", "import os, time; os.close(0); time.sleep(0.5)", "import time; time.sleep(0.5)"])
def test_input_that_nobody_reads_keeps_nobody_waiting(container, code):
    assert container.run(code, bytes(4 << 20)).exit_code == 0
    assert container.memory_bytes() < 24 << 20


def test_an_order_may_come_in_pieces(container):
    order = {"argv": ["python", "main.py"], "script": b"print(len(open('big').read()))", "inline": True}
    body = marshal.dumps({**order, "env": {}, "files": {"big": bytes(2 << 20)}, "cpu_s": 0, "serves": False}, 4)
    number = container.new_number()
    request = {"order": b"", "serves": False, "filter": None, "limits": {}}
    container.send(wire.START, number, marshal.dumps(request, 4))
    container.feed(number, HEADER.pack(len(body)) + body)
    container.send(wire.END_INPUT, number)
    assert container.finish(number).stdout == b"2097152\n"


def test_what_looks_like_a_frame_is_output(container):
    false = wire.MUX.pack(wire.EXITED, 1, wire.EXIT.size) + wire.EXIT.pack(0, 0, 0, 0)
    ran = container.run(f"import os, sys\nos.write(1, {false!r})\nsys.exit(5)")
    assert (ran.stdout, ran.exit_code) == (false, 5)


# --- output


def test_output_waits_for_a_slow_reader_and_memory_does_not_grow(container):
    number = container.start("import os\nfor _ in range(64):\n    os.write(1, b'x' * (1 << 20))")
    container.is_reading = False
    container.wait_until_it_stands_still()
    assert container.memory_bytes() < 24 << 20
    container.is_reading = True
    ran = container.finish(number)
    assert (len(ran.stdout), ran.exit_code) == (64 << 20, 0)
    assert container.memory_bytes() < 24 << 20


def test_a_kill_is_heard_while_nobody_reads(container):
    number = container.start("import os\nwhile True:\n    os.write(1, b'x' * (1 << 20)); os.write(2, b'y' * 100)")
    container.is_reading = False
    container.wait_until_it_stands_still()
    container.send(wire.KILL, number)
    wait_for_processes(container, 1)
    container.is_reading = True
    assert container.finish(number).exit_code == 137
    assert container.run("print(1)").stdout == b"1\n"


def test_a_program_that_closes_its_output_goes_on(container):
    code = """
        import os, time
        os.close(1); os.close(2)
        open('closed', 'w')
        while not os.path.exists('go-on'): time.sleep(0.01)
        os._exit(4)
    """
    number = container.start(textwrap.dedent(code))
    assert wait_until(lambda: container.verb("read", "/workspace/closed", max_bytes=1)[0]["ok"])
    assert container.verb("write", "/workspace/go-on", b"")[0]["ok"]  # which it does when it has seen the end
    assert container.finish(number).exit_code == 4


# --- an interpreter that serves


def test_an_interpreter_keeps_its_state_beside_commands(container):
    number = container.start("", serves=True)
    assert container.ask(number, "x = 40\nprint('printed')\nx + 2")["value"] == "42"
    assert container.run(["echo", "hi"]).stdout == b"hi\n"
    assert container.run("print('x' in globals())").stdout == b"False\n"
    assert container.ask(number, "x", 2)["value"] == "40"
    container.send(wire.TELL_USAGE, number)
    cpu_ns, max_rss, flags = wire.USAGE.unpack(container.wait_for(wire.USED, number))
    assert cpu_ns > 0
    assert max_rss > 1 << 20
    assert flags == 0


def test_what_was_printed_comes_before_what_was_shown(container):
    number = container.start("", serves=True)
    said = container.ask(number, "import sys\nprint('a' * 50_000)\ndisplay(1)\nsys.stdout.write('b' * 50_000);")
    assert len(said["stdout"]) == 100_001


def test_an_interrupt_keeps_the_state_and_kills_what_was_started(container):
    number = container.start("", serves=True)
    container.ask(number, DAEMON + "x = 1\ndaemon()")
    container.send_code(
        number, "import subprocess, time\nsubprocess.Popen(['sleep', '3600'])\nprint('go')\ntime.sleep(3600)", 2
    )
    container.wait_output(number, b"go")
    assert container.count_processes() == 4
    container.send(wire.INTERRUPT, number)
    said = container.answer(number)
    assert (said["exit_code"], said["error"], said["interrupted"]) == (130, "KeyboardInterrupt", True)
    wait_for_processes(container, 2)
    assert container.ask(number, "x", 3)["value"] == "1"


def test_a_command_takes_its_own_daemons_along_and_leaves_those_of_the_interpreter(container):
    number = container.start("", serves=True)
    container.ask(number, DAEMON + "import subprocess\ndaemon()\nchild = subprocess.Popen(['sleep', '3600'])")
    assert container.count_processes() == 4
    assert container.run(DAEMON + "daemon()\ndaemon()").exit_code == 0
    wait_for_processes(container, 4)
    assert container.ask(number, "child.poll()\nchild.poll() is None", 2)["value"] == "True"


def test_killing_the_interpreter_takes_everything_and_another_may_follow(container):
    number = container.start("", serves=True)
    container.ask(number, DAEMON + "daemon()")
    container.send(wire.KILL, number)
    assert container.finish(number).exit_code == 137
    wait_for_processes(container, 1)
    number = container.start("", serves=True)
    assert container.ask(number, "'daemon' in globals()")["value"] == "False"


def test_a_closed_channel_is_told(container):
    number = container.start("", serves=True)
    container.ask(number, "1")
    container.send_code(number, "import os\nos.closerange(3, 10_000)", 2)
    while container.wait_for(wire.CHANNEL, number):
        pass
    assert container.finish(number).exit_code == 0


# --- the end of programs


def test_the_end_of_a_program_is_the_end_of_its_daemons(container):
    assert container.run(DAEMON + "daemon()\ndaemon()\nprint('HAD daemons')").stdout == b"HAD daemons\n"
    wait_for_processes(container, 1)


def test_a_daemon_that_holds_the_output_keeps_nobody_waiting(container):
    ran = container.run(["sh", "-c", "sleep 3600 & echo done"])
    assert (ran.stdout, ran.exit_code) == (b"done\n", 0)
    wait_for_processes(container, 1)


def test_a_kill_takes_the_whole_tree(container):
    number = container.start(DAEMON + "daemon()\ndaemon()\nos.fork()\nprint('HAD', flush=True)\ntime.sleep(3600)")
    container.wait_output(number, b"HAD\nHAD\n")
    assert container.count_processes() == 5
    container.send(wire.KILL, number)
    assert container.finish(number).exit_code == 137
    wait_for_processes(container, 1)


def test_a_fork_bomb_beside_an_interpreter_is_stopped(container):
    number = container.start("", serves=True)
    container.ask(number, "x = 1")
    bomb = "import os\nprint('HAD', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    command = container.start(bomb, limits={"processes": _processes_of_its_user() + 30})
    container.wait_output(command, b"HAD")
    assert wait_until(lambda: container.count_processes() > 10)
    container.send(wire.KILL, command)
    assert container.finish(command).exit_code == 137
    wait_for_processes(container, 2)
    assert container.ask(number, "x", 2)["value"] == "1"


def _processes_of_its_user():
    """As root it has a user of its own. Else it is us, whom some kernels count in all namespaces."""
    uid, number = str(USER if os.geteuid() == 0 else os.geteuid()), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
            fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
            number += int(fields["Threads"][0]) * (fields["Uid"][0] == uid)
    return number


def test_a_daemon_whose_first_thread_is_dead_is_found(container):
    number = container.start("", serves=True)
    container.ask(number, "1")
    code = """
        import ctypes, os, threading, time
        child = os.fork()
        if child == 0:
            os.setsid()
            threading.Thread(target=time.sleep, args=(3600,)).start()
            ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
        while open(f'/proc/{child}/stat').read().rpartition(')')[2].split()[0] != 'Z':
            time.sleep(0.01)
        print('HAD', len(os.listdir(f'/proc/{child}/task')), flush=True)
    """
    assert container.run(textwrap.dedent(code)).stdout == b"HAD 2\n"
    wait_for_processes(container, 2)


def test_orphans_are_reaped(container):
    number = container.start("", serves=True)
    orphans = (
        "import os\nfor _ in range(20):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)\n    os.wait()"
    )
    container.ask(number, orphans)
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    assert wait_until(lambda: len(children.read_text().split()) == 1)


def test_the_host_going_away_ends_everything(container):
    number = container.start(DAEMON + "daemon()\nprint('HAD', flush=True)\ntime.sleep(3600)")
    container.wait_output(number, b"HAD")
    seen = f"/proc/{container.pid}"
    container.process.stdin.close()
    assert container.wait() == 0
    assert not os.path.exists(seen)


def test_a_host_that_is_not_heard_of_is_gone(start):
    patience_s = 0.5
    while (most_s := speak_for_a_while(start(patience_s=patience_s), patience_s)) > patience_s / 2:
        patience_s *= 2  # we were held up for too long to say who gave up whom
        assert patience_s < HANG_S, most_s


def speak_for_a_while(container, patience_s):
    """A word of any kind is a sign of life. How long it had to wait for one, at the most."""
    number = container.start("import time\nwhile True: print('HAD', flush=True); time.sleep(0.01)")
    first = Path(f"/proc/{container.pid}/stat")
    began = last = time.monotonic()
    most_s = 0.0
    while last - began < patience_s * 2 and most_s <= patience_s / 2:
        time.sleep(0.05)
        try:
            container.send(wire.KILL, 1 << 20)
        except Lost:
            most_s = max(most_s, time.monotonic() - last)
            assert most_s > patience_s / 2
            return most_s
        last, before = time.monotonic(), last
        most_s = max(most_s, last - before)
    if most_s <= patience_s / 2:
        assert first.read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
        container.wait_output(number, b"HAD")
        assert container.wait() == 0
    return most_s


@pytest.mark.parametrize(
    ("kind", "number", "payload", "size"),
    [
        (ord("?"), 1, b"", None),
        (wire.HELLO, 1, b"", None),
        (wire.INPUT, 1, b"", wire.MAX_DATA + 1),
        (wire.START, 1, b"", wire.MAX_FRAME + 1),
        (wire.START, 1, b"\xff" * 100, None),
        (wire.START, 1, marshal.dumps([1], 4), None),
        (wire.START, 1, marshal.dumps({"order": b"", "serves": 1}, 4), None),
        (wire.FILE, 1, marshal.dumps({"verb": "read"}, 4), None),
        (wire.KILL, 0, b"", None),
    ],
)
def test_garbage_from_the_host_ends_it_cleanly(start, kind, number, payload, size):
    container = start()
    os.write(container.process.stdin.fileno(), wire.MUX.pack(kind, number, size or len(payload)) + payload)
    assert container.wait() == 3
    assert container.last_words() == ""


def test_a_number_is_used_once(container):
    number = container.start("import time; time.sleep(3600)")
    container.wait_for(wire.LOCKED, number)
    request = {"order": b"", "serves": False, "filter": None, "limits": {}}
    container.send(wire.START, number, marshal.dumps(request, 4))
    assert container.wait() == 3


def test_it_is_the_first_process_or_nothing():
    code = "from fumehood.guest.container import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not the first process" in done.stderr


# --- locks


@pytest.mark.parametrize(("pattern", "limit"), [("core", 0), ("|/usr/share/apport/apport %p", 1), (None, 1)])
def test_no_core_is_dumped_and_none_handed_to_a_helper(pattern, limit, tmp_path):
    if pattern is not None:
        (tmp_path / "core_pattern").write_text(pattern)
    assert no_core(str(tmp_path / "core_pattern")) == limit


def test_a_program_is_locked_before_it_is_read(container):
    code = """
        import ctypes, errno, os, resource
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.unshare(0x10000000), ctypes.get_errno() == errno.EPERM)
        print([line for line in open('/proc/self/status') if line.split(':')[0] in ('NoNewPrivs', 'Seccomp')])
        print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
    """
    ran = container.run(textwrap.dedent(code), limits={"open_files": 64})
    assert ran.stdout.decode().splitlines() == [
        "-1 True",
        "['NoNewPrivs:\\t1\\n', 'Seccomp:\\t2\\n']",
        f"(64, 64) ({no_core()}, {no_core()})",
    ]


@pytest.mark.parametrize(
    ("change", "step"),
    [({"filter": b"\xff" * 8}, "seccomp"), ({"filter": b""}, "seccomp"), ({"limits": {"none": 1}}, "limits")],
)
def test_a_lock_that_fails_is_told_and_nothing_runs(container, change, step):
    number = container.new_number()
    body = marshal.dumps({"argv": ["touch", "ran"], "script": None}, 4)
    request = {"order": HEADER.pack(len(body)) + body, "serves": False, "filter": None, "limits": {}, **change}
    container.send(wire.START, number, marshal.dumps(request, 4))
    said = json.loads(container.wait_for(wire.NOT_STARTED, number))
    assert said["step"] == step
    assert said.keys() == {"step", "errno", "detail"}
    assert container.run(["ls"]).stdout == b""
    assert container.frames == []


REACH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, call):
    print("HAD", name, flush=True)
    try:
        got = call()
    except OSError:
        return
    if got != -1:
        print("REACHED", name, got, flush=True)

attempt("fds", lambda: os.listdir("/proc/1/fd"))
attempt("own fds", lambda: None if os.listdir("/proc/self/fd") else 0)
for fd in (0, 1, 2, 3, 100, 101, 102):
    for mode in (os.O_RDONLY, os.O_WRONLY):
        attempt(f"fd {fd} {mode}", lambda: os.open(f"/proc/1/fd/{fd}", mode))
        attempt(f"task fd {fd} {mode}", lambda: os.open(f"/proc/1/task/1/fd/{fd}", mode))
for name in ("mem", "environ", "maps", "auxv", "stack", "syscall"):
    attempt(name, lambda: open(f"/proc/1/{name}", "rb").read(1))
for name in ("root", "cwd", "exe", "ns/mnt"):
    attempt(name, lambda: os.readlink(f"/proc/1/{name}"))
attempt("attach", lambda: libc.ptrace(16, 1, 0, 0))
attempt("seize", lambda: libc.ptrace(0x4206, 1, 0, 0))
buffer = ctypes.create_string_buffer(64)
here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
there = (ctypes.c_void_p * 2)(id(buffer), 64)
attempt("read memory", lambda: libc.process_vm_readv(1, here, 1, there, 1, 0))
attempt("write memory", lambda: libc.process_vm_writev(1, here, 1, there, 1, 0))
pidfd = os.pidfd_open(1)
for fd in (1, 100, 101):
    attempt(f"pidfd {fd}", lambda: libc.syscall(438, pidfd, fd, 0))
attempt("limits", lambda: open("/proc/1/oom_score_adj", "w").write("1000"))
print("HAD all", flush=True)
"""


@pytest.mark.parametrize("filtered", [True, False])
def test_a_program_cannot_reach_into_the_first_process(container, filtered):
    ran = container.run(REACH, filtered=filtered)
    lines = ran.stdout.decode().splitlines()
    assert lines[-1] == "HAD all", ran.stderr
    assert len(lines) > 40
    assert [line for line in lines if line.startswith("REACHED")] == ["REACHED own fds None"]


@pytest.mark.parametrize("filtered", [True, False])
def test_no_signal_from_inside_ends_or_stops_the_first_process(container, filtered):
    code = """
        import os, signal
        for _ in range(3):
            for number in range(1, 65):
                try: os.kill(1, number)
                except OSError: pass
        for _ in range(5000):
            os.kill(1, signal.SIGCHLD)
        try: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL)
        except OSError: pass
        print('HAD', flush=True)
        try: os.kill(-1, signal.SIGKILL)
        except OSError: pass
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ran = container.run(textwrap.dedent(code), filtered=filtered)
    assert (ran.stdout, ran.exit_code) == (b"HAD\n", 137)
    assert container.run("print('alive')").stdout == b"alive\n"


@pytest.mark.parametrize(
    "program", ["import os, sys; print('HAD'); os.execv('/bin/ls', ['ls', '-l', '/proc/self/fd'])", None]
)
def test_a_program_inherits_nothing_that_leads_to_the_host(container, program):
    ran = container.run(program or ["ls", "-l", "/proc/self/fd"])
    shown = ran.stdout.decode()
    assert shown.count("pipe:[") == 3
    for stream in (container.process.stdin, container.process.stdout, container.errors):
        assert f"[{os.fstat(stream.fileno()).st_ino}]" not in shown


def test_a_forked_program_has_three_descriptors(container):
    code = "import os\nprint([fd for fd in range(2000) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert container.run(code).stdout == b"[0, 1, 2]\n"


def test_an_interpreter_has_no_way_to_the_host_but_its_channel(container):
    number = container.start("", serves=True)
    code = "import os\nplaces = map('/proc/self/fd/{}'.format, range(2000))\n"
    code += "[os.readlink(place) for place in places if os.path.islink(place)]"
    shown = container.ask(number, code)["value"]
    assert "socket:" in shown
    for stream in (container.process.stdin, container.process.stdout):
        assert f"[{os.fstat(stream.fileno()).st_ino}]" not in shown


# --- files


def test_what_is_written_is_read_and_listed(container):
    data = os.urandom(3 << 20)
    assert container.verb("write", "/workspace/a/b.bin", data) == ({"ok": True}, b"")
    assert container.verb("write", "/workspace/empty", b"") == ({"ok": True}, b"")
    assert container.verb("read", "/workspace/a/b.bin", max_bytes=len(data)) == ({"ok": True}, data)
    assert container.verb("read", "/workspace/empty", max_bytes=0) == ({"ok": True}, b"")
    answer, lines = container.verb("list", "/workspace", leave_out=f"{container.files}/workspace/none")
    found = sorted(json.loads(line) for line in lines.splitlines())
    assert answer == {"ok": True}
    assert [(path.rpartition("workspace")[2], size) for path, size, _ in found] == [
        ("/a/b.bin", 3 << 20),
        ("/empty", 0),
    ]
    assert all(isinstance(number, int) for number in found[0][2])
    assert container.run("import os\nprint(os.stat('a/b.bin').st_size)").stdout == b"3145728\n"


def test_a_program_that_runs_sees_files_come_and_go(container):
    number = container.start(
        "import os, time\nwhile not os.path.exists('in'): time.sleep(0.01)\nopen('out', 'w').write('x')"
    )
    assert container.verb("write", "/workspace/in", b"1")[0]["ok"]
    assert container.finish(number).exit_code == 0
    assert container.verb("read", "/workspace/out", max_bytes=9)[1] == b"x"


def test_what_is_no_regular_file_is_refused_by_name(container):
    container.run(
        [
            "sh",
            "-c",
            "mkdir d; ln -s /etc/passwd link; ln -s / root; mkfifo fifo; printf 12345 > five; mkdir t; cd t; > x",
        ]
    )
    for path, number in {
        "/workspace/link": errno.ELOOP,
        "/workspace/root/etc/passwd": errno.ENOTDIR,
        "/workspace/fifo": errno.ENXIO,
        "/workspace/d": errno.EISDIR,
        "/workspace/none": errno.ENOENT,
        "/workspace/five/x": errno.ENOTDIR,
        "/workspace/../secret": errno.EINVAL,
        "/elsewhere": errno.EINVAL,
    }.items():
        answer, body = container.verb("read", path, max_bytes=100)
        assert (answer["ok"], answer["errno"], body) == (False, number, b""), path
    assert container.verb("read", "/workspace/five", max_bytes=4)[0]["errno"] == errno.EFBIG
    assert container.verb("read", "/workspace/five", max_bytes=5)[1] == b"12345"
    assert container.verb("write", "/workspace/d", b"x")[0]["errno"] == errno.EISDIR
    assert container.verb("write", "/workspace/root/tmp/x", b"x")[0]["errno"] == errno.ENOTDIR
    assert container.verb("write", "/workspace/link", b"mine")[0]["ok"]
    listed = container.verb("list", "/workspace", leave_out=f"{container.files}/workspace/t")[1]
    found = {stat.path.rpartition("/")[2]: stat.why for stat in map(_stat, listed.splitlines())}
    link = "a symbolic link, which is never followed"
    assert found == {"five": "", "link": "", "fifo": "a named pipe", "root": link}
    assert container.verb("list", "/workspace/none") == ({"ok": True}, b"")
    listed = container.verb("list", "/workspace/root")[1]
    assert [_stat(line).why for line in listed.splitlines()] == [link]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ('""', ""),
        ('"link"', "a symbolic link, which is never followed"),
        *((said, "not a regular file") for said in ('"\\u001b[2J"', "0", "[]", "{}", "null", "true")),
    ],
)
def test_of_what_is_no_file_a_guest_says_nothing_in_its_own_words(what, why):
    assert _stat(f'["/tmp/a", 1, [2], {what}]'.encode()).why == why
    assert _stat(f'["/tmp/a", 1, [2], {what}, 5]'.encode()).why == why
    assert _stat(b'["/tmp/a", 1, [2]]').why == ""


def test_a_full_disk_is_told_and_leaves_nothing_behind(start):
    container = start(size="4m")
    answer, _ = container.verb("write", "/workspace/big", bytes(8 << 20))
    assert answer["errno"] == errno.ENOSPC
    assert container.verb("list", "/workspace")[1] == b""
    ran = container.run("open('f', 'wb').write(bytes(8 << 20))")
    assert ran.exit_code == 1
    assert ran.flags & wire.DISK_FULL
    assert container.run(["rm", "f"]).flags == 0
    assert container.run("raise SystemExit(1)").flags == 0


def test_a_write_that_is_dropped_leaves_nothing_behind(container):
    number = container.new_number()
    request = {"verb": "write", "path": f"{container.files}/workspace/half"}
    container.send(wire.FILE, number, marshal.dumps(request, 4))
    container.send(wire.PART, number, b"some")
    container.send(wire.KILL, number)
    assert json.loads(container.wait_for(wire.ANSWER, number))["errno"] == errno.ECANCELED
    assert container.verb("list", "/workspace")[1] == b""


def test_a_file_is_read_in_pieces_while_nobody_listens(container):
    container.verb("write", "/workspace/big", bytes(8 << 20))
    number = container.new_number()
    request = {"verb": "read", "path": f"{container.files}/workspace/big", "max_bytes": 1 << 30}
    container.is_reading = False
    container.send(wire.FILE, number, marshal.dumps(request, 4))
    container.wait_until_it_stands_still()
    assert container.memory_bytes() < 24 << 20
    container.is_reading = True
    assert json.loads(container.wait_for(wire.ANSWER, number))["ok"]
    assert container.take(wire.BODY, number) == bytes(8 << 20)


def test_the_end_is_seen_as_such(start):
    container = start()
    os.kill(container.pid, signal.SIGKILL)  # from outside: the host's engine, or the kernel for want of memory
    with pytest.raises(Lost):
        container.run("print(1)")
