"""Many sessions at once find nothing of one another, and leave nothing when they end.

This file, run as a program, is the host of these sessions: it needs more descriptors than a test should take, and what
it leaves is looked for from outside too. It reports on stdout.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import HANG_S, wait_until

ALL_S = 3 * HANG_S  # for all sessions of a test together
WORKERS = 4
SPARE_GROUPS = 24  # control groups that are kept for the next sandboxes, and those that end late
PLACES = ["/dev/shm", "/tmp", "/workspace", "argv", "environ", "home", "socket", "variable"]

PLANT = """
import os, socket, subprocess
canary = "canary-{nonce}-{number}"
globals()[canary.replace("-", "_")] = canary
for place in ("/workspace", "/tmp", "/dev/shm", os.environ["HOME"]):
    os.makedirs(place + "/deep", exist_ok=True)
    for name in (canary, "deep/" + canary, "same-name"):
        open(place + "/" + name, "w").write(canary)
os.environ["CANARY"] = canary
child = subprocess.Popen([canary, "3600"], executable="/bin/sleep", start_new_session=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + canary)
listener.listen()
print("planted", canary)
"""

LOOK = """
import glob, os, re, socket
pattern = re.compile("canary[-_]" + "{nonce}" + r"[-_](\\d+)")
found = {}
def note(place, text):
    found.setdefault(place, set()).update(pattern.findall(text))
def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read(100_000)
    except OSError:
        return ""
def is_read_only(directory):
    return os.statvfs(directory).f_flag & os.ST_RDONLY
tops = dict.fromkeys(("/workspace", "/tmp", "/dev/shm"))
walked = 0
for folder, directories, names in os.walk("/"):
    for name in list(directories):
        path = os.path.join(folder, name)
        # Nobody can have planted anything where nobody can write; but /dev/shm lies in such a place.
        if path in ("/proc", "/sys") or os.path.islink(path) or (path != "/dev" and is_read_only(path)):
            directories.remove(name)
    for name in names:
        path = os.path.join(folder, name)
        walked += 1
        place = next((top for top in tops if path.startswith(top + "/")), "home")
        note(place, name + " " + (read(path) if os.path.isfile(path) else ""))
for process in glob.glob("/proc/[0-9]*"):
    note("argv", read(process + "/cmdline"))
    note("environ", read(process + "/environ"))
note("environ", " ".join(os.environ.values()))
note("variable", " ".join(dir()))
note("socket", read("/proc/net/unix"))
for number in range({count}):
    caller = socket.socket(socket.AF_UNIX)
    try:
        caller.connect("\\0canary-" + "{nonce}" + "-%d" % number)
        note("socket", "canary-" + "{nonce}" + "-%d" % number)
    except OSError:
        pass
    caller.close()
import json
print(json.dumps([walked, {place: sorted(numbers) for place, numbers in found.items()}]))
"""


# ---- as a program


def filled(text: str, **values: Any) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def opened(**settings: Any) -> Any:
    from fumehood import open_session

    return open_session("local", "sealed", isolation="sealed", store_code="never", warm_cells=0, **settings)


def residue() -> dict[str, int]:
    """What this process has, by kind."""
    gc.collect()
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    return {
        "processes": len(descendants()),
        "mounts": sum(tempfile.gettempdir() in line for line in mounts),  # others on this machine mount things too
        "temporary": len(os.listdir(tempfile.gettempdir())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "cgroups": len(cgroups_of(os.getpid())),
    }


def is_cleared(processes: int) -> bool:
    """Of closed sessions: a thread clears away what they have left."""
    from fumehood.engine import volume

    return not volume._left and residue()["processes"] <= processes


def descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path("/proc", pid, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(pid))
    found, edge = [], [os.getpid()]
    while edge:
        edge = [child for pid in edge for child in children.get(pid, ())]
        found += edge
    return found


def cgroups_of(pid: int) -> list[str]:
    of_pid = re.compile(rf"fumehood-{pid}(?!\d)")
    paths = (os.path.join(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return [path for path in paths if of_pid.search(path)]


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def side_by_side(nonce: str, count: int) -> dict[str, Any]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if most != resource.RLIM_INFINITY else 65536, most))
    with opened() as first:
        first.check()
    before = residue()
    sessions = [opened(session_id=f"many-{number}") for number in range(count)]
    with ThreadPoolExecutor(WORKERS) as pool:

        def all_run(text: str) -> list[Any]:
            codes = (filled(text, nonce=nonce, number=number, count=count) for number in range(count))
            return list(pool.map(lambda pair: pair[0].run(pair[1], HANG_S), zip(sessions, codes, strict=True)))

        planted = all_run(PLANT)
        during = residue()
        looked = all_run(LOOK)
        list(pool.map(lambda session: session.close(), sessions))
    sessions.clear()
    wait_until(lambda: is_cleared(before["processes"]))
    return {
        "planted": [result.stdout for result in planted],
        "trouble": [result.stderr for result in (*planted, *looked) if result.stderr or result.exit_code][:3],
        "found": [json.loads(result.stdout or "null") for result in looked],
        "before": before,
        "during": during,
        "after": residue(),
    }


def one_after_another(_: str, count: int) -> dict[str, Any]:
    def once(number: int) -> None:
        with opened() as session:
            assert session.run(f"x = bytearray({number})\nopen('a', 'w').write('1');", HANG_S).exit_code == 0
            assert session.exec(["cat", "a"], HANG_S).stdout == "1"

    def memory() -> list[int]:
        gc.collect()
        return [resident_bytes(os.getpid()), sum(map(resident_bytes, descendants()))]

    for number in range(max(10, count // 8)):
        once(number)
    wait_until(lambda: is_cleared(1))
    before, memory_before = residue(), memory()
    for number in range(count):
        once(number)
    wait_until(lambda: is_cleared(before["processes"]))
    return {"before": before, "after": residue(), "memory_before": memory_before, "memory_after": memory()}


def main() -> None:
    from fumehood import IsolationUnavailable

    work: Callable[[str, int], dict[str, Any]] = globals()[sys.argv[1]]
    try:
        report = work(sys.argv[2], int(sys.argv[3]))
    except IsolationUnavailable as missing:
        report = {"missing": str(missing)}
    print(json.dumps(report))


# ---- as a test


def hosted(work: Callable[[str, int], dict[str, Any]], tmp_path: Path, nonce: str, count: int) -> dict[str, Any]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    host = subprocess.Popen(
        [sys.executable, __file__, work.__name__, nonce, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=tmp_path,
    )
    try:
        stdout, stderr = host.communicate(timeout=ALL_S)
    finally:
        host.kill()
    assert host.returncode == 0, stderr[-3000:]
    assert stderr == ""
    report: dict[str, Any] = json.loads(stdout)
    if "missing" in report:
        pytest.skip(f"no sealed sandbox on this machine: {report['missing']}")
    assert os.listdir(temporary) == []
    assert wait_until(lambda: cgroups_of(host.pid) == [])
    print(json.dumps({key: report[key] for key in report if key not in ("planted", "found")}))
    return report


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_sessions_at_once_find_nothing_of_one_another_and_leave_nothing(tmp_path: Path, count: int) -> None:
    nonce = os.urandom(6).hex()
    report = hosted(side_by_side, tmp_path, nonce, count)
    assert report["trouble"] == []
    assert report["planted"] == [f"planted canary-{nonce}-{number}\n" for number in range(count)]
    for number, (walked, found) in enumerate(report["found"]):
        assert walked >= 12
        assert found == {place: [str(number)] for place in PLACES}, number  # its own everywhere, nobody else's anywhere
    assert report["during"]["processes"] >= 3 * count
    before, after = report["before"], report["after"]
    for kind in ("processes", "temporary", "mounts"):
        assert after[kind] == before[kind], kind
    assert after["cgroups"] <= before["cgroups"] + SPARE_GROUPS * 4  # one for each of four controllers
    assert after["descriptors"] <= before["descriptors"] + SPARE_GROUPS * 4 + 8
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert nonce not in Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
        except OSError:
            continue


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.soak)])
def test_sessions_in_turn_leave_memory_and_descriptors_flat(tmp_path: Path, count: int) -> None:
    report = hosted(one_after_another, tmp_path, "", count)
    before, after = report["before"], report["after"]
    more_groups = after["cgroups"] - before["cgroups"]  # on a busy machine more cells are on their way out at once
    assert more_groups <= SPARE_GROUPS * 4
    assert after["descriptors"] <= before["descriptors"] + max(0, more_groups) + 4  # each is held by one
    for kind in ("processes", "temporary", "mounts"):
        assert after[kind] == before[kind], kind
    for late, early in zip(report["memory_after"], report["memory_before"], strict=True):
        assert late - early < 8 << 20


if __name__ == "__main__":
    main()
