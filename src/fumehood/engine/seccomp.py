"""Which system calls a sandboxed program may make, as a seccomp filter (classic BPF); nothing here talks to the kernel.

What is not named is refused: a known call with EPERM, an unknown number with ENOSYS, so that a newer libc falls back.
Arguments are compared by their low 32 bits, which is all that the kernel reads of an `int`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fumehood.engine import _syscall_numbers as numbers
from fumehood.engine.flags import METADATA_CALLS

__all__ = ["ALLOWED", "CHECKED", "compile_filter", "supported"]

_FILES = """
    open openat openat2 creat close close_range read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2
    lseek stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 getdents getdents64 getcwd
    chdir fchdir dup dup2 dup3 flock fsync fdatasync sync_file_range truncate ftruncate fallocate fadvise64
    readahead sendfile copy_file_range splice tee pipe pipe2 rename renameat renameat2 mkdir mkdirat rmdir
    link linkat unlink unlinkat symlink symlinkat readlink readlinkat umask chmod fchmod fchmodat
    chown fchown lchown fchownat utime utimes futimesat utimensat
    getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr
    removexattr lremovexattr fremovexattr inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
"""
_WAITING = """
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
"""
_MEMORY = """
    brk mmap munmap mremap mprotect madvise msync mincore mlock mlock2 mlockall munlock munlockall memfd_create
    pkey_alloc pkey_free pkey_mprotect membarrier
"""
_PROCESSES = """
    fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid getsid setsid
    pidfd_open pidfd_send_signal set_tid_address set_robust_list rseq arch_prctl futex futex_waitv
    sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu
    getpriority ioprio_get getrlimit setrlimit getrusage
"""
_IDS = """
    getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid setresgid
    setfsuid setfsgid setgroups capget capset landlock_create_ruleset landlock_add_rule landlock_restrict_self
"""
_SIGNALS = """
    kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait
    rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause restart_syscall
"""
_TIME = """
    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep times alarm getitimer setitimer
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime
"""
_SOCKETS = """
    bind listen accept accept4 connect shutdown getsockname getpeername getsockopt
    sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg
"""
_IPC = """
    shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
"""
_SYSTEM = "uname sysinfo getrandom"

# Left out, harmless as they look: sync and syncfs flush the host's disks (sync has no way to fail, so nobody minds),
# sched_setattr hides its policy behind a pointer, get_mempolicy is NUMA (libnuma takes EPERM for "none here").
ALLOWED = frozenset(
    " ".join((_FILES, _WAITING, _MEMORY, _PROCESSES, _IDS, _SIGNALS, _TIME, _SOCKETS, _IPC, _SYSTEM)).split()
)

_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone(2) can take; NEWTIME shares its bit with the exit signal
_IOCTLS_REFUSED = (
    *(0x5412, 0x541C, 0x541D, 0x5423),  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD: type into, or take over, a terminal
    *(0x8940, 0x8941, 0x89A0, 0x89A1),  # SIOC[GS]IFBR, SIOCBR{ADD,DEL}BR: load the bridge module, whoever asks
    *(0x8982, 0x8983),  # SIOC[GS]IFVLAN: load the VLAN module
)
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8)  # SO_SNDBUF, SO_RCVBUF
# F_SETLEASE, F_NOTIFY, F_SETDELEG: hold up, or watch, whoever opens a file that one may only read.
_FCNTLS_REFUSED = (1024, 1026, 1040)
_LOCKS = (6, 7)  # F_SETLK, F_SETLKW
_LOCKS_OF_FILES = (36, 37, 38)  # F_OFD_*: the kernel bounds neither, and of these nobody could tell whose they are
_SOCKET_OPTIONS_REFUSED = {
    _SOL_SOCKET: (26, 50, 51, 52),  # SO_ATTACH_*: BPF programs; a flood of them exhausts the kernel's JIT memory
    6: (31,),  # IPPROTO_TCP, TCP_ULP: kernel TLS
    17: (100,),  # IPPROTO_UDP, UDP_ENCAP: IPsec
}
# Nothing that sets a filter, a tracer, the memory map, securebits, speculation, page merging or the scheduler's cores.
_PRCTLS = (
    *(1, 2, 3, 4, 15, 16),  # PDEATHSIG, DUMPABLE, NAME
    *(7, 21, 23, 25, 27, 34),  # GET_KEEPCAPS, GET_SECCOMP, CAPBSET_READ, GET_TSC, GET_SECUREBITS, MCE_KILL_GET
    *(29, 30, 36, 37, 38, 39, 40, 41, 42),  # TIMERSLACK, CHILD_SUBREAPER, NO_NEW_PRIVS, GET_TID_ADDRESS, THP_DISABLE
    *(47, 52, 65, 66),  # CAP_AMBIENT, GET_SPECULATION_CTRL, MDWE
    *(50, 51, 54, 55, 56, 60, 61, 63, 64),  # arm64: SVE, PAC_RESET_KEYS, TAGGED_ADDR_CTRL, PAC_ENABLED_KEYS, SME
    *(0x41555856, 0x53564D41),  # GET_AUXV, SET_VMA (names a mapping)
)
_SCHEDULERS = (0, 3, 5)  # OTHER, BATCH, IDLE: no realtime
_RESET_ON_FORK = 0x40000000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_FILE_TYPES = (0, 0o010000, 0o100000, 0o140000)  # regular (twice), FIFO, socket: no devices

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5

_MACHINES = {"x86_64": (0xC000003E, numbers.X86_64), "aarch64": (0xC00000B7, numbers.AARCH64)}

_LD, _AND, _JA, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06

# A piece of program: (code, jt, jf, k) each. All but a bare load end in RET on every path, so that pieces nest freely.
_Code = tuple[tuple[int, int, int, int], ...]


def _errno(number: int) -> _Code:
    return ((_RET, 0, 0, 0x00050000 | number),)


_ALLOW: _Code = ((_RET, 0, 0, 0x7FFF0000),)
_ASK: _Code = ((_RET, 0, 0, 0x7FC00000),)  # the supervisor, see sockets
_KILL: _Code = ((_RET, 0, 0, 0x80000000),)
_EPERM = _errno(errno.EPERM)
_ENOSYS = _errno(errno.ENOSYS)


def _load(offset: int) -> _Code:
    return ((_LD, 0, 0, offset),)


def _arg(index: int, *, mask: int = 0xFFFFFFFF) -> _Code:
    low_word = _load(16 + 8 * index)
    return low_word if mask == 0xFFFFFFFF else (*low_word, (_AND, 0, 0, mask))


def _branch(test: int, k: int, yes: _Code, no: _Code) -> _Code:
    if len(no) > 255:  # a conditional jump has 8 bits
        return ((test, 0, 1, k), (_JA, 0, 0, len(no)), *no, *yes)
    return ((test, len(no), 0, k), *no, *yes)


def _fold(ranges: Sequence[tuple[int, _Code]]) -> Iterator[tuple[int, _Code]]:
    """One range for a lone value with the same answer on both sides: one test for equality beats two borders."""
    at = 0
    while at < len(ranges):
        start, code = ranges[at]
        if at + 2 < len(ranges) and code == ranges[at + 2][1] and ranges[at + 2][0] == ranges[at + 1][0] + 1:
            yield start, _branch(_JEQ, *ranges[at + 1], code)
            at += 3
        else:
            yield start, code
            at += 1


def _search(ranges: Sequence[tuple[int, _Code]]) -> _Code:
    """A balanced binary search: each range is its first value and what to do from there up to the next."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    return _branch(_JGE, ranges[middle][0], _search(ranges[middle:]), _search(ranges[:middle]))


def _choose(cases: Mapping[int, _Code], otherwise: _Code) -> _Code:
    """Looks the loaded value up in `cases`, neighbours that agree as one range."""
    ranges: list[tuple[int, _Code]] = [(0, otherwise)]
    for start in sorted({edge for value in cases for edge in (value, value + 1) if edge <= 0xFFFFFFFF}):
        code = cases.get(start, otherwise)
        if start == 0:
            ranges = [(0, code)]
        elif code != ranges[-1][1]:
            ranges.append((start, code))
    return _search(list(_fold(ranges)))


def _one_of(values: Iterable[int], yes: _Code, no: _Code) -> _Code:
    return _choose(dict.fromkeys(values, yes), no)


def _only(argument: _Code, values: Collection[int], yes: _Code = _ALLOW) -> _Code:
    return argument + _one_of(values, yes, _EPERM)


def _socket(can_open_network: bool, asks: Collection[str]) -> _Code:
    kind = _arg(1, mask=0xF)
    families = {_AF_UNIX: _only(kind, (_STREAM, _DGRAM, _SEQPACKET), _ASK if "unix" in asks else _ALLOW)}
    if can_open_network:
        answer = _ASK if "network" in asks else _ALLOW
        # TCP and UDP only: another protocol number makes the kernel load the module for it.
        protocol = _arg(2) + _one_of((0, 6, 17), answer, _errno(errno.EPROTONOSUPPORT))
        families[_AF_INET] = families[_AF_INET6] = kind + _one_of((_STREAM, _DGRAM), protocol, _EPERM)
        # NETLINK_ROUTE: libc lists interfaces with it, through SOCK_RAW, which means nothing special there.
        route = _only(kind, (_DGRAM, _RAW), answer)
        families[_AF_NETLINK] = _arg(2) + _branch(_JEQ, 0, route, _errno(errno.EAFNOSUPPORT))
    return _arg(0) + _choose(families, _errno(errno.EAFNOSUPPORT))


def _checked(can_open_network: bool, asks: Collection[str] = ()) -> dict[str, _Code]:
    refused = {level: dict.fromkeys(names, _EPERM) for level, names in _SOCKET_OPTIONS_REFUSED.items()}
    if "network" in asks:
        refused[_SOL_SOCKET] |= dict.fromkeys(
            _BUFFER_SIZES, _errno(0)
        )  # taken and not heeded: the kernel may do so too
    options = {level: _arg(2) + _choose(cases, _ALLOW) for level, cases in refused.items()}
    reads_limits = _arg(2) + _branch(_JEQ, 0, _load(16 + 8 * 2 + 4) + _branch(_JEQ, 0, _ALLOW, _EPERM), _EPERM)
    policy = _only(_arg(1, mask=0xFFFFFFFF ^ _RESET_ON_FORK), _SCHEDULERS)
    return {
        "clone": _arg(0) + _branch(_JSET, _NAMESPACES, _EPERM, _ALLOW),
        "clone3": _ENOSYS,  # its flags are behind a pointer; libc falls back to clone
        "socket": _socket(can_open_network, asks),
        "socketpair": _socket(can_open_network=False, asks=asks),  # UNIX is the one family that has pairs
        "setsockopt": _arg(1) + _choose(options, _ALLOW),
        "ioctl": _arg(1) + _one_of(_IOCTLS_REFUSED, _EPERM, _ALLOW),
        "fcntl": _arg(1)
        + _choose(
            dict.fromkeys(_FCNTLS_REFUSED, _EPERM)
            | dict.fromkeys(_LOCKS_OF_FILES, _errno(errno.EINVAL))
            | dict.fromkeys(_LOCKS, _ASK if "locks" in asks else _ALLOW),
            _ALLOW,
        ),
        "personality": _only(_arg(0), (0, 0xFFFFFFFF)),
        "mknod": _only(_arg(1, mask=0o170000), _FILE_TYPES),
        "mknodat": _only(_arg(2, mask=0o170000), _FILE_TYPES),
        "prctl": _only(_arg(0), _PRCTLS),
        "prlimit64": _arg(0) + _branch(_JEQ, 0, _ALLOW, reads_limits),  # one's own: those of PID 1 are not for setting
        # One's own alone, by the name 0: PID 1 and who else has our user id would starve as idle, or on one CPU.
        "sched_setaffinity": _only(_arg(0), (0,)),
        "sched_setparam": _only(_arg(0), (0,)),
        "sched_setscheduler": _arg(0) + _branch(_JEQ, 0, policy, _EPERM),
        "setpriority": _arg(0) + _branch(_JEQ, _PRIO_PROCESS, _only(_arg(1), (0,)), _EPERM),
        "ioprio_set": _arg(0) + _branch(_JEQ, _IOPRIO_WHO_PROCESS, _only(_arg(1), (0,)), _EPERM),
    }


CHECKED = frozenset(_checked(can_open_network=False))
"""Calls that are decided by their arguments."""


_UNMAPPED_MEMORY = frozenset({"memfd_create", "shmget", "msgget", "semget"})
_SPLICES = frozenset({"splice", "tee", "sendfile"})  # a socket or a pipe then holds a page for each byte
_METADATA_OF_OLD = ["utime", "utimes", "futimesat"]
_ATTRIBUTES = ["setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"]
# Of file systems, by their type: 'X', 'f', 'v', and those of btrfs. A descriptor for reading does for most.
_FILE_IOCTLS, _IOCTL_TYPE = (0x5800, 0x6600, 0x7600, 0x9400), 0xFF00
_MAP_TYPE, _MAPS_SHARED = 0xF, (1, 3)  # MAP_SHARED, MAP_SHARED_VALIDATE
_WATCHES = frozenset({"inotify_init", "inotify_init1"})
_EPOLLS = frozenset({"epoll_create", "epoll_create1"})


def supported(machine: str) -> bool:
    """Whether there is a filter for this `platform.machine()`."""
    return machine in _MACHINES


def compile_filter(
    machine: str,
    *,
    can_open_network: bool = False,
    can_hold_unmapped_memory: bool = True,
    can_watch_files: bool = True,
    asks: Collection[str] = (),
) -> bytes:
    """The `sock_filter` array for a machine; without `can_open_network` the only sockets are UNIX ones.

    Without `can_hold_unmapped_memory` there is none that belongs to no process: where no control group counts the
    memory of a tree, whoever adds up its processes would miss it. Without `can_watch_files` it is as if there were too
    many watches: where the host's user has the same id, they would be taken from it. `asks`: what the
    supervisor is asked about, "network" and "unix" sockets, whose buffers stay as the kernel makes them,
    "shared_memory" without a name, "locks", "epolls", or modes and times ("metadata"), besides which no attributes are
    changed.
    """
    if not supported(machine):
        raise ValueError(f"no seccomp filter for {machine!r}: only for {', '.join(_MACHINES)}")
    audit_arch, table = _MACHINES[machine]
    checked = _checked(can_open_network, asks)
    if "metadata" in asks:
        checked |= dict.fromkeys(METADATA_CALLS, _ASK) | dict.fromkeys(_METADATA_OF_OLD, _ENOSYS)
        unsupported = _errno(errno.EOPNOTSUPP)
        checked |= dict.fromkeys(_ATTRIBUTES, unsupported)
        checked["ioctl"] = _arg(1, mask=_IOCTL_TYPE) + _one_of(_FILE_IOCTLS, unsupported, checked["ioctl"])
    if "epolls" in asks:
        checked |= dict.fromkeys(_EPOLLS, _ASK)
    if "shared_memory" in asks:
        checked["mmap"] = _arg(3, mask=_MAP_TYPE) + _one_of(_MAPS_SHARED, _ASK, _ALLOW)
    if not can_hold_unmapped_memory:
        checked |= dict.fromkeys(_UNMAPPED_MEMORY, _EPERM) | dict.fromkeys(_SPLICES, _errno(errno.EINVAL))
    if not can_watch_files:
        checked |= dict.fromkeys(_WATCHES, _errno(errno.EMFILE))
    calls = {number: checked.get(name, _ALLOW if name in ALLOWED else _EPERM) for name, number in table.items()}
    # Numbers past the table are ENOSYS, the x32 calls too; in a foreign architecture (int 0x80) they mean other calls.
    native = _load(0) + _choose(calls, _ENOSYS)
    program = _load(4) + _branch(_JEQ, audit_arch, native, _KILL)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
