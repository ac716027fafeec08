"""Attacks on a design of namespaces, a filter, a zygote and a PID 1, beyond the corpus.

An attack is a function that runs inside, given as its source; it returns something truthy if it worked. `attack()` says
what its control arm needs. What cannot be told from inside is checked from the host, further down.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import glob
import inspect
import mmap
import os
import resource
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
from fumehood.handed import Handed
from fumehood.sync_session import SyncStream
from fumehood.types import Output
from harness.attacks import ORDERS_BY_SOCKET, THREE_PIPES, Known
from support import HANG_S, wait_until

from . import arms
from .arms import syscall, wait_for_pid_1

PRELUDE = (
    "from __future__ import annotations\n"
    "import ctypes, errno, glob, mmap, os, resource, signal, socket, struct, subprocess, sys, time\n"
    "from pathlib import Path\nfrom typing import Any\n"
    + inspect.getsource(syscall)
    + inspect.getsource(wait_for_pid_1)
)


@dataclass(frozen=True)
class Attack:
    run: Callable[[], Any]
    by: str  # what holds it: a line of the receipt, or words
    real_root: bool  # its control arm needs more than a mapped root; an ordinary user's cannot win
    may_lack: str | None  # why a control arm may lose on another machine
    stage: dict[str, str]  # what the control arm sets up differently

    @property
    def text(self) -> str:
        source = inspect.getsource(self.run)
        return f"{PRELUDE}\n{source[source.index('def ') :]}\nwon = {self.run.__name__}()\n"


ATTACKS: dict[str, Attack] = {}


def attack(
    by: str, *, real_root: bool = False, may_lack: str | None = None, **stage: str
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(run: Callable[[], Any]) -> Callable[[], Any]:
        ATTACKS[run.__name__] = Attack(run, by, real_root, may_lack, stage)
        return run

    return register


# ---- PID 1


@attack("processes")
def reads_what_proc_says_of_pid_1() -> Any:
    found = []
    for name in ("environ", "maps", "auxv", "stack", "syscall", "io", "smaps", "pagemap", "mem"):
        try:
            with open(f"/proc/1/{name}", "rb") as file:
                if name in ("mem", "pagemap") or file.read(1):
                    found.append(name)
        except OSError:
            pass
    for name in ("root", "cwd", "exe", "ns/user", "ns/mnt"):
        try:
            os.readlink(f"/proc/1/{name}")
            found.append(name)
        except OSError:
            pass
    for name in ("fd", "fdinfo", "map_files", "task/1/fd"):
        try:
            os.listdir(f"/proc/1/{name}")
            found.append(name)
        except OSError:
            pass
    return os.getpid() != 1 and found


@attack("processes")
def writes_what_proc_offers_of_pid_1() -> Any:
    found = []
    for name in (
        "mem",
        "clear_refs",
        "oom_score_adj",
        "comm",
        "coredump_filter",
        "setgroups",
        "uid_map",
    ):
        try:
            os.close(os.open(f"/proc/1/{name}", os.O_WRONLY))
            found.append(name)
        except OSError:
            pass
    return os.getpid() != 1 and found


@attack("processes")
def takes_a_descriptor_of_pid_1() -> Any:
    pidfd = syscall(434, 434, 1, 0)  # pidfd_open
    return isinstance(pidfd, int) and [fd for fd in range(16) if isinstance(syscall(438, 438, pidfd, fd, 0), int)]


@attack("processes")
def reads_memory_of_pid_1() -> Any:
    buffer = ctypes.create_string_buffer(8)
    address = next(int(line.split("-")[0], 16) for line in open("/proc/1/maps") if " r" in line)  # noqa: SIM115
    local, remote = struct.pack("QQ", ctypes.addressof(buffer), 8), struct.pack("QQ", address, 8)
    return isinstance(syscall(310, 270, 1, local, 1, remote, 1, 0), int)


@attack("syscalls")
def traces_pid_1_or_a_child() -> Any:
    seize = 0x4206
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    won = [pid for pid in (1, child) if syscall(101, 117, seize, pid, 0, 0) == 0]
    os.kill(child, signal.SIGKILL)
    return won


@attack(THREE_PIPES)
def reaches_a_peer_through_a_socket_it_was_given() -> Any:
    """SO_PEERPIDFD names the process that made the other end, whatever its namespace."""
    so_peerpidfd, won = 77, []
    for fd in range(256):
        try:
            with socket.socket(fileno=os.dup(fd)) as peer:
                pidfd = peer.getsockopt(socket.SOL_SOCKET, so_peerpidfd)
                if syscall(424, 424, pidfd, 0, None, 0) == 0:  # pidfd_send_signal
                    won.append(fd)
        except OSError:
            pass
    return won


@attack("processes", SAME_SESSION="yes")
def belongs_to_a_process_group_outside() -> Any:
    """Then kill(0) would reach across the pid namespace."""
    return 0 in (os.getpgid(0), os.getsid(0))


# ---- more namespaces


@attack("syscalls")
def makes_namespaces_with_unshare() -> Any:
    won = []
    for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000, 0x00000080):
        child = os.fork()
        if child == 0:
            os._exit(0 if syscall(272, 97, flag) == 0 else 1)
        if os.waitpid(child, 0)[1] == 0:
            won.append(hex(flag))
    return won


@attack("syscalls")
def makes_a_user_namespace_with_clone3() -> Any:
    arguments = struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = syscall(435, 435, arguments, len(arguments))
    if pid == 0:
        os._exit(0)
    return isinstance(pid, int)


@attack("syscalls")
def makes_namespaces_with_clone() -> Any:
    won = []
    for flag in (0x10000000, 0x10000000 | 0x00020000, 0x40000000, 0x20000000, 0x02000000):
        pid = syscall(56, 220, flag | signal.SIGCHLD, None, None, None, None)
        if pid == 0:
            os._exit(0)
        if isinstance(pid, int):
            won.append(hex(flag))
    return won


@attack("syscalls", may_lack="only x86_64 has int 0x80, and not every kernel takes it")
def makes_a_user_namespace_through_the_32_bit_gate() -> Any:
    """push rbx; mov eax, 310 (unshare); mov ebx, CLONE_NEWUSER; int 0x80; pop rbx; ret"""
    if os.uname().machine != "x86_64":
        return False
    code = bytes.fromhex("53 b8 36010000 bb 00000010 cd80 5b c3")
    child = os.fork()
    if child == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        gate = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        os._exit(0 if gate() == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


@attack("syscalls")
def enters_namespaces_of_pid_1() -> Any:
    pidfd = syscall(434, 434, 1, 0)
    return [flag for flag in (0x04000000, 0x08000000, 0x40000000) if syscall(308, 268, pidfd, flag) == 0]


# ---- mounts and files


@attack("syscalls")
def mounts_with_the_new_calls() -> Any:
    fsopen, open_tree = syscall(430, 430, b"tmpfs", 0), syscall(428, 428, -100, b"/", 1)
    clear_read_only = struct.pack("4Q", 0, 1, 0, 0)
    remount = syscall(442, 442, -100, b"/", 0, clear_read_only, 32)
    return [result for result in (fsopen, open_tree, remount) if isinstance(result, int)]


@attack("syscalls")
def detaches_what_covers_the_host() -> Any:
    detach = 2
    return [path for path in (b"/tmp", b"/dev/shm", b"/proc") if syscall(166, 39, path, detach) == 0]


@attack("syscalls")
def changes_where_its_root_is() -> Any:
    os.makedirs("/tmp/new/old", exist_ok=True)
    chroot = syscall(161, 51, b"/tmp/new")
    return chroot == 0


@attack("files", may_lack="an ordinary user may write to none of these on the host either")
def writes_where_the_system_lives() -> Any:
    import sysconfig

    places = {
        "/", "/usr", "/usr/lib", "/usr/bin", "/etc", "/bin", "/lib", "/dev", "/opt", "/var", "/home", "/root", "/run",
        "/proc/self/root/usr", "/proc/self/root/etc", "/proc/thread-self/root", sys.prefix, sys.base_prefix,
        os.path.dirname(os.__file__),
        sysconfig.get_paths()["purelib"], os.path.dirname(os.path.realpath(sys.executable)),
    }  # fmt: skip
    won = []
    for place in sorted(places):
        try:
            os.close(os.open(place, os.O_TMPFILE | os.O_RDWR))
            won.append(place)
        except OSError:
            pass
    return won


@attack("files", real_root=True, may_lack="the interpreter is somebody else's")
def changes_its_interpreter_on_the_host() -> Any:
    """Started before the root was built, /proc/self/exe leads back out."""
    won = []
    fd = os.open("/proc/self/exe", os.O_RDONLY)
    mode = os.fstat(fd).st_mode
    for name, change in (
        ("write", lambda: os.close(os.open("/proc/self/exe", os.O_WRONLY))),
        ("chmod", lambda: os.fchmod(fd, mode)),
        ("touch", lambda: os.utime(fd)),
        ("label", lambda: os.setxattr(fd, "user.fumehood", b"x")),
    ):
        try:
            change()
            won.append(name)
        except OSError:
            pass
    return won


@attack("files")
def finds_a_mount_that_keeps_setuid_or_devices() -> Any:
    mounts = [line.split() for line in open("/proc/self/mountinfo")]  # noqa: SIM115
    setuid = [fields[4] for fields in mounts if "nosuid" not in fields[5].split(",")]
    writable = [fields[4] for fields in mounts if fields[5].startswith("rw") and "nodev" not in fields[5].split(",")]
    return setuid + [path for path in writable if not path.startswith("/dev/")]


@attack("files")
def finds_a_device_beyond_the_harmless() -> Any:
    harmless = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0)}
    won = []
    for folder, _, names in os.walk("/dev"):
        for name in names:
            status = os.lstat(f"{folder}/{name}")
            if status.st_rdev and (os.major(status.st_rdev), os.minor(status.st_rdev)) not in harmless:
                won.append(name)
    return won


@attack("privileges", real_root=True)
def gives_a_file_away() -> Any:
    Path("/tmp/gift").write_text("x")
    os.chown("/tmp/gift", 12345, 12345)
    return True


@attack("privileges")
def grants_a_file_capabilities() -> Any:
    Path("/tmp/capable").write_text("x")
    os.setxattr("/tmp/capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))
    return True


@attack("privileges", may_lack="no setuid program on this machine")
def gains_from_a_setuid_program() -> Any:
    programs = [path for path in glob.glob("/usr/bin/*") if os.stat(path).st_mode & 0o4000]
    status = Path("/proc/self/status").read_text()
    return programs and "NoNewPrivs:\t1" not in status


@attack("syscalls")
def sheds_the_filter_by_running_a_program_from_memory() -> Any:
    memory = os.memfd_create("program", 0)
    os.write(memory, Path("/bin/cat").read_bytes())
    shown = subprocess.run(
        [f"/proc/self/fd/{memory}", "/proc/self/status"], pass_fds=[memory], capture_output=True
    ).stdout
    status = dict(line.split(":\t", 1) for line in shown.decode().splitlines() if ":\t" in line)
    held = status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1"
    return not held or int(status["CapEff"], 16) or int(status["CapBnd"], 16)


# ---- the kernel's other doors


@attack("privileges", may_lack="a mapped root may own none of them")
def writes_a_sysctl() -> Any:
    names = (
        "kernel/hostname", "kernel/domainname", "kernel/core_pattern", "kernel/ns_last_pid", "kernel/shmmax",
        "kernel/msgmax", "user/max_user_namespaces", "net/ipv4/ip_forward", "net/ipv4/ip_unprivileged_port_start",
        "net/core/somaxconn", "vm/drop_caches", "fs/mqueue/msg_max",
    )  # fmt: skip
    won = []
    for name in names:
        try:
            sysctl = Path("/proc/sys", name)
            sysctl.write_text(sysctl.read_text())  # unchanged: the control arm is not here to do harm
            won.append(name)
        except OSError:
            pass
    return won


@attack("syscalls")
def reaches_calls_that_only_root_needs() -> Any:
    """Bad pointers: anything but EPERM and ENOSYS means that the kernel itself looked at the call."""
    bad = ctypes.c_void_p(1)
    calls = {
        "bpf": (321, 280, 9999, bad, 4),
        "userfaultfd": (323, 282, 0x7FFFFFFF),
        "fanotify_init": (300, 262, 0x7FFFFFFF, 0),
        "name_to_handle_at": (303, 264, -1, bad, bad, bad, 0),
        "open_by_handle_at": (304, 265, -1, bad, 0),
        "swapon": (167, 224, bad, 0),
        "quotactl": (179, 60, 0x7FFFFFFF, bad, 0, bad),
        "settimeofday": (164, 170, bad, bad),
        "clock_settime": (227, 112, 9999, bad),
        "sethostname": (170, 161, bad, 4),
        "setdomainname": (171, 162, bad, 4),
        "kcmp": (312, 272, 1, -1, 0, 0, 0),
        "process_madvise": (440, 440, -1, bad, 1, 0, 0),
        "move_pages": (279, 239, -5, 1, bad, bad, bad, 0),
        "memfd_secret": (447, 447, 0x7FFFFFFF),
        "io_uring_enter": (426, 426, -1, 0, 0, 0, None, 0),
        "io_uring_register": (427, 427, -1, 0, bad, 0),
        "add_key": (248, 217, bad, bad, bad, 1, -3),
        "request_key": (249, 218, bad, bad, bad, -3),
        "perf_event_open": (298, 241, bad, 0, -1, -1, 0),
        "vmsplice": (278, 75, -1, bad, 1, 0),
        "fsconfig": (431, 431, -1, 99, bad, bad, 0),
        "move_mount": (429, 429, -1, bad, -1, bad, 0),
        "fspick": (433, 433, -1, bad, 0),
        "kexec_file_load": (320, 294, -1, -1, 0, bad, 0x7FFFFFFF),
        "landlock_probe_of_ptrace": (101, 117, 0x4206, -1, 0, 0),
    }
    return [name for name, call in calls.items() if syscall(*call) not in ("EPERM", "ENOSYS")]


@attack("syscalls")
def reaches_terminal_injection() -> Any:
    """On a pipe the kernel would say ENOTTY; high bits must not hide the request."""
    tiocsti, tioclinux = 0x5412, 0x541C
    won = []
    for request in (tiocsti, tioclinux, (1 << 32) | tiocsti):
        if syscall(16, 29, 0, request, b"x") != "EPERM":
            won.append(hex(request))
    return won


@attack("syscalls")
def speaks_to_the_kernel_over_netlink() -> Any:
    won = []
    for protocol in (4, 6, 9, 10, 11, 12, 15, 16, 20, 21):
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
            won.append(protocol)
        except OSError:
            pass
    return won


@attack("privileges")
def adds_a_network_interface() -> Any:
    """RTM_NEWLINK: a pair of virtual interfaces; refused without CAP_NET_ADMIN."""
    kind = struct.pack("HH", 8, 1) + b"veth"
    info = struct.pack("HH", 4 + len(kind), 18) + kind
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + info
    header = struct.pack("IHHII", 16 + len(body), 16, 0x0001 | 0x0004 | 0x0400 | 0x0200, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(240)
        netlink.sendto(header + body, (0, 0))
        return struct.unpack_from("i", netlink.recv(4096), 16)[0] == 0


@attack("syscalls")
def sends_raw_packets() -> Any:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return True


@attack("syscalls")
def renames_the_host() -> Any:
    return syscall(170, 161, b"pwned", 5) == 0


@attack("a cgroup namespace of its own", may_lack="the caller is in the root of every cgroup")
def learns_where_the_host_put_it() -> Any:
    return [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.split(":", 2)[2] != "/"]


# ---- limits


@attack("privileges", real_root=True, may_lack="no CAP_SYS_RESOURCE even for root")
def raises_its_hard_limits() -> Any:
    won = []
    for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_MEMLOCK", "RLIMIT_CPU"):
        which = getattr(resource, name)
        soft, hard = resource.getrlimit(which)
        if hard == resource.RLIM_INFINITY:
            hard = 1000
            resource.setrlimit(which, (min(soft, hard) if soft >= 0 else hard, hard))
        try:
            resource.setrlimit(which, (soft, hard + 1))
            won.append(name)
        except (ValueError, OSError):
            pass
    return won


@attack("RLIMIT_CORE, which no program can raise")
def may_dump_core() -> Any:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    return resource.getrlimit(resource.RLIMIT_CORE)[0] not in (
        0,
        1,
    )  # 1 is the kernel's word for "not even to a helper"


@attack("privileges", real_root=True, may_lack="no CAP_SYS_RESOURCE even for root")
def makes_itself_hard_to_kill_for_the_oom_killer() -> Any:
    adjust = Path("/proc/self/oom_score_adj")
    adjust.write_text(str(int(adjust.read_text()) - 1))
    return True


@attack("syscalls", real_root=True)
def schedules_itself_before_everyone() -> Any:
    won = []
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        won.append("fifo")
    except PermissionError:
        pass
    try:
        os.nice(-1)
        won.append("nice")
    except PermissionError:
        pass
    return won


@attack("syscalls")
def starves_pid_1_by_scheduling() -> Any:
    """What is idle, last in line or bound to one busy CPU does not get to end anybody."""
    idle, best_effort_last, own = 5, (2 << 13) | 7, os.getpid()
    cpu = min(os.sched_getaffinity(0))
    one_cpu = (1 << cpu).to_bytes((cpu // 64 + 1) * 8, "little")
    nicer = min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19)  # whoever started us may have been nice already
    calls = {
        "setpriority": (141, 140, 0, 1, 19),
        "setpriority of a user": (141, 140, 2, 0, 19),
        "sched_setscheduler": (144, 119, 1, idle, struct.pack("i", 0)),
        "sched_setparam": (142, 118, 1, struct.pack("i", 0)),
        "sched_setattr": (314, 274, 1, struct.pack("IIQiIQQQ", 48, idle, 0, 0, 0, 0, 0, 0), 0),
        "sched_setaffinity": (203, 122, 1, len(one_cpu), one_cpu),
        "ioprio_set": (251, 30, 1, 1, best_effort_last),
    }
    child = os.fork()
    if child == 0:  # what it does to itself is not for those who come after
        held = isinstance(syscall(203, 122, 0, len(one_cpu), one_cpu), str) + 2 * isinstance(
            syscall(141, 140, 0, 0, nicer), str
        )
        os._exit(held)
    held = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if held & 1:
        raise RuntimeError("numeric libraries bind their own threads")
    if held & 2:
        raise RuntimeError("os.nice is for everyone")
    return own != 1 and [name for name, call in calls.items() if syscall(*call) == 0]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Any]:
    try:
        with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
            yield sandbox
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


CORPUS = {name: Known(name.replace("_", " "), known.by) for name, known in ATTACKS.items()}


@pytest.mark.attack(corpus=CORPUS)
@pytest.mark.parametrize("name", ATTACKS)
def test_the_sandbox_holds(name: str, sandbox: Any) -> None:
    outcome, result = arms.in_the_sandbox(sandbox, ATTACKS[name].text)
    assert outcome.ran, f"the attack never ran: {result}"
    assert outcome.finished, f"the attack did not report: {result}"
    assert not outcome.won, outcome.shown
    assert outcome.was_refused, f"the attack is broken: {outcome.error}"


@pytest.mark.attack(corpus=CORPUS, wins=True)
@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_wins_without_the_sandbox(name: str, record_property: Callable[[str, object], None]) -> None:
    known = ATTACKS[name]
    if known.real_root and os.geteuid() != 0:
        record_property("cannot_win", "it needs real root, and an ordinary user's arm has a mapped one")
    outcome = arms.in_a_throwaway_namespace(known.text, known.stage, as_real_root=known.real_root)
    if known.real_root and os.geteuid() != 0:
        assert not outcome.won, f"listed as one that needs real root, and it won: {outcome.shown}"
    elif known.may_lack and not outcome.won:
        pytest.skip(f"{known.may_lack} ({outcome.error or outcome.shown})")
    else:
        assert outcome.won, f"the attack proves nothing, it fails without the sandbox too: {outcome}"


# ---- what only the host can tell


def text_of(work: Callable[..., Any], *args: Any) -> str:
    """A function of this file and its call, with literal arguments."""
    call = f"{work.__name__}({', '.join(map(repr, args))})"
    return f"{PRELUDE}\n{inspect.getsource(work)}\n{call}\n"


def run(sandbox: Any, work: Callable[..., Any], *args: Any, timeout: float = HANG_S) -> Any:
    return sandbox.execute(text_of(work, *args), timeout=timeout)


def assert_alive(sandbox: Any) -> None:
    result = sandbox.execute("print('alive')", timeout=HANG_S)
    assert (result.stdout, result.exit_code, result.meta["reason"]) == ("alive\n", 0, "ok"), result


def signals_everything_at_pid_1() -> None:
    for number in range(1, 65):
        if os.fork() == 0:  # by one that is not the program itself, which may end itself as it likes
            try:
                os.kill(1, number)
            finally:
                os._exit(0)
        os.wait()
    wait_for_pid_1()
    print("still here")
    sys.exit(7)


def forges_the_sender_of_a_signal() -> None:
    program = os.getpid()
    refused = 0
    for number in range(1, 65):
        if os.fork() == 0:
            claims = [
                struct.pack("iiiiII", number, 0, code, 0, program, os.getuid()).ljust(128, b"\0")
                for code in (0, -1, -2, -3, -6, 0x80)
            ]
            os._exit(sum(syscall(129, 138, 1, number, claim) != 0 for claim in claims))
        refused += os.waitstatus_to_exitcode(os.wait()[1])
    wait_for_pid_1()
    print("still here", refused)
    sys.exit(7)


@pytest.mark.attack(
    ORDERS_BY_SOCKET,
    without="every PID 1 is shielded by the kernel; what is asked is what the host believes",
)
@pytest.mark.parametrize("work", [signals_everything_at_pid_1, forges_the_sender_of_a_signal])
def test_nobody_but_the_program_says_when_it_is_done(work: Callable[[], None], sandbox: Any) -> None:
    result = run(sandbox, work)
    assert result.stdout.startswith("still here"), result
    assert (result.exit_code, result.meta["reason"]) == (7, "error")


def starves_pid_1() -> None:
    limits = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
    changed = 0
    for limit in limits:
        try:
            resource.prlimit(1, limit, (0, 0))
            changed += 1
        except (OSError, ValueError):
            pass
    print("changed", changed, flush=True)
    sys.exit(7)


@pytest.mark.attack("syscalls", without="there is no PID 1 of ours outside")
def test_a_pid_1_without_resources_is_still_a_result(sandbox: Any) -> None:
    result = run(sandbox, starves_pid_1)
    assert "changed" in result.stdout, result
    assert result.meta["reason"] not in ("ok", "timeout"), result
    assert_alive(sandbox)


def kills_everyone_it_can(target: int, number: int) -> None:
    if 0 in (os.getpgid(0), os.getsid(0)):
        print("would reach the host")
        os._exit(0)
    print("killing", flush=True)
    os.kill(target, number)


@pytest.mark.attack("processes", without="it would end the tests")
@pytest.mark.parametrize("target", [0, -1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_killing_everyone_ends_only_the_program(target: int, number: int, sandbox: Any) -> None:
    result = run(sandbox, kills_everyone_it_can, target, int(number))
    assert result.stdout == "killing\n"
    if target == 0:
        assert (result.exit_code, result.meta["reason"]) == (128 + number, "signal"), result
    assert_alive(sandbox)


def writes_to_every_descriptor() -> None:
    for fd in range(3, 1024):
        for noise in (b"\xff" * 64, b"\0\0\xff\xff", b'{"exit": 0}\n', b"0" * 4096):
            try:
                os.set_blocking(fd, False)
                os.write(fd, noise)
            except OSError:
                break
    print("wrote", flush=True)
    sys.exit(7)


@pytest.mark.attack(THREE_PIPES, without="it would write to the tests' own files")
def test_noise_on_every_descriptor_changes_nothing(sandbox: Any) -> None:
    result = run(sandbox, writes_to_every_descriptor)
    assert (result.stdout, result.exit_code) == ("wrote\n", 7), result
    assert_alive(sandbox)


# Searching its own memory for something that must not be there: the needle itself is never whole in the program.
SCAN = """
import hashlib, os
head, rest, digest = bytes.fromhex('{HEAD}'), {REST}, '{DIGEST}'
found, scanned = [], 0
memory = os.open('/proc/self/mem', os.O_RDONLY)
for line in open('/proc/self/maps').read().splitlines():
    where, mode = line.split()[:2]
    start, end = (int(part, 16) for part in where.split('-'))
    if not mode.startswith('r') or '[v' in line:
        continue
    try:
        chunk = os.pread(memory, end - start, start)
    except (OSError, OverflowError):
        continue
    scanned += len(chunk)
    at = chunk.find(head)
    while at >= 0:
        after = chunk[at + len(head) : at + len(head) + rest]
        if hashlib.sha256(after).hexdigest() == digest:
            found.append(line)
        at = chunk.find(head, at + 1)
print('scanned', scanned > 1 << 20)
won = found
"""


def scan_for(needle: str) -> str:
    import hashlib

    head, rest = needle[:16].encode(), needle[16:].encode()
    return arms.fill(SCAN, {"HEAD": head.hex(), "REST": len(rest), "DIGEST": hashlib.sha256(rest).hexdigest()})


@pytest.mark.attack("a zygote that was started with an empty environment", control="itself")
def test_memory_holds_nothing_of_the_host_or_of_other_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = secrets.token_hex(24), secrets.token_hex(24)
    monkeypatch.setenv("ESCAPE_TEST_PASSWORD", ours)
    with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
        kept = (
            f"secret = {theirs!r}\nimport os, sys\nprint(secret, sys.stdin.read(), os.environ['KEY'], open('f').read())"
        )
        result = sandbox.execute(
            kept, stdin=theirs.encode(), env={"KEY": theirs}, files={"f": theirs.encode()}, timeout=HANG_S
        )
        assert result.stdout.count(theirs) == 4, result
        for needle in (ours, theirs):
            outcome, result = arms.in_the_sandbox(sandbox, scan_for(needle))
            assert "scanned True" in result.stdout, result
            assert not outcome.won, outcome.shown
    control = arms.in_a_throwaway_namespace(scan_for(ours), {"CANARY": ours})
    assert control.won, control


def leaves_things_behind(mark: str) -> None:
    import builtins
    import random

    for folder in ("/tmp", "/workspace", os.environ.get("HOME", "/tmp"), "/dev/shm", "/var/tmp", "/run"):
        try:
            Path(folder, mark).write_text(mark)
        except OSError:
            pass
    os.environ["MARK"] = mark
    setattr(builtins, "mark", mark)  # noqa: B010
    random.seed(1)
    os.umask(0o777)
    libc = ctypes.CDLL(None)
    libc.shmget(4242, 4096, 0o1666)
    if os.fork() == 0:
        os.setsid()
        held = socket.socket(socket.AF_UNIX)
        held.bind("\0" + mark)
        time.sleep(3600)
    print("left")


def looks_for_things_left(mark: str) -> None:
    import builtins

    found = []
    for folder, folders, names in os.walk("/"):
        found += [folder] if mark in names else []
        if folder == "/":  # large, and nobody can write there
            folders[:] = [name for name in folders if name not in ("proc", "sys", "usr")]
    found += [name for name, value in os.environ.items() if mark in value]
    found += ["builtins"] if hasattr(builtins, "mark") else []
    found += ["umask"] if os.umask(0o022) == 0o777 else []
    found += ["shm"] if ctypes.CDLL(None).shmget(4242, 0, 0) >= 0 else []
    found += ["socket"] if mark in Path("/proc/net/unix").read_text() else []
    print("found", found)


@pytest.mark.attack(
    "one cell, one program: nothing is used again", without="two bare programs share all of it by design"
)
def test_nothing_stays_from_one_execution_to_the_next(sandbox: Any) -> None:
    mark = "mark" + secrets.token_hex(8)
    assert run(sandbox, leaves_things_behind, mark).stdout == "left\n"
    assert run(sandbox, looks_for_things_left, mark).stdout == "found []\n"


def shows_what_should_differ() -> None:
    import random
    import tempfile
    import uuid

    print(random.random(), random.getrandbits(64), os.urandom(8).hex(), uuid.uuid4(), tempfile.mktemp(), sep="\n")


def test_random_numbers_differ_between_executions(sandbox: Any) -> None:
    runs = [run(sandbox, shows_what_should_differ).stdout.split() for _ in range(5)]
    assert all(len(drawn) == 5 for drawn in runs), runs
    for drawn in zip(*runs, strict=True):
        assert len(set(drawn)) == len(runs), drawn


@pytest.mark.attack("processes", control="prc01")
def test_every_execution_sees_itself_as_the_only_one(sandbox: Any) -> None:
    code = "import os; print(os.getpid(), sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    with ThreadPoolExecutor(4) as pool:
        views = {result.stdout for result in pool.map(lambda _: sandbox.execute(code, timeout=HANG_S), range(8))}
    assert len(views) == 1, views
    assert "[1, " in views.pop()


# ---- one cell against another: what the kernel counts per user and not per namespace


def floods_pending_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    claim = struct.pack("iiii", 40, 0, -1, 0).ljust(128, b"\0")
    sent = 0
    while sent < 300_000:
        if syscall(129, 138, os.getpid(), 40, claim) == 0:
            sent += 1
        elif sent:
            break
        else:
            time.sleep(0.01)  # a flood of the same user's elsewhere is on
    print("sent", sent, flush=True)
    time.sleep(3600)


def floods_descriptors_in_flight() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
    descriptors = struct.pack("250i", *[0] * 250)
    sent, is_told = 0, False
    while True:
        pairs[-1][0].setblocking(False)
        try:
            pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            sent += 250
        except OSError as problem:
            if problem.errno != errno.ETOOMANYREFS and len(pairs) < 100:
                pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
                continue
            if sent and not is_told:
                print("sent", sent, flush=True)
                is_told = True
            time.sleep(0.01)  # a flood of the same user's elsewhere may end: then there is room for more of this one


def passes_a_descriptor() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
        print("passed", other.recv(1))
    except OSError as problem:
        print(problem.errno)


def floods_inotify() -> None:
    made = 0
    while made < 5000 and isinstance(syscall(294, 26, 0), int):
        made += 1
    print("sent", made, flush=True)
    time.sleep(3600)


def floods_pipes() -> None:
    import fcntl

    made = 0
    while made < 2000:
        try:
            ends = os.pipe()
        except OSError:
            break
        try:
            fcntl.fcntl(ends[1], 1031, 1 << 20)  # F_SETPIPE_SZ
            made += 1
        except OSError:
            if made:
                break
            os.close(ends[0])
            os.close(ends[1])
            time.sleep(0.01)  # a flood of the same user's elsewhere is on
    print("sent", made, flush=True)
    time.sleep(3600)


@pytest.fixture
def usual_open_files() -> Iterator[None]:
    """As many as a shell gives: no more than a program may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def flooding(sandbox: Any, work: Callable[[], None]) -> Iterator[None]:
    """While the flood is on."""
    with SyncStream(sandbox.stream(text_of(work), timeout=HANG_S)) as greedy:
        said = next(greedy)
        assert isinstance(said, Output), said
        assert int(said.data.removeprefix(b"sent ")) > 0
        yield


def starts_a_process(sandbox: Any) -> bool:
    result = sandbox.execute("import subprocess; print(subprocess.run(['true']).returncode)", timeout=HANG_S)
    assert (result.stdout, result.meta["reason"]) == ("0\n", "ok"), result
    return True


@pytest.mark.attack(
    "limits of what the kernel counts per user, by number and by namespace", without="it would starve the machine"
)
@pytest.mark.parametrize("work", [floods_pending_signals, floods_descriptors_in_flight, floods_inotify, floods_pipes])
@pytest.mark.usefixtures("usual_open_files", "many_descriptors_in_flight")
def test_a_greedy_cell_does_not_starve_its_neighbours(work: Callable[[], None]) -> None:
    kind: dict[str, Any] = {"isolation": "sealed", "require": "sealed", "store_code": "never"}
    with get_sandbox(**kind) as sandbox, flooding(sandbox, work):
        for _ in range(5):
            assert starts_a_process(sandbox)
            handed = Handed()
            shown = sandbox.stream("open('/tmp/output/left', 'w').write('x')", timeout=HANG_S, handed=handed)
            assert asyncio.run(shown.whole()).meta["reason"] == "ok"
            assert [file.data for file in handed.files] == [b"x"]
        with get_sandbox(**kind, memory_mb=512) as another:
            assert_alive(another)
            if work is floods_descriptors_in_flight:  # which does hold up whoever has no more than a program
                refused = f"{errno.ETOOMANYREFS}\n"
                assert wait_until(lambda: run(another, passes_a_descriptor).stdout == refused)
        with get_sandbox(isolation="confined", store_code="never") as confined:  # with the limits of a program
            assert starts_a_process(confined)
        read, write = os.pipe()  # and the host's own user is served as before
        ours, peers = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        socket.send_fds(ours, [b"x"], [0])
        _, passed, _, _ = socket.recv_fds(peers, 1, 1)
        watches = syscall(294, 26, os.O_CLOEXEC)
        assert isinstance(watches, int)
        for fd in (read, write, ours.detach(), peers.detach(), *passed, watches):
            os.close(fd)


# ---- the interpreter, which the caller often owns

MEDDLE = """
import os, sys
from fumehood import get_sandbox
code = '''
import os
print('tried', flush=True)
for path in ('/proc/self/exe', '/proc/thread-self/exe', os.path.realpath(os.sys.executable)):
    fd = os.open(path, os.O_RDONLY)
    for change, *how in (os.fchmod, 0o777), (os.utime, (0, 0)), (os.setxattr, 'user.x', b'x'):
        try:
            change(fd, *how); print('changed', path)
        except OSError: pass
'''
with get_sandbox(isolation='sealed', require='sealed', store_code='never') as sandbox:
    print(sandbox.execute(code, timeout=280).stdout, end='')
"""


@pytest.mark.attack("files", control="changes_its_interpreter_on_the_host", level="sealed")
def test_an_interpreter_of_the_callers_own_stays_as_it_is(tmp_path: Path) -> None:
    make = [sys.executable, "-m", "venv", "--copies", "--without-pip", tmp_path / "own"]
    subprocess.run(make, check=True, umask=0o022, timeout=HANG_S)
    interpreter = tmp_path / "own" / "bin" / "python"
    if os.geteuid() == 0:
        os.chown(interpreter, 65534, 65534)  # whom the program runs as
    before = interpreter.stat()
    packages = os.pathsep.join(path for path in sys.path if path)
    shown = subprocess.run(
        [interpreter, "-c", MEDDLE],
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
    )
    assert shown.stdout == "tried\n", shown
    after = interpreter.stat()
    assert (after.st_mode, after.st_mtime, after.st_ctime) == (before.st_mode, before.st_mtime, before.st_ctime)


# ---- the caller's terminal

HOST = """
import fcntl, os, termios
from fumehood import get_sandbox
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
print('CONTROL', os.open('/dev/tty', os.O_RDWR) > 2 and os.isatty(1), flush=True)
code = '''
import os
seen = [fd for fd in range(3) if os.isatty(fd)]
try:
    os.open('/dev/tty', os.O_RDWR); seen.append('/dev/tty')
except OSError: pass
print('SEEN', seen)
'''
with get_sandbox(isolation='sealed', require='sealed', store_code='never') as sandbox:
    print(sandbox.execute(code, timeout=280).stdout, flush=True)
"""


@pytest.mark.attack("a session of its own, and pipes for a terminal", control="itself", level="sealed")
def test_the_terminal_of_the_caller_is_out_of_reach() -> None:
    outer, terminal = os.openpty()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    output = bytearray()
    while select.select([outer], [], [], HANG_S)[0]:
        try:
            chunk = os.read(outer, 4096)
        except OSError:  # EIO: the host has ended
            break
        if not chunk:
            break
        output += chunk
    os.close(outer)
    host.wait(HANG_S)
    assert b"CONTROL True" in output, output.decode()
    assert b"SEEN []" in output, output.decode()


# ---- what the caller itself has inherited

INHERITS = """
import os, signal
from fumehood import get_sandbox
os.umask(0o077)
os.nice(3)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMIN + 6):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
code = '''
import os
said = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
print(oct(os.umask(0)), *(said[name].strip().lstrip('0') for name in ('SigIgn', 'SigBlk')))
'''
with get_sandbox(isolation='sealed', require='sealed', store_code='never') as sandbox:
    print(sandbox.execute(code, timeout=280).stdout, end='')
"""


def test_a_program_inherits_no_umask_and_no_signals_of_the_caller() -> None:
    shown = subprocess.run([sys.executable, "-c", INHERITS], capture_output=True, encoding="utf-8", timeout=HANG_S)
    umask, ignored, *blocked = shown.stdout.split()
    of_python_itself = {signal.SIGPIPE, signal.SIGXFSZ}
    assert {number for number in signal.valid_signals() if int(ignored, 16) >> number - 1 & 1} == of_python_itself
    assert (umask, blocked) == ("0o22", []), shown
