"""A thousand executions leave nothing of themselves."""

from __future__ import annotations

import gc
import os
import re
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable

MORE_GROUPS = 16
WARM_UP = 20
GROWTH_BYTES = 20 << 20


@dataclass(frozen=True)
class Footprint:
    """What this process owns, as far as an execution could add to it."""

    descriptors: int
    mounts: int
    temporary: tuple[str, ...]
    cgroups: int
    threads: int
    children: int
    zombies: int


def footprint() -> Footprint:
    gc.collect()
    states = descendants()
    return Footprint(
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=mounts(),
        temporary=tuple(sorted(os.listdir(tempfile.gettempdir()))),
        cgroups=own_cgroups(),
        threads=threading.active_count(),
        children=len(states),
        zombies=states.count("Z"),
    )


def mounts() -> int:
    """Without those of containers, which come and go beside us."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sum(not re.search(r"/docker/|/containers/| /var/tmp/| - (overlay|nsfs) ", line) for line in lines)


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine may be at it too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def own_cgroups() -> int:
    """Groups whose name carries our process id, and what is in them."""
    mark = str(os.getpid())
    found = 0
    for folder, directories, _ in os.walk("/sys/fs/cgroup"):
        inside = mark in folder.split("fumehood", 1)[-1] and "fumehood" in folder
        found += len(directories) if inside else sum("fumehood" in name and mark in name for name in directories)
    return found


def descendants() -> list[str]:
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            parents[int(entry)] = (int(parent), state)
    states: list[str] = []
    edge = {os.getpid()}
    while edge:
        edge = {pid for pid, (parent, _) in parents.items() if parent in edge}
        states += [parents[pid][1] for pid in edge]
    return states


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_no_more_than(before: Footprint) -> None:
    """The last cell may still be on its way out. There are as many groups as cells were alive at once; one that ends
    late makes one more: a few are no leak, a thousand executions would show one.
    """
    deadline = time.monotonic() + 3
    while grown(footprint(), before) and time.monotonic() < deadline:
        time.sleep(0.05)
    after = footprint()
    assert grown(after, before) == {}
    assert after.cgroups - before.cgroups <= MORE_GROUPS * 2
    assert after.descriptors - before.descriptors <= MORE_GROUPS * 3


def grown(after: Footprint, before: Footprint) -> dict[str, Any]:
    """What there is more of. Less is no leak: pools of earlier tests shrink when they are idle."""
    now, then = asdict(without_groups(after)), asdict(without_groups(before))
    return {
        name: (then[name], now[name])
        for name in now
        if (set(now[name]) - set(then[name]) if name == "temporary" else now[name] > then[name])
    }


def without_groups(found: Footprint) -> Footprint:
    return replace(found, cgroups=0, descriptors=0)


def open_sandbox(isolation: str, warm_cells: int = 0) -> Any:
    try:
        return get_sandbox(isolation=isolation, require=isolation, store_code="never", warm_cells=warm_cells)
    except IsolationUnavailable as missing:
        pytest.skip(f"no {isolation} sandbox on this machine: {missing}")


def use(sandbox: Any, number: int) -> None:
    """A little of everything that costs something: output, files, a child left behind, a failure, now and then."""
    if number % 50 == 7:
        result = sandbox.execute("raise SystemExit(3)", timeout=20)
        assert result.exit_code == 3, result
    elif number % 50 == 17:
        code = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint('x' * 20000)"
        assert sandbox.execute(code, timeout=20).meta["truncated"]
    elif number % 100 == 27:
        assert sandbox.execute("import time; time.sleep(60)", timeout=0.05).meta["reason"] == "timeout"
    else:
        result = sandbox.execute("print(open('in').read())", files={"in": b"%d" % number}, timeout=20)
        assert result.stdout == f"{number}\n", result


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("isolation", "warm_cells", "count"),
    [
        ("sealed", 0, 1000),
        ("sealed", 2, 10000 if os.geteuid() == 0 else 2000),
        ("confined", 0, 100),
        ("process", 0, 100),
    ],
)
def test_executions_leave_nothing(isolation: str, warm_cells: int, count: int) -> None:
    with open_sandbox(isolation, warm_cells) as sandbox:
        try:
            sandbox.execute("pass", timeout=20)
        except IsolationUnavailable as missing:
            pytest.skip(f"no {isolation} sandbox on this machine: {missing}")
        for number in range(WARM_UP):
            use(sandbox, number)
        time.sleep(0.5)
        before, memory = footprint(), rss_bytes()
        for number in range(count):
            use(sandbox, number)
        check_no_more_than(before)
        assert rss_bytes() - memory < GROWTH_BYTES


def test_a_closed_sandbox_can_be_made_again_and_again() -> None:
    def once() -> None:
        with open_sandbox("sealed") as sandbox:
            assert sandbox.execute("print(1)", timeout=20).stdout == "1\n"

    for _ in range(5):
        once()
    time.sleep(0.5)
    before = footprint()
    for _ in range(30):
        once()
    check_no_more_than(before)
