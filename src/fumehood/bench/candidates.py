"""What is measured: a bare subprocess, fumehood, and the alternatives that are installed here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

from ..api import OneShot, get_sandbox
from ..errors import EngineFailed
from .samples import Candidate

CODE = "print(6 * 7)"
OUTPUT = "42\n"
BARE = "bare subprocess"
COLD = "fumehood sealed, no warm cell"


def bare(code: str = CODE, name: str = BARE) -> Candidate:
    """What an agent framework without a sandbox does."""
    return Candidate(name, _subprocess([sys.executable, "-I", "-c", code]))


def cold(stack: ExitStack, code: str = CODE, name: str = COLD) -> Candidate:
    """Every execution makes its own cell."""
    sandbox = stack.enter_context(get_sandbox(type="local", isolation="sealed", store_code="never", warm_cells=0))
    return Candidate(name, _execution(sandbox, code))


def alternatives() -> list[Candidate]:
    """Whichever of the others is installed and works here."""
    found = []
    bubblewrap = shutil.which("bwrap")
    if bubblewrap:
        found.append(Candidate("bubblewrap", _subprocess([bubblewrap, *_BUBBLEWRAP, sys.executable, "-I", "-c", CODE])))
    return [candidate for candidate in found if _works(candidate)]


_BUBBLEWRAP = [
    *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"),
]


def _works(candidate: Candidate) -> bool:
    try:
        candidate.call()
    except (OSError, subprocess.SubprocessError, EngineFailed):
        return False
    return True


def _subprocess(argv: list[str]) -> Callable[[], None]:
    def call() -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        if done.stdout != OUTPUT:
            raise EngineFailed(f"{argv[0]} printed {done.stdout!r}, {done.stderr!r}")

    return call


def _execution(sandbox: OneShot, code: str) -> Callable[[], None]:
    def call() -> None:
        result = sandbox.execute(code)
        if result.stdout != OUTPUT:
            raise EngineFailed(f"a sandbox printed {result.stdout!r}, {result.stderr!r}")

    return call
