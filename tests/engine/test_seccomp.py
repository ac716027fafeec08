from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fumehood.engine import _syscall_numbers as numbers
from fumehood.engine.seccomp import ALLOWED, CHECKED, compile_filter, supported
from support import HANG_S

GUEST = Path(__file__).with_name("seccomp_guest.py")
TABLES = {"x86_64": numbers.X86_64, "aarch64": numbers.AARCH64}
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ASK, IGNORE = 0x7FFF0000, 0x80000000, 0x7FC00000, 0x00050000
HIGH = 0xDEADBEEF << 32  # in the half of an argument that the kernel does not read

DANGEROUS = """
    ptrace process_vm_readv process_vm_writev kcmp mount umount2 open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr unshare setns chroot pivot_root bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
    io_uring_register add_key request_key keyctl init_module finit_module delete_module kexec_load kexec_file_load
    open_by_handle_at name_to_handle_at fanotify_init fanotify_mark quotactl quotactl_fd memfd_secret
    mbind set_mempolicy get_mempolicy set_mempolicy_home_node move_pages migrate_pages pidfd_getfd process_madvise
    vmsplice io_setup io_submit clock_settime clock_adjtime adjtimex settimeofday remap_file_pages lookup_dcookie
    acct swapon swapoff reboot sethostname setdomainname syslog vhangup nfsservctl seccomp sched_setattr sync syncfs
    iopl ioperm modify_ldt uselib ustat sysfs _sysctl
"""
ORDINARY = """
    rt_sigtimedwait wait4 waitid kill sendmsg sendto openat read getdents64 setrlimit setresuid setresgid exit_group
    execve futex rseq membarrier set_robust_list getrandom shmget semget msgget landlock_restrict_self pidfd_open
    epoll_pwait statx memfd_create sched_getaffinity timer_create mq_open
"""

both_machines = pytest.mark.parametrize("machine", TABLES)
both_networks = pytest.mark.parametrize("can_open_network", [False, True])
here = pytest.mark.skipif(
    platform.system() != "Linux" or not supported(platform.machine()), reason="no filter for this machine to install"
)


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("<HBBI", program))


def interpret(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would do with the call."""
    words = [argument & 0xFFFFFFFFFFFFFFFF for argument in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *words)
    code, at, accumulator = instructions(program), 0, 0
    while True:
        opcode, jt, jf, k = code[at]
        at += 1
        match opcode:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x05:
                at += k
            case 0x15:
                at += jt if accumulator == k else jf
            case 0x35:
                at += jt if accumulator >= k else jf
            case 0x45:
                at += jt if accumulator & k else jf
            case 0x06:
                return k
            case _:
                raise AssertionError(f"unknown opcode {opcode:#x}")


class Judge:
    """Answers of one compiled filter: "allow", "kill", "ask", "ignore" or the name of the errno."""

    def __init__(self, machine: str, **can: Any) -> None:
        self.program = compile_filter(machine, **can)
        self.arch, self.table = ARCHES[machine], TABLES[machine]

    def number(self, number: int, *arguments: int, arch: int | None = None) -> str:
        action = interpret(self.program, self.arch if arch is None else arch, number, arguments)
        if action in (ALLOW, KILL, ASK, IGNORE):
            return {ALLOW: "allow", KILL: "kill", ASK: "ask", IGNORE: "ignore"}[action]
        assert action & 0xFFFF0000 == 0x00050000
        return errno.errorcode[action & 0xFFFF]

    def __call__(self, name: str, *arguments: int) -> str:
        return self.number(self.table[name], *arguments)


@pytest.fixture(params=[(machine, network) for machine in TABLES for network in (False, True)], ids=str)
def judge(request: pytest.FixtureRequest) -> Judge:
    machine, network = request.param
    return Judge(machine, can_open_network=network)


@both_machines
@both_networks
def test_the_program_is_one_that_the_kernel_takes(machine: str, can_open_network: bool) -> None:
    code = instructions(compile_filter(machine, can_open_network=can_open_network))
    assert len(code) < 400
    assert code[-1][0] == 0x06
    for at, (opcode, jt, jf, k) in enumerate(code):
        assert opcode in (0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06)
        if opcode in (0x15, 0x35, 0x45):
            assert at + 1 + max(jt, jf) < len(code)
        elif opcode == 0x05:
            assert at + 1 + k < len(code)
        elif opcode == 0x20:
            assert k % 4 == 0
            assert k < 64
        elif opcode == 0x06:
            assert k in (ALLOW, KILL) or (k & 0xFFFF0000 == 0x00050000 and k & 0xFFFF)


def test_every_name_is_a_real_call_and_has_one_rule() -> None:
    assert set(numbers.X86_64) >= ALLOWED | CHECKED
    assert not ALLOWED & CHECKED


def test_numbers_are_those_of_the_kernel() -> None:
    known = {"unshare": (272, 97), "clone": (56, 220), "fcntl": (72, 25), "newfstatat": (262, 79), "bpf": (321, 280)}
    assert {name: (numbers.X86_64[name], numbers.AARCH64[name]) for name in known} == known
    for table in TABLES.values():
        assert len(set(table.values())) == len(table)


def test_an_unknown_machine_is_an_error() -> None:
    assert not supported("riscv64")
    with pytest.raises(ValueError, match="riscv64"):
        compile_filter("riscv64")


def test_each_number_gets_the_answer_of_its_name(judge: Judge) -> None:
    names = {number: name for name, number in judge.table.items()}
    for number in range(max(names) + 50):
        name = names.get(number)
        if name not in CHECKED:
            expected = "ENOSYS" if name is None else "allow" if name in ALLOWED else "EPERM"
            assert judge.number(number) == expected, name


def test_numbers_beyond_the_table_are_not_there(judge: Judge) -> None:
    x32 = [0x40000000 | number for number in judge.table.values()]
    assert {judge.number(number) for number in (*x32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)} == {"ENOSYS"}


def test_a_foreign_architecture_is_killed(judge: Judge) -> None:
    foreign = {0x40000003, 0x40000028, 0, 0xFFFFFFFF, *ARCHES.values()} - {judge.arch}
    assert {judge.number(number, arch=arch) for number in (0, 20, 39, 500) for arch in foreign} == {"kill"}


def test_dangerous_calls_are_refused(judge: Judge) -> None:
    here = [name for name in DANGEROUS.split() if name in judge.table]
    assert {name: judge(name) for name in here} == dict.fromkeys(here, "EPERM")


def test_ordinary_calls_are_allowed(judge: Judge) -> None:
    assert {name: judge(name) for name in ORDINARY.split()} == dict.fromkeys(ORDINARY.split(), "allow")


def test_clone_makes_no_namespace(judge: Judge) -> None:
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge("clone", bit | signal.SIGCHLD) == "EPERM"
    for flags in (signal.SIGCHLD, 0x3D0F00, 0x01200011, HIGH | 17):  # fork, pthread_create, fork of glibc
        assert judge("clone", flags) == "allow"


def test_clone3_seems_to_be_missing(judge: Judge) -> None:
    assert judge("clone3") == "ENOSYS"


@both_machines
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_without_network_only_unix_sockets_open(machine: str, call: str) -> None:
    judge = Judge(machine)
    for family in range(64):
        assert judge(call, family, 1, 0) == ("allow" if family == 1 else "EAFNOSUPPORT"), family


@both_machines
def test_with_network_only_four_families_open(machine: str) -> None:
    judge = Judge(machine, can_open_network=True)
    for family in (*range(64), 0xFFFFFFFF):
        assert judge("socket", family, 2, 0) == ("allow" if family in (1, 2, 10, 16) else "EAFNOSUPPORT"), family
        assert judge("socketpair", family, 2, 0) == ("allow" if family == 1 else "EAFNOSUPPORT"), family


def test_high_bits_do_not_hide_a_family(judge: Judge) -> None:
    assert judge("socket", HIGH | 40, 1, 0) == "EAFNOSUPPORT"
    assert judge("socket", HIGH | 1, HIGH | 1, 0) == "allow"


@both_machines
def test_raw_sockets_are_refused(machine: str) -> None:
    judge = Judge(machine, can_open_network=True)
    cloexec_nonblock = 0o2004000
    for kind in range(16):
        assert judge("socket", 1, kind | cloexec_nonblock) == ("allow" if kind in (1, 2, 5) else "EPERM")
        for family in (2, 10):
            assert judge("socket", family, HIGH | kind | cloexec_nonblock) == ("allow" if kind in (1, 2) else "EPERM")


@both_machines
def test_ip_sockets_are_tcp_or_udp(machine: str) -> None:
    judge = Judge(machine, can_open_network=True)
    for protocol in (0, 6, 17):
        assert judge("socket", 2, 1, protocol) == judge("socket", 10, 2, HIGH | protocol) == "allow"
    for protocol in (1, 33, 115, 132, 136, 255, 256, 262):  # ICMP, DCCP, L2TP, SCTP, UDP-Lite, raw, SMC, MPTCP
        assert judge("socket", 2, 1, protocol) == "EPROTONOSUPPORT"


@both_machines
def test_netlink_is_for_routes_only(machine: str) -> None:
    judge = Judge(machine, can_open_network=True)
    assert judge("socket", 16, 3 | 0o2000000, HIGH) == judge("socket", 16, 2, 0) == "allow"
    assert {judge("socket", 16, 3, protocol) for protocol in range(1, 32)} == {"EAFNOSUPPORT"}
    assert judge("socket", 16, 1, 0) == "EPERM"


def test_socket_filters_and_protocol_stacks_are_refused(judge: Judge) -> None:
    refused = {(1, 26), (1, 50), (1, 51), (1, 52), (6, 31), (17, 100)}
    for level in (0, 1, 6, 17, 41, 263):
        for option in range(128):
            expected = "EPERM" if (level, option) in refused else "allow"
            assert judge("setsockopt", 3, HIGH | level, HIGH | option) == expected, (level, option)


def test_terminal_injection_and_module_loading_ioctls_are_refused(judge: Judge) -> None:
    for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1):
        assert judge("ioctl", 0, request) == judge("ioctl", 0, HIGH | request) == "EPERM"
    for request in (0x5401, 0x5411, 0x5413, 0x541B, 0x5421, 0x5422, 0x5424, 0x5451, 0x8912, 0x8933, 0x40049409):
        assert judge("ioctl", 0, request) == "allow"


def test_no_lease_and_no_watch_on_a_file_that_is_only_read(judge: Judge) -> None:
    for command in (1024, 1026, 1040):  # F_SETLEASE, F_NOTIFY, F_SETDELEG
        assert judge("fcntl", 3, command) == judge("fcntl", 3, HIGH | command) == "EPERM"
    for command in (*range(18), 1025, *range(1027, 1040)):
        assert judge("fcntl", 3, command) == "allow", command


def test_personality_can_be_asked_but_not_changed(judge: Judge) -> None:
    assert judge("personality", 0) == judge("personality", 0xFFFFFFFF) == judge("personality", -1) == "allow"
    assert {judge("personality", value) for value in (1, 8, 0x20000, 0x40000, 0x400000, 0xFFFFFFFE)} == {"EPERM"}


def test_no_device_nodes(judge: Judge) -> None:
    for name, before in (("mknod", (0,)), ("mknodat", (0, 0))):
        if name in judge.table:
            for kind in range(0, 0o200000, 0o010000):
                expected = "allow" if kind in (0, 0o010000, 0o100000, 0o140000) else "EPERM"
                assert judge(name, *before, HIGH | 0o200000 | kind | 0o666) == expected, oct(kind)


def test_prctl_that_changes_the_rules_is_refused(judge: Judge) -> None:
    # KEEPCAPS, CAPBSET_DROP, SECCOMP, TSC, SECUREBITS, MM, SPECULATION_CTRL, SYSCALL_USER_DISPATCH, SCHED_CORE,
    # MEMORY_MERGE, PTRACER
    for option in (8, 24, 22, 26, 28, 35, 53, 59, 62, 67, 0x59616D61, 0xFFFFFFFF):
        assert judge("prctl", option) == judge("prctl", HIGH | option) == "EPERM", option
    for option in (1, 2, 3, 4, 15, 16, 23, 36, 38, 39, 41, 47, 0x53564D41):
        assert judge("prctl", option) == judge("prctl", HIGH | option) == "allow", option


def test_limits_of_other_processes_cannot_be_set(judge: Judge) -> None:
    assert judge("prlimit64", HIGH, 7, 0x7FFE0000) == "allow"
    assert judge("prlimit64", 1, 7, 0) == "allow"
    assert judge("prlimit64", 1, 7, 0x7FFE0000) == judge("prlimit64", 1, 7, HIGH) == "EPERM"


def test_no_realtime_scheduling(judge: Judge) -> None:
    for policy in (0, 3, 5):
        assert judge("sched_setscheduler", 0, policy) == judge("sched_setscheduler", 0, policy | 0x40000000) == "allow"
    for policy in (1, 2, 6, 7, 1 | 0x40000000):
        assert judge("sched_setscheduler", 0, HIGH | policy) == "EPERM"


@both_machines
def test_who_shares_the_hosts_user_id_watches_no_files(machine: str) -> None:
    for name in {"inotify_init", "inotify_init1"} & TABLES[machine].keys():
        assert Judge(machine)(name, 0) == "allow"
        assert Judge(machine, can_watch_files=False)(name, 0) == "EMFILE"


@both_machines
def test_of_sockets_whose_buffers_nobody_counts_the_supervisor_is_asked(machine: str) -> None:
    calm, asking = (Judge(machine, can_open_network=True, asks=asks) for asks in ((), ("network", "unix")))
    partly = Judge(machine, can_open_network=True, asks=("network",))
    for family, kind in ((1, 1), (2, 1), (2, 2 | 0o4000), (10, 2), (16, 3)):
        assert calm("socket", family, kind, 0) == "allow"
        assert asking("socket", family, kind, 0) == "ask"
        assert partly("socket", family, kind, 0) == ("allow" if family == 1 else "ask")
    assert (calm("socketpair", 1, 1, 0), partly("socketpair", 1, 1, 0)) == ("allow", "allow")
    assert asking("socketpair", 1, 1, 0) == "ask"
    for family, kind, protocol in ((2, 3, 0), (16, 3, 4), (17, 3, 0), (2, 1, 132)):  # nobody is asked for leave
        assert asking("socket", family, kind, protocol) == calm("socket", family, kind, protocol) != "allow"
    for option in (7, 8):
        assert (calm("setsockopt", 3, 1, option), partly("setsockopt", 3, 1, option)) == ("allow", "ignore")
    assert partly("setsockopt", 3, 1, 26) == "EPERM"


@both_machines
def test_who_asks_for_metadata_cannot_change_what_file_systems_add_to_it(machine: str) -> None:
    calm, asking = Judge(machine), Judge(machine, asks=("metadata",))
    for request in (0x40086602, 0x401C5820, 0x40087602, 0x40806685, 0x5000940E):  # flags, version, verity, a subvolume
        assert calm("ioctl", 3, request) == "allow"
        assert asking("ioctl", 3, HIGH | request) == errno.errorcode[errno.EOPNOTSUPP]
    for request, said in ((0x5401, "allow"), (0x541B, "allow"), (0x8912, "allow"), (0x5412, "EPERM")):
        assert calm("ioctl", 3, request) == asking("ioctl", 3, request) == said


@both_machines
def test_locks_are_those_of_a_process_and_counted(machine: str) -> None:
    calm, asking = Judge(machine), Judge(machine, asks=("locks",))
    for command in (6, 7):  # F_SETLK, F_SETLKW
        assert (calm("fcntl", 3, command), asking("fcntl", 3, HIGH | command)) == ("allow", "ask")
    for command in (36, 37, 38):  # F_OFD_*
        assert calm("fcntl", 3, command) == asking("fcntl", 3, HIGH | command) == "EINVAL"
    for command in (0, 1, 2, 3, 4, 5, 1030, 1031):
        assert asking("fcntl", 3, command) == "allow"


@both_machines
def test_of_epoll_instances_the_supervisor_is_asked(machine: str) -> None:
    for name in {"epoll_create", "epoll_create1"} & TABLES[machine].keys():
        assert Judge(machine)(name, 1) == "allow"
        assert Judge(machine, asks=("epolls",))(name, 1) == "ask"


@both_machines
def test_nothing_is_spliced_where_nobody_counts_the_pages(machine: str) -> None:
    calm, watched = Judge(machine), Judge(machine, can_hold_unmapped_memory=False)
    for name in ("splice", "tee", "sendfile"):
        assert (calm(name, 3, 4), watched(name, 3, 4)) == ("allow", "EINVAL")


@both_machines
def test_of_shared_memory_without_a_name_the_supervisor_is_asked_where_nobody_counts_it(machine: str) -> None:
    shared, private, fixed, populate = 1, 2, 0x10, 0x8000
    asking, calm = Judge(machine, asks=("shared_memory",)), Judge(machine)
    for flags, said in (
        (shared | 0x20, "ask"),
        (shared | 0x20 | fixed | populate, "ask"),
        (3 | 0x20, "ask"),
        (shared, "ask"),  # /dev/zero, perhaps
        (private, "allow"),
        (private | 0x20, "allow"),
    ):
        assert asking("mmap", 0, 4096, 3, HIGH | flags) == said, hex(flags)
        assert calm("mmap", 0, 4096, 3, flags) == "allow"


def test_nobody_is_scheduled_but_oneself(judge: Judge) -> None:
    for pid in (1, 4711, -1):
        assert judge("sched_setscheduler", pid, 0) == judge("sched_setparam", pid, 0x7FFE0000) == "EPERM"
        assert judge("sched_setaffinity", pid, 8, 0x7FFE0000) == "EPERM"
        assert judge("setpriority", 0, pid, 19) == judge("ioprio_set", 1, pid, 0) == "EPERM"
    assert judge("sched_setaffinity", HIGH, 8, 0x7FFE0000) == judge("sched_setparam", 0, 0x7FFE0000) == "allow"
    assert judge("setpriority", 0, HIGH, 19) == judge("ioprio_set", 1, 0, 0) == "allow"
    for group_or_user in (1, 2):
        assert judge("setpriority", group_or_user, 0, 19) == "EPERM"
    for group_or_user in (2, 3):
        assert judge("ioprio_set", group_or_user, 0, 0) == "EPERM"


# On the real kernel.


def guest(mode: str, program: Path | None, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(GUEST), str(program or "-"), mode, *arguments]
    environment = {**os.environ, "TMPDIR": "/tmp"}  # a socket's path must be short
    return subprocess.run(
        command, input=stdin, capture_output=True, encoding="utf-8", timeout=HANG_S, check=False, env=environment
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "filter"
    path.write_bytes(compile_filter(platform.machine()))
    return path


@pytest.fixture
def open_program(tmp_path: Path) -> Path:
    path = tmp_path / "filter"
    path.write_bytes(compile_filter(platform.machine(), can_open_network=True))
    return path


BAD = 1  # a pointer to nowhere
NO_FD = 0xFFFFFFFFFFFFFFFF
# (call, arguments, errno under the filter): arguments that the kernel turns down before it looks at privileges.
REACHES_THE_KERNEL = [
    ("mount", (BAD, BAD, BAD, 0, BAD), "EPERM"),
    ("unshare", (1,), "EPERM"),
    ("setns", (NO_FD, 0), "EPERM"),
    ("chroot", (BAD,), "EPERM"),
    ("ptrace", (3, 0x7FFFFFFF, 0, 0), "EPERM"),
    ("process_vm_readv", (0x7FFFFFFF, 0, 0, 0, 0, 1), "EPERM"),
    ("perf_event_open", (BAD, 0, NO_FD, NO_FD, 0), "EPERM"),
    ("add_key", (BAD, BAD, BAD, 1, 0), "EPERM"),
    ("pidfd_getfd", (NO_FD, 0, 0), "EPERM"),
    ("vmsplice", (NO_FD, BAD, 1, 0), "EPERM"),
    ("io_setup", (0, BAD), "EPERM"),
    ("name_to_handle_at", (NO_FD, BAD, BAD, BAD, 0xFFFF), "EPERM"),
    ("remap_file_pages", (BAD, 0, 1, 0, 0), "EPERM"),
    ("seccomp", (99, 0, 0), "EPERM"),
    ("clone3", (BAD, 64), "ENOSYS"),
    ("ioctl", (NO_FD, 0x5412, 0), "EPERM"),
    ("fcntl", (NO_FD, 1024, 0), "EPERM"),
    ("fcntl", (NO_FD, 1026, 0), "EPERM"),
    ("prctl", (22, 99, 0, 0, 0), "EPERM"),
    ("setsockopt", (NO_FD, 1, 26, BAD, 16), "EPERM"),
    ("personality", (0x0400000,), "EPERM"),
    ("prlimit64", (0x7FFFFFFF, 7, BAD, 0), "EPERM"),
]


def make(calls: list[tuple[str, tuple[int, ...], str]], program: Path | None) -> list[int]:
    table = TABLES[platform.machine()]
    done = guest("calls", program, stdin=json.dumps([(table[name], arguments) for name, arguments, _ in calls]))
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.attack("the seccomp filter", control="test_without_the_filter_the_same_calls_reach_the_kernel")
@here
def test_the_kernel_applies_the_filter(program: Path) -> None:
    got = [errno.errorcode.get(number, "ok") for number in make(REACHES_THE_KERNEL, program)]
    assert got == [expected for _, _, expected in REACHES_THE_KERNEL]


@here
def test_without_the_filter_the_same_calls_reach_the_kernel() -> None:
    found = [errno.errorcode.get(number, "ok") for number in make(REACHES_THE_KERNEL, None)]
    stopped = [call for call, got in zip(REACHES_THE_KERNEL, found, strict=True) if got == call[2]]
    assert not stopped


@here
def test_allowed_calls_reach_the_kernel(program: Path) -> None:
    calls = [
        ("ioctl", (NO_FD, 0x5401, 0), "EBADF"),
        ("setsockopt", (NO_FD, 1, 2, BAD, 4), "EBADF"),
        ("execve", (BAD, BAD, BAD), "EFAULT"),
        ("socket", (HIGH | 1, HIGH | 1, 0), "ok"),
        ("socket", (2, 1, 0), "EAFNOSUPPORT"),
        ("mknodat", (NO_FD, BAD, 0o010600, 0), "EFAULT"),
        ("mknodat", (NO_FD, BAD, 0o060600, 0), "EPERM"),
        ("personality", (0xFFFFFFFF,), "ok"),
    ]
    got = [errno.errorcode.get(number, "ok") for number in make(calls, program)]
    assert got == [expected for _, _, expected in calls]


@here
def test_numbers_unknown_to_the_table_are_enosys_on_the_kernel(program: Path) -> None:
    numbers_beyond = [max(TABLES[platform.machine()].values()) + 2, 0x40000000 | 39]  # fchmodat2; getpid of x32
    done = guest("calls", program, stdin=json.dumps([(number, (NO_FD, BAD, 0, 0)) for number in numbers_beyond]))
    assert json.loads(done.stdout) == [errno.ENOSYS] * 2


@here
@pytest.mark.parametrize("filtered", [False, True])
def test_ordinary_programs_work(program: Path, filtered: bool) -> None:
    done = guest("workload", program if filtered else None)
    assert done.returncode == 0, done.stderr


@here
@pytest.mark.parametrize("filtered", [False, True])
def test_loopback_works_with_network(open_program: Path, filtered: bool) -> None:
    done = guest("network", open_program if filtered else None)
    assert done.returncode == 0, done.stderr


@pytest.mark.attack("the seccomp filter", control="test_loopback_works_with_network")
@here
def test_no_network_socket_without_network(program: Path) -> None:
    done = guest("network", program)
    assert done.returncode == 1
    assert "Address family not supported" in done.stderr


@pytest.mark.attack("the seccomp filter", control="makes_a_user_namespace_through_the_32_bit_gate")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit entry is x86-64's")
def test_the_32_bit_entry_kills_the_process(program: Path) -> None:
    if guest("int80", None).returncode:
        pytest.skip("this kernel has no 32-bit entry")
    assert guest("int80", program).returncode == -signal.SIGSYS


@here
def test_a_shell_works(program: Path) -> None:
    script = "d=$(mktemp -d); mkfifo $d/f; echo hi >$d/a; cp -p $d/a $d/b; (cat $d/f & cat $d/b >$d/f; wait); rm -r $d"
    done = guest("exec", program, "bash", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")


@here
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_works(program: Path) -> None:
    script = """
    const { Worker } = require('worker_threads'), { execSync } = require('child_process');
    require('fs').readdirSync('/'); require('crypto').randomBytes(8); require('os').cpus();
    const out = execSync('echo child').toString();
    new Worker('require("worker_threads").parentPort.postMessage("worker")', { eval: true })
      .on('message', (m) => setTimeout(() => console.log(out.trim(), m), 10));
    """
    done = guest("exec", program, "node", "-e", script)
    assert (done.returncode, done.stdout) == (0, "child worker\n"), done.stderr
