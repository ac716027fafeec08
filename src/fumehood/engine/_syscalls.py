"""The kernel's calls that Python does not have. The only file of the engine that imports ctypes.

Every function raises OSError when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .flags import METADATA_CALLS

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# PyDLL keeps the GIL: a raw clone must not run while another thread could take it.
_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi
_X86 = os.uname().machine == "x86_64"

CLONE_PARENT = 0x00008000
_CLONE_PIDFD = 0x00001000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_CLONE_INTO_CGROUP = 0x200000000
_CLONE3 = 435
_SIGCHLD = 17

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_RESOLVE_NO_XDEV = 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_CLOSE_ON_EXEC = 1  # of fsopen and fsmount
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_TID_ADDRESS = 40
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION = struct.pack("Ii", 0x20080522, 0)  # and the calling thread
_SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER = 2, 1
_SECCOMP_NEW_LISTENER = 8
_SECCOMP_RECEIVE, _SECCOMP_SEND = 0xC0502100, 0xC0182101
_SECCOMP_QUESTION_BYTES = 80
_SECCOMP_CONTINUE = 1
_ZERO = ctypes.c_ulong(0)
_CAPABILITIES = [ctypes.c_ulong(number) for number in range(64)]
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, _MADV_FREE, _BIT = 3, 0x22, 8, 1 << 16
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_SECUREBITS_LOCKED = (
    0xEF  # everything but KEEP_CAPS, each with its lock: noroot, no_setuid_fixup, keep_caps lock, no ambient
)

# name: (x86_64, aarch64)
_NUMBERS = {
    "clone": (56, 220),
    "capget": (125, 90),
    "capset": (126, 91),
    "epoll_create": (213, -1),
    "epoll_create1": (291, 20),
    "fcntl": (72, 25),
    "mmap": (9, 222),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "pivot_root": (155, 41),
    "seccomp": (317, 277),
    "signalfd4": (289, 74),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}

_ASKED = ("mmap", "fcntl", "epoll_create", "epoll_create1", *METADATA_CALLS)  # and others, which need no names


def _number(name: str) -> int:
    return _NUMBERS[name][0 if _X86 else 1]


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _syscall(name: str, *args: object) -> int:
    converted = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check(_libc.syscall(ctypes.c_long(_number(name)), *converted), name)


def prctl(option: int, arg: int = 0, arg3: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    return _check(_libc.prctl(option, ctypes.c_ulong(arg), ctypes.c_ulong(arg3), zero, zero), f"prctl({option})")


def set_name(name: bytes) -> None:
    """Of the calling thread; 15 bytes are kept."""
    kept = ctypes.create_string_buffer(name)
    prctl(PR_SET_NAME, ctypes.addressof(kept))


def clone(flags: int) -> tuple[int, int]:
    """fork() with namespaces: (0, -1) in the child, (pid, pidfd) in the parent.

    Python's own fork hooks are run around it. glibc's atfork handlers are not: nobody else's threads may matter here.
    """
    pidfd = ctypes.c_int(-1)
    tid_address = ctypes.c_void_p()
    _check(_libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid_address), 0, 0, 0), "prctl(PR_GET_TID_ADDRESS)")
    flags |= _CLONE_PIDFD | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | _SIGCHLD
    child_tid, tls = (tid_address, None) if _X86 else (None, tid_address)  # the last two are swapped on aarch64
    number = ctypes.c_long(_number("clone"))
    arguments = (ctypes.c_ulong(flags), None, ctypes.byref(pidfd), child_tid, tls)
    return _fork(lambda: _libc.syscall(number, *arguments), pidfd)


def clone_into_group(flags: int, group: int) -> tuple[int, int]:
    """`clone`, born into the v2 control group whose directory is open as `group`."""
    pidfd = ctypes.c_int(-1)
    tid_address = ctypes.c_void_p()
    _check(_libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid_address), 0, 0, 0), "prctl(PR_GET_TID_ADDRESS)")
    flags |= _CLONE_PIDFD | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | _CLONE_INTO_CGROUP
    # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    fields = (flags, ctypes.addressof(pidfd), tid_address.value or 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, group)
    request = ctypes.create_string_buffer(struct.pack("11Q", *fields))
    return _fork(lambda: _libc.syscall(ctypes.c_long(_CLONE3), request, ctypes.c_size_t(88)), pidfd)


def _fork(call: Callable[[], int], pidfd: ctypes.c_int) -> tuple[int, int]:
    _python.PyOS_BeforeFork()
    pid = call()
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0, -1
    code = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code), "clone")
    return pid, pidfd.value


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(namespace: int, kind: int) -> None:
    _check(_libc.setns(namespace, kind), "setns")


def set_file_ids(uid: int, gid: int) -> None:
    """Whose the files are that this thread makes; if it did not take, making one is refused."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def detach(path: str) -> None:
    _check(_libc.umount2(os.fsencode(path), _MNT_DETACH), f"umount {path}")


def pivot_root(new: str, old: str) -> None:
    _syscall("pivot_root", os.fsencode(new), os.fsencode(old))


def open_tree(path: str) -> int:
    """A detached copy of the mounts at `path`, symlinks followed."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return _syscall("open_tree", _AT_FDCWD, os.fsencode(path), flags)


def move_mount(tree: int, target: str) -> None:
    _syscall("move_mount", tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def overlay(layers: str, attributes: int) -> int:
    """A detached mount of an overlay that cannot be written."""
    context = _syscall("fsopen", b"overlay", _CLOSE_ON_EXEC)
    try:
        _syscall("fsconfig", context, _FSCONFIG_SET_STRING, b"lowerdir", layers.encode(), 0)
        _syscall("fsconfig", context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _syscall("fsmount", context, _CLOSE_ON_EXEC, attributes)
    finally:
        os.close(context)


def is_mount(directory: int, name: str) -> bool:
    """Whether another mount stands at this name."""
    request = struct.pack("QQQ", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE_NO_XDEV)
    try:
        os.close(_syscall("openat2", directory, os.fsencode(name), request, len(request)))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        raise
    return False


def set_mount_attributes(tree: int, path: str, attributes: int, *, recursive: bool) -> None:
    request = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = (_AT_RECURSIVE if recursive else 0) | (_AT_EMPTY_PATH if not path else 0)
    _syscall("mount_setattr", tree if tree >= 0 else _AT_FDCWD, os.fsencode(path), flags, request, len(request))


def drop_capabilities() -> None:
    """Out of every set, for good. Needs CAP_SETPCAP, so before anything else is given up."""
    prctl(PR_SET_SECUREBITS, _SECUREBITS_LOCKED)
    call = _libc.prctl
    for capability in _CAPABILITIES:
        if call(PR_CAPBSET_DROP, capability, _ZERO, _ZERO, _ZERO) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # past the last one the kernel knows
                break
            _check(-1, "prctl(PR_CAPBSET_DROP)")
    clear_capabilities()


def clear_capabilities() -> None:
    """Empty effective, permitted, inheritable and ambient: what a process may always do to itself."""
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _syscall("capset", _CAPABILITY_VERSION, struct.pack("6I", 0, 0, 0, 0, 0, 0))


def keep_capabilities_over_exec() -> None:
    """Those of a user who is not root end with the program that has them, unless they are ambient."""
    _, low, _, _, high, _ = sets = _capabilities()
    _syscall("capset", _CAPABILITY_VERSION, struct.pack("6I", sets[0], low, low, sets[3], high, high))
    for number in range(64):
        if (low | high << 32) >> number & 1:
            prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def keep_capabilities_to_itself() -> None:
    """After that exec: no other one shall inherit them."""
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    sets = _capabilities()
    _syscall("capset", _CAPABILITY_VERSION, struct.pack("6I", *sets[:2], 0, *sets[3:5], 0))


def _capabilities() -> tuple[int, ...]:
    """Effective, permitted and inheritable: the lower halves, then the upper ones."""
    sets = ctypes.create_string_buffer(24)
    _syscall("capget", _CAPABILITY_VERSION, sets)
    return struct.unpack("6I", sets.raw)


def fetch_descriptor(pid: int, number: int) -> int:
    """A copy of one that a child has."""
    pidfd = os.pidfd_open(pid)
    try:
        return _syscall("pidfd_getfd", pidfd, number, 0)
    finally:
        os.close(pidfd)


def loopback_up() -> None:
    sock = _check(_libc.socket(2, 2, 0), "socket")
    try:
        _check(_libc.ioctl(sock, ctypes.c_ulong(_SIOCSIFFLAGS), struct.pack("16sh14x", b"lo", _IFF_UP)), "lo up")
    finally:
        os.close(sock)


def install_seccomp(program: bytes, *, listens: bool = False) -> int:
    """Needs no_new_privs. Last step: nothing after it may need what the filter refuses.

    The descriptor by which questions of the filter are answered, if it `listens`; else -1.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog, len(fprog))
    if listens:
        return _syscall("seccomp", _SECCOMP_SET_MODE_FILTER, _SECCOMP_NEW_LISTENER, ctypes.addressof(holder))
    prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))
    return -1


class Question:
    """A call that waits for an answer."""

    def __init__(self, data: bytes):
        self.id, self.pid, number, *self.arguments = struct.unpack_from("=8sI4xI12x6Q", data)
        self.call = next((name for name in _ASKED if _number(name) == number), "")


def receive_question(listener: int) -> Question:
    question = ctypes.create_string_buffer(_SECCOMP_QUESTION_BYTES)
    _check(_libc.ioctl(listener, ctypes.c_ulong(_SECCOMP_RECEIVE), question), "receive a question")
    return Question(question.raw)


def answer_question(listener: int, question: Question, number: int, *, goes_on: bool = False) -> None:
    """Let the call go on, let it fail with that errno, or say that it is done."""
    answer = struct.pack("=8sqiI", question.id, 0, -number, _SECCOMP_CONTINUE if goes_on else 0)
    _check(_libc.ioctl(listener, ctypes.c_ulong(_SECCOMP_SEND), answer), "answer a question")


def signal_descriptor(signals: Iterable[int]) -> int:
    """Readable while one of these waits to be taken."""
    mask = ctypes.c_uint64(sum(1 << (number - 1) for number in signals))
    return _syscall("signalfd4", -1, ctypes.byref(mask), 8, os.O_CLOEXEC | os.O_NONBLOCK)


def touch_memory(size: int) -> None:
    """Bit by bit, each of which the kernel may take back (MADV_FREE): a limit is met, and nobody killed for it."""
    _libc.mmap.restype = ctypes.c_size_t
    start = _libc.mmap(None, ctypes.c_size_t(size), _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))
    for at in range(start, start + size, _BIT):
        ctypes.memset(at, 1, _BIT)
        _libc.madvise(ctypes.c_size_t(at), ctypes.c_size_t(_BIT), _MADV_FREE)


def landlock_abi() -> int:
    return _syscall("landlock_create_ruleset", None, 0, 1)


def landlock_create_ruleset(handled: bytes) -> int:
    return _syscall("landlock_create_ruleset", handled, len(handled), 0)


def landlock_allow_beneath(ruleset: int, parent: int, access: int) -> None:
    _syscall("landlock_add_rule", ruleset, 1, struct.pack("=Qi", access, parent), 0)


def landlock_restrict_self(ruleset: int) -> None:
    _syscall("landlock_restrict_self", ruleset, 0)


def flush_c_streams() -> None:
    """What C libraries printed and still hold in their buffers."""
    _libc.fflush(None)
