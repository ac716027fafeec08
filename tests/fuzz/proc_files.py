"""Files of /proc: a process calls itself what it likes, and that decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import ModuleType
from unittest.mock import patch

from fumehood.engine import cgroup_home, memory
from fumehood.guest import census, procfs

from .target import Target

_AFTER = b"S 1 2 3 0 -1 4194304 1 0 0 0 7 8 9 10 20 0 1 0 4242 1 1"
_HITS = b"low 1\noom 2\noom_kill 3\n"


def check(data: bytes) -> None:
    """Once as a whole file, once as the name that a process gave itself."""
    for name in (b"VmHWM:", b"Pid:", b"oom_kill ", b"max ", b""):
        assert procfs.number(data, name) >= 0
    with _files(data):
        assert len(procfs.stat(1)) in (0, *range(procfs.STARTED + 1, len(data) + 1))
    with _files(b"12 (" + data + b") " + _AFTER + b"\n"):
        found = procfs.stat(12)
        assert found == _AFTER.split()
        census.used_by(12)
    name = data.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")  # as the kernel writes it
    assert procfs.number(b"Name:\t" + name + b"\nUmask:\t0022\nVmHWM:\t  77 kB\n", b"VmHWM:") == 77
    assert procfs.number(data + b"\n" + _HITS, b"oom_kill ") == 3
    _look_for_groups(data)
    _look_at_maps(data)


def _look_for_groups(data: bytes) -> None:
    """A mount's own path stands in mountinfo, where blanks and line ends are escaped."""
    path = data.decode("latin-1").translate({0: None, 32: "\\040", 9: "\\011", 10: "\\012", 92: "\\134"})
    mounts = f"30 20 0:26 / /{path} rw - tmpfs {path or 'x'} rw\n31 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    told = {"/proc/self/cgroup": f"0::/{path}\n", "/proc/self/mountinfo": mounts}
    with _told(cgroup_home, "read", told.__getitem__):
        assert cgroup_home._own_groups() == {"": f"/sys/fs/cgroup/{path}".rstrip("/")}


def _look_at_maps(data: bytes) -> None:
    """The names of the files that a process maps stand there, with nothing but line ends escaped."""
    name = data.replace(b"\n", b"\\012")
    line = b"7f00-7f10 rw-s 00000000 00:01 %d    %b (deleted)\n"
    maps = line % (7, b"/dev/zero") + line % (8, b"/tmp/" + name) + line % (9, name + b"/dev/zero")
    told = {"/proc/1/maps": maps, "/proc/1/statm": b"100 50 1 1 0 1 0\n"}
    with _told(memory, "read", told.__getitem__):
        found = memory.nameless([1])
    assert found is not None
    assert found.keys() - {b"8"} == {b"7", b"9"}
    assert set(found.values()) == {0x10}
    with _told(memory, "read", lambda _: data):
        memory._own_bytes("/proc/1")


def _files(content: bytes) -> AbstractContextManager[object]:
    return _told(procfs, "read", lambda _: content)


def _told(module: ModuleType, name: str, read: Callable[[str], object]) -> AbstractContextManager[object]:
    """To this thread alone: others may look after real processes meanwhile."""
    thread, real = get_ident(), getattr(module, name)
    return patch.object(module, name, lambda path, *most: read(path) if get_ident() == thread else real(path, *most))


TARGET = Target("proc_files", check)
