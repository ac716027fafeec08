"""Memory that belongs to no process is bounded too: buffers, locks, shared memory that nobody maps, page tables."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fumehood.engine import cgroups, memory
from fumehood.engine.cgroup_home import Home, Unavailable
from fumehood.engine.engine import Engine
from fumehood.errors import IsolationUnavailable
from fumehood.types import Command, Exited, Limits
from harness.attacks import EXHAUSTS
from support import HANG_S

LIMITS = Limits(memory_bytes=128 << 20)
COUNTED = "PID 1 is asked for each, and counts them"
MANY = 300  # sockets: more than any of these programs may have

FILLS = {
    "tcp": """
listening = socket.socket()
listening.bind(('127.0.0.1', 0))
listening.listen(1000)
def fill():
    ours = socket.create_connection(listening.getsockname())
    for end in (ours, listening.accept()[0]):
        held.append(end)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        end.setblocking(False)
        try:
            while True: end.send(bytes(1 << 16))
        except BlockingIOError: pass
""",
    "udp": """
def fill():
    held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    held[-1].bind(('127.0.0.1', 0))
    for _ in range(20): sender.sendto(bytes(60_000), held[-1].getsockname())
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
""",
    "netlink": """
def fill():
    held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    held[-1].setblocking(False)
    try:
        for _ in range(3000): held[-1].send(struct.pack('=IHHII4x', 20, 18, 0x301, 1, 0))  # for all interfaces
    except BlockingIOError: pass
""",
}
HOLDS = """
import json, socket, struct
held, refused = [], None
%s
try:
    while len(held) < %d: fill()
except OSError as error: refused = error.errno
def queues(name, column):
    for line in open(f'/proc/net/{name}').readlines()[1:]:
        yield from (int(number, 16) for number in line.split()[column].split(':'))
buffers = sum(queues('tcp', 4)) + sum(queues('udp', 4))
buffers += sum(int(line.split()[4]) for line in open('/proc/net/netlink').readlines()[1:])
print(json.dumps([len(held), refused, buffers]))
"""


def holds(kind: str) -> str:
    return HOLDS % (FILLS[kind], MANY)


def without_groups() -> Unavailable:
    return Unavailable("find cgroup", 2, "as if there were none")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(groups: str) -> Engine:
        if groups == "without groups":
            monkeypatch.setattr(cgroups, "find_home", without_groups)
        made.append(Engine("sealed", None))
        try:
            made[-1].check(LIMITS, network=False)
        except IsolationUnavailable as missing:
            pytest.skip(str(missing))
        (root,) = made[-1]._roots.values()
        if groups == "with groups" and not isinstance(root.zygote.groups.home, Home):
            pytest.skip("no control groups of our own")
        return made[-1]

    yield make
    for engine in made:
        for root in engine._roots.values():
            root.close()


def outcome(engine: Engine, code: str) -> tuple[str, str, str]:
    """What it printed, why it ended, and what the receipt says of memory."""
    cell = engine.start(Command(("python", "main.py"), code.encode()), LIMITS, network=False)
    try:
        said = b""
        while not isinstance(event := cell.read(HANG_S), Exited):
            assert event is not None
            said += event.data
        return said.decode(), event.reason, cell.receipt.axes["memory"].mechanism
    finally:
        cell.close()


GROUPS = pytest.mark.parametrize("groups", ["with groups", "without groups"])


@pytest.mark.parametrize("kind", list(FILLS))
def test_sockets_and_their_buffers_have_no_bound_of_the_kernel_s_own(kind: str) -> None:
    """The control arm: in a network namespace, and nothing else."""
    namespaces = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    up = "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))\n"
    done = subprocess.run([*namespaces, sys.executable, "-c", up + holds(kind)], capture_output=True, timeout=HANG_S)
    if done.returncode and b"unshare failed" in done.stderr:
        pytest.skip(f"no network namespace of its own: {done.stderr.decode()}")
    assert json.loads(done.stdout)[:2] == [MANY, None], done.stderr


@pytest.mark.attack(COUNTED, control="test_sockets_and_their_buffers_have_no_bound_of_the_kernel_s_own", level="sealed")
@GROUPS
@pytest.mark.parametrize("kind", list(FILLS))
def test_sockets_and_their_buffers_are_bounded(start: Callable[..., Engine], kind: str, groups: str) -> None:
    said, reason, receipt = outcome(start(groups), holds(kind))
    count, refused, buffers = json.loads(said)
    assert (reason, refused) == ("ok", 105), "ENOBUFS"
    assert 32 <= count < MANY
    stated = re.search(r"socket buffers beside, up to (\d+) MiB", receipt)
    assert stated is not None, receipt
    assert 0 < buffers <= int(stated[1]) << 20


PAIRS = """
import socket
held = []
try:
    while len(held) < 1000: held += socket.socketpair()
except OSError as error: print(error.errno)
"""


@pytest.mark.parametrize(("groups", "said"), [("with groups", "24\n"), ("without groups", "105\n")])
def test_pairs_of_sockets_are_bounded_where_nobody_counts_them(
    start: Callable[..., Engine], groups: str, said: str
) -> None:
    """EMFILE: those are charged to the program's group. ENOBUFS."""
    assert outcome(start(groups), PAIRS.replace("1000", "2000"))[0] == said


LETS_GO = """
import ctypes, mmap, os
def unmap(memory):  # all but its first page
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(len(memory) - 4096)) == 0
def drop(memory):
    memory.madvise(mmap.MADV_DONTNEED)
held, refused = [], ''
try:
    for _ in range(64):
        held.append(mmap.mmap(-1, 16 << 20))
        for at in range(0, 16 << 20, 4096): held[-1][at] = 1
        %s(held[-1])
except OSError as error: refused = f'refused: {error.errno}'
print(len(held), refused or sum(memory[0] for memory in held), flush=True)
os._exit(0)  # nothing is there for mmap to unmap
"""


# At the lowest addresses: no list of what is mapped that is cut shows what comes after them.
MANY_MAPPED = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(ctypes.c_void_p(1 << 28), ctypes.c_size_t(50_000 << 12), 0, 0x22, -1, ctypes.c_long(0))
for page in range(0, 50_000, 2): assert libc.mprotect(ctypes.c_void_p(start + (page << 12)), ctypes.c_size_t(1), 1) == 0
with open("/proc/self/maps") as file: assert len(file.read()) > 2 << 19
"""


def test_shared_memory_outlives_that_it_is_mapped() -> None:
    """The control arm: what was let go of is still there."""
    code = (LETS_GO % "drop").replace("range(64)", "range(4)").replace("memory[0]", "memory[4096]")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"4 4\n"


@pytest.mark.attack(COUNTED, control="test_shared_memory_outlives_that_it_is_mapped", level="sealed")
@GROUPS
@pytest.mark.parametrize("lets_go", ["drop", "unmap"])
@pytest.mark.parametrize("before", ["", MANY_MAPPED], ids=["", "behind many others"])
def test_shared_memory_that_nobody_maps_is_counted(
    start: Callable[..., Engine], groups: str, before: str, lets_go: str
) -> None:
    said, reason, _ = outcome(start(groups), before + LETS_GO % lets_go)
    assert reason == "memory" or said == "8 refused: 12\n", "ENOMEM, where it comes before the watch"


def test_shared_memory_that_is_gone_is_forgotten(start: Callable[..., Engine]) -> None:
    code = "import mmap\nfor _ in range(32): mmap.mmap(-1, 16 << 20).close()\nprint('ran')"
    assert outcome(start("without groups"), code)[:2] == ("ran\n", "ok")


TABLES = """
import ctypes, mmap
print('ran', flush=True)
size = 128 << 30
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | 0x4000 | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
memory.madvise(14)  # MADV_NOHUGEPAGE
for at in range(0, size, 2 << 20): memory[at]
print('all of it')
"""


@pytest.mark.attack("the control group, or PID 1 adds them up", without=EXHAUSTS, level="sealed")
@GROUPS
def test_page_tables_are_counted(start: Callable[..., Engine], groups: str) -> None:
    """256 MiB of them, for pages that are all the same one."""
    assert outcome(start(groups), TABLES)[:2] == ("ran\n", "memory")


# ---- what the kernel keeps of each mapping


MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def split(pages, place=None):
    start = libc.mmap(place, pages * 4096, 0, 0x22, -1, 0)
    for at in range(0, pages, 2): libc.mprotect(start + at * 4096, 4096, 1)  # none of it is ever there
"""
MANY_MAPPINGS = f"""{MAPPINGS}
print('ran', flush=True)
for _ in range(16):
    if os.fork() == 0:
        split(60_000)
        while True: time.sleep(3600)
while True: time.sleep(3600)
"""


def test_mappings_are_held_by_the_thousand() -> None:
    """The control arm."""
    code = f"{MAPPINGS}\nsplit(60_000)\nprint(len(open('/proc/self/maps').readlines()))"
    assert int(subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=HANG_S).stdout) > 60_000


@pytest.mark.attack(
    "the control group, or PID 1 adds them up", control="test_mappings_are_held_by_the_thousand", level="sealed"
)
@GROUPS
def test_mappings_are_counted(start: Callable[..., Engine], groups: str) -> None:
    """300 MiB of them, for pages that are not there."""
    assert outcome(start(groups), MANY_MAPPINGS)[:2] == ("ran\n", "memory")


def test_who_has_more_mappings_than_are_read_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.nameless([os.getpid()]) is not None
    monkeypatch.setattr(memory, "_MOST_MAPS", 4096)
    assert memory.nameless([os.getpid()]) is None


HIDES = f"""{MAPPINGS}
split(40_000, 0x10000000000)
zero = os.open('/dev/zero', os.O_RDWR)
size = 256 << 20
place = libc.mmap(0x7F0000000000, size, 3, 1 | 0x100000, zero, 0)  # behind all of them
if place == 2**64 - 1: print('refused')
else:
    for at in range(0, size, 4096): ctypes.memset(place + at, 1, 1)
    print('all of it')
"""


@GROUPS
def test_shared_memory_behind_many_mappings_is_counted(start: Callable[..., Engine], groups: str) -> None:
    said, reason, _ = outcome(start(groups), HIDES)
    assert reason == "memory" or said == "refused\n"


def test_a_shared_file_is_mapped_whatever_its_size(start: Callable[..., Engine]) -> None:
    code = """
import mmap
with open('/tmp/large', 'w+b') as file:
    file.truncate(200 << 20)
    with mmap.mmap(file.fileno(), 0) as memory: memory[100 << 20] = 7
    file.seek(100 << 20)
    print(file.read(1))
"""
    assert outcome(start("without groups"), code)[:2] == ("b'\\x07'\n", "ok")


# ---- threads that outlive the first


LEADERLESS = """
import ctypes, mmap, os, threading
def hold():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z': pass
    print('ran', flush=True)
    memory = mmap.mmap(-1, 256 << 20, flags=%s | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), 4096): memory[at] = 1
    print('all of it', flush=True)
    os._exit(0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # exit: of this thread alone
"""


def test_a_process_goes_on_without_its_first_thread() -> None:
    """The control arm."""
    done = subprocess.run([sys.executable, "-c", LEADERLESS % "mmap.MAP_PRIVATE"], capture_output=True, timeout=HANG_S)
    assert done.stdout == b"ran\nall of it\n"


@pytest.mark.attack(
    "the control group, or PID 1 adds them up",
    control="test_a_process_goes_on_without_its_first_thread",
    level="sealed",
)
@GROUPS
def test_memory_of_a_process_without_its_first_thread_is_counted(start: Callable[..., Engine], groups: str) -> None:
    assert outcome(start(groups), LEADERLESS % "mmap.MAP_PRIVATE")[:2] == ("ran\n", "memory")


# ---- locks


LOCKS = """
import fcntl, json, os, struct
count, refused = 0, None
files = [os.open(f'lock{number}', os.O_RDWR | os.O_CREAT) for number in range(100)]
try:
    for at in range(200, 0, -2):
        for file in files:
            fcntl.fcntl(file, %s, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, at, 1, 0))
            count += 1
except OSError as error: refused = error.errno
print(json.dumps([count, refused]))
"""
POSIX, OF_FILES = "fcntl.F_SETLK", "37"


@pytest.mark.parametrize("kind", [POSIX, OF_FILES])
def test_locks_have_no_bound_of_the_kernel_s_own(tmp_path: Path, kind: str) -> None:
    """The control arm."""
    code = LOCKS % kind
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=HANG_S, cwd=tmp_path)
    assert json.loads(done.stdout) == [10_000, None], done.stderr


@pytest.mark.attack(COUNTED, control="test_locks_have_no_bound_of_the_kernel_s_own", level="sealed")
@GROUPS
@pytest.mark.parametrize(("kind", "at_least", "refusal"), [(POSIX, 8192, errno.ENOLCK), (OF_FILES, 0, errno.EINVAL)])
def test_locks_are_bounded(start: Callable[..., Engine], groups: str, kind: str, at_least: int, refusal: int) -> None:
    """EINVAL: as of a kernel that does not know them. While others unlock, the kernel lists not all of them."""
    count, refused = json.loads(outcome(start(groups), LOCKS % kind)[0])
    assert refused == refusal
    assert at_least <= count <= at_least * 1.2


def test_locks_that_are_gone_are_forgotten(start: Callable[..., Engine]) -> None:
    code = """
import fcntl
with open('lock', 'w') as file:
    for _ in range(10_000):
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_UN)
print('ran')
"""
    assert outcome(start("with groups" if os.geteuid() == 0 else "without groups"), code)[:2] == ("ran\n", "ok")


# ---- pages by the byte, and what is left of closed sockets


SPLICES = """
import os, socket
near, far = socket.socketpair()
near.setblocking(False)
ours, theirs = os.pipe()
pages = 0
try:
    while True:
        os.write(theirs, b'x')
        os.splice(ours, near.fileno(), 1)
        pages += 1
except BlockingIOError: print(pages * 4096 // near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
except OSError as error: print('refused', error.errno)
"""


def test_a_spliced_byte_is_a_page_in_a_buffer() -> None:
    """The control arm: a buffer holds several times its size."""
    done = subprocess.run([sys.executable, "-c", SPLICES], capture_output=True, timeout=HANG_S)
    assert int(done.stdout) >= 2, done.stderr


@pytest.mark.attack("the seccomp filter", control="test_a_spliced_byte_is_a_page_in_a_buffer", level="sealed")
def test_no_page_goes_into_a_buffer_by_the_byte_where_nobody_counts_it(start: Callable[..., Engine]) -> None:
    assert outcome(start("without groups"), SPLICES)[0] == "refused 22\n"


def test_files_are_copied_without_splices(start: Callable[..., Engine]) -> None:
    code = """
import shutil
with open('a', 'wb') as file: file.write(b'x' * 100_000)
shutil.copy('a', 'b')
print(len(open('b', 'rb').read()))
"""
    assert outcome(start("without groups"), code)[:2] == ("100000\n", "ok")


CLOSES = """
import socket
listening = socket.create_server(('127.0.0.1', 0))
for _ in range(4500):
    ours = socket.create_connection(listening.getsockname())
    theirs = listening.accept()[0]
    ours.close()
    theirs.close()
line = next(line for line in open('/proc/net/sockstat') if line.startswith('TCP:')).split()
print(line[line.index('tw') + 1])
"""


def test_closed_sockets_are_bounded(start: Callable[..., Engine]) -> None:
    """They are kept for a minute, and are nobody's."""
    engine = start("with groups" if os.geteuid() == 0 else "without groups")
    assert int(outcome(engine, CLOSES)[0]) <= 4096


# ---- epoll, whose watches the kernel counts for the host's user


EPOLLS = """
import asyncio, errno, os, select
held = []
try:
    while len(held) < 600: held.append(select.epoll())
except OSError as error: print(len(held), errno.errorcode[error.errno])
for each in held: each.close()
for _ in range(300): asyncio.run(asyncio.sleep(0))
print('loops')
"""


def test_epoll_instances_have_no_bound_of_the_kernel_s_own() -> None:
    """The control arm."""
    done = subprocess.run([sys.executable, "-c", EPOLLS], capture_output=True, timeout=HANG_S)
    assert done.stdout == b"loops\n"


@pytest.mark.attack(COUNTED, control="test_epoll_instances_have_no_bound_of_the_kernel_s_own", level="sealed")
@GROUPS
def test_epoll_instances_are_bounded(start: Callable[..., Engine], groups: str) -> None:
    """And what was closed is forgotten."""
    assert outcome(start(groups), EPOLLS)[0] == "256 EMFILE\nloops\n"


HOLDERS = """
import ctypes, os, select, signal
hides, held, found = %r, [], 0
ours, theirs = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if hides: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        try:
            while len(held) < 200: held.append(select.epoll())
        except OSError: pass
        os.write(theirs, bytes([len(held)]))
        signal.pause()
    found += os.read(ours, 1)[0]
print(found)
"""


@pytest.mark.parametrize("hides", [False, True])
def test_epoll_instances_of_all_processes_are_counted_together(start: Callable[..., Engine], hides: bool) -> None:
    """Who hides what it has open gains nothing by it."""
    engine = start("with groups" if os.geteuid() == 0 else "without groups")
    assert outcome(engine, HOLDERS % hides)[0] == "256\n"
