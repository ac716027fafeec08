"""Run as a program: pip that starts no other one and unpacks no wheel that is too large.

`--only-binary` does not reach a dependency given by an address, which pip would fetch and build: to build is to run the
package's code on this machine. pip builds in a child process, always, so here it has none.

A wheel's own table says how large it is unpacked. It may lie, but Python's zipfile writes no more than the table says.
"""

from __future__ import annotations

import os
import runpy
import sys
import zipfile
from typing import Any

REFUSAL = "packages are not built on this machine"
TOO_LARGE = "this wheel is too large to unpack:"

_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}


class _Guard:
    def __init__(self, most_bytes: int, most_files: int) -> None:
        self._most_bytes, self._most_files = most_bytes, most_files
        self._seen: set[str] = set()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            raise PermissionError(REFUSAL)
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and "r" in (arguments[1] or ""):
            path = str(arguments[0])
            if path.endswith(".whl") and path not in self._seen:
                self._seen.add(path)
                self._check(path)

    def _check(self, path: str) -> None:
        try:
            with zipfile.ZipFile(path) as wheel:
                sizes = [entry.file_size for entry in wheel.infolist()]
        except (OSError, zipfile.BadZipFile):
            return  # pip says what is wrong with it
        if sum(sizes) > self._most_bytes or len(sizes) > self._most_files:
            print(TOO_LARGE, sum(sizes), len(sizes), os.path.basename(path), flush=True)
            os._exit(1)  # an exception could be caught on its way


if __name__ == "__main__":
    sys.addaudithook(_Guard(int(sys.argv.pop(1)), int(sys.argv.pop(1))).hear)
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
