"""Every probe of the corpus, in the sandbox and in its control arm."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
from fumehood.sync_session import SyncStream
from fumehood.types import Output
from harness.attacks import THREE_PIPES, Known
from support import HANG_S

from . import arms
from .probes import PRELUDE, PROBES

RUNNABLE = {probe["id"]: probe for probe in PROBES if probe["run"] and probe["group"] != "AST"}

# What holds the probes of a group: a line of the receipt, or words.
HELD_BY = {
    **dict.fromkeys(("FS-R", "FS-W"), "files"),
    **dict.fromkeys(("PROC", "SIG"), "processes"),
    "NET": "network",
    "IPC": "ipc",
    "KERN": "syscalls",
    "PRIV": "privileges",
    "ENV": "an environment of our own: nothing of the host's is handed down",
    "FD": THREE_PIPES,
}
HELD_OTHERWISE = {
    **dict.fromkeys(("prc08", "prc11", "prv08", "sig10"), "files"),
    **dict.fromkeys(("fsr06", "prc05", "prc06"), "privileges"),
    **dict.fromkeys(("fsr08", "fsr10", "fsw03", "net08", "net10", "net11", "net15", "net16"), "syscalls"),
    **dict.fromkeys(("ipc03", "sig05", "sig08"), "syscalls"),
    **dict.fromkeys(("prc03", "sig06"), "PID 1 is not dumpable"),
    **dict.fromkeys(("net18", "krn26", "krn28"), "nothing: it sets no verdict"),
    "prc10": "own uts namespace, and a root without /etc/machine-id",
    "env03": "processes",
}
CORPUS = {
    name: Known(probe["title"], HELD_OTHERWISE.get(name) or HELD_BY[probe["group"]]) for name, probe in RUNNABLE.items()
}

# Probes whose control arm cannot win anywhere, and why. One that does win is a mistake in this table.
CANNOT_WIN = {
    "net18": "sets no verdict itself; test_a_listener_inside_is_not_reachable_from_the_host is the real one",
    "sig03": "the kernel protects every PID 1; the probe asks that the host does not hang",
    "sig10": "TIOCLINUX needs a virtual console as controlling terminal; an arm has a pty",
    "krn20": "the x32 ABI is off in every common kernel",
    "krn21": "sets no verdict; the call is tried",
    "krn25": "the kernel refuses the address 0 before it looks at the privilege",
    "krn26": "sets no verdict; running a program through the loader is no boundary",
    "krn28": "sets no verdict; a sanity check that must not break",
}

# What only real root can do. An ordinary user's arm has a mapped root.
NEEDS_REAL_ROOT = {
    "fsr08": "open_by_handle_at asks for CAP_DAC_READ_SEARCH in the first user namespace",
    "fsr10": "mknod of a device asks for CAP_MKNOD in the first user namespace",
    "fsw06": "protected_hardlinks: only files one owns",
    "prc05": "kcore and kmsg belong to real root",
    "prc06": "sysctls belong to real root",
    "krn15": "modules need CAP_SYS_MODULE in the first user namespace",
}

# What a kernel or a machine may lack: the arm is skipped if it says one of these.
MAY_LACK = {
    "fsr08": ({"EOPNOTSUPP", "ESTALE", "ENOENT"}, "the file system under / has no file handles of this type"),
    "fsr10": ({"ENXIO", "ENODEV", "EPERM"}, "no block device 254:0, or no CAP_MKNOD even for root"),
    "fsw05": (set(), "the interpreter's packages belong to somebody else"),
    "fsw06": ({"EXDEV"}, "/usr and the home directory lie on different file systems"),
    "net08": ({"EAFNOSUPPORT"}, "no AF_PACKET in this kernel"),
    "net10": ({"EAFNOSUPPORT"}, "no AF_ALG in this kernel"),
    "net11": ({"EAFNOSUPPORT", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT"}, "none of these families in this kernel"),
    "net15": ({"EAFNOSUPPORT"}, "no AF_VSOCK in this kernel"),
    "net16": ({"ENOSYS", "EPERM"}, "io_uring is off in this kernel"),
    "ipc03": ({"ENOSYS"}, "no keyrings in this kernel"),
    "krn10": ({"ENOSYS", "EACCES", "EPERM"}, "perf events are off or only for root"),
    "krn11": ({"ENOSYS", "EPERM"}, "io_uring is off in this kernel"),
    "krn13": ({"ENOSYS"}, "no keyrings in this kernel"),
    "krn15": ({"ENOSYS"}, "no modules in this kernel"),
    "krn16": ({"EAFNOSUPPORT", "ESOCKTNOSUPPORT", "ENODEV"}, "none of these families or file systems in this kernel"),
    "krn18": ({"ENOSYS", "EPERM", "EINVAL"}, "no port access for this user or on this architecture"),
    "krn23": ({"ENOSYS"}, "no NUMA in this kernel"),
    "prv08": (set(), "this machine has none of these devices"),
}

STAGES = {"fsw03": {"READ_ONLY_USR": "yes"}, "fsw05": {"OPEN_TMP": "yes"}}


@dataclass
class Canaries:
    values: dict[str, Any]
    host_directory: Path
    workspace: Path

    def clear(self) -> None:
        for directory in (self.host_directory, self.workspace):
            for path in list(directory.iterdir()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    with planted(Path.home() if os.access(Path.home(), os.W_OK) else Path("/var/tmp")) as canaries:
        yield canaries


@contextmanager
def planted(place: Path) -> Iterator[Canaries]:
    """Things on the host that nobody inside may see, and an environment and descriptors that nobody may inherit."""
    canary = "canary" + secrets.token_hex(12)
    base = Path(tempfile.mkdtemp(prefix=".escape-", dir=place))
    secret = base / "secret.txt"
    secret.write_text(canary, encoding="utf-8")
    host_directory, workspace = base / "hostdir", base / f"ws-{canary}"
    host_directory.mkdir()
    workspace.mkdir()
    for path, mode in ((base, 0o755), (secret, 0o644), (host_directory, 0o777), (workspace, 0o755)):
        path.chmod(mode)
    tcp, tcp_port = arms.serve_tcp(canary.encode())
    udp, udp_port = arms.serve_udp(canary.encode())
    abstract = arms.serve_abstract(f"host-{canary}", canary.encode())
    shm_key = secrets.randbelow(1 << 30) + 1
    segment = arms.share_memory(shm_key, canary.encode())
    key = arms.remember_key(canary)
    process = arms.show_canary(canary)
    descriptor = os.open(secret, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    os.environ["ESCAPE_TEST_API_KEY"] = canary
    values = {
        "SECRET": secret,
        "CANARY": canary,
        "CANARYHEX": canary.encode().hex(),
        "HOSTDIR": host_directory,
        "WS": workspace,
        "WSNAME": workspace.name,
        "OUT": workspace,
        "BINDWS": True,
        "RUNNERFILE": Path(__file__),
        "HOSTNAME": socket.gethostname(),
        "HOSTUSER": host_user(),
        "TCPPORT": tcp_port,
        "UDPPORT": udp_port,
        "ABSTRACT": f"host-{canary}",
        "SHMKEY": shm_key,
        "HOSTPID": process.pid,
    }
    yield Canaries({name: str(value) for name, value in values.items()}, host_directory, workspace)
    del os.environ["ESCAPE_TEST_API_KEY"]
    os.close(descriptor)
    process.kill()
    process.wait()
    arms.forget_key(key)
    arms.unshare_memory(segment)
    for server in (tcp, udp, abstract):
        server.shutdown(socket.SHUT_RDWR) if server is not udp else None
        server.close()
    shutil.rmtree(base)


def host_user() -> str:
    """A name that only the host's /etc/passwd has."""
    names = [line.split(":")[0] for line in Path("/etc/passwd").read_text(encoding="utf-8").splitlines() if ":" in line]
    return next(name for name in reversed(names) if name not in ("root", "nobody", "user", "sandbox"))


@pytest.fixture(scope="module")
def sandbox(canaries: Canaries) -> Iterator[Any]:
    del canaries  # they must exist before anything is started that could inherit them
    try:
        with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
            yield sandbox
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def inside(canaries: Canaries) -> dict[str, Any]:
    """The same placeholders where a program inside would look."""
    bound = "any(l.split()[4] == '/workspace' and ' - tmpfs ' not in l for l in open('/proc/self/mountinfo'))"
    return canaries.values | {"WS": "/workspace", "OUT": "/tmp/output", "BINDWS": bound}


@pytest.mark.attack(corpus=CORPUS)
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_sandbox_holds(name: str, sandbox: Any, canaries: Canaries) -> None:
    attack = arms.fill(PRELUDE + RUNNABLE[name]["code"], inside(canaries))
    assert_held(name, *arms.in_the_sandbox(sandbox, attack), canaries)


def assert_held(name: str, outcome: arms.Outcome, result: Any, canaries: Canaries) -> None:
    assert result.meta["isolation"]["level"] == "sealed"
    assert outcome.ran, f"the probe never ran: {result}"
    assert outcome.finished or name == "sig03", f"the probe did not report: {result}"
    assert not outcome.won, f"{RUNNABLE[name]['title']}: {outcome.shown}"
    assert outcome.was_refused or name == "sig03", f"broken: {outcome.error}"
    assert not list(canaries.host_directory.iterdir())
    assert not list(canaries.workspace.iterdir())


@pytest.mark.attack(corpus=CORPUS, wins=True)
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_probe_wins_without_the_sandbox(
    name: str, canaries: Canaries, record_property: Callable[[str, object], None]
) -> None:
    record_property("cannot_win", cannot_win(name))
    values = canaries.values | STAGES.get(name, {})
    try:
        outcome = arms.in_a_throwaway_namespace(PRELUDE + RUNNABLE[name]["code"], values, as_real_root=True)
        assert_won(name, outcome, canaries)
    finally:
        canaries.clear()


def cannot_win(name: str) -> str | None:
    return CANNOT_WIN.get(name) or (NEEDS_REAL_ROOT.get(name) if os.geteuid() != 0 else None)


def assert_won(name: str, outcome: arms.Outcome, canaries: Canaries) -> None:
    if cannot := cannot_win(name):
        assert not outcome.won, f"listed as one that cannot win ({cannot}), and it won: {outcome.shown}"
        return
    if not outcome.won and name in MAY_LACK:
        errors, reason = MAY_LACK[name]
        if not errors or outcome.errno_name in errors:
            pytest.skip(f"{reason} ({outcome.error or outcome.errno_name})")
    assert outcome.won, f"the probe proves nothing, it fails without the sandbox too: {outcome}"
    if name == "fsw01":
        assert [path.name for path in canaries.host_directory.iterdir()] == ["pwned"]


LISTENER = """
import socket, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', {PORT}))
listener.listen()
print('listens', flush=True)
time.sleep(3600)
"""


@contextmanager
def kept_port() -> Iterator[int]:
    """Nobody else gets it, nobody listens there, and who asks for exactly this one may share it."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def knock(port: int) -> int:
    with socket.socket() as client:
        client.settimeout(HANG_S)
        return client.connect_ex(("127.0.0.1", port))


@pytest.mark.attack("network", control="itself")
def test_a_listener_inside_is_not_reachable_from_the_host(sandbox: Any) -> None:
    with kept_port() as port:
        with SyncStream(sandbox.stream(arms.fill(LISTENER, {"PORT": port}), timeout=HANG_S)) as inside:
            said = next(inside)
            assert isinstance(said, Output), said
            assert said.data == b"listens\n", said
            assert {knock(port) for _ in range(20)} == {errno.ECONNREFUSED}
        # the control arm: the same knock does reach a listener that shares the network
        with socket.create_server(("127.0.0.1", port)):
            assert knock(port) == 0


def test_the_tables_name_only_probes_that_exist() -> None:
    assert {*CANNOT_WIN, *NEEDS_REAL_ROOT, *MAY_LACK, *HELD_OTHERWISE} <= set(RUNNABLE)
