"""Run as a program: tells_exit.py DESCRIPTOR FILE_BYTES DATA_BYTES COMMAND… runs the command and writes its exit code.

The code goes to the descriptor. A host that ignores SIGCHLD, or waits for every child itself, cannot ask the kernel for
it. Nor does the command inherit that: it starts programs of its own and wants to know how they end. It has the two
limits before it starts anything; -1 is none.
"""

from __future__ import annotations

import os
import resource
import signal
import sys


def _lower(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or most < hard):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, file_bytes, data_bytes = map(int, sys.argv[1:4])
    os.set_inheritable(told, False)
    if sys.platform == "linux":  # elsewhere what watches is enough
        _lower(resource.RLIMIT_FSIZE, file_bytes)
        _lower(resource.RLIMIT_DATA, data_bytes)
    code = os.spawnvp(os.P_WAIT, sys.argv[4], sys.argv[4:])
    os.write(told, str(code).encode())
