"""An interpreter that its user could change (pyenv, uv, conda in a home): sandboxes come from a read-only view of it.

The zygote starts again from that view, and must not lose on the way what it needs to make sandboxes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import fumehood
from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
from support import HANG_S

HOST = """
import json, sys
sys.path[:0] = {paths!r}
from fumehood import get_sandbox, open_session
settings = dict(isolation="sealed", require="sealed", store_code="never", timeout_sec=250)
code = "import os; print(sum(int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('Cap')))"
found = {{}}
with get_sandbox(warm_cells=0, **settings) as sandbox:
    results = [sandbox.execute(code) for _ in range(2)]
    found["execute"] = [result.stdout for result in results]
with open_session(warm_cells=0, datasets={{"data.csv": {data!r}}}, **settings) as session:
    found["run"] = session.run(code).stdout
    found["exec"] = session.exec(["cat", "/tmp/data/data.csv"]).stdout
    mounts = session.run("print(open('/proc/self/mountinfo').read())").stdout
found["overlays"] = mounts.count(" - overlay ")
found["again"] = "/run/engine" in mounts
print(json.dumps(found))
"""


@pytest.fixture
def interpreter(public_path: Path) -> Path:
    """A copy of this one that others may write."""
    try:
        with get_sandbox(isolation="sealed", require="sealed", warm_cells=0) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    copy = public_path / "bin" / Path(sys._base_executable).name  # type: ignore[attr-defined]
    copy.parent.mkdir()
    shutil.copyfile(os.path.realpath(sys._base_executable), copy)  # type: ignore[attr-defined]
    copy.chmod(0o775)
    return copy


def test_one_shots_and_sessions_work_as_from_any_other(interpreter: Path, public_path: Path) -> None:
    data = public_path / "data.csv"
    data.write_text("a\n1\n")
    data.chmod(0o644)
    paths = [str(Path(fumehood.__file__).parent.parent), sysconfig.get_path("purelib")]
    code = HOST.format(paths=paths, data=str(data))
    done = subprocess.run([interpreter, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("overlays") > 0
    assert found == {"execute": ["0\n", "0\n"], "run": "0\n", "exec": "a\n1\n", "again": True}
