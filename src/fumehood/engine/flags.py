"""Numbers that the host's side and the zygote's side share. No ctypes: the host process loads this."""

from __future__ import annotations

import errno

# What the next try may not meet: no reason to do without something for as long as a process lives.
SHORTAGES = frozenset(
    {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC, errno.ETOOMANYREFS}
)

FS = 0x00000200
NEWNS = 0x00020000
NEWCGROUP = 0x02000000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
CELL_NAMESPACES = NEWUSER | NEWNS | NEWPID | NEWIPC | NEWUTS

CONTROL = 3  # the descriptor by which a zygote and its cells talk to the host

KILL_TREE = 42  # signal to an unsealed supervisor, from the host or, when the zygote dies, from the kernel
WAKE = 29  # to a supervisor, from the host: there is an order. Above SIGCHLD, which so is never kept waiting by it

LOST = b"lost "  # how a supervisor calls itself whose tree shows less than it has used, before that many ticks

METADATA_CALLS = ("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utimensat")  # see metadata

NOTHING = "/run/nothing"  # an empty directory of a sealed root
