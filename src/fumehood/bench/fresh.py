"""What is paid once for each process: the import, and the first call with the zygote's start in it."""

from __future__ import annotations

import subprocess
import sys

from .samples import Series

_IMPORT = "import time; t = time.perf_counter(); from fumehood import get_sandbox; print(time.perf_counter() - t)"
_FIRST = """
import time
from fumehood import get_sandbox
t = time.perf_counter()
with get_sandbox(type="local", isolation="sealed", store_code="never") as sandbox:
    result = sandbox.execute("print(6 * 7)")
    elapsed = time.perf_counter() - t
assert result.stdout == "42\\n", result
print(elapsed)
"""


def import_time(rounds: int) -> Series:
    """Of the name that a program uses: `import fumehood` alone loads next to nothing."""
    return Series("from fumehood import get_sandbox", [_seconds(_IMPORT) for _ in range(rounds)])


def first_call(rounds: int) -> Series:
    """From `get_sandbox()` to the result, in an interpreter that has imported that name and nothing else."""
    return Series("first call of a process", [_seconds(_FIRST) for _ in range(rounds)])


def _seconds(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)
