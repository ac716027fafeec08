"""Each way in which Docker can be missing or break has a message of its own, in time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from engine_api import ask, containers_of

from fumehood import BackendUnavailable, ConfigurationError, FumehoodError, SandboxLost, get_sandbox, open_session
from fumehood.backends.docker import address
from fumehood.backends.docker.client import Refused, translated
from fumehood.config import Settings
from support import wait_until


def refusal(**settings: Any) -> str:
    with get_sandbox(type="docker", warm_cells=0, **settings) as sandbox, pytest.raises(FumehoodError) as caught:
        sandbox.execute("print(1)")
    return f"{type(caught.value).__name__}: {caught.value}"


def test_no_daemon(tmp_path: Path) -> None:
    said = refusal(docker_host=f"unix://{tmp_path}/none.sock")
    assert said.startswith("BackendUnavailable: Docker daemon not available")
    assert "Set SANDBOX_TYPE=local or start Docker daemon" in said


def test_a_socket_that_nobody_listens_on() -> None:
    path = f"/tmp/fumehood-test-{os.getpid()}-left.sock"  # the kernel takes only short ones
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
        try:
            assert "Docker daemon not available" in refusal(docker_host=f"unix://{path}")
        finally:
            os.unlink(path)


def test_no_permission() -> None:
    path = f"/tmp/fumehood-test-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(path)
        try:
            os.chmod(path, 0)
            closed.listen()
            said = _as_somebody_else(path) if os.geteuid() == 0 else refusal(docker_host=f"unix://{path}")
        finally:
            os.unlink(path)
    assert "BackendUnavailable" in said
    assert "no permission" in said
    assert "docker $USER" in said


def _as_somebody_else(path: str) -> str:
    """Root may do everything."""
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    if subprocess.run([*become, "-c", "import fumehood"], capture_output=True, cwd="/").returncode:
        pytest.skip("nobody else may run this interpreter or read this checkout")
    code = f"""
from fumehood import get_sandbox
try:
    get_sandbox(type="docker", docker_host="unix://{path}").execute("1")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [*become, "-c", code], capture_output=True, text=True, timeout=60, cwd="/", env={"PATH": os.defpath}
    )
    return done.stdout


@pytest.mark.usefixtures("docker")
def test_a_missing_image_names_the_command_that_builds_it() -> None:
    said = refusal(docker_image="no-such-image:latest")
    assert "BackendUnavailable" in said
    assert "`fumehood image build`" in said


@pytest.mark.usefixtures("docker")
def test_an_unknown_runtime_names_the_setting() -> None:
    assert "DOCKER_RUNTIME" in refusal(docker_runtime="no-such-runtime")


@pytest.mark.usefixtures("docker")
def test_too_little_memory_to_start_names_the_setting() -> None:
    assert "DOCKER_MEMORY_LIMIT" in refusal(docker_memory_limit="5m")


@pytest.mark.parametrize(
    ("said", "kind", "named"),
    [
        (
            "client version 1.99 is too new. Maximum supported API version is 1.41",
            "BackendUnavailable",
            "update Docker",
        ),
        ("write /var/lib/docker/x: no space left on device", "EngineFailed", "docker system prune"),
        ("something else", "EngineFailed", "something else"),
    ],
)
def test_what_the_engine_refuses_is_translated(said: str, kind: str, named: str) -> None:
    error = translated(Refused(500, said), "create a container")
    assert type(error).__name__ == kind
    assert named in str(error)


def test_an_engine_that_is_too_old_is_told() -> None:
    answer = b"HTTP/1.1 200 OK\r\nApi-Version: 1.24\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        said = refusal(docker_host=f"tcp://127.0.0.1:{server.getsockname()[1]}")
        thread.join(5)
    assert "too old" in said
    assert "1.24" in said


def test_an_engine_over_tcp(docker: str) -> None:
    forwarder = Forwarder(docker.removeprefix("unix://"))
    with get_sandbox(type="docker", docker_host=forwarder.address, warm_cells=0) as sandbox:
        assert sandbox.execute("print(6 * 7)").stdout == "42\n"
    forwarder.close()


class Forwarder:
    """From a port of the loopback to a socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _serve(self) -> None:
        with self._server, contextlib.ExitStack() as stack:
            while True:
                try:
                    near, _ = self._server.accept()
                except OSError:
                    return
                far = stack.enter_context(socket.socket(socket.AF_UNIX))
                stack.enter_context(near)
                far.connect(self._path)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


# ---- where the engine is


def test_the_engine_of_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"mine").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": "mine", "Endpoints": {"docker": {"Host": "unix:///run/mine.sock"}}}))
    assert address.find(Settings(docker_context="mine")).socket == "/run/mine.sock"
    (tmp_path / "config.json").write_text('{"currentContext": "mine"}')
    assert address.find(Settings()).socket == "/run/mine.sock"
    assert address.find(Settings(docker_host="tcp://10.0.0.1")).url == "http://10.0.0.1:2375"
    with pytest.raises(ConfigurationError, match="docker context ls"):
        address.find(Settings(docker_context="other"))


@pytest.mark.parametrize(
    "text", ["", "unix://", "unix://x/y", "ssh://me@there", "npipe:////./pipe/x", "tcp://:1", "tcp://a:b"]
)
def test_an_address_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="DOCKER_HOST"):
        address.parse(text, "DOCKER_HOST")


# ---- while a program runs

SLEEP = "print('up', flush=True); import time; time.sleep(60)"


@pytest.mark.usefixtures("docker")
def test_memory_names_the_setting_to_raise() -> None:
    with get_sandbox(type="docker", docker_memory_limit="64m", warm_cells=0) as sandbox:
        result = sandbox.execute("keep = b'x' * (200 << 20)")
    assert (result.exit_code, result.meta["reason"]) == (137, "memory")
    assert "64 MB" in result.stderr
    assert "DOCKER_MEMORY_LIMIT" in result.stderr


@pytest.mark.usefixtures("docker")
def test_the_data_stack_fits_in_the_default_memory() -> None:
    code = """
import numpy, polars, matplotlib.pyplot as plt, sklearn.linear_model
frame = polars.DataFrame({"a": range(1000), "b": range(1000)})
plt.plot(frame["a"], frame["b"]); plt.savefig("x.png")
print(sklearn.linear_model.LinearRegression().fit(frame[["a"]].to_numpy(), frame["b"]).coef_)
"""
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        result = sandbox.execute(code, timeout=90)
    assert (result.exit_code, result.stdout) == (0, "[1.]\n"), result


def test_a_container_that_is_killed_takes_a_session_with_it_and_the_next_call_starts_anew(docker: str) -> None:
    with open_session(type="docker", warm_cells=0) as session:
        assert wait_until(lambda: not containers_of(docker, os.getpid()))
        session.run("x = 1")
        (container,) = containers_of(docker, os.getpid())
        killer = threading.Timer(1, ask, (docker, "POST", f"/containers/{container['Id']}/kill"))
        killer.start()
        started = time.monotonic()
        with pytest.raises(SandboxLost):
            session.run(SLEEP, 30)
        assert time.monotonic() - started < 15
        killer.join()
        assert "NameError" in session.run("x").stderr
    assert wait_until(lambda: not containers_of(docker, os.getpid()))


def test_a_killed_daemon_is_told_in_time_and_nothing_is_left_after_the_next_start(docker_alone: Any) -> None:
    host = os.environ["DOCKER_HOST"]
    with open_session(type="docker", warm_cells=0) as session:
        session.run("x = 1")
        killer = threading.Timer(1, docker_alone.kill)
        killer.start()
        started = time.monotonic()
        with pytest.raises(SandboxLost):
            session.run(SLEEP, 30)
        assert time.monotonic() - started < 15
        killer.join()
        with pytest.raises(BackendUnavailable, match="Docker daemon not available"):
            session.run("1")
    docker_alone.start()
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        sandbox.check()
    assert containers_of(host, os.getpid()) == []
