"""Run as a program: pip that cannot start another one.

`--only-binary` does not reach a dependency given by an address, which pip would fetch and build: to build is to run the
package's code on this machine. pip builds in a child process, always, so here it has none.
"""

from __future__ import annotations

import runpy
import sys

REFUSAL = "packages are not built on this machine"

_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event in _STARTS:
        raise PermissionError(REFUSAL)


if __name__ == "__main__":
    sys.addaudithook(_refuse)
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
