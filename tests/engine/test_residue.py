"""Executions leave nothing of themselves, however many there are."""

from __future__ import annotations

import gc
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from process_view import descendants, descriptors, groups, nameless_groups, processes, roots, waiting_cells

from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
from support import HANG_S, wait_until

pytestmark = pytest.mark.usefixtures("own_engine")

WARM_UP = 20
GROWTH_BYTES = 20 << 20
OUR_MOUNTS = re.compile(r" - tmpfs (root|private) ")  # as the engine calls what it mounts for a cell


def footprint() -> dict[str, set[str]]:
    """What this process owns, as far as an execution could add to it; each thing by its name."""
    gc.collect()
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    return {
        "descriptors": {f"{fd}: {path}" for fd, path in descriptors().items()},
        "mounts": {line for line in mounts if OUR_MOUNTS.search(line)},
        "temporary files": set(os.listdir(tempfile.gettempdir())),
        "control groups that no engine knows": set(nameless_groups()),
        "children": {
            f"{pid} {seen.born} {'dead' * (seen.state == 'Z')}"
            for pid, seen in processes().items()
            if seen.parent == os.getpid()
        },
        "threads": {f"{thread.name} {thread.ident}" for thread in threading.enumerate()},
    }


def more_than(before: dict[str, set[str]], warm_cells: int) -> dict[str, Any]:
    """What there is more of. Less is no leak: pools of earlier tests shrink when they are idle."""
    now = footprint()
    found: dict[str, Any] = {name: now[name] - before[name] for name in now if now[name] - before[name]}
    cells = [pid for root in roots() for pid in descendants(root.zygote._pid)]
    if len(cells) > 2 * warm_cells:  # each has a supervisor and a program
        found["processes"] = cells
    if len(busy := [group.paths for group in groups() if not group.is_free()]) > warm_cells:
        found["control groups in use"] = busy
    return found


def check_no_more_than(before: dict[str, set[str]], warm_cells: int = 0) -> None:
    """When the last cell, which may still be on its way out, has gone."""
    assert wait_until(lambda: not more_than(before, warm_cells)), more_than(before, warm_cells)


@pytest.fixture(autouse=True)
def _own_temporary_directory(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine may be at it too."""
    public_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(public_path))


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_sandbox(isolation: str, warm_cells: int = 0) -> Any:
    sandbox = get_sandbox(isolation=isolation, require=isolation, store_code="never", warm_cells=warm_cells)
    try:
        sandbox.execute("pass", timeout=HANG_S)
    except IsolationUnavailable as missing:
        sandbox.close()
        pytest.skip(f"no {isolation} sandbox on this machine: {missing}")
    return sandbox


def settled(warm_cells: int = 0) -> dict[str, set[str]]:
    """What there is when as many cells wait as will, and those of earlier executions are gone."""
    assert wait_until(lambda: len(waiting_cells()) >= warm_cells)
    before = footprint()
    check_no_more_than(before, warm_cells)
    return before


def use(sandbox: Any, number: int) -> None:
    """A little of everything that costs something: output, files, a child left behind, a failure, now and then."""
    if number % 50 == 7:
        result = sandbox.execute("raise SystemExit(3)", timeout=HANG_S)
        assert result.exit_code == 3, result
    elif number % 50 == 17:
        code = "import os, time\nif os.fork() == 0: time.sleep(3600)\nprint('x' * 20000)"
        assert sandbox.execute(code, timeout=HANG_S).meta["truncated"]
    elif number % 100 == 27:
        assert sandbox.execute("import time; time.sleep(3600)", timeout=0.05).meta["reason"] == "timeout"
    else:
        result = sandbox.execute("print(open('in').read())", files={"in": b"%d" % number}, timeout=HANG_S)
        assert result.stdout == f"{number}\n", result


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("isolation", "warm_cells", "count"),
    [
        ("sealed", 0, 200),
        ("sealed", 2, 300),
        ("confined", 0, 40),
        ("process", 0, 40),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in (("sealed", 0, 10_000), ("sealed", 2, 10_000))),
        *(pytest.param(level, 0, 1000, marks=pytest.mark.soak) for level in ("confined", "process")),
    ],
)
def test_executions_leave_nothing(isolation: str, warm_cells: int, count: int) -> None:
    with open_sandbox(isolation, warm_cells) as sandbox:
        for number in range(WARM_UP):
            use(sandbox, number)
        before, memory, spare = settled(warm_cells), rss_bytes(), len(groups())
        for number in range(count):
            use(sandbox, number)
        check_no_more_than(before, warm_cells)
        assert len(groups()) - spare < count / 2, "there are as many as cells were alive at once"
        assert rss_bytes() - memory < GROWTH_BYTES


def test_a_closed_sandbox_can_be_made_again_and_again() -> None:
    def once() -> None:
        with open_sandbox("sealed") as sandbox:
            assert sandbox.execute("print(1)", timeout=HANG_S).stdout == "1\n"

    for _ in range(5):
        once()
    before = settled()
    for _ in range(30):
        once()
    check_no_more_than(before)
