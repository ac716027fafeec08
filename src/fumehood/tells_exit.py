"""Run as a program: tells_exit.py DESCRIPTOR COMMAND… runs the command and writes its exit code to the descriptor.

A host that ignores SIGCHLD, or waits for every child itself, cannot ask the kernel for it. Nor does the command inherit
that: it starts programs of its own and wants to know how they end.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told = int(sys.argv[1])
    os.set_inheritable(told, False)
    code = os.spawnvp(os.P_WAIT, sys.argv[2], sys.argv[2:])
    os.write(told, str(code).encode())
