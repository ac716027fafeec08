"""The fixtures of tests that need a Docker engine."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support import HANG_S, is_stopped, wait_until

_SERVICES = Path(__file__).parents[1] / "scripts" / "services"
IMAGE = "antigravity-sandbox:latest"


@pytest.fixture(scope="session")
def docker_host() -> str:
    """The address of the tests' own engine, with the runner image in it.

    It is started on purpose, not by a test: `scripts/services image`; `scripts/services stop` ends it.
    """
    address = _address()
    status = _get(address, f"/images/{IMAGE}/json")
    if status is None:
        pytest.skip("no Docker engine of the tests' own runs here: sudo scripts/services image")
    if status == 403:
        pytest.skip("only root may use the tests' Docker engine")
    if status != 200:
        pytest.skip("the tests' Docker engine has no runner image: sudo scripts/services image")
    return address


@pytest.fixture
def docker(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, and in the environment, where a user would say it."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    return docker_host


@pytest.fixture
def daemon(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A second engine, which may be ended and hindered: of all runs of the tests here, one test at a time has it."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root may start a Docker engine, and only where one is installed")
    home = Path(docker_host.removeprefix("unix://")).parent.parent / "cache" / "second"
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end_leftovers(home)
        daemon = Daemon(home)
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
        try:
            daemon.start()
            daemon.copy_image(docker_host)
            yield daemon
        finally:
            daemon.clear()


class Daemon:
    """What it has stays where it is for the next test: only the image takes long."""

    def __init__(self, home: Path) -> None:
        self.address = f"unix://{home}/docker.sock"
        self.data = home / "data"
        self._home = home
        self._group = f"{home.parents[1].name}-second"  # as the services name theirs, so that two of them differ
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd = self._start_containerd()

    def start(self, *options: str) -> None:
        settings = {"deprecated-key-path": str(self._home / "key.json")} if _is_old() else {}
        (self._home / "daemon.json").write_text(json.dumps(settings), encoding="utf-8")
        (self._home / "docker.pid").unlink(missing_ok=True)
        command = [
            *("dockerd", "--config-file", f"{self._home}/daemon.json", "--host", self.address, "--group", "root"),
            *("--data-root", str(self.data), "--exec-root", f"{self._home}/exec"),
            *("--containerd", f"{self._home}/containerd.sock"),
            *("--pidfile", f"{self._home}/docker.pid", "--bridge", "none", "--iptables=false", "--ip-forward=false"),
            *(
                "--exec-opt",
                "native.cgroupdriver=cgroupfs",
                "--cgroup-parent",
                f"/{self._group}",
                "--shutdown-timeout",
                "5",
            ),
        ]
        self._process = self._run("docker", *command, *options)
        answers = wait_until(lambda: _get(self.address, "/_ping") == 200 or self._process.poll() is not None)
        if not answers or self._process.poll() is not None:
            raise AssertionError(self._log("docker"))

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            assert wait_until(lambda: is_stopped(self._process.pid))

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(HANG_S)

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(HANG_S)

    def copy_image(self, address: str) -> None:
        ours, theirs = (_docker(host, "images", "-q", "--no-trunc", IMAGE) for host in (self.address, address))
        if ours != theirs:
            with subprocess.Popen(["docker", "save", IMAGE], env=client_of(address), stdout=subprocess.PIPE) as saving:
                subprocess.run(
                    ["docker", "load"], env=client_of(self.address), stdin=saving.stdout, check=True, timeout=3 * HANG_S
                )
            _docker(self.address, "image", "prune", "-f")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """No room for another container. To be entered while it is stopped."""
        place = self.data / "containers"
        subprocess.run(["mount", "--bind", self.data, self.data], check=True)  # else the engine does, over ours
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=True)
        try:
            with suppress(OSError):
                (place / "filler").write_bytes(bytes(1 << 20))
            yield
        finally:
            self.stop()
            subprocess.run(["umount", place, self.data], check=True)

    def clear(self) -> None:
        """Whatever state it is in."""
        try:
            if self._process is not None and self._process.poll() is None:
                self.signal(signal.SIGCONT)
            else:
                self.start()
            wait_until(self._has_no_containers)
        finally:
            for process in (self._process, self._containerd):
                if process is not None:
                    _end(process)
            clear_up(self._home, self._group)

    def _has_no_containers(self) -> bool:
        containers = _docker(self.address, "ps", "-aq").split()
        if containers:
            with suppress(subprocess.CalledProcessError):  # others may be removing them just now
                _docker(self.address, "rm", "-f", "-v", *containers)
        return not containers

    def _start_containerd(self) -> subprocess.Popen[bytes]:
        """Of its own, as on most machines: containers outlive an engine that is killed."""
        (self._home / "containerd.toml").write_text(
            f'version = 2\nroot = "{self._home}/containerd/root"\nstate = "{self._home}/containerd/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._home}/containerd.sock"\n'
        )
        (self._home / "containerd.sock").unlink(missing_ok=True)
        process = self._run("containerd", "containerd", "--config", f"{self._home}/containerd.toml")
        # The engine gives it little time.
        if not wait_until((self._home / "containerd.sock").exists):
            _end(process)
            raise AssertionError(self._log("containerd"))
        return process

    def _log(self, name: str) -> str:
        return (self._home / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """With the usual umask: no container could read the control groups that are made with one of 077."""
        with open(self._home / f"{name}.log", "wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return subprocess.Popen(command, **streams, start_new_session=True, umask=0o022)


def end_leftovers(home: Path) -> None:
    """Of a run of the tests that was killed: by the path in their command lines, which nobody else has."""
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            program, *arguments = found.read_bytes().decode("utf-8", "replace").split("\0")
            is_engine = os.path.basename(program).startswith(("dockerd", "containerd", "podman", "conmon"))
            if is_engine and any(f"{home}/" in argument for argument in arguments):
                os.kill(int(found.parent.name), signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(HANG_S)


def clear_up(home: Path, group: str) -> None:
    """The mounts beneath, and the control groups of that name, if nobody is in them."""
    for mount in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        if (place := mount.split()[4]).startswith(f"{home}/"):
            subprocess.run(["umount", "-l", place], check=True)
    for pattern in (f"*/{group}/*/", f"*/{group}"):
        for found in Path("/sys/fs/cgroup").glob(pattern):
            with suppress(OSError):
                found.rmdir()


def _is_old() -> bool:
    """Engines before 23 keep a key in /etc/docker otherwise."""
    return " 20." in _said_by("dockerd", "--version")


def client_of(address: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "DOCKER_HOST": address, "DOCKER_CONFIG": "/nonexistent"}


def _docker(address: str, *arguments: str) -> str:
    return _said_by("docker", *arguments, env=client_of(address))


def _address() -> str:
    return _said_by(str(_SERVICES), "env").removeprefix("export DOCKER_HOST=")


def _said_by(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, check=True, capture_output=True, encoding="utf-8", timeout=HANG_S)
    return done.stdout.strip()


def _get(address: str, path: str) -> int | None:
    """The status of an answer; 403 where the socket may not be opened, None where nobody answers."""
    connection = http.client.HTTPConnection("docker")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(HANG_S)
        try:
            connection.sock.connect(address.removeprefix("unix://"))
            connection.request("GET", path)
            return connection.getresponse().status
        except PermissionError:
            return 403
        except (OSError, http.client.HTTPException):
            return None
