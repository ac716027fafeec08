"""What is paid once for each process: the import, and the first call with the zygote's start in it."""

from __future__ import annotations

import subprocess
import sys

from .samples import Series

_IMPORT = "import time; t = time.perf_counter(); import fumehood; print(time.perf_counter() - t)"
_FIRST = """
import time, fumehood
t = time.perf_counter()
with fumehood.get_sandbox(type="local", isolation="sealed", store_code="never") as sandbox:
    result = sandbox.execute("print(6 * 7)")
    elapsed = time.perf_counter() - t
assert result.stdout == "42\\n", result
print(elapsed)
"""


def import_time(rounds: int) -> Series:
    return Series("import fumehood", [_seconds(_IMPORT) for _ in range(rounds)])


def first_call(rounds: int) -> Series:
    """From `get_sandbox()` to the result, in an interpreter that has imported fumehood and nothing else."""
    return Series("first call of a process", [_seconds(_FIRST) for _ in range(rounds)])


def _seconds(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)
