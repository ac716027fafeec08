"""What the engine says about a container, what is seen inside it, and what the receipt says, agree."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_api import ask, containers_of

from fumehood import BadArgument, IsolationUnavailable, get_sandbox, open_session
from fumehood.backends.base import SandboxSpec
from fumehood.backends.docker import DockerBackend, body, receipt
from fumehood.config import Settings
from fumehood.errors import PackageError
from fumehood.guest.rlimits import no_core
from fumehood.tools import Toolbox
from fumehood.types import Command, Exited
from support import HANG_S, wait_until

LOOK = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
def number(*names):
    for name in names:
        try:
            return int(open("/sys/fs/cgroup/" + name).read())
        except (OSError, ValueError):
            pass
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return None
def content(path):
    try:
        return open(path, "rb").read(1)
    except OSError:
        return b""
print(json.dumps({
    "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": int(status["NoNewPrivs"]),
    "filters": int(status.get("Seccomp_filters", 2)),
    "ids": [os.getuid(), os.getgid(), os.getgroups()],
    "root": refused("/probe"),
    "interfaces": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else ["lo"],
    "memory": number("memory.max", "memory/memory.limit_in_bytes"),
    "processes": number("pids.max", "pids/pids.max"),
    "limits": [resource.getrlimit(each)[1] for each in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)],
    "disk": {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ("/workspace", "/tmp")},
    "inodes": os.statvfs("/workspace").f_files,
    "shown": [path for path in {MASKED} if (os.listdir(path) if os.path.isdir(path) else content(path))],
}))
"""


def test_inspect_and_the_inside_agree(docker: str) -> None:
    assert wait_until(lambda: not containers_of(docker, os.getpid()))
    with open_session(type="docker", processes=60, inodes=500, warm_cells=0) as session:
        inside = json.loads(session.run(LOOK.replace("{MASKED}", repr(body.MASKED))).stdout)
        (container,) = containers_of(docker, os.getpid())
        shown = ask(docker, "GET", f"/containers/{container['Id']}/json")
    host = shown["HostConfig"]
    assert (host["CapDrop"], inside["capabilities"]) == (["ALL"], [0] * 5)
    assert (host["SecurityOpt"], inside["no_new_privs"]) == (["no-new-privileges"], 1)
    assert inside["filters"] == 2  # the engine's and ours
    assert (shown["Config"]["User"], inside["ids"]) == ("1000:1000", [1000, 1000, [1000]])
    assert (host["ReadonlyRootfs"], inside["root"]) == (True, "Read-only file system")
    assert (host["MaskedPaths"], inside["shown"]) == (list(body.MASKED), [])
    assert (host["NetworkMode"], inside["interfaces"]) == ("none", ["lo"])
    assert host["Memory"] == host["MemorySwap"] == inside["memory"] == 256 * 2**20
    assert host["PidsLimit"] == inside["processes"] == 61
    assert inside["limits"] == [no_core(), 1024]
    assert inside["disk"] == {"/workspace": 128 * 2**20, "/tmp": 128 * 2**20}
    assert inside["inodes"] == 500
    assert (host["NanoCpus"], host["IpcMode"], host["CgroupnsMode"]) == (500_000_000, "none", "private")
    assert (host["Privileged"], host["AutoRemove"], host["LogConfig"]["Type"]) == (False, False, "none")


@pytest.mark.usefixtures("docker")
def test_the_receipt_is_sealed_by_a_hardened_container() -> None:
    with get_sandbox(type="docker", require="sealed") as sandbox:
        checked = sandbox.check()
    assert checked.level == "sealed"
    assert {axis.level for axis in checked.axes.values()} == {"sealed"}
    assert all(axis.mechanism.startswith("hardened container (runc)") for axis in checked.axes.values())
    assert checked.axes["files"].mechanism.endswith("masked /sys/kernel and /sys/module")


@pytest.mark.usefixtures("docker")
def test_a_network_that_was_asked_for_is_the_engines() -> None:
    with get_sandbox(type="docker", docker_network_enabled=True, warm_cells=0) as sandbox:
        result = sandbox.execute("import os; print(sorted(os.listdir('/sys/class/net')))")
    assert "eth0" in result.stdout
    assert result.meta["isolation"]["network"]["level"] == "none"
    assert result.meta["isolation"]["level"] == "sealed"


def test_gvisor_is_named_in_the_receipt(docker: str) -> None:
    if "runsc" not in ask(docker, "GET", "/info")["Runtimes"]:
        pytest.skip("the tests' Docker engine has no runsc")
    with get_sandbox(type="docker", docker_runtime="runsc", warm_cells=0) as sandbox:
        result = sandbox.execute("print(open('/proc/version').read())")
    assert "Linux version 4.4.0" in result.stdout  # gVisor's own
    assert "hardened container (runsc)" in result.meta["isolation"]["syscalls"]["mechanism"]
    assert result.meta["isolation"]["disk"]["step"] == "tmpfs_inodes"


# ---- a receipt from facts that do not agree


@pytest.fixture
def facts() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    settings = Settings(type="docker")
    limits = settings.limits()
    request = body.create_body(settings, SandboxSpec(limits), limits, 2)
    inside = {
        "uid": 1000,
        "gid": 1000,
        "no_new_privs": 1,
        "seccomp": 2,
        "capabilities": {"effective": 0, "bounding": 0, "ambient": 0},
        "cgroup": {
            "version": 2,
            "memory_bytes": limits.memory_bytes,
            "memory_and_swap_bytes": limits.memory_bytes,
            "processes": limits.processes + 1,
            "cpus": 0.5,
        },
        "mounts": {
            "/": ["overlay", "ro,relatime"],
            **{
                path: ["tmpfs", "rw,size=1k,nr_inodes=5"]
                for path in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm")
            },
        },
        "interfaces": ["lo"],
    }
    return request, {"HostConfig": json.loads(json.dumps(request["HostConfig"])), "Mounts": []}, inside


def test_facts_that_agree_are_sealed(facts: Any) -> None:
    written = receipt.write(*facts)
    assert written.level == "sealed"
    assert "masked" not in written.axes["files"].mechanism  # no such mounts were seen


@pytest.mark.parametrize(
    ("part", "name", "value", "axis", "level"),
    [
        ("inside", "uid", 0, "privileges", "process"),
        ("inside", "capabilities", {"effective": 1}, "privileges", "process"),
        ("inside", "no_new_privs", 0, "privileges", "confined"),
        ("inside", "seccomp", 0, "syscalls", "confined"),
        ("inside", "interfaces", ["lo", "eth0"], "network", "process"),
        ("inside", "mounts", {"/": ["overlay", "rw"]}, "files", "process"),
        ("inside", "cgroup", {"version": 2}, "processes", "confined"),
        ("host", "Privileged", True, "privileges", "process"),
        ("host", "ReadonlyRootfs", False, "files", "process"),
        ("host", "NetworkMode", "bridge", "network", "process"),
        ("host", "PidMode", "host", "processes", "process"),
        ("host", "IpcMode", "host", "ipc", "process"),
        ("host", "SecurityOpt", ["seccomp=unconfined"], "syscalls", "confined"),
        ("host", "Binds", ["/:/host"], "files", "process"),
    ],
)
def test_what_does_not_agree_is_weaker_and_refused(
    facts: Any, part: str, name: str, value: object, axis: str, level: str
) -> None:
    request, inspect, inside = facts
    (inside if part == "inside" else inspect["HostConfig"])[name] = value
    written = receipt.write(request, inspect, inside)
    assert written.level == level
    assert written.axes[axis].level != "sealed"
    assert written.axes[axis].step
    assert written.axes[axis].fix
    with pytest.raises(IsolationUnavailable, match="SANDBOX_REQUIRE") as caught:
        receipt.hold_to("sealed", written)
    assert caught.value.step
    assert caught.value.fix


@pytest.mark.parametrize(
    ("group", "axis", "step"),
    [
        ({"memory_bytes": None}, "memory", "memory_limit"),
        ({"memory_and_swap_bytes": None}, "memory", "swap_limit"),
        ({"cpus": None}, "cpu", "cpu_limit"),
    ],
)
def test_a_limit_that_is_not_seen_inside_is_named(facts: Any, group: dict[str, Any], axis: str, step: str) -> None:
    request, inspect, inside = facts
    inside["cgroup"].update(group)
    assert receipt.write(request, inspect, inside).axes[axis].step == step


# ---- what is lent


@pytest.mark.usefixtures("docker")
def test_packages_are_shown_and_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "lent.py").write_text("x = 42")
    os.chmod(tmp_path / "layer", 0o755)
    os.chmod(tmp_path / "layer" / "lent.py", 0o644)

    async def scenario() -> list[tuple[int, bytes]]:
        backend = DockerBackend(Settings(type="docker", docker_host=os.environ["DOCKER_HOST"], warm_cells=0))
        sandbox = await backend.create(SandboxSpec(keeps=True, packages=str(tmp_path / "layer")))
        seen = []
        for code in ("import lent; print(lent.x)", "import lent; open(lent.__file__, 'w')"):
            process = await sandbox.start(Command(("python", "main.py"), code.encode()))
            output = b""
            while not isinstance(event := await process.read(HANG_S), Exited):
                assert event is not None
                output += event.data
            seen.append((event.exit_code, output))
            await process.close()
        await sandbox.close()
        await backend.close()
        return seen

    if sys.version_info[:2] != (3, 11):
        with pytest.raises(PackageError, match=r"3\.11"):
            asyncio.run(scenario())
        return
    (found, refused) = asyncio.run(scenario())
    assert found == (0, b"42\n")
    assert refused[0] == 1
    assert b"Read-only file system" in refused[1]


def test_packages_for_an_engine_elsewhere_are_refused() -> None:
    backend = DockerBackend(Settings(type="docker", docker_host="tcp://127.0.0.1:1"))
    with pytest.raises(PackageError, match="on this machine"):
        asyncio.run(backend.create(SandboxSpec(keeps=True, packages="/x")))


@pytest.mark.usefixtures("docker")
def test_a_model_is_told_that_datasets_are_copies_here(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    with Toolbox({"x": str(tmp_path / "x.csv")}, type="docker", output_dir=str(tmp_path / "output")) as box:
        box.session.check()
        described = box.specs("mcp")[0]["description"]
        box.session.run("import os\nos.chmod('/tmp/data/x.csv', 0o644)\nopen('/tmp/data/x.csv', 'w').write('b')")
        assert box.session.run("open('/tmp/data/x.csv').read()").meta["results"] == [{"text/plain": "'b'"}]
    assert "Datasets: /tmp/data/x.csv." in described
    assert (tmp_path / "x.csv").read_text() == "a\n1\n"


@pytest.mark.usefixtures("docker")
def test_a_dataset_that_does_not_fit_names_the_setting(tmp_path: Path) -> None:
    with open(tmp_path / "large.csv", "wb") as file:
        file.truncate(200 << 20)
    with open_session(type="docker", datasets={"large": tmp_path / "large.csv"}) as session:
        with pytest.raises(BadArgument, match="DOCKER_MEMORY_LIMIT"):
            session.run("1")


@pytest.mark.usefixtures("docker")
def test_the_copy_of_a_large_dataset_is_told(tmp_path: Path) -> None:
    (tmp_path / "large.csv").write_bytes(b"x" * (60 << 20))
    told: list[str] = []

    class Handler:
        def send_progress(self, text: str) -> None:
            told.append(text)

    datasets = {"large": tmp_path / "large.csv"}
    with open_session(type="docker", datasets=datasets, io_handler=Handler(), warm_cells=0) as session:
        path = session.datasets["large"]
        assert session.exec(["stat", "-c", "%s %a", path]).stdout == f"{60 << 20} 444\n"
    assert any("60 of 60 MB" in text for text in told)
